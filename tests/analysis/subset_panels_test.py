"""The AUC on each replica and on each reference."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_workdir import copy_workdir, write_workdir

from analysis import io, subset_panels


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe with two attacks."""
    settings = {"samples": 80, "attacks": ("lira_online", "loss"), "bootstraps": 0}
    return write_workdir(tmp_path_factory.mktemp("run"), references=12, replicas=6, **settings)


def test_every_model_is_a_dot(recipe: Path):
    targets = pd.read_csv(recipe / "tables" / "targets.csv")
    strongest = targets[(targets["attack"] == "lira_online") & (targets["references"] == 12)]
    assert len(strongest) == 6 < len(targets)
    auc_T = subset_panels.read_replica_aucs(recipe)
    assert auc_T == strongest["auc"].tolist()
    figure = subset_panels.recipe_figures(recipe)["auc_by_subset"]
    assert figure is not None
    [axes] = figure.axes
    dots = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_alpha() == 0.6]
    references = pd.read_csv(recipe / "tables" / "reference_targets.csv")["auc"]
    assert [x.tolist() for x in dots] == [auc_T, references.tolist()]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["6 replicas\nof one subset", "12 references\nwith different subsets"]


def test_without_aucs_there_is_no_figure(recipe: Path, tmp_path: Path):
    copy = copy_workdir(recipe, tmp_path / "w")
    table = copy / "tables" / "reference_targets.csv"
    references = pd.read_csv(table)
    references.assign(auc=[0.6, *[float("nan")] * 11]).to_csv(table, index=False)
    assert subset_panels.recipe_figures(copy) == {"auc_by_subset": None}
    references.to_csv(table, index=False)
    shutil.rmtree(copy / "pieces")
    assert subset_panels.recipe_figures(copy) == {"auc_by_subset": None}
    facts = json.loads((copy / "tables" / "flips.json").read_text())
    assert len(facts["replica_models"]) == 6
    table.unlink()
    with pytest.raises(
        io.WorkdirError, match=r"reference_targets.csv is missing; run lm-mia attack"
    ):
        subset_panels.recipe_figures(copy)
