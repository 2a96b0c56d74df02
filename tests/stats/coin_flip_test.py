import subprocess
import sys
from math import comb

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import stats
from lm_mia.stats.coin_flip import as_vote_counts


def test_cutoffs_of_the_paper():
    k_low, cutoff = stats.coin_flip_cutoff(127)
    assert k_low == 52
    assert cutoff == 2 * 52 * 75 / (127 * 126)
    assert round(cutoff, 4) == 0.4874
    k_low, cutoff = stats.coin_flip_cutoff(125)
    assert k_low == 52
    assert round(cutoff, 4) == 0.4898


def test_by_hand():
    # B = 6: F(0) = 1/64 = 0.0156 < 0.025 <= F(1) = 7/64.
    assert stats.coin_flip_cutoff(6) == (1, 2 * 1 * 5 / 30)
    np.testing.assert_allclose(
        stats.p_value(np.arange(7), 6), [2 / 64, 14 / 64, 44 / 64, 1, 44 / 64, 14 / 64, 2 / 64]
    )


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_too_few_replicas_to_reject_anything(replicas):
    assert stats.coin_flip_cutoff(replicas) == (0, 0.0)
    assert np.all(stats.p_value(np.arange(replicas + 1), replicas) >= 0.05)


def test_boundary_is_inside_the_acceptance_region():
    # F(1) = 7/64 for B = 6, so alpha = 14/64 hits the tail exactly; a hair more excludes k = 1.
    assert stats.coin_flip_cutoff(6, 14 / 64)[0] == 1
    assert stats.coin_flip_cutoff(6, np.nextafter(14 / 64, 1))[0] == 2


@given(st.integers(2, 300), st.floats(1e-6, 1 - 1e-6))
def test_region_is_where_p_is_at_least_alpha(replicas, alpha):
    k_low, cutoff = stats.coin_flip_cutoff(replicas, alpha)
    votes = np.arange(replicas + 1)
    inside = (votes >= k_low) & (votes <= replicas - k_low)
    np.testing.assert_array_equal(stats.p_value(votes, replicas) >= alpha, inside)
    assert 0 <= cutoff <= 1


@pytest.mark.parametrize("replicas", [2, 3, 8, 31, 127])
def test_p_value_is_scipys(replicas):
    expected = [float(scipy.stats.binomtest(k, replicas).pvalue) for k in range(replicas + 1)]
    np.testing.assert_allclose(
        stats.p_value(np.arange(replicas + 1), replicas), expected, rtol=1e-9
    )


def test_p_value_keeps_missing_and_shape():
    np.testing.assert_array_equal(np.isnan(stats.p_value([[np.nan, 3.0]], 6)), [[True, False]])
    assert stats.p_value(3, 6).shape == ()
    assert stats.p_value([], 6).shape == (0,)


@pytest.mark.parametrize(("replicas", "alpha"), [(1, 0.05), (0, 0.05), (9, 0.0), (9, 1.0)])
def test_bad_arguments(replicas, alpha):
    with pytest.raises(ValueError, match="must"):
        stats.coin_flip_cutoff(replicas, alpha)


def test_nan_alpha_is_refused():
    with pytest.raises(ValueError, match="alpha"):
        stats.coin_flip_cutoff(9, float("nan"))


@pytest.mark.parametrize("votes", [-1, 7, 2.5, np.inf])
def test_votes_must_be_counts(votes):
    with pytest.raises(ValueError, match="integers"):
        as_vote_counts([votes], 6)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_the_test_keeps_its_level_exactly(alpha):
    for replicas in range(8, 301):
        k_low, _ = stats.coin_flip_cutoff(replicas, alpha)
        rejected = sum(comb(replicas, k) for k in range(k_low)) * 2
        assert rejected <= alpha * 2**replicas  # whole numbers below 2^1000 compare exactly
        # And it rejects all that it may: one vote more in each tail would be too much.
        assert rejected + 2 * comb(replicas, k_low) > alpha * 2**replicas


@pytest.mark.montecarlo
@pytest.mark.parametrize("replicas", [8, 31, 127, 300])
def test_the_test_keeps_its_level_on_coins(replicas):
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


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson_is_scipys(confidence):
    hits = np.array([0, 1, 7, 19, 20])
    low, high = stats.clopper_pearson(hits, 20, confidence=confidence)
    for i, k in enumerate(hits):
        want = scipy.stats.binomtest(int(k), 20).proportion_ci(confidence, method="exact")
        np.testing.assert_allclose([low[i], high[i]], [want.low, want.high], rtol=1e-6)


def test_clopper_pearson_edges():
    # No success in n: the upper end solves (1 - p)^n = 0.025.
    low, high = stats.clopper_pearson([0, 10, 0], [10, 10, 0])
    np.testing.assert_allclose(low, [0, 0.025**0.1, 0])
    np.testing.assert_allclose(high, [1 - 0.025**0.1, 1, 1])
    for hits, n, confidence in [(3, 2, 0.9), (-1, 2, 0.9), (np.nan, 2, 0.9), (1, 2, 1.0)]:
        with pytest.raises(ValueError, match="must"):
            stats.clopper_pearson(hits, n, confidence=confidence)


@pytest.mark.parametrize("rate", [0.01, 0.3, 0.5])
def test_clopper_pearson_covers_exactly_summed(rate):
    hits = np.arange(41)
    low, high = stats.clopper_pearson(hits, 40, confidence=0.9)
    covered = scipy.stats.binom.pmf(hits, 40, rate)[(low <= rate) & (rate <= high)].sum()
    assert covered >= 0.9


@pytest.mark.process
def test_pytest_can_fail(tmp_path):
    broken = tmp_path / "broken_test.py"
    broken.write_text(
        "from lm_mia.stats.coin_flip import coin_flip_cutoff\n"
        "def test_wrong():\n    assert coin_flip_cutoff(127)[0] == 51\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(broken)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    assert "1 failed" in run.stdout


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, np.int16])
def test_numbers_of_replicas_of_any_integer_type(integer):
    assert stats.coin_flip_cutoff(integer(127)) == stats.coin_flip_cutoff(127)
    assert stats.coin_flip_cutoff(integer(60))[0] == 22
    np.testing.assert_array_equal(stats.p_value([52, 0], integer(127)), stats.p_value([52, 0], 127))
    assert stats.max_flip_rate(integer(127)) == stats.max_flip_rate(127)
    for function in (stats.flip_rate, stats.flip_bins):
        np.testing.assert_array_equal(function([52, 3], integer(127)), function([52, 3], 127))
    counts = stats.count_member_votes([[52.0, 3.0]], [True, True], integer(127))
    assert counts.coin_flip_true_positives_K.tolist() == [52]
    with pytest.raises(TypeError):
        stats.coin_flip_cutoff(127.0)  # pyright: ignore[reportArgumentType]
