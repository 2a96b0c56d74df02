"""Which training subsets are recognized as related, and what is left out because of it."""

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import subset_designs as draw

from lm_mia import stats
from lm_mia.stats import design
from lm_mia.stats.design import Design, design_of

ROUNDS = 6
Drawn = Callable[[np.random.Generator, int, int], np.ndarray]
INDEPENDENT: dict[str, Drawn] = {
    **{
        f"{share:.0%} of members": lambda rng, M, N, share=share: rng.random((M, N)) < share
        for share in (0.05, 0.2, 0.5, 0.8)
    },
    "one half, otherwise 5%": lambda rng, M, N: (
        rng.random((M, N)) < np.where(np.arange(M) == 0, 0.5, 0.05)[:, None]
    ),
    "unequal shares": lambda rng, M, N: rng.random((M, N)) < rng.uniform(0.2, 0.8, (M, 1)),
    "exact halves": draw.exact,
}
PAIRS: dict[str, Drawn] = {
    "all drawn": draw.pairs,
    "one never trained": lambda rng, M, N: draw.with_untrained(draw.pairs(rng, M, N - 1), 1),
    "10% never trained": lambda rng, M, N: draw.with_untrained(
        draw.pairs(rng, M, N - N // 10), N // 10
    ),
    "half never trained": lambda rng, M, N: draw.with_untrained(draw.pairs(rng, M, N // 2), N // 2),
    "10% always trained": lambda rng, M, N: draw.with_always_trained(
        draw.pairs(rng, M, N - N // 10), N // 10
    ),
}


def alone(models: int) -> list[int]:
    return [*range(models)]


@pytest.mark.parametrize("models", [3, 4, 6, 8, 16, 64])
@pytest.mark.parametrize("samples", [64, 200, 2000])
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_subsets_have_no_relation(name: str, models: int, samples: int):
    for seed in range(ROUNDS):
        found = design_of(INDEPENDENT[name](np.random.default_rng(seed), models, samples))
        assert found.is_independent
        assert found.group_M.tolist() == found.subset_M.tolist() == alone(models)
        assert not found.has_complements


@pytest.mark.parametrize("models", [4, 6, 8, 16, 64])
@pytest.mark.parametrize("samples", [64, 200, 2000])
@pytest.mark.parametrize("name", PAIRS)
def test_complements_are_one_group(name: str, models: int, samples: int):
    for seed in range(ROUNDS):
        member_MxN = PAIRS[name](np.random.default_rng(seed), models, samples)
        found = design_of(member_MxN)
        assert found.group_M.tolist() == [m // 2 for m in range(models)]
        assert found.subset_M.tolist() == alone(models)
        assert found.has_complements
        assert found.overlap is None
        assert not found.columns
        assert design.complements(found).tolist() == [m ^ 1 for m in range(models)]


@pytest.mark.parametrize("subsets", [4, 8, 32])
@pytest.mark.parametrize("share_of_changes", [0, 0.01])
def test_models_with_the_same_subset_are_one_group(subsets: int, share_of_changes: float):
    for seed, samples in itertools.product(range(ROUNDS), (200, 2000)):
        rng = np.random.default_rng(seed)
        member_MxN = draw.seeds(draw.exact(rng, subsets, samples))
        member_MxN[1] ^= rng.random(samples) < share_of_changes
        found = design_of(member_MxN)
        assert found.group_M.tolist() == found.subset_M.tolist()
        assert found.group_M.tolist() == [m // 2 for m in range(2 * subsets)]
        assert (found.overlap, found.columns, found.has_complements) == (None, False, False)
        assert set(design.complements(found)) == {-1}


@pytest.mark.parametrize("subsets", [4, 6, 8, 16, 64])
@pytest.mark.parametrize(("samples", "seeds_of_each"), [(200, 1), (200, 2), (2000, 1), (2000, 2)])
def test_equal_numbers_of_models_per_sample_are_columns(
    subsets: int, samples: int, seeds_of_each: int
):
    for seed in range(ROUNDS):
        member_SxN = draw.columns(np.random.default_rng(seed), subsets, samples - samples // 4)
        member_SxN = draw.with_untrained(member_SxN, samples // 4)
        found = design_of(draw.seeds(member_SxN, seeds_of_each))
        assert found.columns
        assert found.overlap is None
        assert found.group_M.tolist() == [m // seeds_of_each for m in range(len(found.group_M))]


@pytest.mark.parametrize(("models", "correlation"), [(8, 0.1), (16, 0.1), (32, 0.2), (64, 0.2)])
def test_overlapping_subsets_are_found(models: int, correlation: float):
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        found = design_of(draw.overlapping(rng, models, 2000, correlation))
        assert found.overlap is not None
        assert not found.is_independent
        with pytest.raises(ValueError, match=r"models \d+ and \d+ "):
            design.check_no_overlap(found)


@pytest.mark.parametrize("references", [4, 8, 16, 31, 64])
@pytest.mark.parametrize("untrained", [0, 500])
def test_related_references_are_no_overlap_with_an_independent_target(
    references: int, untrained: int
):
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        related_RxN = draw.columns(rng, references, 2000)
        target_1xN = draw.exact(rng, 1, 2000)
        member_MxN = draw.with_untrained(np.concatenate([target_1xN, related_RxN]), untrained)
        found = design_of(member_MxN, [0])
        assert (found.overlap, found.columns) == (None, False)
        assert found.group_M.tolist() == alone(references + 1)


def test_related_references_overlap_if_each_is_attacked():
    rng = np.random.default_rng(0)
    member_MxN = np.concatenate([draw.exact(rng, 1, 2000), draw.columns(rng, 16, 2000)])
    found = design_of(member_MxN)
    assert found.overlap is not None
    assert found.overlap == design_of(member_MxN, alone(17)).overlap


def test_a_target_that_overlaps_its_references_is_named():
    for seed in range(ROUNDS):
        rng = np.random.default_rng(seed)
        member_RxN = draw.exact(rng, 16, 8000)
        # The target copies half of its samples from the first reference, and draws the others.
        copied_N = np.where(rng.random(8000) < 0.5, member_RxN[0], rng.random(8000) < 0.5)
        independent_N = rng.random(8000) < 0.5
        member_MxN = np.stack([independent_N, copied_N, *member_RxN])
        assert design_of(member_MxN, [0, 1]).overlap == (1, 2)
        assert design_of(member_MxN, [0]).overlap is None


def test_the_two_models_that_overlap_most_are_named():
    rng = np.random.default_rng(0)
    member_MxN = rng.random((8, 4000)) < 0.5
    is_same_N = rng.random(4000) < 0.7
    member_MxN[5, is_same_N] = member_MxN[2, is_same_N]
    assert design_of(member_MxN).overlap == (2, 5)


def test_groups_are_numbered_in_the_order_of_the_models():
    first, second, third = np.random.default_rng(0).random((3, 500)) < 0.5
    found = design_of(np.array([first, second, ~first, third, first, second]))
    assert found.group_M.tolist() == [0, 1, 0, 2, 0, 1]
    assert found.subset_M.tolist() == [0, 1, 2, 3, 0, 1]
    assert design.complements(found).tolist() == [2, -1, 0, -1, -1, -1]
    part = found.select(np.array([5, 2, 4]))
    assert part.group_M.tolist() == [0, 1, 1]
    assert part.subset_M.tolist() == [0, 1, 2]


def test_two_models_are_compared_on_all_samples():
    first, second = np.random.default_rng(0).random((2, 100)) < 0.5
    assert design_of(np.array([first, second])).group_M.tolist() == [0, 1]
    assert design_of(np.array([first, ~first])).group_M.tolist() == [0, 0]
    assert design_of(np.array([first, first])).subset_M.tolist() == [0, 0]
    assert design_of(np.array([first, ~first])[:, :20]).group_M.tolist() == [0, 1]


def test_few_members_show_no_relation():
    member_64xN = np.random.default_rng(0).random((64, 300)) < 0.02
    member_64xN[1] = member_64xN[0]
    assert design_of(member_64xN).is_independent


def test_a_design_without_varying_samples_has_no_relation():
    assert design_of(np.zeros((3, 100), bool)).is_independent
    assert design_of(np.zeros((3, 0), bool)).is_independent
    assert design_of(np.zeros((0, 5), bool)).group_M.size == 0


def test_models_that_all_have_the_same_subset_are_one_group():
    assert design_of(np.tile(np.arange(40) < 20, (5, 1))).subset_M.tolist() == [0] * 5
    assert design_of(np.tile(np.arange(20) < 10, (5, 1))).subset_M.tolist() == [0, 1, 2, 3, 4]


def test_some_samples_show_the_design_of_all():
    rng = np.random.default_rng(0)
    member_MxN = draw.with_untrained(draw.pairs(rng, 8, 40_000), 30_000)
    index_V = design.design_samples(
        np.logical_or.reduce(member_MxN), np.logical_and.reduce(member_MxN), 8
    )
    assert len(index_V) == 2**14
    assert index_V.max() == 39_999
    some, every = design_of(member_MxN[:, index_V]), design_of(member_MxN)
    assert some.group_M.tolist() == every.group_M.tolist() == [m // 2 for m in range(8)]


@pytest.mark.parametrize("models", [3, 5, 9])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, None])
def test_correlations_of_independent_subsets_by_enumeration(models: int, p: float | None):
    """None: each subset has another share."""
    p_G = np.full(models, p) if p else np.linspace(0.1, 0.8, models)
    rows_KxG = np.array([*itertools.product((0, 1), repeat=models)])
    weight_K = np.where(rows_KxG, p_G, 1 - p_G).prod(axis=1)
    weight_K[[0, -1]] = 0  # in no subset, and in all
    weight_K /= weight_K.sum()
    mean_G = weight_K @ rows_KxG
    covariance_GxG = (rows_KxG.T * weight_K) @ rows_KxG - mean_G[:, None] * mean_G
    sd_G = np.sqrt(np.diag(covariance_GxG))
    expected_GxG = covariance_GxG / sd_G[:, None] / sd_G
    is_other_GxG = ~np.eye(models, dtype=bool)
    actual_GxG = design.independent_phi(mean_G)
    np.testing.assert_allclose(actual_GxG[is_other_GxG], expected_GxG[is_other_GxG], atol=1e-8)
    if p == 0.5:
        assert actual_GxG[0, 1] == pytest.approx(-1 / (2 ** (models - 1) - 1))


def test_correlations_of_subsets_that_share_no_sample():
    for share in (1 / 5, 4 / 5):
        assert design.independent_phi(np.full(5, share))[0, 1] == pytest.approx(-1 / 4, abs=0.01)


@pytest.mark.parametrize("drawn", [1, 2, 3, 4, 8])
def test_models_without_members_say_nothing_about_the_others(drawn: int):
    for seed in range(ROUNDS):
        member_MxN = np.random.default_rng(seed).random((drawn, 3000)) < 0.5
        member_MxN = np.concatenate([member_MxN, np.zeros((4, 3000), bool)])
        found = design_of(member_MxN)
        assert found.is_independent
        assert found.fixed[-4:] == (drawn, drawn + 1, drawn + 2, drawn + 3)
        member_MxN[-1] = True
        assert design_of(member_MxN).is_independent


def test_models_without_members_are_no_partners():
    member_MxN = draw.columns(np.random.default_rng(0), 6, 200)
    member_MxN = np.insert(member_MxN, 2, False, axis=0)
    found = design_of(member_MxN)
    assert (found.columns, found.fixed) == (True, (2,))
    partner_GxN = design.partners(found, member_MxN, np.arange(200))
    assert (partner_GxN[2] == -1).all()
    others_GxN = np.delete(partner_GxN, 2, axis=0)
    assert {*np.unique(others_GxN)} == {0, 1, 3, 4, 5, 6}
    opposite_GxN = np.take_along_axis(member_MxN, others_GxN, axis=0)
    np.testing.assert_array_equal(opposite_GxN, ~np.delete(member_MxN, 2, axis=0))


def test_partners_of_one_sample_by_hand(monkeypatch: pytest.MonkeyPatch):
    """Keys order the IN subsets as 3, 0 and the OUT subsets as 4, 1, 2."""
    order = {3: 1, 0: 2, 4: 3, 1: 4, 2: 5}
    monkeypatch.setattr(
        design,
        "keys",
        lambda seed, purpose, id_C: np.array([order[int(purpose[-1])] * 2], np.uint64),
    )
    member_5x1 = np.array([[True], [False], [False], [True], [False]])
    of_columns = Design(np.arange(5), np.arange(5), columns=True)
    # 3 is first among IN, so its partner is 4; 0 has 1. The OUT subsets 4, 1, 2 take turns among 3, 0.
    assert design.partners(of_columns, member_5x1, np.array([0])).T.tolist() == [[1, 0, 3, 4, 3]]
    assert design.left_out(of_columns, member_5x1, 0, np.array([0])).T.tolist() == [
        [True, True, False, False, False]
    ]


@pytest.mark.parametrize(("subsets", "seeds_of_each"), [(4, 1), (6, 1), (4, 2)])
def test_what_partners_leave_says_nothing_about_membership(subsets: int, seeds_of_each: int):
    samples = 60_000
    member_SxN = draw.columns(np.random.default_rng(1), subsets, samples)
    member_MxN = draw.seeds(member_SxN, seeds_of_each)
    found = design_of(member_MxN)
    for model in (0, len(member_MxN) - 1):
        is_left_out_MxN = design.left_out(found, member_MxN, model, np.arange(samples))
        state_MxN = np.where(is_left_out_MxN, 2, member_MxN)
        state_SxN = state_MxN[::seeds_of_each]
        assert (state_MxN[seeds_of_each - 1 :: seeds_of_each] == state_SxN).all()
        assert set((state_SxN == 1).sum(axis=0)) == {subsets // 2 - 1}
        assert set((state_SxN == 0).sum(axis=0)) == {subsets // 2 - 1}
        tables = [
            Counter(map(bytes, state_SxN[:, is_member_N].astype(np.uint8).T))
            for is_member_N in (member_MxN[model], ~member_MxN[model])
        ]
        kinds = sorted(tables[0] | tables[1])
        count_2xK = np.array([[table[kind] for kind in kinds] for table in tables])
        assert len(kinds) == {4: 6, 6: 30}[subsets]
        expected = count_2xK.sum(axis=1).mean() / len(kinds)
        assert np.abs(count_2xK - expected).max() < 5 * np.sqrt(expected)


def test_partners_are_the_same_in_any_block_and_order():
    member_MxN = draw.columns(np.random.default_rng(1), 8, 300)
    found, id_N = design_of(member_MxN), np.arange(300) + 7
    partner_GxN = design.partners(found, member_MxN, id_N)
    order_N = np.random.default_rng(2).permutation(300)
    np.testing.assert_array_equal(
        design.partners(found, member_MxN[:, order_N], id_N[order_N]), partner_GxN[:, order_N]
    )
    np.testing.assert_array_equal(
        design.partners(found, member_MxN[:, 40:50], id_N[40:50]), partner_GxN[:, 40:50]
    )
    opposite_GxN = np.take_along_axis(member_MxN, partner_GxN, axis=0)
    np.testing.assert_array_equal(opposite_GxN, ~member_MxN)


def test_samples_of_no_model_have_no_partner():
    member_MxN = draw.with_untrained(draw.columns(np.random.default_rng(1), 4, 100), 3)
    partner_GxN = design.partners(design_of(member_MxN), member_MxN, np.arange(103))
    assert (partner_GxN[:, 100:] == -1).all()
    assert (partner_GxN[:, :100] >= 0).all()


def test_members_must_be_booleans_with_two_dimensions():
    with pytest.raises(ValueError, match="booleans"):
        stats.design_of(np.zeros((3, 4)))
    with pytest.raises(ValueError, match="models x samples"):
        stats.design_of(np.zeros(4, bool))
