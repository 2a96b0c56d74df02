"""Tests of partial AUC and lift."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from lm_mia import stats

ENDS = st.tuples(st.integers(0, 100), st.integers(0, 100)).filter(lambda ab: ab[0] < ab[1])


def random_curves(K=12):
    """Generates ROC curves with vertical and horizontal steps."""
    steps = st.lists(st.integers(0, 3), min_size=K, max_size=K).filter(any)

    def curve(rises):
        fpr, tpr = (np.cumsum([0, *x]) / sum(x) for x in rises)
        return tpr, fpr

    return st.tuples(steps, steps).map(curve)


def slow_partial_auc(tpr, fpr, a, b):
    """Sums the pieces of the curve, clipped to the band, by the midpoint rule."""
    total = 0.0
    for x0, x1, y0, y1 in zip(fpr[:-1], fpr[1:], tpr[:-1], tpr[1:], strict=True):
        low, high = max(x0, a), min(x1, b)
        if low < high:
            middle = ((low + high) / 2 - x0) / (x1 - x0)
            total += (high - low) * (y0 + middle * (y1 - y0))
    return total


def test_partial_auc_and_lift_by_hand():
    fpr, tpr = [0.0, 0.25, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0]
    # A triangle, a box and a trapezoid.
    assert stats.partial_auc(tpr, fpr, 0, 1) == 0.0625 + 0.125 + 0.375
    assert stats.partial_auc(tpr, fpr, 0.25, 0.5) == 0.125
    assert stats.partial_auc(tpr, fpr, 0.25, 0.5, normalized=True) == 0.5
    # From the middle of the first piece (0.25) to the middle of the last (0.75).
    expected = 0.125 * 0.375 + 0.125 + 0.25 * 0.625
    assert stats.partial_auc(tpr, fpr, 0.125, 0.75) == expected
    # Both ends are in one piece.
    assert stats.partial_auc(tpr, fpr, 0.0625, 0.1875) == 0.125 * 0.25
    assert stats.lift(tpr, fpr, 0.25, 0.5) == 0.125 - 0.09375
    assert stats.lift(tpr, fpr, 0.25, 0.5, normalized=True) == 0.5 - 0.375


def test_vertical_steps_have_no_area():
    fpr, tpr = [0.0, 0.0, 0.5, 0.5, 1.0, 1.0], [0.0, 0.2, 0.2, 0.6, 0.6, 1.0]
    np.testing.assert_allclose(stats.partial_auc(tpr, fpr, 0, 0.5), 0.1, rtol=1e-15)
    np.testing.assert_allclose(stats.partial_auc(tpr, fpr, 0.5, 1), 0.3, rtol=1e-15)
    np.testing.assert_allclose(stats.partial_auc(tpr, fpr, 0.25, 0.75), 0.2, rtol=1e-15)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1e-4, 0.1), (0.3, 0.31)])
def test_random_guessing_has_no_lift(a, b):
    fpr = np.linspace(0, 1, 7)
    for normalized in (False, True):
        assert abs(stats.lift(fpr, fpr, a, b, normalized=normalized)) < 1e-15
    np.testing.assert_allclose(stats.partial_auc(fpr, fpr, a, b, normalized=True), (a + b) / 2)


@settings(deadline=None)
@given(random_curves(), ENDS)
def test_partial_auc_equals_slow_reference(curve, ends):
    tpr, fpr = curve
    a, b = ends[0] / 100, ends[1] / 100
    area = stats.partial_auc(tpr, fpr, a, b)
    np.testing.assert_allclose(area, slow_partial_auc(tpr, fpr, a, b), rtol=1e-12, atol=1e-15)
    mean = stats.partial_auc(tpr, fpr, a, b, normalized=True)
    assert -1e-12 <= mean <= 1 + 1e-12
    np.testing.assert_allclose(mean * (b - a), area, rtol=1e-12)
    np.testing.assert_allclose(stats.lift(tpr, fpr, a, b), area - (b**2 - a**2) / 2, atol=1e-15)
    np.testing.assert_allclose(
        stats.lift(tpr, fpr, a, b, normalized=True), mean - (a + b) / 2, atol=1e-12
    )
    middle = (a + b) / 2
    halves = stats.partial_auc(tpr, fpr, a, middle) + stats.partial_auc(tpr, fpr, middle, b)
    np.testing.assert_allclose(halves, area, rtol=1e-12, atol=1e-15)


def test_partial_auc_of_the_full_range_is_the_auc():
    rng = np.random.default_rng(0)
    member = rng.random(500) < 0.4
    score = np.round(rng.normal(size=500) + member, 1)
    curve = stats.roc_curve(score, member)
    np.testing.assert_allclose(
        stats.partial_auc(curve.tpr_K, curve.fpr_K, 0, 1), stats.auc(score, member).auc_T[0]
    )


def test_partial_auc_of_gaussians_equals_quadrature():
    gap, a, b = 1.0, 0.01, 0.2
    fpr = np.linspace(0, 1, 20_001)
    tpr = scipy.stats.norm.cdf(gap + scipy.stats.norm.ppf(fpr))
    expected, _ = integrate.quad(
        lambda x: scipy.stats.norm.cdf(gap + scipy.stats.norm.ppf(x)), a, b
    )
    np.testing.assert_allclose(stats.partial_auc(tpr, fpr, a, b), expected, rtol=1e-6)
    lifted = stats.lift(tpr, fpr, a, b, normalized=True)
    np.testing.assert_allclose(lifted, expected / (b - a) - (a + b) / 2, rtol=1e-6)


def test_worked_example_of_the_paper():
    """Curves with the areas of StrongMIA, Appendix E.2.6, have the lifts printed there."""
    a, b = 1e-4, 1e-1

    def curve(mean_tpr):
        """Returns any curve with this mean TPR over the band: it rises to a knee, and reaches 1 at the end."""
        knee = 0.03
        # Solves the areas of the trapezoids a-knee and knee-b, with heights 0.2 m, h and h, for h.
        h = (mean_tpr * (b - a) - 0.1 * mean_tpr * (knee - a)) / ((knee - a) / 2 + b - knee)
        return [0.0, 0.2 * mean_tpr, h, h, 1.0], [0.0, a, knee, b, 1.0]

    raw, noncoin = curve(0.314748), curve(0.190810)
    np.testing.assert_allclose(stats.partial_auc(*raw, a, b, normalized=True), 0.314748, atol=1e-12)
    np.testing.assert_allclose(
        stats.partial_auc(*noncoin, a, b, normalized=True), 0.190810, atol=1e-12
    )
    lifts = [stats.lift(*c, a, b, normalized=True) for c in (raw, noncoin)]
    np.testing.assert_allclose(lifts, [0.264698, 0.140760], atol=1e-12)
    # Intermediate numbers of the paper: width of the band and area of guessing.
    width, guess = 0.0999, 0.004999995
    np.testing.assert_allclose(
        [stats.partial_auc(*c, a, b) for c in (raw, noncoin)],
        [0.314748 * width, 0.190810 * width],
        rtol=1e-12,
    )
    np.testing.assert_allclose(stats.lift(*raw, a, b), 0.314748 * width - guess, rtol=1e-12)
    np.testing.assert_allclose(stats.lift(*raw, a, b), 0.264698 * width, rtol=1e-12)
    assert round(100 * lifts[1] / lifts[0]) == 53
    drop = 1 - stats.partial_auc(*noncoin, a, b) / stats.partial_auc(*raw, a, b)
    assert round(100 * drop, 1) == 39.4


def test_missing_rates_in_the_band_give_nan():
    fpr = [0.0, 0.1, 0.2, 0.5, 1.0]
    tpr = [0.0, 0.3, np.nan, 0.8, 1.0]
    assert np.isnan(stats.partial_auc(tpr, fpr, 0, 1))
    assert np.isnan(stats.lift(tpr, fpr, 0.15, 0.18))
    assert stats.partial_auc(tpr, fpr, 0.5, 1) == 0.45


def test_invalid_arguments_raise():
    fpr = tpr = [0.0, 0.5, 1.0]
    for area in (stats.partial_auc, stats.lift):
        for a, b in [(0.5, 0.5), (0.6, 0.5), (-0.1, 0.5), (0.5, 1.1), (np.nan, 0.5)]:
            with pytest.raises(ValueError, match="must satisfy"):
                area(tpr, fpr, a, b)
        for bad in ([0.2, 0.5, 1.0], [0.0, 0.5, 0.8]):
            with pytest.raises(ValueError, match="span"):
                area(tpr, bad, 0.1, 0.9)
        for bad in ([0.0, 0.6, 0.5], [0.0, np.nan, 1.0]):
            with pytest.raises(ValueError, match="ascending"):
                area(tpr, bad, 0.1, 0.4)
        for one, other in [([0.0, 1.0], fpr), ([tpr], [fpr])]:
            with pytest.raises(ValueError, match="one curve"):
                area(one, other, 0.1, 0.4)
        with pytest.raises(ValueError, match="span"):
            area([], [], 0.1, 0.4)
