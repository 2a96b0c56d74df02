"""Tests of moments with and without a left-out model, and of leave-one-out scores against `lira`."""

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats import likelihood_ratio
from lm_mia.stats.likelihood_ratio import (
    Moments,
    as_bit_mask,
    as_finite_float64,
    class_moments,
    leave_one_out_moments,
    own_class_moments,
    select_by_mask,
)

MODES: list[Any] = [
    {"variance": v, "offline": o} for v in ("per_sample", "pooled") for o in (False, True)
]


def exact_moments(values: Any) -> tuple[int, float, float]:
    """Computes count, mean and sum of squared deviations exactly; the mean is 0 without values."""
    present = [Fraction(float(v)) for v in values if not math.isnan(v)]
    if not present:
        return 0, 0.0, 0.0
    mean = sum(present) / len(present)
    return len(present), float(mean), float(sum((v - mean) ** 2 for v in present))


def assert_same_moments(
    actual: Moments, index: Any, expected: tuple[int, float, float], rtol: float = 1e-9
):
    count, mean, squares = (a[index] for a in (actual.count, actual.mean, actual.squares))
    assert count == expected[0]
    assert np.isfinite([mean, squares]).all()
    if count:
        assert mean == pytest.approx(expected[1], rel=1e-12)
        assert squares == pytest.approx(expected[2], rel=rtol, abs=1e-300)
        assert (squares == 0) == (expected[2] == 0)


def random_losses(seed: int, M: int, N: int, missing: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    member_MxN = rng.random((M, N)) < 0.5
    loss_MxN = rng.normal(3, 0.5, (M, N)) - 0.4 * member_MxN
    loss_MxN[rng.random((M, N)) < missing] = np.nan
    return loss_MxN, member_MxN


def is_reference(models: int, m: int, pairs: bool) -> np.ndarray:
    """Returns which models are the references of model m: all others, or those of all other pairs."""
    index_M = np.arange(models)
    return index_M // 2 != m // 2 if pairs else index_M != m


def lira_by_loop(
    loss_MxN: np.ndarray, member_MxN: np.ndarray, pairs: bool = False, **mode: Any
) -> np.ndarray:
    """Scores each model against the others by `lira`."""
    scores = []
    for m, loss_N in enumerate(loss_MxN):
        is_reference_M = is_reference(len(loss_MxN), m, pairs)
        scores.append(
            stats.lira(loss_N, loss_MxN[is_reference_M], member_MxN[is_reference_M], **mode)[0]
        )
    return np.array(scores)


def in_pairs(member_MxN: np.ndarray) -> np.ndarray:
    """Returns membership in which each odd model is the complement of the one before; without the last of an odd
    number."""
    return np.concatenate([[m, ~m] for m in member_MxN[: len(member_MxN) // 2 * 2 : 2]])


def difficult_losses(kind: type) -> tuple[np.ndarray, np.ndarray]:
    """Returns tens of columns: small spread, also far from 0, one outlier, two outliers, all but one equal, all
    equal."""
    rng = np.random.default_rng(8)
    loss_MxN = 1e-3 * rng.normal(size=(9, 60))
    member_MxN = rng.random((9, 60)) < 0.5
    member_MxN[:3, :50] = [[True], [True], [False]]
    loss_MxN[:, 10:20] += 1e6
    loss_MxN[0, 20:25] += 1e6
    loss_MxN[0, 25:30] += 100.0
    loss_MxN[[1, 2], 30:40] += [[1e6], [-1e6]]
    loss_MxN[1:, 40:50] = 0.1
    loss_MxN[:, 50:] = 0.3
    loss_MxN[4] = np.nan
    return loss_MxN.astype(kind), member_MxN


def test_moments_by_hand():
    t, f, nan = True, False, np.nan
    # First sample: IN 1, 3 (mean 2, squares 2), OUT 4, 6, 8 (mean 6, squares 8). Second sample: IN 5, no OUT.
    loss_MxC = np.array([[1.0, 5], [3, nan], [4, nan], [6, nan], [8, nan]])
    member_MxC = np.array([[t, t], [t, f], [f, f], [f, f], [f, f]])
    inside, outside, deviation_MxC = class_moments(loss_MxC, member_MxC)
    np.testing.assert_array_equal(inside.count, [2, 1])
    np.testing.assert_array_equal(inside.mean, [2, 5])
    np.testing.assert_array_equal(inside.squares, [2, 0])
    np.testing.assert_array_equal(outside.count, [3, 0])
    assert (outside.mean[0], outside.squares[0], outside.squares[1]) == (6, 8, 0)
    np.testing.assert_array_equal(deviation_MxC[:, 0], [-1, 1, -2, 0, 2])
    np.testing.assert_array_equal(deviation_MxC[:, 1], 0)
    own, all_in, all_out = own_class_moments(loss_MxC, member_MxC)
    np.testing.assert_array_equal(own.count[:, 0], [1, 1, 2, 2, 2])
    np.testing.assert_allclose(own.mean[:, 0], [3, 1, 7, 6, 5], rtol=1e-15)
    np.testing.assert_allclose(own.squares[:, 0], [0, 0, 2, 8, 2], rtol=1e-15)
    assert own.count[0, 1] == 0
    np.testing.assert_array_equal(own.count[1:, 1], 0)  # leaving out a missing loss changes nothing
    np.testing.assert_array_equal(all_in.squares, inside.squares)
    np.testing.assert_array_equal(all_out.mean, outside.mean)


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_moments_equal_rational_arithmetic(kind: type):
    # Only the last models are IN, with equal losses.
    late_MxN, late_member_MxN = random_losses(4, 20, 12, 0.1)
    late_member_MxN[:18], late_member_MxN[18:] = False, True
    late_MxN[18:] = 0.1
    late_MxN[0] = 1e6
    cases = [
        difficult_losses(kind),
        random_losses(1, 7, 30, 0.3),
        random_losses(2, 2, 8, 0),
        random_losses(3, 1, 4, 0),
    ]
    cases.append((late_MxN.astype(kind), late_member_MxN))
    for loss_MxC, member_MxC in cases:
        inside, outside, deviation_MxC = class_moments(loss_MxC, member_MxC)
        own, *both = own_class_moments(loss_MxC, member_MxC)
        assert both[0].mean.dtype == np.float64
        for c in range(loss_MxC.shape[1]):
            classes = {}
            for is_in, actual, other in ((True, inside, both[0]), (False, outside, both[1])):
                values = np.where(member_MxC[:, c] == is_in, loss_MxC[:, c], np.nan)
                classes[is_in] = values, exact_moments(values)
                assert_same_moments(actual, c, classes[is_in][1])
                assert_same_moments(other, c, classes[is_in][1])
            for m in range(len(loss_MxC)):
                values, (_, mean, squares) = classes[bool(member_MxC[m, c])]
                rest = values.copy()
                rest[m] = np.nan
                assert_same_moments(own, (m, c), exact_moments(rest))
                expected_deviation = (
                    0.0 if np.isnan(loss_MxC[m, c]) else float(loss_MxC[m, c]) - mean
                )
                tolerance = 1e-9 * (abs(expected_deviation) + math.sqrt(squares)) + 2e-10
                assert abs(deviation_MxC[m, c] - expected_deviation) <= tolerance


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_leave_one_out_moments_equal_refits(offset: float, pairs: bool):
    cases = [random_losses(1, 8, 30, 0.3), random_losses(2, 2, 8, 0), random_losses(3, 16, 40, 0)]
    cases[2][0][:, :10] = 0.1  # equal losses
    cases[2][0][1:, 10:20] = 0.1  # equal losses but one
    # Without the columns of two outliers: in one class, these cancel, and the mean loses its precision.
    loss_MxN, member_MxN = difficult_losses(np.float32)
    cases.append((np.delete(loss_MxN, slice(30, 40), 1), np.delete(member_MxN, slice(30, 40), 1)))
    for loss_MxC, member_MxC in cases:
        if pairs:
            member_MxC = in_pairs(member_MxC)
            loss_MxC = loss_MxC[: len(member_MxC)]
        loss_MxC = loss_MxC + offset
        classes = leave_one_out_moments(loss_MxC, member_MxC, pairs=pairs)
        for is_in, actual in zip((True, False), classes, strict=True):
            assert actual.mean.shape == loss_MxC.shape
            for m in range(len(loss_MxC)):
                rest_M = is_reference(len(loss_MxC), m, pairs)
                for c in range(loss_MxC.shape[1]):
                    values = loss_MxC[rest_M, c][member_MxC[rest_M, c] == is_in]
                    expected = exact_moments(values)
                    assert_same_moments(actual, (m, c), expected, rtol=1e-10)


def test_pairs_must_be_complements():
    loss_4xN, member_4xN = random_losses(5, 4, 6, 0)
    paired_4xN = in_pairs(member_4xN)
    stats.lira_leave_one_out(loss_4xN, paired_4xN, pairs=True)
    almost_4xN = paired_4xN.copy()
    almost_4xN[3, 5] ^= True
    shifted_4xN = paired_4xN[
        [1, 2, 3, 0]
    ]  # 0 and 3 are neighbors of their complements only as 2i + 1 and 2i + 2
    for loss_MxN, member_MxN in (
        (loss_4xN, almost_4xN),
        (loss_4xN, shifted_4xN),
        (loss_4xN[:3], paired_4xN[:3]),
    ):
        for call in (stats.lira_leave_one_out, stats.leave_one_out_scatter):
            with pytest.raises(
                ValueError, match=r"^pairs=True: .* complements .*; use pairs=False"
            ):
                call(loss_MxN, member_MxN, pairs=True)


def test_variance_of_equal_losses_without_outlier_is_zero():
    # Without the outlier the variance is exactly zero; the scores of all other models are defined.
    loss_MxN = np.array([[0.1], [0.1], [0.1], [1e6], [1.0], [2.0], [3.0]])
    member_MxN = np.array([[True]] * 4 + [[False]] * 3)
    own, _, _ = own_class_moments(loss_MxN, member_MxN)
    assert own.squares[3, 0] == 0
    assert (own.squares[:3, 0] > 1e11).all()
    actual = stats.lira_leave_one_out(loss_MxN, member_MxN)
    assert np.isnan(actual[3, 0])
    assert not np.isnan(actual[[0, 1, 2, 4, 5, 6], 0]).any()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_leaving_a_model_out_equals_a_missing_loss(data: st.DataObject):
    """Holds for each model, whatever the scales of the losses of a sample."""
    M = data.draw(st.integers(1, 8))
    scale = st.sampled_from([0.0, 1e-3, 1.0, 1e3, 1e6])
    unit = st.integers(-1000, 1000).map(lambda i: i / 1000) | st.just(np.nan)
    value = st.builds(lambda s, x: s * x, scale, unit)
    loss_Mx1 = np.array(data.draw(st.lists(value, min_size=M, max_size=M)))[:, None]
    member_Mx1 = np.array(data.draw(st.lists(st.booleans(), min_size=M, max_size=M)))[:, None]
    own, inside, outside = own_class_moments(loss_Mx1, member_Mx1)
    for m in range(M):
        without = loss_Mx1.copy()
        without[m] = np.nan
        without_in, without_out, _ = class_moments(without, member_Mx1)
        expected, whole = (without_in, inside) if member_Mx1[m, 0] else (without_out, outside)
        assert own.count[m, 0] == expected.count[0]
        if expected.count[0]:
            spread = 1e-9 * math.sqrt(whole.squares[0])
            assert own.mean[m, 0] == pytest.approx(expected.mean[0], rel=1e-12, abs=spread)
        assert own.squares[m, 0] == pytest.approx(expected.squares[0], rel=1e-7, abs=1e-300)
        assert (own.squares[m, 0] == 0) == (expected.squares[0] == 0)


def test_select_by_mask_is_bitwise_equal_to_where():
    value = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, np.nan, 5e-324, -1e308])
    inside, outside = (v.ravel() for v in np.meshgrid(value, value))
    member_Mx64 = np.random.default_rng(0).random((9, 64)) < 0.5
    actual = select_by_mask(as_bit_mask(member_Mx64), inside, outside)
    expected = np.where(member_Mx64, inside, outside)
    np.testing.assert_array_equal(actual.view(np.int64), expected.view(np.int64))
    both = select_by_mask(as_bit_mask(member_Mx64), np.broadcast_to(inside, (9, 64)), expected)
    np.testing.assert_array_equal(both, expected)


def test_as_finite_float64_copies_and_checks():
    loss_N = np.array([1.0, np.nan])
    assert as_finite_float64(loss_N) is not loss_N
    assert as_finite_float64(loss_N.astype(np.float32)).dtype == np.float64
    for bad in (np.inf, -np.inf):
        with pytest.raises(ValueError, match="must be finite"):
            as_finite_float64(np.array([1.0, bad]))
        with pytest.raises(ValueError, match="must be finite"):
            stats.lira_leave_one_out([[1.0], [bad]], [[True], [False]])


@pytest.mark.parametrize("mode", MODES)
def test_leaving_pairs_out_equals_lira_of_each_model(mode: Any):
    for loss_MxN, member_MxN in (
        (difficult_losses(np.float32)[0][:8], in_pairs(difficult_losses(np.float32)[1])),
        (random_losses(7, 8, 30, 0.1)[0], in_pairs(random_losses(7, 8, 30, 0.1)[1])),
    ):
        actual = stats.lira_leave_one_out(loss_MxN, member_MxN, **mode, pairs=True)
        expected = lira_by_loop(loss_MxN, member_MxN, **mode, pairs=True)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)
        assert not np.isnan(actual[:, :10]).all()


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


@pytest.mark.parametrize("pairs", [False, True])
def test_blocks_of_samples_add_up(monkeypatch: pytest.MonkeyPatch, pairs: bool):
    loss_MxN, member_MxN = random_losses(6, 6, 41, 0.2)
    member_MxN = in_pairs(member_MxN) if pairs else member_MxN
    leave_one_out = functools.partial(stats.lira_leave_one_out, pairs=pairs)
    blocks = [slice(0, 7), slice(7, 8), slice(8, 41)]
    variances: list[Any] = ["per_sample", "pooled"]
    left = {v: leave_one_out(loss_MxN, member_MxN, variance=v) for v in variances}
    parts = [(loss_MxN[:, b], member_MxN[:, b]) for b in blocks]
    total = np.sum([stats.leave_one_out_scatter(*part, pairs=pairs) for part in parts], axis=0)
    whole_Mx2x2 = stats.leave_one_out_scatter(loss_MxN, member_MxN, pairs=pairs)
    np.testing.assert_allclose(whole_Mx2x2, total, rtol=1e-12)
    for m in range(6):
        is_reference_M = is_reference(6, m, pairs)
        others = stats.within_sample_scatter(
            stats.fit_gaussians(loss_MxN[is_reference_M], member_MxN[is_reference_M])
        )
        np.testing.assert_allclose(total[m], others, rtol=1e-9)
    for b, part in zip(blocks, parts, strict=True):
        actual = leave_one_out(*part, variance="pooled", scatter_Mx2x2=total)
        np.testing.assert_allclose(actual, left["pooled"][:, b], rtol=1e-10)
    monkeypatch.setattr("lm_mia.stats.likelihood_ratio._CHUNK", 7)
    for variance, whole in left.items():
        actual = leave_one_out(loss_MxN, member_MxN, variance=variance)
        np.testing.assert_allclose(actual, whole, rtol=1e-12)


def test_cancelled_sums_of_squares_are_recomputed(monkeypatch: pytest.MonkeyPatch):
    loss_MxN, member_MxN = difficult_losses(np.float64)
    recomputed = own_class_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    monkeypatch.setattr(likelihood_ratio, "_CANCELLATION", -1.0)
    subtracted = own_class_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    assert (np.abs(subtracted - recomputed) > 0.1 * recomputed).any()
