"""A small part of benchmarks/noise.py: every attack on losses that say nothing about membership.

docs/results/statistics.md has all of it."""

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lm_mia import stats
from lm_mia.attacks.designs import ModelDesign
from lm_mia.stats import leave_one_out, standardization

pytestmark = pytest.mark.montecarlo
MAX_ERROR = 0.01
"""Few rounds, since z takes their number into account."""
DESIGNS = ("exact", "bernoulli", "pairs", "columns", "two seeds", "columns, two seeds")


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    module = importlib.import_module("noise")
    monkeypatch.setitem(
        module.MAX_TARGETS, "noise", 4
    )  # each costs as much as a round of one target
    return module


def table_of(noise: ModuleType, *cell: Any, max_error: float = MAX_ERROR) -> pd.DataFrame:
    cell = noise.Cell(*cell)
    return noise.to_table(cell, noise.run_cell(cell, max_error))


def largest_z(table: pd.DataFrame) -> float:
    z = table[[name for name in table if str(name).endswith("_z")]]
    return float(np.nanmax(np.abs(z.to_numpy(float))))


@pytest.mark.parametrize(
    ("design", "held_out"),
    [
        ("exact", ""),
        ("pairs", ""),
        ("columns, two seeds", ""),
        ("bernoulli", "25% held out"),
        ("two seeds", "1 never trained"),
    ],
)
def test_every_attack_is_at_chance(noise: ModuleType, design: str, held_out: str):
    assert {*DESIGNS} == {*noise.DESIGNS}
    table = table_of(noise, "noise", design, held_out, 8, "all")
    assert [*table["attack"]] == noise.NAMES
    assert largest_z(table) < noise.MAX_Z
    scored = table[table["rounds"] > 0]
    assert (scored["auc_error"] <= MAX_ERROR).all()
    # Of four subsets, the target, its partner, the reference that is attacked to tune a and its partner leave none.
    is_too_few = design == "columns, two seeds" and not held_out
    refused = {"rmia_offline, tuned a"} if is_too_few else set[str]()
    assert {*noise.NAMES} - {*scored["attack"]} == refused


@pytest.mark.parametrize("design", ["columns", "two seeds"])
def test_four_models_are_at_chance_or_give_no_scores(noise: ModuleType, design: str):
    table = table_of(noise, "noise", design, "25% held out", 4, "one")
    assert largest_z(table) < noise.MAX_Z
    assert ((table["rounds"] == 0) == (table["reason"] != "")).all()
    has_scores = table.set_index("attack")["rounds"] > 0
    assert has_scores["reference_calibrated"] == ("seeds" not in design)
    assert not has_scores["lira_online"]


def only_the_target(member_MxN: np.ndarray) -> ModelDesign:
    index_M = np.arange(len(member_MxN))
    return ModelDesign((), stats.Design(index_M, index_M), np.ones(len(index_M), bool))


def no_partners(member_MxN: np.ndarray) -> ModelDesign:
    group_M = stats.design_of(member_MxN).group_M
    return ModelDesign((), stats.Design(group_M, group_M), np.ones(len(group_M), bool))


@pytest.mark.parametrize(
    ("design", "fault"),
    [
        ("two seeds", only_the_target),
        ("columns", no_partners),
    ],
)
def test_related_models_would_leak(
    noise: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    design: str,
    fault: Callable[[np.ndarray], ModelDesign],
):
    monkeypatch.setattr(noise, "find_design", fault)
    table = table_of(noise, "noise", design, "", 8, "all").set_index("attack")
    for name in ("lira_online", "leave-one-out lira_online"):
        assert largest_z(table.loc[[name]]) > noise.MAX_Z, name


def test_held_out_samples_with_scores_would_double_low_rates(
    noise: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    use = ModelDesign.use

    def all_have_scores(*args: Any) -> tuple[np.ndarray, np.ndarray]:
        is_used_RxC, has_score_TxC = use(*args)
        return is_used_RxC, np.ones_like(has_score_TxC)

    monkeypatch.setattr(ModelDesign, "use", all_have_scores)
    for module in (leave_one_out, standardization):
        monkeypatch.setattr(module, "has_both_classes", lambda *moments: True)
    table = table_of(noise, "noise", "exact", "25% held out", 8, "all").set_index("attack")
    for name in ("lira_offline", "leave-one-out lira_offline"):
        assert table["tpr_at_0.01_excess"].to_dict()[name] > 0.004
        assert largest_z(table.loc[[name]]) > noise.MAX_Z, name


def test_targets_with_a_gap_score_as_fresh_ones(noise: ModuleType):
    table = table_of(noise, "gap", "columns", "", 8, "all", max_error=0.005).set_index("attack")
    assert 0.66 < table["auc"].to_dict()["reference_calibrated"] < 0.69
    assert (table["auc"] - table["fresh_auc"]).abs().max() < noise.MAX_DIFFERENCE


def test_table_continues_and_lists_what_is_wrong(
    noise: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
):
    path, cells = tmp_path / "noise.csv", noise.all_cells(["noise", "gap"], [4, 8])
    assert len(cells) == (2 + 1) * 6 * 3 * 2
    monkeypatch.setattr(noise, "all_cells", lambda *args: cells[:count])
    for count in (1, 3):
        monkeypatch.setitem(noise.MAX_ERROR, "noise", 0.02)
        noise.run(path, ["noise"], [4])
        assert len(capsys.readouterr().out.splitlines()) == (1 if count == 1 else 2)
    table = pd.read_csv(path)
    assert len(table) == 3 * len(noise.NAMES)
    assert noise.failures(table) == []
    noise.show(path)
    assert "All values are" in capsys.readouterr().out
    table.loc[1, "tpr_at_0.01_z"] = -4.6
    table.loc[2, "world"], table.loc[2, "auc"], table.loc[2, "fresh_auc"] = "gap", 0.6, 0.62
    lines = noise.failures(table)
    assert len(lines) == 2
    assert "lira_offline" in lines[0]
    assert "0.6200" in lines[1]
