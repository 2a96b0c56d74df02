"""The comparison of attacks at every number of references, on a small simulated recipe."""

import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from lm_mia import stats


@pytest.fixture(scope="module")
def strength() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("attack_strength")


def test_needed_references_are_interpolated_on_a_log_scale(strength: ModuleType):
    curve = pd.Series({2: 0.5, 4: 0.6, 8: 0.7})
    assert strength.needed_references(curve, 0.65) == pytest.approx(4 * math.sqrt(2))
    assert strength.needed_references(curve, 0.7) == pytest.approx(8)
    assert strength.needed_references(curve, 0.4) == 2
    assert strength.needed_references(curve, 0.71) == math.inf


def test_numbers_of_a_recipe(strength: ModuleType, capsys: pytest.CaptureFixture[str]):
    rng = np.random.default_rng(0)
    models, samples = 4 + strength.TARGETS, 1024
    member_MxN2 = rng.random((models, samples)) < 0.5
    loss_MxN2 = rng.normal(3, 0.5, samples) + rng.normal(0, 0.1, (models, samples))
    covariate_N2xK = rng.normal(size=(samples, 1))
    losses = strength.Losses(loss_MxN2 - 0.1 * member_MxN2, member_MxN2, covariate_N2xK)
    table = pd.DataFrame(strength.recipe_rows(losses, "simulated"))
    assert [*table["references"].unique()] == [2, 4]

    score_TxN = stats.shrunk_lira(
        losses.loss_MxN2[4:], losses.loss_MxN2[:4], member_MxN2[:4], covariate_NxK=covariate_N2xK
    )
    rows = table[(table["references"] == 4) & (table["metric"] == "AUC")]
    value = rows[rows["minus"] == ""].set_index("attack")["value"]
    assert value["shrunk"] == pytest.approx(stats.auc(score_TxN, member_MxN2[4:]).auc_T.mean())
    difference = rows[(rows["attack"] == "shrunk") & (rows["minus"] == "best other")].iloc[0]
    others = value[[name for name in strength.OTHERS if name in value]]
    assert difference["minus_attack"] == others.idxmax()
    best = {
        "LiRA": lambda: stats.lira(losses.loss_MxN2[4:], losses.loss_MxN2[:4], member_MxN2[:4]),
        "calibrated loss": lambda: losses.loss_MxN2[:4].mean(axis=0) - losses.loss_MxN2[4:],
    }
    other_TxN = best[str(others.idxmax())]()
    common_TxN = ~np.isnan(score_TxN) & ~np.isnan(other_TxN)
    own, other = (
        stats.auc(np.where(common_TxN, score, np.nan), member_MxN2[4:]).auc_T.mean()
        for score in (score_TxN, other_TxN)
    )
    assert difference["value"] == pytest.approx(own - other)
    assert difference["low"] < difference["value"] < difference["high"]
    assert difference["fixed"] == "references"  # 4 references are too few for parts of them

    for print_part in (strength.print_means, strength.print_ratios, strength.print_recipes):
        print_part(table)
    printed = capsys.readouterr().out
    assert f"{value['shrunk']:.3f}" in printed
    # Four references with two IN and two OUT losses are needed.
    two_of_four = np.mean(member_MxN2[:4].sum(axis=0) == 2)
    assert f"| LiRA | nan | {value['LiRA']:.3f} ({100 * two_of_four:.0f} %) |" in printed
    assert f"| simulated | 4 | {100 * value['LiRA']:.1f} / " in printed


def test_interval_of_the_median(strength: ModuleType):
    """The median is below the lower end if at most as many values as its index are below the median."""
    for count in (6, 13, 40):
        low, high = strength.median_interval(count)
        assert high == count - 1 - low
        assert 2 * scipy.stats.binom.cdf(low, count, 0.5) <= 0.05
        assert 2 * scipy.stats.binom.cdf(low + 1, count, 0.5) > 0.05
    assert strength.median_interval(2) == (0, 1)
