"""Shares of the variance within samples: a hand-worked case, regressions on dummy variables, and unrelated bins."""

import numpy as np
import pytest

from lm_mia import stats


def test_hand_worked_case():
    """Three replicas; the second sample never changes its bin, and the bins tell half a unit for the first one.

    The deviations are (-1, 0, 1) and (0, 0, 0). Those of bin 1 are (-2, 1, 1) / 3 for the first sample, so that the
    slope is 1.5 and explains 1.5 of the sum of squares of 2. There are 4 degrees of freedom; the slope takes one.
    """
    found = stats.explained_within_samples([[1, 5], [2, 5], [3, 5]], [[0, 1], [1, 1], [1, 1]], 2)
    assert found.share == pytest.approx(1 - (0.5 / 3) / (2 / 4))
    assert found.own_share == pytest.approx(found.share)  # only the first sample has a factor
    assert found.own_curve_share == pytest.approx(found.share)  # and only the first has two bins
    # Five of six pairs are in bin 1, and the mean of the curve is 0.
    np.testing.assert_allclose(found.curve_K, [-1.25, 0.25])


def test_regressions_with_a_dummy_variable_for_each_sample():
    """A dense regression gives the same curve, and one with a slope for each sample the same share."""
    rng = np.random.default_rng(0)
    replicas, samples, bins = 6, 9, 4
    bin_BxN = rng.integers(0, bins - 1, (replicas, samples))  # the last bin is empty
    bin_BxN[:, 0] = 1
    value_BxN = rng.normal(size=(replicas, samples)) + rng.normal(size=samples) + bin_BxN
    found = stats.explained_within_samples(value_BxN, bin_BxN, bins)
    y, bin_P = value_BxN.T.ravel(), bin_BxN.T.ravel()
    of_sample = np.repeat(np.eye(samples), replicas, axis=0)
    of_bin = np.eye(bins)[bin_P]

    def residual(design: np.ndarray) -> float:
        return float(((y - design @ np.linalg.lstsq(design, y)[0]) ** 2).sum())

    total, df = residual(of_sample), samples * (replicas - 1)
    rest = residual(np.hstack([of_sample, of_bin[:, 1:3]]))
    assert found.share == pytest.approx(1 - (rest / (df - 2)) / (total / df))
    both = np.hstack([of_sample, of_bin[:, 1:3]])
    coefficients = np.linalg.lstsq(both, y)[0]
    curve_P = of_bin[:, 1:3] @ coefficients[-2:]
    np.testing.assert_allclose(found.curve_K[bin_P], curve_P - curve_P.mean())
    assert np.isnan(found.curve_K[3])
    own = np.hstack([of_sample, of_sample[:, 1:] * curve_P[:, None]])  # the first has no slope
    expected = 1 - (residual(own) / (df - samples + 1)) / (total / df)
    assert found.own_share == pytest.approx(expected)
    own = np.einsum("ps,pk->psk", of_sample, of_bin).reshape(len(y), -1)
    parameters = np.linalg.matrix_rank(own) - samples
    expected = 1 - (residual(own) / (df - parameters)) / (total / df)
    assert found.own_curve_share == pytest.approx(expected)


def test_unrelated_bins_explain_nothing_on_average():
    """Neither do those of a decision that most samples never change; bins that tell everything explain it all."""
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(200):
        bin_BxN = rng.integers(0, 4, (8, 12))
        value_BxN = (rng.normal(size=(8, 12)) > np.linspace(0, 4, 12)).astype(float)
        found = stats.explained_within_samples(value_BxN, bin_BxN, 4)
        shares.append((found.share, found.own_share, found.own_curve_share))
    mean_S, error_S = np.mean(shares, axis=0), np.std(shares, axis=0) / np.sqrt(200)
    assert (np.abs(mean_S[[0, 2]]) < 4 * error_S[[0, 2]]).all()
    # The curve is fitted to the same decisions, so that factors of their own explain a little of them.
    assert -4 * error_S[1] < mean_S[1] < 0.1
    bin_BxN = rng.integers(0, 4, (8, 12))
    found = stats.explained_within_samples(bin_BxN**2 + np.arange(12), bin_BxN, 4)
    assert (found.share, found.own_share, found.own_curve_share) == pytest.approx((1, 1, 1))


def test_values_without_a_variance_within_samples_have_no_share():
    found = stats.explained_within_samples(np.full((4, 3), 0.1), np.eye(4, 3), 2)
    assert np.isnan([found.share, found.own_share, found.own_curve_share]).all()
    found = stats.explained_within_samples(np.zeros((4, 0)), np.zeros((4, 0)), 2)
    assert np.isnan(found.share)


@pytest.mark.parametrize(
    ("value_BxN", "bin_BxN", "message"),
    [
        (np.zeros((3, 2)), np.zeros((3, 1)), "at least 3 replicas"),
        (np.zeros((2, 2)), np.zeros((2, 2)), "at least 3"),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "be NaN"),
        (np.zeros((3, 2)), np.full((3, 2), 2), "bins=2: "),
        (np.zeros((3, 2)), np.full((3, 2), -1), "whole numbers"),
    ],
)
def test_invalid_arguments(value_BxN: np.ndarray, bin_BxN: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        stats.explained_within_samples(value_BxN, bin_BxN, 2)
