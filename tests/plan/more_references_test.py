"""What `lm-mia plan` prints about more references."""

import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_run
from tiny_run import Tiny, tiny

from analysis import experiments
from analysis.experiments.recipe import more_references as more_references_study
from lm_mia import cli, events
from lm_mia.attacks import table_sets
from lm_mia.attacks.studies import study_set
from lm_mia.plan import more_references
from lm_mia.run.stored_results import open_results
from lm_mia.run.sweep import read_sweep

__all__ = ["tiny"]  # a fixture

HEADER = "attack,metric,references,kind,sets,value,low,high,reason\n"


def lines(attack: str, metric: str, values: str) -> str:
    """Rows of a metric with 4 of 16 references and more; the values are separated by spaces."""
    observed = [
        f"{attack},{metric},{n},observed,{sets},{{}},,,\n" for n, sets in ((4, 4), (8, 6), (16, 1))
    ]
    predicted = [f"{attack},{metric},{n},predicted,0,{{}},{{}},{{}},\n" for n in (32, 64)]
    return "".join([*observed, *predicted]).format(*values.split())


TABLE = (
    HEADER
    + lines("lira_online", "auc", "0.60 0.64 0.66 0.67 0.665 0.684 0.675 0.666 0.714")
    + lines("lira_online", "tpr_at_0.1", "0.20 0.22 0.23 0.234 0.21 0.26 0.237 0.2 0.3")
    + lines("rmia", "auc", "0.70 0.71 0.72 0.73 0.725 0.735 0.735 0.726 0.75")
    + "shrunk,auc,16,observed,1,,,,\n"
    + "shrunk,auc,32,predicted,0,,,,no member or no non-member has a score with 2 references\n"
    + "shrunk,auc,64,predicted,0,,,,no member or no non-member has a score with 2 references\n"
)


def attacked(tiny: Tiny, workdir: Path) -> Path:
    """A workdir whose recipe has these results, as if it had 16 references."""
    [recipe] = read_sweep(None, str(tiny.copy(workdir)), []).recipes
    view = open_results(recipe, experiments.of_every_recipe(), with_user_attacks=True)
    shutil.rmtree(recipe.folder / "pieces")

    def compute(write: table_sets.Write) -> table_sets.Facts:
        write("more_references.csv", pd.read_csv(io.StringIO(TABLE)))
        return {"references": 16, "reason": ""}

    tables = dataclasses.replace(study_set(more_references_study.STUDY)(view), compute=compute)
    table_sets.get(tables, view.stored)
    return workdir


def plan(capsys: pytest.CaptureFixture[str], workdir: Path, *flags: str) -> Any:
    assert cli.main(["plan", f"--workdir={workdir}", *flags]) == 0
    out = capsys.readouterr().out
    return json.loads(out) if "--json" in flags else out


def test_json_has_predictions_and_their_cost(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = attacked(tiny, tmp_path / "w")
    [recipe] = plan(capsys, workdir, "--device=h100", "--json")["recipes"]
    more = recipe["more_references"]
    assert (more["references"], more["reason"]) == (16, "")
    assert more["attacks"]["lira_online"]["auc"] == {
        "16": {"value": 0.66, "low": None, "high": None},
        "32": {"value": 0.67, "low": 0.665, "high": 0.684},
        "64": {"value": 0.675, "low": 0.666, "high": 0.714},
    }
    assert more["attacks"]["shrunk"]["auc"]["64"]["value"] is None
    per_model = recipe["chip_hours"] / recipe["models"]
    assert more["hours"] == {
        "32": pytest.approx(16 * per_model),
        "64": pytest.approx(48 * per_model),
    }
    # On a CPU, the references that are added are made as fast as the models of the workdir.
    [recipe] = plan(capsys, workdir, "--json")["recipes"]
    hours = recipe["more_references"]["hours"]
    assert hours["32"] == pytest.approx(16 / recipe["models_per_hour"])
    shutil.rmtree(workdir / events.FOLDER)
    [recipe] = plan(capsys, workdir, "--json")["recipes"]
    assert recipe["more_references"]["hours"] == {}
    assert "for 2x" not in plan(capsys, workdir)


def test_all_attacks_of_a_single_recipe_are_printed(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = plan(capsys, attacked(tiny, tmp_path / "w"), "--device=h100")
    table = out.partition("What more references would add")[2].splitlines()
    rows = [line.split() for line in table]
    [rmia] = [row for row in rows if row[:1] == ["tiny"]]
    assert rmia[1:6] == ["rmia", "16", "0.720", "0.730", "0.735"]
    assert rmia[6:9] == ["-", "-", "-"]
    assert rmia[9:] == ["<", "1", "ms"] * 2  # the name and the cost are in the first row
    [lira] = [row for row in rows if row[:1] == ["lira_online"]]
    assert lira[1:] == ["16", "0.660", "0.670", "0.675", "0.230", "0.234", "0.237"]
    assert ["0.665-0.684", "0.666-0.714", "0.210-0.260", "0.200-0.300"] in rows
    [shrunk] = [row for row in rows if row[:1] == ["shrunk"]]
    assert shrunk[1:] == ["16", *"------"]
    assert rows.index(rmia) < rows.index(lira) < rows.index(shrunk)
    assert any(re.match(r"TPR .*\b0\.1$", line) for line in table)


def test_a_reason_is_printed_if_there_are_too_few_references(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    # The tiny run has 4 references.
    workdir = tiny.copy(tmp_path / "w")
    [recipe] = plan(capsys, workdir, "--json")["recipes"]
    reason = recipe["more_references"]["reason"]
    assert re.match(r"there are 2 complete pairs\b.*\b4\b", reason)
    assert recipe["more_references"] == {
        "references": 4,
        "reason": reason,
        "attacks": {},
        "hours": {},
    }
    out = plan(capsys, workdir)
    assert re.search(rf"tiny: [^\n]*: {re.escape(reason)}\n$", out)


def test_results_that_are_missing_are_not_computed(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "w")
    pieces = tiny_run.recipe_of(workdir) / "pieces"
    shutil.rmtree(pieces)
    [recipe] = plan(capsys, workdir, "--json")["recipes"]
    assert recipe["more_references"] is None
    assert not pieces.exists()


def test_only_the_strongest_attack_of_several_recipes_is_printed():
    def cells(auc: float) -> dict[str, dict[int, more_references.Cell]]:
        return {"auc": {count: {"value": auc} for count in (16, 32, 64)}}

    hours = {32: 1.5, 64: 4500.0}
    forecasts = [
        more_references.Forecast(
            "small", 0.1, 16, "", {"rmia": cells(0.6), "lira_online": cells(0.7)}, hours
        ),
        more_references.Forecast("new", 0.1, 2, "there are too few"),
        more_references.Forecast(
            "large", 0.01, 16, "", {"rmia": cells(0.8), "lira_online": cells(np.nan)}, hours
        ),
    ]
    table, notes = more_references.to_table(forecasts, "chip time")
    assert table is not None
    columns = [[*column.cells] for column in table.columns]
    assert columns[:4] == [
        ["small", "large"],
        ["lira_online", "rmia"],
        ["16", "16"],
        ["0.700", "0.800"],
    ]
    assert columns[-2:] == [["1 h 30 min", "1 h 30 min"], ["4,500 h", "4,500 h"]]
    assert any(note.startswith("new: ") and forecasts[1].reason in note for note in notes)
    assert any("TPR" in note and "attack.focus_fpr" in note for note in notes)
    assert any(note.startswith("attack  ") and "highest AUC" in note for note in notes)
