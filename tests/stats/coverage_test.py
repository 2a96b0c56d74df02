"""Coverage of nominal 95 % intervals: they contain the true value in 93-97 % of 1,000 simulated experiments."""

import numpy as np
import pytest
import scipy.stats

from lm_mia import stats

EXPERIMENTS = 1000
GAP = 0.95  # between the means of two Gaussians of unit variance: AUC 0.749


def coverage(low, high, truth):
    return np.mean((low <= truth) & (truth <= high))


@pytest.mark.montecarlo
def test_bootstrap_intervals_have_nominal_coverage():
    rng = np.random.default_rng(0)
    member_N = np.arange(800) < 400
    results = []
    for seed in range(EXPERIMENTS):  # experiments must not share bootstrap draws
        score_N = rng.normal(size=800) + GAP * member_N
        results.append(stats.bootstrap_intervals(score_N, member_N, 0.1, replicates=300, seed=seed))
    auc = coverage(
        np.array([f.auc_low_T[0] for f in results]),
        np.array([f.auc_high_T[0] for f in results]),
        scipy.stats.norm.cdf(GAP / np.sqrt(2)),
    )
    tpr = coverage(
        np.array([f.tpr_low_TxF[0, 0] for f in results]),
        np.array([f.tpr_high_TxF[0, 0] for f in results]),
        scipy.stats.norm.cdf(GAP + scipy.stats.norm.ppf(0.1)),
    )
    assert 0.93 <= auc <= 0.97
    assert 0.93 <= tpr <= 0.97


@pytest.mark.montecarlo
@pytest.mark.parametrize(("n", "rate"), [(200, 0.3), (1000, 0.1), (2000, 0.5)])
def test_clopper_pearson_has_nominal_coverage(n, rate):
    hits = np.random.default_rng(n).binomial(n, rate, EXPERIMENTS)
    low, high = stats.clopper_pearson(hits, n)
    assert 0.93 <= coverage(low, high, rate) <= 0.97


@pytest.mark.parametrize("n", [1, 5, 30, 200, 1000])
def test_clopper_pearson_coverage_is_never_below_nominal(n):
    hits = np.arange(n + 1)
    low, high = stats.clopper_pearson(hits, n)
    # The exact coverage on a grid of rates, and on both sides of each end of an interval, where it drops.
    edges = np.r_[low, high]
    rates = np.r_[np.linspace(1e-6, 1 - 1e-6, 501), edges * (1 - 1e-9), edges * (1 + 1e-9)]
    for rate in rates[(rates > 0) & (rates < 1)]:
        covered = (low <= rate) & (rate <= high)
        assert scipy.stats.binom.pmf(hits[covered], n, rate).sum() >= 0.95 - 1e-9
