"""The share of coin flips that 127 replicas would show: by hand, against linear programs, and at the edges."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from lm_mia import stats


def test_coin_flip_probability_by_hand():
    """With 8 replicas only unanimous decisions are no coin flips; with 5, all are."""
    assert stats.coin_flip_probability(0.9, 8) == pytest.approx(1 - 0.9**8 - 0.1**8)
    assert stats.coin_flip_probability(0.5, 8) == pytest.approx(1 - 2 / 2**8)
    np.testing.assert_array_equal(stats.coin_flip_probability([0, 0.3, 1], 5), 1)
    np.testing.assert_array_equal(stats.coin_flip_probability([0, 1], 8), 0)


@pytest.mark.parametrize("replicas", [8, 16, 127])
def test_coin_flip_probability_agrees_with_scipy(replicas):
    p_P = np.linspace(0, 1, 101)
    k_low, _ = stats.coin_flip_cutoff(replicas)
    votes_K = np.arange(k_low, replicas - k_low + 1)
    expected_P = binom.pmf(votes_K[:, None], replicas, p_P).sum(axis=0)
    actual_P = stats.coin_flip_probability(p_P, replicas)
    np.testing.assert_allclose(actual_P, expected_P, atol=1e-12)


@pytest.mark.parametrize("p", [-0.1, 1.1, np.nan])
def test_probabilities_outside_the_unit_interval_are_rejected(p):
    with pytest.raises(ValueError, match=r"probabilities .*\b0 and 1"):
        stats.coin_flip_probability(p, 8)


def exact_counts(replicas, p_N, samples):
    """Returns the expected counts of votes that are independent given p."""
    k_K = np.arange(replicas + 1)
    samples_K = samples * binom.pmf(k_K[:, None], replicas, p_N).mean(axis=1)
    return samples_K, np.tile(samples_K * k_K / replicas, (replicas, 1))


def test_exact_counts_of_8_replicas_give_the_linear_program_range():
    """With this number of samples, the range is that of all distributions with the same votes."""
    grid_P = np.sin(np.linspace(0, np.pi / 2, 201)) ** 2
    counts = exact_counts(8, grid_P, 1e7)
    limits = stats.coin_flip_range(*counts)
    value_P = stats.coin_flip_probability(grid_P, 127)
    votes_KxP = binom.pmf(np.arange(9)[:, None], 8, grid_P)
    low, high = (
        sign * linprog(sign * value_P, A_eq=votes_KxP, b_eq=counts[0] / 1e7, method="highs").fun
        for sign in (1, -1)
    )
    assert high - low > 0.1
    assert low - 0.03 < limits.low < low
    assert high < limits.high < high + 0.03


def test_more_replicas_narrow_the_range():
    p_N = np.linspace(0, 1, 1001)
    truth = stats.coin_flip_probability(p_N, 127).mean()
    widths = []
    for replicas in (2, 8, 16, 32, 127):
        limits = stats.coin_flip_range(*exact_counts(replicas, p_N, 2**17))
        assert limits.low < truth < limits.high
        widths.append(limits.high - limits.low)
    assert widths == sorted(widths, reverse=True)
    assert widths[1] > 0.15
    assert widths[-1] < 0.01


def test_127_replicas_give_the_observed_share_with_its_uncertainty():
    rng = np.random.default_rng(5)
    counts = draw_votes(rng.random((127, 1000)) < rng.random(1000))
    is_coin_flip_K = (np.arange(128) >= 52) & (np.arange(128) <= 75)
    share, error = counts[0] @ is_coin_flip_K / 1000, stats.mean_std_error(*counts, is_coin_flip_K)
    limits = stats.coin_flip_range(*counts)
    assert limits.low < share < limits.high
    assert 2 * error < limits.high - limits.low < 6 * error


def test_dependent_votes_widen_the_range():
    """Both have the same counts of votes, but in one the replicas differ in how many samples they call members."""
    rng = np.random.default_rng(6)
    score_RxN = rng.normal(-1, 1, 4000) + rng.normal(size=(32, 4000)) + rng.normal(0, 1, (32, 1))
    vote_RxN = score_RxN > 0
    samples_K, called_RxK = draw_votes(vote_RxN)
    dependent = stats.coin_flip_range(samples_K, called_RxK)
    equal_RxK = np.tile(samples_K * np.arange(33) / 32, (32, 1))
    independent = stats.coin_flip_range(samples_K, equal_RxK)
    assert dependent.low < independent.low
    assert dependent.high > independent.high
    assert dependent.high - dependent.low > 1.5 * (independent.high - independent.low)


def test_a_higher_confidence_widens_the_range():
    counts = exact_counts(16, np.linspace(0, 1, 101), 1000)
    wide, narrow = (stats.coin_flip_range(*counts, confidence=c) for c in (0.99, 0.9))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize("replicas", [8, 127])
def test_unanimous_votes(replicas):
    samples_K = np.zeros(replicas + 1)
    samples_K[-1] = 1000
    called_RxK = np.tile(samples_K, (replicas, 1))
    limits = stats.coin_flip_range(samples_K, called_RxK)
    assert limits.low == pytest.approx(0, abs=1e-4)
    assert limits.high < 0.01
    reversed_K = samples_K[::-1]
    mirrored = stats.coin_flip_range(reversed_K, np.zeros((replicas, replicas + 1)))
    assert mirrored.high == pytest.approx(limits.high, abs=1e-4)


def test_without_samples_the_range_is_nan():
    limits = stats.coin_flip_range(np.zeros(9), np.zeros((8, 9)))
    assert np.isnan(limits.low)
    assert np.isnan(limits.high)


@pytest.mark.parametrize("confidence", [0, 1, np.nan])
def test_a_confidence_outside_the_unit_interval_is_rejected(confidence):
    with pytest.raises(ValueError, match="confidence="):
        stats.coin_flip_range(np.ones(9), np.ones((8, 9)), confidence=confidence)


def test_wrong_shapes_and_one_replica_are_rejected():
    with pytest.raises(ValueError, match="shapes must be"):
        stats.coin_flip_range(np.ones(9), np.ones((9, 8)))
    with pytest.raises(ValueError, match="replicas=1: "):
        stats.coin_flip_range(np.ones(2), np.ones((1, 2)))


def draw_votes(vote_RxN):
    votes = stats.count_vote_histograms(vote_RxN.astype(float), np.full((len(vote_RxN), 1), 0.5))
    return votes.samples_FxK[0], votes.called_FxRxK[0]
