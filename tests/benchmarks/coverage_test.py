"""The designs of the simulated coverage of intervals, and small simulations."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_mia import stats


@pytest.fixture(scope="module")
def coverage() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("coverage")


def test_true_values_are_those_of_many_samples(coverage: Any):
    rng = np.random.default_rng(0)
    for design in coverage.DESIGNS:
        n = 200_000
        score_N = np.r_[design.draw_nonmember(rng, n), design.draw_member(rng, n)]
        # Away from ties at exactly the rate, where the TPR jumps.
        fpr_F = np.array([0.0153, 0.1037, 0.5021])
        points = stats.tpr_at_fpr(score_N, np.arange(2 * n) >= n, fpr_F)
        assert points.auc_T[0] == pytest.approx(design.auc, abs=0.004)
        np.testing.assert_allclose(points.tpr_TxF[0], design.tpr(fpr_F), atol=0.01)


def test_tied_scores_are_multiples(coverage: Any):
    """Of three numbers, a sample is above none, one, two or all; all scores are possible thresholds."""
    design = coverage.tied("three", 10, 10, 0.0, 3)
    score_N = design.draw_nonmember(np.random.default_rng(0), 1000)
    np.testing.assert_array_equal(np.unique(score_N), np.arange(4) / 3)
    assert design.auc == pytest.approx(0.5)
    share = np.mean(score_N == 1)
    np.testing.assert_allclose(
        design.tpr(np.array([0.0, share / 2, share + 0.05, 1.0])), [0, 0, share, 1], atol=0.05
    )


@pytest.mark.montecarlo
def test_intervals_of_tied_scores_cover(coverage: Any):
    """Of 200 intervals with a coverage of 95%, 180 or fewer cover with a probability of 1/400."""
    covered_ExS, given_ExS = coverage.simulate(coverage.DESIGNS[-1], 200, 200)
    for column in (0, -3, -2):  # the AUC, and the TPRs at 10% and 50%
        assert given_ExS[:, column].all()
        assert covered_ExS[:, column].sum() > 180
