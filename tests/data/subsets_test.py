import hashlib
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import config
from lm_mia.data import subsets
from lm_mia.data.subsets import TARGET_SEED, Design, ModelSeeds
from lm_mia.seeds import coins, permutation, rng

DESIGNS: list[Design] = [design for design in get_args(Design) if design != "given"]
"""The designs that draw membership."""

seeds = st.one_of(st.integers(0, 2**63), st.just(TARGET_SEED))
halves = st.integers(1, 60)
quick = settings(deadline=None, max_examples=50)


def philox4x64(seed: int, purpose: str, n: int) -> list[int]:
    """Computes the raw stream with Python integers: Philox4x64-10 (Salmon et al. 2011), from counter 1."""
    mask = 2**64 - 1
    digest = hashlib.sha256(f"{seed}:{purpose}".encode()).digest()
    words: list[int] = []
    for counter in range(1, -(-n // 4) + 1):
        k0, k1 = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8))
        x0, x1, x2, x3 = counter, 0, 0, 0
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
            x0, x1, x2, x3 = (b >> 64) ^ x1 ^ k0, b & mask, (a >> 64) ^ x3 ^ k1, a & mask
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
        words += [x0, x1, x2, x3]
    return words[:n]


def slow_member(seed: int, samples: int, design: str) -> list[bool]:
    if design == "bernoulli":
        return [word >= 2**63 for word in philox4x64(seed, "subset bernoulli", samples)]
    first = seed - seed % 2 if design == "balanced" else seed
    keys = philox4x64(first, f"subset {design}", samples)
    chosen = sorted(range(samples), key=lambda i: (keys[i], i))[: samples // 2]
    return [(i in chosen) != (design == "balanced" and seed % 2 == 1) for i in range(samples)]


@pytest.mark.parametrize(
    ("design", "seed", "ids"),
    [
        ("exact", 0, [0, 2, 3, 4, 6, 8]),
        ("exact", 1, [1, 2, 5, 6, 10, 11]),
        ("exact", TARGET_SEED, [0, 2, 5, 6, 7, 11]),
        ("bernoulli", 0, [0, 2, 3, 4, 5, 6, 8, 9]),
        ("bernoulli", TARGET_SEED, [2, 8, 10, 11]),
        ("balanced", 0, [2, 3, 5, 6, 7, 11]),
        ("balanced", 1, [0, 1, 4, 8, 9, 10]),
        ("balanced", TARGET_SEED, [1, 3, 4, 5, 6, 7]),
    ],
)
def test_membership_is_reproducible(design: Design, seed: int, ids: list[int]):
    assert np.flatnonzero(subsets.member(seed, 12, design)).tolist() == ids


@given(seeds, halves, st.sampled_from(DESIGNS))
@quick
def test_membership_equals_a_slow_reference(seed: int, half: int, design: Design):
    member_N2 = subsets.member(seed, 2 * half, design)
    assert (member_N2.dtype, member_N2.shape) == (bool, (2 * half,))
    assert member_N2.tolist() == slow_member(seed, 2 * half, design)


@given(seeds, st.integers(0, 50))
@quick
def test_permutations_and_coins_equal_a_slow_reference(seed: int, n: int):
    keys = philox4x64(seed, "p", n)
    order_N = permutation(seed, "p", n)
    assert order_N.dtype == np.int64
    assert order_N.tolist() == sorted(range(n), key=lambda i: keys[i])
    assert coins(seed, "p", n).tolist() == [key >= 2**63 for key in keys]


@given(seeds, halves)
@quick
def test_exact_and_balanced_subsets_are_halves(seed: int, half: int):
    assert subsets.member(seed, 2 * half, "exact").sum() == half
    assert subsets.member(seed, 2 * half, "balanced").sum() == half


@pytest.mark.parametrize("design", DESIGNS)
def test_seeds_and_designs_change_membership(design: Design):
    drawn = {subsets.member(seed, 64, design).tobytes() for seed in [*range(200), TARGET_SEED]}
    assert len(drawn) == 201
    assert np.array_equal(subsets.member(7, 64, design), subsets.member(7, 64, design))
    others = [subsets.member(7, 64, other) for other in DESIGNS if other != design]
    assert not any(np.array_equal(subsets.member(7, 64, design), other) for other in others)


@pytest.mark.parametrize("design", DESIGNS)
def test_memberships_are_independent_fair_coins(design: Design):
    """Shares of members, and agreement between models and between samples, are within 5 or 6 standard errors."""
    seed_step = 2 if design == "balanced" else 1  # one of each pair
    member_MxN = np.stack([subsets.member(seed_step * s, 100, design) for s in range(400)])
    assert np.abs(member_MxN.mean(0) - 0.5).max() < 5 * 0.5 / 400**0.5
    assert member_MxN.mean() == pytest.approx(0.5, abs=5 * 0.5 / 40_000**0.5)
    signs_MxN = 2.0 * member_MxN - 1
    between_rows = (signs_MxN @ signs_MxN.T)[np.triu_indices(400, 1)] / 100
    assert np.abs(between_rows).max() < 6 / 100**0.5
    assert abs(between_rows.mean()) < 5 / (100 * 400 * 399 / 2) ** 0.5
    between_samples = (signs_MxN.T @ signs_MxN)[np.triu_indices(100, 1)] / 400
    assert np.abs(between_samples).max() < 6 / 400**0.5
    # With a fixed size, two samples agree slightly less often than independent coins: the correlation is -1/99.
    expected = 0 if design == "bernoulli" else -1 / 99
    assert between_samples.mean() == pytest.approx(expected, abs=5 / (400 * 4950) ** 0.5)


def test_bernoulli_sizes_are_binomial():
    sizes = [int(subsets.member(seed, 100, "bernoulli").sum()) for seed in range(400)]
    assert np.mean(sizes) == pytest.approx(50, abs=5 * 5 / 20)
    assert np.var(sizes) == pytest.approx(25, rel=5 * (2 / 399) ** 0.5)


def test_bernoulli_memberships_extend_smaller_populations():
    whole = subsets.member(3, 50, "bernoulli")
    assert np.array_equal(subsets.member(3, 20, "bernoulli"), whole[:20])


@given(st.integers(0, 40), st.integers(1, 8), halves)
@quick
def test_balanced_blocks_have_each_sample_in_half(first: int, pairs: int, half: int):
    block = [ModelSeeds("reference", s, s, s) for s in range(2 * first, 2 * (first + pairs))]
    member_MxN2 = subsets.members(block, 2 * half, "balanced")
    assert (member_MxN2.sum(0) == pairs).all()
    assert (member_MxN2.sum(1) == half).all()


def test_a_target_is_never_a_reference_nor_its_complement():
    # With 2N = 40 there are 1.4e11 halves, so equal subsets by chance are practically impossible.
    for design in DESIGNS:
        *references, target = subsets.requested_seeds(256, 1)
        target_N2 = subsets.member(target.subset_seed, 40, design)
        for member_N2 in subsets.members(references, 40, design):
            assert (member_N2 != target_N2).any()
            assert (member_N2 == target_N2).any()
    assert TARGET_SEED % 2 == 0
    assert TARGET_SEED > 10**9


@pytest.mark.parametrize("design", DESIGNS)
def test_members_stacks_the_memberships_of_models(design: Design):
    block = subsets.requested_seeds(3, 2)
    member_MxN2 = subsets.members(block, 14, design)
    assert (member_MxN2.dtype, member_MxN2.shape) == (bool, (5, 14))
    for row, member_N2 in zip(block, member_MxN2, strict=True):
        assert member_N2.tolist() == slow_member(row.subset_seed, 14, design)
    assert np.array_equal(member_MxN2[3], member_MxN2[4])


def test_two_samples_have_one_member():
    assert {tuple(subsets.member(seed, 2, "exact").tolist()) for seed in range(20)} == {
        (True, False),
        (False, True),
    }


def test_models_of_an_attack():
    assert subsets.requested_seeds(2, 3) == [
        ModelSeeds("reference", 0, 0, 0),
        ModelSeeds("reference", 1, 1, 1),
        ModelSeeds("replica", TARGET_SEED, TARGET_SEED, 0),
        ModelSeeds("replica", TARGET_SEED, TARGET_SEED, 1),
        ModelSeeds("replica", TARGET_SEED, TARGET_SEED, 2),
    ]
    assert subsets.requested_seeds(0, 0) == []


@given(*[st.integers(0, 12)] * 4)
@quick
def test_growing_keeps_existing_models(references: int, replicas: int, more: int, again: int):
    small, large = (
        subsets.requested_seeds(references, replicas),
        subsets.requested_seeds(references + more, replicas),
    )
    assert set(small) <= set(large)
    assert set(large) <= set(subsets.requested_seeds(references + more, replicas + again))
    assert large[:references] == small[:references]
    assert len(large) == len(set(map(str, large))) == references + more + replicas


def test_models_are_named_by_role_and_number():
    """The number is the subset seed of a reference and the order seed of a replica."""
    assert (
        str(ModelSeeds("reference", 1, 2, 3))
        == ModelSeeds("reference", 1, 2, 3).name
        == "reference-01"
    )
    assert str(subsets.crossed(2, 3)) == "crossed-02-03"
    assert str(ModelSeeds("replica", 1, 2, 3)) == "replica-03"
    names = list(map(str, subsets.requested_seeds(129, 101)))
    assert names[:11:10] == ["reference-00", "reference-10"]
    assert names[99:101] + names[128:130] == [
        "reference-99",
        "reference-100",
        "reference-128",
        "replica-00",
    ]
    assert names[-1] == "replica-100"
    assert len(set(names)) == 230


def test_slow_stream_equals_numpy():
    assert philox4x64(3, "x", 9) == rng(3, "x").bit_generator.random_raw(9).tolist()


@given(seeds, halves, st.integers(0, 60), st.sampled_from(DESIGNS))
@quick
def test_only_canaries_are_in_or_out(seed: int, half: int, always_in: int, design: Design):
    member_N2 = subsets.member(seed, always_in + 2 * half, design, canaries=2 * half)
    expected = [True] * always_in + subsets.member(seed, 2 * half, design).tolist()
    assert member_N2.tolist() == expected
    if design == "balanced":
        other_N2 = subsets.member(seed + 1 - 2 * (seed % 2), len(member_N2), design, 2 * half)
        assert (member_N2 ^ other_N2).tolist() == [False] * always_in + [True] * 2 * half


def test_a_config_gives_the_membership_of_its_models():
    c = config.Config(
        population=config.Population(samples=30),
        train=config.Train(subset="balanced", canaries=10),
    )
    models = [subsets.reference(3), subsets.replica(1)]
    expected_MxN2 = subsets.members(models, 30, "balanced", 10)
    np.testing.assert_array_equal(
        [subsets.member_of_config(model, c) for model in models], expected_MxN2
    )
    assert expected_MxN2.sum(axis=1).tolist() == [25, 25]


def test_members_with_canaries():
    member_MxN = subsets.members([subsets.reference(0), subsets.replica(3)], 7, "exact", 4)
    assert member_MxN.dtype == bool
    assert member_MxN[:, :3].all()
    assert member_MxN[:, 3:].sum(axis=1).tolist() == [2, 2]
    assert not np.array_equal(member_MxN[0], member_MxN[1])


def test_crossed_models_have_the_orders_of_replicas():
    without = subsets.requested_seeds(3, 4)
    models = subsets.requested_seeds(3, 4, 3, 2)
    assert models[: len(without)] == without == subsets.requested_seeds(3, 4, 1, 2)
    crossed = models[len(without) :]
    assert crossed == [subsets.crossed(i, b) for i in (1, 2) for b in (0, 1)]
    assert {model.subset_seed for model in crossed} == {TARGET_SEED}
    assert len({model.init_seed for model in [*without, *crossed]}) == 3 + 1 + 2
    assert {model.order_seed for model in crossed} == {0, 1}
