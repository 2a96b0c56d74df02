"""Bounds from independent trials: by hand, from a loop over thresholds, and their validity in simulations."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import beta

from lm_mia import seeds, stats


def slow_bound(members: list[float], nonmembers: list[float], delta: float, alpha: float) -> float:
    """Computes the bound from quantiles of beta distributions, one threshold after another."""

    def numbers(n: int) -> list[int]:
        return [0] + [c for c in (2**i for i in range(30)) if c <= n / 2]

    def upper(errors: int, n: int, level: float) -> float:
        return 1.0 if errors == n else float(beta.ppf(1 - level, errors + 1, n - errors))

    hypotheses = len(numbers(len(members))) + len(numbers(len(nonmembers)))
    level = alpha / (2 * hypotheses)
    best = 0.0
    rates = []
    for c in numbers(len(nonmembers)):
        threshold = sorted((-np.inf if np.isnan(s) else s for s in nonmembers), reverse=True)[c]
        missed = sum(not s > threshold for s in members)
        rates.append((upper(c, len(nonmembers), level), upper(missed, len(members), level)))
    for c in numbers(len(members)):
        threshold = sorted(np.inf if np.isnan(s) else s for s in members)[c]
        called = sum(not s < threshold for s in nonmembers)
        rates.append((upper(called, len(nonmembers), level), upper(c, len(members), level)))
    for fpr, fnr in rates:
        for correct, wrong in ((1 - fnr, fpr), (1 - fpr, fnr)):
            if correct > delta:
                best = max(best, float(np.log((correct - delta) / wrong)))
    return best


def test_ceiling_by_hand():
    # 0 errors of 64 at 0.025: an upper end of 1 - 0.025^(1/64) = 0.05601.
    assert stats.epsilon_ceiling(64, 64, 0.05, 0.0) == pytest.approx(2.8246, abs=5e-5)
    assert stats.epsilon_ceiling(64, 64, 0.05, 0.5) == pytest.approx(
        np.log(0.44399 / 0.05601), abs=1e-3
    )
    assert stats.epsilon_ceiling(1, 1, 0.05, 0.0) == 0
    with pytest.raises(ValueError, match="members"):
        stats.epsilon_ceiling(0, 64, 0.05, 0.0)


@pytest.mark.parametrize("delta", [0.0, 0.1])
@pytest.mark.parametrize(("digits", "missing"), [(6, 0.0), (0, 0.0), (6, 0.1)])
def test_equals_a_loop_over_thresholds(delta: float, digits: int, missing: float):
    rng = np.random.default_rng(5)
    for members, nonmembers, shift in (
        (40, 70, 3),
        (7, 3, 5),
        (1, 1, 9),
        (64, 64, 1),
        (33, 20, -4),
    ):
        member_N = np.arange(members + nonmembers) < members
        score_N = np.round(rng.normal(size=member_N.size) + shift * member_N, digits)
        score_N[rng.random(score_N.size) < missing] = np.nan
        actual = stats.independent_trials_bound(score_N, member_N, delta=delta)
        # Ties in the order of the keys, one sample after another.
        key_N = seeds.keys(0, "ties", np.arange(score_N.size)).tolist()
        scored = [(s, key_N[i], i) for i, s in enumerate(score_N.tolist()) if not np.isnan(s)]
        rank_N = np.full(score_N.size, np.nan)
        rank_N[[i for _, _, i in sorted(scored)]] = range(len(scored))
        slow = slow_bound([*rank_N[member_N]], [*rank_N[~member_N]], delta, 0.05)
        assert actual.epsilon == pytest.approx(slow, rel=1e-9)
        assert actual.epsilon <= actual.ceiling + 1e-12
        assert actual.left_out == np.isnan(score_N).sum()


def test_perfect_scores_reach_the_ceiling():
    member_N = np.arange(300) < 100
    bound = stats.independent_trials_bound(1.0 * member_N, member_N, delta=1e-5)
    assert bound.epsilon == bound.ceiling
    level = bound.level / bound.hypotheses
    assert bound.ceiling == stats.epsilon_ceiling(100, 200, level, 1e-5)
    # More trials, less delta and less confidence show more.
    more = [
        (200, 200, 0.05, 0.0),
        (100, 100, 0.1, 0.0),
        (100, 100, 0.05, 0.0),
        (100, 100, 0.05, 0.01),
    ]
    values = [stats.epsilon_ceiling(*arguments) for arguments in more]
    assert values[2] < min(values[:2])
    assert values[3] < values[2]


def test_missing_scores_are_trials():
    member_N = np.arange(128) < 64
    score_N = np.where(member_N, 1.0, 0.0)
    full = stats.independent_trials_bound(score_N, member_N)
    score_N[[*range(32), *range(64, 96)]] = np.nan
    assert stats.independent_trials_bound(score_N, member_N).epsilon < full.epsilon - 0.5
    # A score that is only computed for members would otherwise show what its presence shows.
    score_N[:] = np.nan
    assert stats.independent_trials_bound(score_N, member_N).epsilon == 0


def test_bad_arguments():
    member_N = np.arange(4) < 2
    for bad, match in (
        (dict(score_N=np.zeros(3)), "match"),
        (dict(delta=1.0), "delta"),
        (dict(confidence=1.0), "confidence"),
        (dict(member_N=np.ones(4, bool)), "members and non-members"),
    ):
        arguments: dict[str, Any] = dict(score_N=np.zeros(4), member_N=member_N) | bad
        with pytest.raises(ValueError, match=match):
            stats.independent_trials_bound(**arguments)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_valid_for_the_gaussian_mechanism(mu: float):
    # benchmarks/audit.py has more runs and cases.
    rng = np.random.default_rng(11)
    delta, runs = 1e-5, 100
    truth = float(stats.gaussian_dp_epsilon(mu, delta))
    member_N = np.arange(500) < 250
    values = [
        stats.independent_trials_bound(rng.normal(size=500) + mu * member_N, member_N, delta=delta)
        for _ in range(runs)
    ]
    assert np.mean([bound.epsilon > truth for bound in values]) <= 0.05
    assert mu == 0 or np.median([bound.epsilon for bound in values]) > 0.3


def test_affine_scores():
    rng = np.random.default_rng(2)
    member_N = rng.random(200) < 0.5
    score_N = np.round(rng.normal(size=200) + 2 * member_N, 1)
    assert stats.independent_trials_bound(score_N, member_N) == stats.independent_trials_bound(
        8 * score_N - 3, member_N
    )
