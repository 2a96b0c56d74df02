"""Moments of both classes, and of a class without a model, against rational arithmetic."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_moments import assert_same_moments, difficult_losses, exact_moments, random_losses

from lm_mia import stats
from lm_mia.stats import moments
from lm_mia.stats.moments import (
    as_bit_mask,
    as_finite_float64,
    class_moments,
    own_class_moments,
    select_by_mask,
)


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


def test_cancelled_sums_of_squares_are_recomputed(monkeypatch: pytest.MonkeyPatch):
    loss_MxN, member_MxN = difficult_losses(np.float64)
    recomputed = own_class_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    monkeypatch.setattr(moments, "_CANCELLATION", -1.0)
    subtracted = own_class_moments(loss_MxN, member_MxN)[0].squares[0, 20:25]
    assert (np.abs(subtracted - recomputed) > 0.1 * recomputed).any()
