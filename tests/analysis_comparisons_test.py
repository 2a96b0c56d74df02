"""Differences of recipes, with what references add to their intervals."""

import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from synthetic_figures import ROOT, folder

from lm_mia import subsets
from lm_mia.stats import lira, roc

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


class Drawn:
    """A recipe of drawn losses: training lowers those of members, and nothing else differs."""

    def __init__(self, rng: np.random.Generator, references: int, first_seed: int):
        rows = range(first_seed, first_seed + references + 4)  # 4 targets
        self.member_MxN = np.array([subsets.member(row, 128, "balanced") for row in rows])
        self.loss_MxN = rng.normal(size=self.member_MxN.shape) - 0.5 * self.member_MxN
        self.references = references

    def attacked(self, references: int, step: int, without: int | None) -> Any:
        kept = [i for i in range(references) if without is None or i // 2 % 8 != without]
        score_TxN = lira.lira(
            self.loss_MxN[references:],
            self.loss_MxN[kept],
            self.member_MxN[kept],
            variance="pooled",
        )
        pairs = zip(score_TxN, self.member_MxN[references:], strict=True)
        return SimpleNamespace(auc_T=np.array([roc.auc(s[None], m).auc_T[0] for s, m in pairs]))


@pytest.mark.parametrize("paired", [True, False])
def test_an_interval_of_recipes_that_are_alike_has_0_in_it(
    paired: bool, monkeypatch: pytest.MonkeyPatch
):
    """Of 100 draws a good interval misses 5, and 12 or more in 1 of 230."""
    monkeypatch.setattr(comparisons, "attacked", lambda recipe, **how: recipe.attacked(**how))
    monkeypatch.setattr(comparisons.series, "paired", lambda new, old: paired)
    rng, missed = np.random.default_rng(0), 0
    for draw in range(100):
        new = Drawn(rng, 16, 1_000 * draw)
        old = Drawn(rng, 16, 1_000 * draw + (0 if paired else 500))
        found = comparisons.compared(new, old, 16)
        missed += not found.low <= 0 <= found.high
    assert missed < 12
