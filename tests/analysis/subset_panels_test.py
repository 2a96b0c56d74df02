"""The AUC on each replica and on each reference."""

import numpy as np
import pytest
from synthetic_workdir import with_tables, write_workdir

from analysis import subset_panels
from analysis.io import RecipeResults


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """A recipe with two attacks."""
    settings = {"samples": 80, "attacks": ("lira_online", "loss"), "bootstraps": 0}
    return write_workdir(tmp_path_factory.mktemp("run"), references=12, replicas=6, **settings)


def test_every_model_is_a_dot(recipe: RecipeResults):
    targets = recipe.view.table("targets.csv")
    strongest = targets[(targets["attack"] == "lira_online") & (targets["references"] == 12)]
    assert len(strongest) == 6 < len(targets)
    auc_T = subset_panels.read_replica_aucs(recipe)
    assert auc_T == strongest["auc"].tolist()
    figure = subset_panels.recipe_figures(recipe)["auc_by_subset"]
    assert figure is not None
    [axes] = figure.axes
    dots = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_alpha() == 0.6]
    references = recipe.view.table("reference_targets.csv")["auc"]
    assert [x.tolist() for x in dots] == [auc_T, references.tolist()]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["6 replicas\nof one subset", "12 references\nwith different subsets"]


def test_without_aucs_there_is_no_figure(recipe: RecipeResults):
    one_auc = [0.6, *[float("nan")] * 11]
    changed = with_tables(recipe, reference_targets=lambda table: table.assign(auc=one_auc))
    assert subset_panels.recipe_figures(changed) == {"auc_by_subset": None}
