"""Moments and scores without each model and what is left out with it, against refits and `lira`."""

import sys
from typing import Any

import numpy as np
import pytest
import subset_designs as draw
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_moments import assert_same_moments, difficult_losses, exact_moments, random_losses

from lm_mia import stats
from lm_mia.stats.design import left_out
from lm_mia.stats.leave_one_out import leave_one_out_moments, left_out_by_design
from lm_mia.stats.moments import class_moments

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


DESIGNS: dict[str, stats.Design] = {
    "alone": stats.Design(np.arange(8), np.arange(8)),
    "pairs": stats.Design(np.arange(8) // 2, np.arange(8)),
    "two seeds": stats.Design(np.arange(8) // 2, np.arange(8) // 2),
    "pairs with two seeds": stats.Design(
        np.array([0, 0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 2, 2, 3, 3])
    ),
    "groups of other sizes": stats.Design(
        np.array([0, 1, 0, 2, 3, 0, 1, 0]), np.array([0, 1, 0, 2, 3, 0, 1, 0])
    ),
    "columns": stats.Design(np.arange(8), np.arange(8), columns=True),
    "columns with two seeds": stats.Design(np.arange(8) // 2, np.arange(8) // 2, columns=True),
}


def members(name: str, samples: int) -> np.ndarray:
    """Returns member_8xN of a design; the last 3 samples are in no subset, if it has columns or pairs."""
    rng = np.random.default_rng(samples)
    if name == "alone" or name == "groups of other sizes":
        return rng.random((8, samples)) < 0.5
    if name == "two seeds":
        return draw.seeds(rng.random((4, samples)) < 0.5)
    subsets, seeds = (4, 2) if "seeds" in name else (8, 1)
    drawn = draw.columns if "columns" in name else draw.pairs
    return draw.with_untrained(draw.seeds(drawn(rng, subsets, samples - 3), seeds), 3)


def case(name: str, samples: int = 90, missing: float = 0.03) -> tuple[np.ndarray, np.ndarray]:
    """Returns losses, of which some are missing, and members of a design."""
    loss_MxN, _ = random_losses(samples, 8, samples, missing)
    member_MxN = members(name, samples)
    return loss_MxN - 0.4 * member_MxN, member_MxN


def references(
    name: str, loss_MxN: np.ndarray, member_MxN: np.ndarray, m: int, id_N: Any = None
) -> np.ndarray:
    """Returns the losses under the references of model m; those that are left out are missing."""
    id_N = np.arange(loss_MxN.shape[1]) if id_N is None else id_N
    return np.where(left_out(DESIGNS[name], member_MxN, m, id_N), np.nan, loss_MxN)


def lira_by_loop(
    loss_MxN: np.ndarray, member_MxN: np.ndarray, name: str = "alone", **mode: Any
) -> np.ndarray:
    """Scores each model against the others by `lira`, where these include both classes."""
    design = DESIGNS[name] if name != "alone" else None
    scores = []
    for m, loss_N in enumerate(loss_MxN):
        if design is None:
            used_MxN = np.where(np.arange(len(loss_MxN))[:, None] == m, np.nan, loss_MxN)
        else:
            used_MxN = references(name, loss_MxN, member_MxN, m)
        [score_N] = stats.lira(loss_N, used_MxN, member_MxN, **mode)
        is_present_MxN = ~np.isnan(used_MxN)
        has_both_N = (is_present_MxN & member_MxN).any(axis=0)
        has_both_N &= (is_present_MxN & ~member_MxN).any(axis=0)
        scores.append(np.where(has_both_N, score_N, np.nan))
    return np.array(scores)


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_leave_one_out_moments_equal_refits(offset: float, name: str):
    cases = [case(name, 30, 0.3), case(name, 8, 0), case(name, 40, 0)]
    cases[2][0][:, :10] = 0.1  # equal losses
    cases[2][0][1:, 10:20] = 0.1  # equal losses but one
    cases[2][0][2:, 20:30] = 0.1  # equal losses but two
    # Without the columns of two outliers: in one class, these cancel, and the mean loses its precision.
    loss_MxN = np.delete(difficult_losses(np.float32)[0], slice(30, 40), 1)[
        [0, 1, 2, 3, 4, 5, 7, 8]
    ]
    cases.append((loss_MxN, members(name, loss_MxN.shape[1])))
    for loss_MxC, member_MxC in cases:
        loss_MxC = loss_MxC + offset
        left = left_out_by_design(member_MxC, DESIGNS[name], None)
        classes = leave_one_out_moments(loss_MxC, member_MxC, left)
        for is_in, actual in zip((True, False), classes, strict=True):
            assert actual.mean.shape == loss_MxC.shape
            for m in range(len(loss_MxC)):
                used_MxC = references(name, loss_MxC, member_MxC, m)
                for c in range(loss_MxC.shape[1]):
                    values = used_MxC[member_MxC[:, c] == is_in, c]
                    expected = exact_moments(values)
                    assert_same_moments(actual, (m, c), expected, rtol=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DESIGNS)
def test_scores_equal_lira_of_the_models_that_remain(name: str, mode: Any):
    loss_MxN, member_MxN = case(name)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, design=DESIGNS[name])
    expected = lira_by_loop(loss_MxN, member_MxN, name, **mode)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)
    needed = 2 if mode["variance"] == "per_sample" else 1
    if name != "columns with two seeds" or needed == 1:
        assert np.isfinite(actual).mean() > 0.2
    if "columns" in name or "pairs" in name:
        assert np.isnan(actual[:, -3:]).all()


@pytest.mark.parametrize("name", ["pairs", "two seeds", "columns"])
def test_the_design_is_recognized(name: str):
    loss_MxN, member_MxN = case(name, 300)
    for function in (stats.lira_leave_one_out, stats.leave_one_out_scatter):
        np.testing.assert_array_equal(
            function(loss_MxN, member_MxN),
            function(loss_MxN, member_MxN, design=DESIGNS[name], id_N=np.arange(300)),
        )


def test_overlapping_subsets_are_refused():
    member_MxN = draw.overlapping(np.random.default_rng(0), 8, 2000, 0.2)
    loss_MxN = np.random.default_rng(1).random(member_MxN.shape)
    for function in (
        stats.lira_leave_one_out,
        stats.leave_one_out_scatter,
        stats.standardized_leave_one_out,
    ):
        with pytest.raises(ValueError, match=r"models \d and \d "):
            function(loss_MxN, member_MxN)


def test_designs_and_ids_of_other_arrays_are_refused():
    loss_MxN, member_MxN = case("alone")
    with pytest.raises(ValueError, match=r"^design: "):
        stats.lira_leave_one_out(loss_MxN[1:], member_MxN[1:], design=DESIGNS["alone"])
    with pytest.raises(ValueError, match=r"^id_N of shape \(3,\)"):
        stats.lira_leave_one_out(loss_MxN, member_MxN, id_N=np.arange(3))


def slow_moments(
    loss_MxN: np.ndarray, member_MxN: np.ndarray, complement_M: np.ndarray | None
) -> list[list[np.ndarray]]:
    """The moments of version 0.2: count, mean and squares of both classes without each model and its complement."""
    in_moments, out_moments, deviation_MxN = class_moments(loss_MxN, member_MxN)
    result = []
    for is_in, moments in ((True, in_moments), (False, out_moments)):
        count, mean, squares = (
            np.repeat(values[None], len(loss_MxN), axis=0)
            for values in (moments.count, moments.mean, moments.squares)
        )
        for m in range(len(loss_MxN)):
            models = [m] if complement_M is None else [m, complement_M[m]]
            for left, n in ((left, n) for left in models for n in range(loss_MxN.shape[1])):
                if member_MxN[left, n] != is_in:
                    continue
                deviation = deviation_MxN[left, n]
                count[m, n] -= 1
                divisor = max(count[m, n], 1)
                mean[m, n] = mean[m, n] - deviation / divisor
                squares[m, n] -= deviation * deviation * ((divisor + 1) / divisor)
        result.append([count, mean, squares])
    return result


@pytest.mark.parametrize("name", ["alone", "pairs"])
def test_designs_of_version_0_2_give_the_same_bits(name: str):
    rng = np.random.default_rng(0)
    drawn = draw.pairs if name == "pairs" else draw.exact
    member_MxN = drawn(rng, 8, 400)
    loss_MxN = rng.normal(3, 0.5, member_MxN.shape).astype(np.float32)
    complement_M = np.arange(8) ^ 1 if name == "pairs" else None
    expected = slow_moments(loss_MxN, member_MxN, complement_M)
    actual = leave_one_out_moments(loss_MxN, member_MxN, left_out_by_design(member_MxN, None, None))
    # Sums of which nearly nothing remains are computed again.
    for moments, (count, mean, squares) in zip(actual, expected, strict=True):
        is_kept = count > 1
        for a, e in ((moments.count, count), (moments.mean, mean), (moments.squares, squares)):
            assert np.array_equal(a[is_kept], e[is_kept])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_leave_one_out_equals_lira_of_each_model(mode: Any, kind: type):
    # Around 1e6, means have rounding errors of 1e-10 at spreads of 1e-3.
    for (loss_MxN, member_MxN), tolerance in (
        (difficult_losses(kind), 1e-5),
        (random_losses(7, 8, 30, 0.1), 1e-8),
        (random_losses(9, 4, 60, 0.2), 1e-8),
    ):
        actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
        expected = lira_by_loop(loss_MxN, member_MxN, **mode)
        assert actual.dtype == np.float64
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
    loss_MxN, member_MxN = difficult_losses(kind)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    assert np.isnan(actual[4]).all()
    if mode["variance"] == "per_sample":
        assert np.isnan(actual[0, 40:50]).all()  # without model 0 all losses of its class are equal
        assert np.isnan(actual[:, 50:]).all()
        assert not np.isnan(actual[:3, :10]).all()


@pytest.mark.parametrize("mode", MODES)
def test_leave_one_out_equals_lira_with_sampled_share(mode: Any):
    loss_MxN, member_MxN = random_losses(4, 8, 20, 0.1)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    expected = lira_by_loop(loss_MxN, member_MxN, **mode, sampled_share=0.5)
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-1e3, 1e3))
def test_leave_one_out_is_invariant_to_order_and_shift(mode: Any, seed: int, shift: float):
    loss_MxN, member_MxN = random_losses(seed, 8, 20, 0.1)
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode)
    order = np.random.default_rng(seed).permutation(8)
    by_rows = stats.lira_leave_one_out(loss_MxN[order], member_MxN[order], **mode)
    np.testing.assert_allclose(by_rows, actual[order], rtol=1e-8, atol=1e-9)
    well_conditioned = np.abs(actual) < 1e4  # nearly equal references amplify rounding errors
    shifted = stats.lira_leave_one_out(loss_MxN + shift, member_MxN, **mode)
    np.testing.assert_allclose(
        shifted[well_conditioned], actual[well_conditioned], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", DESIGNS)
def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch, name: str):
    loss_MxN, member_MxN = case(name, 41, 0.1)
    blocks = [slice(0, 7), slice(7, 8), slice(8, 41)]
    id_N, design = np.arange(41) + 5, DESIGNS[name]
    variances: list[Any] = ["per_sample", "pooled"]

    def leave_one_out(**mode: Any) -> np.ndarray:
        return stats.lira_leave_one_out(loss_MxN, member_MxN, design=design, id_N=id_N, **mode)

    left = {v: leave_one_out(variance=v) for v in variances}
    parts = [
        ((loss_MxN[:, b], member_MxN[:, b]), {"design": design, "id_N": id_N[b]}) for b in blocks
    ]
    total = np.sum([stats.leave_one_out_scatter(*a, **of_block) for a, of_block in parts], axis=0)
    whole_Mx2x2 = stats.leave_one_out_scatter(loss_MxN, member_MxN, design=design, id_N=id_N)
    np.testing.assert_allclose(whole_Mx2x2, total, rtol=1e-12)
    for m in range(8):
        used_MxN = references(name, loss_MxN, member_MxN, m, id_N)
        others = stats.within_sample_scatter(stats.fit_gaussians(used_MxN, member_MxN))
        np.testing.assert_allclose(total[m], others, rtol=1e-9)
    for b, (arrays, of_block) in zip(blocks, parts, strict=True):
        actual = stats.lira_leave_one_out(
            *arrays, variance="pooled", scatter_Mx2x2=total, **of_block
        )
        np.testing.assert_allclose(actual, left["pooled"][:, b], rtol=1e-10)
    monkeypatch.setattr(sys.modules["lm_mia.stats.lira"], "_CHUNK", 7)
    for variance, whole in left.items():
        actual = leave_one_out(variance=variance)
        np.testing.assert_allclose(actual, whole, rtol=1e-12)
