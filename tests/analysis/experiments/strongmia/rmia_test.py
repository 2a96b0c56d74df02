"""Claims on the gamma of RMIA."""

import re

import numpy as np
import pytest

from analysis.claims.jackknife import Jackknife
from analysis.experiments.strongmia import rmia


def test_claims_on_gamma_with_zero_tpr_are_not_tested():
    zero, low, high = (
        Jackknife.from_targets(np.reshape(tpr, (3, 1, 1)), "3 targets")
        for tpr in ([0.0, 0, 0], [0.1, 0.12, 0.11], [0.3, 0.29, 0.32])
    )
    verdicts = [rmia._lowered(*pair, 20, "TPR").verdict for pair in ((zero, low), (high, low))]
    assert verdicts == ["not tested", "supported"]


@pytest.mark.parametrize(
    ("with_1", "with_1_1", "with_1_2", "verdict"),
    [
        ([0.3, 0.29, 0.32], [0.0, 0, 0], [0.0, 0, 0], "supported"),
        ([0.3, 0.29, 0.32], [0.01, 0, 0], [0.0, 0, 0], "supported"),
        ([0.3, 0.29, 0.32], [0.0, 0, 0], [0.2, 0.21, 0.19], "contradicted"),
        ([0.3, 0.29, 0.32], [0.1, 0.0, 0.05], [0.0, 0, 0], "undecided"),
        ([0.04, 0.05, 0.05], [0.0, 0, 0], [0.0, 0, 0], "not tested"),
    ],
)
def test_tpr_reaches_zero(
    with_1: list[float], with_1_1: list[float], with_1_2: list[float], verdict: str
):
    tpr = {
        gamma: Jackknife.from_targets(np.reshape(values, (3, 1, 1)), "3 targets")
        for gamma, values in zip(
            (1.0, 1.05, 1.1, 1.2), (with_1, with_1, with_1_1, with_1_2), strict=True
        )
    }
    claim = rmia._reaches_zero(tpr, 0.05, 20)
    assert claim.verdict == verdict
    if verdict != "not tested":  # The TPR with gamma 1.05 does not count.
        assert len(re.findall(r"TPR\b[^;]*\b0\.05\b[^;]*\bgamma 1\.", claim.finding)) == 2
        assert "gamma 1.1, 20 comparison samples" in claim.finding


@pytest.mark.montecarlo
def test_tpr_of_guessing_is_rarely_called_zero():
    """The mean TPR with gamma 1.1 is the FPR; 2.5% of 2,000 draws have a standard error of 0.35 points."""
    rng = np.random.default_rng(0)
    supported = 0
    for _ in range(2000):
        tpr = {
            gamma: Jackknife.from_targets(rng.normal(mean, 0.01, (8, 1, 1)), "8 targets")
            for gamma, mean in ((1.0, 0.2), (1.1, 0.05), (1.2, 0.0))
        }
        supported += rmia._reaches_zero(tpr, 0.05, 20).verdict == "supported"
    assert 0.015 < supported / 2000 < 0.036
