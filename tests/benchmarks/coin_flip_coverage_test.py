"""Small simulations of the coverage of ranges; benchmarks/coin_flip_coverage.py runs large ones."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lm_mia import stats


@pytest.fixture(scope="module")
def coverage() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("coin_flip_coverage")


@pytest.mark.montecarlo
@pytest.mark.parametrize("replicas", [8, 32])
@pytest.mark.parametrize(
    "name", ["all p = 0.5", "70% p = 0.02, 30% p = 0.5", "probit-normal, rarely members, shock 0.5"]
)
def test_ranges_cover_the_true_share(coverage: ModuleType, name: str, replicas: int):
    [design] = [design for design in coverage.DESIGNS if design.name == name]
    result = coverage.simulate(design, samples=500, replicas=replicas, simulations=40)
    # With a coverage of 95%, 35 of 40 or fewer are covered with a probability of 1%.
    assert result.covered > 35 / 40
    # The observed share tends to be above the true one.
    assert result.observed_S.mean() > result.true_share - 0.01
    assert (result.high_S - result.low_S).mean() > 0.02


@pytest.mark.montecarlo
def test_treating_votes_as_independent_would_not_cover(coverage: ModuleType):
    """Many samples and strong shocks: without the design effect, the ranges are far too narrow."""
    design = coverage.shocks("strong shocks", -1, 0.5, 1.0)
    true_share, rng = design.true_share(0), np.random.default_rng(7)
    covered, naive = 0, 0
    for _ in range(20):
        vote_BxN = design.draw(rng, 32, 2**14)
        votes = stats.count_vote_histograms(vote_BxN, np.full((32, 1), 0.5))
        samples_K = votes.samples_FxK[0]
        equal_RxK = np.tile(samples_K * np.arange(33) / 32, (32, 1))
        for called_RxK, is_naive in ((votes.called_FxRxK[0], False), (equal_RxK, True)):
            limits = stats.coin_flip_range(samples_K, called_RxK)
            inside = limits.low <= true_share <= limits.high
            naive += inside and is_naive
            covered += inside and not is_naive
    assert covered >= 18
    assert naive <= 13


def test_true_shares(coverage: ModuleType):
    points, uniform = coverage.DESIGNS[2], coverage.DESIGNS[3]
    assert points.true_share(10) == pytest.approx(
        0.7 * stats.coin_flip_probability(0.02, 127) + 0.3 * stats.coin_flip_probability(0.5, 127)
    )
    # Under the uniform distribution all numbers of votes from 0 to 127 are equally likely: 52 to 75 are 24 of 128.
    assert uniform.true_share(10) == pytest.approx(24 / 128, abs=1e-6)
    without_shock = coverage.shocks("", 0.3, 0.5, 0)
    vote_BxN = without_shock.draw(np.random.default_rng(1), 127, 20000)
    votes_N = vote_BxN.sum(axis=0)
    share = np.mean((votes_N >= 52) & (votes_N <= 75))
    assert without_shock.true_share(0) == pytest.approx(share, abs=0.015)


@pytest.mark.montecarlo
def test_calibrated_votes_have_the_requested_fpr(coverage: ModuleType):
    design = coverage.calibrated("", of_members=False)
    vote_BxN = design.draw(np.random.default_rng(2), 5, 1000)
    assert vote_BxN.sum(axis=1).tolist() == [50] * 5
