from math import comb

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats.coin_flip import as_vote_counts


def test_cutoffs_equal_those_of_the_paper():
    k_low, cutoff = stats.coin_flip_cutoff(127)
    assert k_low == 52
    assert cutoff == 2 * 52 * 75 / (127 * 126)
    assert round(cutoff, 4) == 0.4874
    k_low, cutoff = stats.coin_flip_cutoff(125)
    assert k_low == 52
    assert round(cutoff, 4) == 0.4898


def test_cutoff_and_p_values_by_hand():
    # B = 6: F(0) = 1/64 = 0.0156 < 0.025 <= F(1) = 7/64.
    assert stats.coin_flip_cutoff(6) == (1, 2 * 1 * 5 / 30)
    np.testing.assert_allclose(
        stats.p_value(np.arange(7), 6), [2 / 64, 14 / 64, 44 / 64, 1, 44 / 64, 14 / 64, 2 / 64]
    )


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_few_replicas_never_reject_a_fair_coin(replicas):
    assert stats.coin_flip_cutoff(replicas) == (0, 0.0)
    assert np.all(stats.p_value(np.arange(replicas + 1), replicas) >= 0.05)


def test_acceptance_region_contains_its_boundary():
    # F(1) = 7/64 for B = 6, so alpha = 14/64 equals the tails exactly; the next larger alpha excludes k = 1.
    assert stats.coin_flip_cutoff(6, 14 / 64)[0] == 1
    assert stats.coin_flip_cutoff(6, np.nextafter(14 / 64, 1))[0] == 2


@given(st.integers(2, 300), st.floats(1e-6, 1 - 1e-6))
def test_acceptance_region_is_where_p_is_at_least_alpha(replicas, alpha):
    k_low, cutoff = stats.coin_flip_cutoff(replicas, alpha)
    votes = np.arange(replicas + 1)
    inside = (votes >= k_low) & (votes <= replicas - k_low)
    np.testing.assert_array_equal(stats.p_value(votes, replicas) >= alpha, inside)
    assert 0 <= cutoff <= 1


@pytest.mark.parametrize("replicas", [2, 3, 8, 31, 127])
def test_p_value_equals_scipy(replicas):
    expected = [float(scipy.stats.binomtest(k, replicas).pvalue) for k in range(replicas + 1)]
    np.testing.assert_allclose(
        stats.p_value(np.arange(replicas + 1), replicas), expected, rtol=1e-9
    )


def test_p_value_keeps_nan_and_shape():
    np.testing.assert_array_equal(np.isnan(stats.p_value([[np.nan, 3.0]], 6)), [[True, False]])
    assert stats.p_value(3, 6).shape == ()
    assert stats.p_value([], 6).shape == (0,)


@pytest.mark.parametrize(("replicas", "alpha"), [(1, 0.05), (0, 0.05), (9, 0.0), (9, 1.0)])
def test_invalid_arguments_raise(replicas, alpha):
    with pytest.raises(ValueError, match="must"):
        stats.coin_flip_cutoff(replicas, alpha)


def test_nan_alpha_raises():
    with pytest.raises(ValueError, match="alpha"):
        stats.coin_flip_cutoff(9, float("nan"))


@pytest.mark.parametrize("votes", [-1, 7, 2.5, np.inf])
def test_invalid_votes_raise(votes):
    with pytest.raises(ValueError, match="integers"):
        as_vote_counts([votes], 6)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_level_is_exact(alpha):
    for replicas in range(8, 301):
        k_low, _ = stats.coin_flip_cutoff(replicas, alpha)
        rejected = sum(comb(replicas, k) for k in range(k_low)) * 2
        assert rejected <= alpha * 2**replicas  # comparisons of integers with floats are exact
        # One more vote in each tail would exceed the level.
        assert rejected + 2 * comb(replicas, k_low) > alpha * 2**replicas


@pytest.mark.montecarlo
@pytest.mark.parametrize("replicas", [8, 31, 127, 300])
def test_level_holds_on_simulated_coins(replicas):
    rng = np.random.default_rng(replicas)
    votes_N = rng.binomial(replicas, 0.5, 20_000)
    rejected = stats.p_value(votes_N, replicas) < 0.05
    np.testing.assert_array_equal(
        rejected, stats.flip_bins(votes_N, replicas) != stats.COIN_FLIP_BIN
    )
    k_low, _ = stats.coin_flip_cutoff(replicas)
    level = sum(comb(replicas, k) for k in range(k_low)) / 2 ** (replicas - 1)
    assert level <= 0.05
    np.testing.assert_allclose(rejected.mean(), level, atol=4 * 0.0016)  # 4 standard errors


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, np.int16])
def test_replicas_of_any_integer_type(integer):
    assert stats.coin_flip_cutoff(integer(127)) == stats.coin_flip_cutoff(127)
    assert stats.coin_flip_cutoff(integer(60))[0] == 22
    np.testing.assert_array_equal(stats.p_value([52, 0], integer(127)), stats.p_value([52, 0], 127))
    assert stats.max_flip_rate(integer(127)) == stats.max_flip_rate(127)
    for function in (stats.flip_rate, stats.flip_bins):
        np.testing.assert_array_equal(function([52, 3], integer(127)), function([52, 3], 127))
    counts = stats.count_member_votes([[52.0, 3.0]], [True, True], integer(127))
    assert counts.coin_flip_true_positives_K.tolist() == [52]
    with pytest.raises(ValueError, match=r"replicas=127\.0: "):
        stats.coin_flip_cutoff(127.0)  # pyright: ignore[reportArgumentType]
