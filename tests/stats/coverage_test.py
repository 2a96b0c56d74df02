"""Nominal 95 % intervals cover the truth in 93-97 % of 1,000 simulated experiments."""

import numpy as np
import pytest
import scipy.stats

from lm_mia import stats

EXPERIMENTS = 1000
GAP = 0.95  # between equal-variance Gaussians: AUC 0.749


def share_covered(low, high, truth):
    return np.mean((low <= truth) & (truth <= high))


@pytest.mark.montecarlo
def test_bootstrap_of_auc_and_tpr():
    rng = np.random.default_rng(0)
    member_N = np.arange(800) < 400
    found = []
    for seed in range(EXPERIMENTS):  # redrawn anew in each: experiments must not share draws
        score_N = rng.normal(size=800) + GAP * member_N
        found.append(stats.bootstrap_intervals(score_N, member_N, 0.1, replicates=300, seed=seed))
    auc = share_covered(
        np.array([f.auc_low_T[0] for f in found]),
        np.array([f.auc_high_T[0] for f in found]),
        scipy.stats.norm.cdf(GAP / np.sqrt(2)),
    )
    tpr = share_covered(
        np.array([f.tpr_low_TxF[0, 0] for f in found]),
        np.array([f.tpr_high_TxF[0, 0] for f in found]),
        scipy.stats.norm.cdf(GAP + scipy.stats.norm.ppf(0.1)),
    )
    assert 0.93 <= auc <= 0.97
    assert 0.93 <= tpr <= 0.97


@pytest.mark.montecarlo
@pytest.mark.parametrize(("n", "rate"), [(200, 0.3), (1000, 0.1), (2000, 0.5)])
def test_clopper_pearson(n, rate):
    hits = np.random.default_rng(n).binomial(n, rate, EXPERIMENTS)
    low, high = stats.clopper_pearson(hits, n)
    assert 0.93 <= share_covered(low, high, rate) <= 0.97


@pytest.mark.parametrize("n", [1, 5, 30, 200, 1000])
def test_clopper_pearson_never_covers_less_than_it_says(n):
    hits = np.arange(n + 1)
    low, high = stats.clopper_pearson(hits, n)
    # The chance to cover, summed, at rates everywhere and on both sides of every end of an
    # interval, which is where it drops.
    edges = np.r_[low, high]
    rates = np.r_[np.linspace(1e-6, 1 - 1e-6, 501), edges * (1 - 1e-9), edges * (1 + 1e-9)]
    for rate in rates[(rates > 0) & (rates < 1)]:
        covered = (low <= rate) & (rate <= high)
        assert scipy.stats.binom.pmf(hits[covered], n, rate).sum() >= 0.95 - 1e-9
