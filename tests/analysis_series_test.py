"""What several figures share: which rows and rates they compare, and claims of two steps."""

import dataclasses
import importlib
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from synthetic_figures import ROOT, folder

__all__ = ["folder"]  # a fixture
sys.path.append(str(ROOT / "analysis"))
series, measured, rmia_z = map(importlib.import_module, ("series", "measured", "rmia_z"))
Estimate = importlib.import_module("claims").Estimate
UP, DOWN, FLAT, NONE = (
    Estimate(sum(ends) / 2, *ends, "8 targets")
    for ends in ((0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1), (math.nan, math.nan))
)


@pytest.fixture(scope="module")
def recipes(folder: Path) -> Any:
    return measured.Recipes(sorted(p.parent for p in folder.glob("*/config.json")))


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([UP, DOWN], "seen"),
        ([DOWN, FLAT, UP], "seen"),
        ([UP, UP], "not seen"),
        ([UP, FLAT], "not seen"),
        ([DOWN, DOWN], "not seen"),
        ([UP], "not tested"),
        ([], "not tested"),
        ([UP, DOWN, NONE], "not tested"),
    ],
)
def test_up_and_down_takes_a_step_of_each(steps: list[Any], verdict: str):
    claim = series.both_ways("It rises and falls.", [(f"step {i}", s) for i, s in enumerate(steps)])
    assert claim.verdict == verdict
    assert all(f"step {i}" in claim.said for i in range(len(steps)))


def of(samples: int, *fprs: float) -> Any:
    """What the rates are chosen from: a recipe whose rows have so many non-members."""
    attack = SimpleNamespace(fprs=fprs, rmia_samples=300)
    config = SimpleNamespace(attack=attack, population=SimpleNamespace(samples=2 * samples))
    return SimpleNamespace(samples=samples, config=config)


def test_the_lowest_rate_has_ten_non_members():
    assert series.lowest_rate(of(1_000, 0.001, 0.01, 0.1)) == 0.01  # exactly ten
    assert series.lowest_rate(of(999, 0.001, 0.01, 0.1)) == 0.1
    assert series.lowest_rate(of(20, 0.001, 0.01, 0.1)) == 0.1  # none has: the highest


def test_a_rate_that_rmia_cannot_reach_is_a_quarter_of_its_highest_share():
    assert rmia_z.unreached(of(1_000, 0.001, 0.01, 0.1), 250) == 0.001  # exactly 1 / (4 |Z|)
    assert rmia_z.unreached(of(1_000, 0.001, 0.01, 0.1), 25) == 0.01
    assert rmia_z.unreached(of(1_000, 0.001, 0.01, 0.1), 10_000) == 0.001  # none is: the lowest


def test_the_rate_that_rmia_just_reaches_is_nearest_to_its_highest_share():
    assert rmia_z.reached(of(1_000, 0.001, 0.01, 0.1), 100) == 0.01
    assert (
        rmia_z.reached(of(1_000, 0.0, 0.01, 0.1), 20) == 0.1
    )  # 2 times 0.05, and 0.01 a fifth of it
    assert rmia_z.reached(of(1_000, 0.001, 0.01), 10_000) == 0.001


def test_rmia_compares_with_the_papers_shares_of_the_population():
    assert rmia_z.comparisons(of(2**19)) == [10_000, 30_000, 100_000, 300_000]
    assert rmia_z.comparisons(of(1_024)) == [20, 59, 195, 586]
    assert (rmia_z.compared(of(100)), rmia_z.compared(of(1_000))) == (200, 300)


def test_recipes_alike_have_the_rows_of_the_smallest(recipes: Any):
    main, small = recipes["main"], recipes["small"]
    a = dataclasses.replace(main.config.attack, references=12, targets=2)
    narrow = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=a))
    assert small.config.attack.references > 12
    alike = series.alike([narrow, small])
    assert [len(r.rows[0]) for r in alike] == [10, 10]
    targets = [[row.subset_seed for row in r.rows[1]] for r in alike]
    assert targets == [[10, 11], [10, 11]]
    assert [r.folder for r in alike] == [main.folder, small.folder]


def test_departures_from_table_7_are_those_of_the_configs():
    tab07 = importlib.import_module("tab07_settings")
    asked = {name: c for name, (_, c) in tab07.published_setting().items()}
    said, main, fixed = tab07.DEPARTURES, asked["main"].attack, asked["fixed-140M"].attack
    assert {asked[n].population.samples // 2 for n in ("small", "flip-140M", "flip-302M")} == {
        2**19
    }
    assert f"up to {main.references - main.targets} references" in said
    assert f"scores of all {main.references} (128)" in said
    assert asked["schedule-linear"].population.samples == 2 * 7_000_000
    assert f"the {asked['chinchilla-10M'].attack.targets} targets" in said
    assert f"each of {fixed.references} models" in said
