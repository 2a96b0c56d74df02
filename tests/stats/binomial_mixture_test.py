"""Mixtures of binomial distributions, by hand and against expectation maximization and linear programs."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from lm_mia.stats import binomial_mixture

GRID_P = np.linspace(0, 1, 21)


def test_binomial_probabilities_agree_with_scipy():
    k_K = np.arange(8)
    expected = binom.pmf(k_K[:, None], 7, GRID_P)
    np.testing.assert_allclose(
        binomial_mixture.binomial_probabilities(7, GRID_P), expected, atol=1e-14
    )


def test_a_single_vote_does_not_determine_the_mixture():
    """Half of the votes are successes: all samples may have p = 1/2, or half of them p = 0 and half p = 1."""
    votes_KxP = binomial_mixture.binomial_probabilities(1, [0, 0.5, 1])
    share_K, is_half_P = np.array([0.5, 0.5]), np.array([0, 1.0, 0])
    fit_P = binomial_mixture.most_likely_mixture(votes_KxP, share_K)
    np.testing.assert_allclose(votes_KxP @ fit_P, share_K, atol=1e-4)
    most_P = binomial_mixture.largest_mean(votes_KxP, share_K, is_half_P, fit_P, 0)
    np.testing.assert_allclose(most_P, [0, 1, 0], atol=1e-3)
    fewest_P = binomial_mixture.largest_mean(votes_KxP, share_K, -is_half_P, fit_P, 0)
    np.testing.assert_allclose(fewest_P, [0.5, 0, 0.5], atol=1e-3)


def test_the_slack_by_hand():
    """Without successes, f_0 = w_0 + w_1 / 2 >= exp(-slack) allows a weight of 2 (1 - exp(-slack)) at p = 1/2."""
    votes_KxP = binomial_mixture.binomial_probabilities(1, [0, 0.5])
    share_K = np.array([1.0, 0])
    fit_P = binomial_mixture.most_likely_mixture(votes_KxP, share_K)
    np.testing.assert_allclose(fit_P, [1, 0], atol=1e-6)
    most_P = binomial_mixture.largest_mean(votes_KxP, share_K, np.array([0, 1.0]), fit_P, 0.1)
    assert most_P[1] == pytest.approx(2 * (1 - np.exp(-0.1)), abs=1e-5)


@pytest.mark.parametrize("trials", [3, 8, 40])
def test_the_fit_is_as_likely_as_after_expectation_maximization(trials):
    share_K = draw_shares(trials)
    votes_KxP = binomial_mixture.binomial_probabilities(trials, GRID_P)
    fit_P = binomial_mixture.most_likely_mixture(votes_KxP, share_K)
    assert fit_P.min() >= 0
    assert fit_P.sum() == pytest.approx(1)
    expected = log_likelihood(votes_KxP, share_K, maximize_expectations(votes_KxP, share_K))
    assert expected - 1e-8 < log_likelihood(votes_KxP, share_K, fit_P) < expected + 1e-4


@pytest.mark.parametrize("trials", [3, 8])
@pytest.mark.parametrize("slack", [1e-4, 1e-2])
def test_largest_mean_agrees_with_cutting_planes(trials, slack):
    share_K = draw_shares(trials)
    votes_KxP = binomial_mixture.binomial_probabilities(trials, GRID_P)
    fit_P = binomial_mixture.most_likely_mixture(votes_KxP, share_K)
    value_P = np.exp(-((GRID_P - 0.5) ** 2) / 0.01)
    for sign in (-1, 1):
        w_P = binomial_mixture.largest_mean(votes_KxP, share_K, sign * value_P, fit_P, slack)
        level = log_likelihood(votes_KxP, share_K, fit_P) - slack
        assert log_likelihood(votes_KxP, share_K, w_P) >= level - 1e-8
        expected = cut_planes(votes_KxP, share_K, sign * value_P, level)
        assert w_P @ (sign * value_P) == pytest.approx(expected, abs=2e-4)


def test_many_observations_leave_no_slack_and_converge():
    """Shares without sampling errors and a slack of rounding errors, the hardest problems."""
    for trials in (8, 127):
        votes_KxP = binomial_mixture.binomial_probabilities(trials, GRID_P)
        share_K = votes_KxP @ np.full(21, 1 / 21)
        fit_P = binomial_mixture.most_likely_mixture(votes_KxP, share_K)
        np.testing.assert_allclose(votes_KxP @ fit_P, share_K, atol=1e-4)
        w_P = binomial_mixture.largest_mean(votes_KxP, share_K, GRID_P == 0.5, fit_P, 0)
        loss = log_likelihood(votes_KxP, share_K, fit_P) - log_likelihood(votes_KxP, share_K, w_P)
        assert 0 < loss < 1.1e-6


def draw_shares(trials):
    rng = np.random.default_rng(trials)
    votes_N = rng.binomial(trials, rng.beta(0.5, 0.8, 400))
    return np.bincount(votes_N, minlength=trials + 1) / 400


def log_likelihood(votes_KxP, share_K, w_P):
    seen_K = share_K > 0
    return share_K[seen_K] @ np.log(votes_KxP[seen_K] @ w_P)


def maximize_expectations(votes_KxP, share_K, iterations=20000):
    """Returns weights that are nearly the most likely ones, by slow updates."""
    seen_K = share_K > 0
    w_P = np.full(votes_KxP.shape[1], 1 / votes_KxP.shape[1])
    for _ in range(iterations):
        w_P = w_P * (votes_KxP[seen_K].T @ (share_K[seen_K] / (votes_KxP[seen_K] @ w_P)))
    return w_P


def cut_planes(votes_KxP, share_K, value_P, level):
    """Returns the largest mean, by linear programs with more and more tangents of the log-likelihood."""
    seen_K = share_K > 0
    points, best = [maximize_expectations(votes_KxP, share_K, 100)], np.inf
    for _ in range(200):
        gradients = [
            votes_KxP[seen_K].T @ (share_K[seen_K] / (votes_KxP[seen_K] @ w)) for w in points
        ]
        # l(w) <= l(v) + g . (w - v), where g . v = 1.
        limits = [log_likelihood(votes_KxP, share_K, v) - 1 - level for v in points]
        ones = np.ones((1, len(value_P)))
        result = linprog(-value_P, -np.array(gradients), limits, ones, [1], method="highs")
        best = -result.fun
        w_P = 0.999999 * result.x + 1e-6 * points[0]
        if log_likelihood(votes_KxP, share_K, w_P) > level - 1e-6:
            break
        points.append(w_P)
    return best
