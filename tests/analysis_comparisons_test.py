"""Differences of recipes, with what references add to their intervals."""

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from synthetic_figures import ROOT, folder

__all__ = ["folder"]  # a fixture
sys.path.append(str(ROOT / "analysis"))
comparisons, measured = importlib.import_module("comparisons"), importlib.import_module("measured")


@pytest.fixture(scope="module")
def recipes(folder: Path) -> Any:
    return measured.Recipes(sorted(p.parent for p in folder.glob("*/config.json")))


def test_the_jackknife_of_a_mean_is_its_variance_by_groups():
    effect_G = np.random.default_rng(0).normal(size=measured.GROUPS)
    variance, df = comparisons.jackknifed(lambda g: float(np.delete(effect_G, g).mean()))
    assert variance == pytest.approx(effect_G.var(ddof=1) / measured.GROUPS)
    assert df == measured.GROUPS - 1


def test_a_difference_has_the_variance_of_targets_and_of_references(recipes: Any):
    main, small = recipes["main"], recipes["small"]
    found = comparisons.compared(main, small, 20)
    a, b = (measured.attacked(r, references=20).auc_T for r in (main, small))
    assert found.value == pytest.approx(float(a.mean() - b.mean()))
    assert found.over == "4 and 4 targets and their references"
    gap_G = [
        measured.attacked(main, references=20, without=g).auc_T.mean()
        - measured.attacked(small, references=20, without=g).auc_T.mean()
        for g in range(8)
    ]
    parts = (a.var(ddof=1) / 4, 3), (b.var(ddof=1) / 4, 3), (7 * np.var(gap_G), 7)
    assert parts[2][0] > 0
    variance = sum(v for v, _ in parts)
    far = stats.t.ppf(0.975, variance**2 / sum(v**2 / n for v, n in parts)) * math.sqrt(variance)
    assert (found.high - found.low) / 2 == pytest.approx(far)
    assert math.isnan(comparisons.compared(main, small, 12).low)  # too few to leave some out


def test_groups_are_whole_pairs_and_take_turns(recipes: Any):
    main = recipes["main"]
    whole = measured.attacked(main, references=16)
    parts = [measured.attacked(main, references=16, without=g) for g in range(measured.GROUPS)]
    assert len({round(float(p.auc_T.mean()), 12) for p in parts}) == measured.GROUPS
    assert all(p.targets == whole.targets for p in parts)
    assert np.mean([p.auc_T.mean() for p in parts]) == pytest.approx(whole.auc_T.mean(), abs=0.05)
    with pytest.raises(measured.Absent, match="too few references to leave some out"):
        measured.attacked(main, references=15, without=0)
    variance, _ = comparisons.jackknifed(lambda g: math.nan)
    assert math.isnan(variance)
