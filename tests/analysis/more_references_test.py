"""What the report shows about more references, against more_references.csv."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_workdir import Page, copy_workdir, with_files, write_workdir
from views import recipe_of_tables

from analysis import comparison, io, more_references, recipe_section
from analysis.io import RecipeResults
from analysis.more_references import Growth, Point
from lm_mia.attacks.registry import attack_name

ATTACKS = ("lira_online", "rmia", "rmia_simple", "lira_offline", "loss")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    """A recipe with 16 references and per-sample variances, so that LiRA has few scores with a quarter of them."""
    settings = {"samples": 200, "attacks": ATTACKS, "bootstraps": 0}
    return write_workdir(tmp_path_factory.mktemp("run"), references=16, replicas=3, **settings)


def table(recipe: RecipeResults) -> pd.DataFrame:
    return recipe.view.table("more_references.csv")


def test_numbers_are_those_of_the_table(recipe: RecipeResults):
    more = more_references.read(recipe)
    assert more is not None
    assert (more.models, more.samples, more.reason) == ("3 replicas", 200, "")
    assert more.references == [16, 32, 64]
    rows = table(recipe)
    auc = rows[(rows.metric == "auc") & (rows.references == 16)].set_index("attack").value
    assert [*more.attacks] == [*auc.sort_values(ascending=False, kind="stable").index]
    for (attack, metric), group in rows.groupby(["attack", "metric"]):
        growth = more.attacks[str(attack)][str(metric)]
        points = [*growth.observed, *growth.predicted]
        assert [point.references for point in points] == [4, 8, 16, 32, 64]
        for name in ("value", "low", "high"):
            np.testing.assert_array_equal([getattr(point, name) for point in points], group[name])
        assert growth.shown == (growth.observed[2], *growth.predicted)


def test_figure_shows_observed_and_predicted_aucs(recipe: RecipeResults):
    figure = more_references.recipe_figures(recipe)["more_references"]
    assert figure is not None
    [axes] = figure.axes
    rows = table(recipe)
    for name, label in (
        ("lira_online", "LiRA"),
        ("rmia", "RMIA"),
        ("lira_offline", "Offline LiRA"),
    ):
        [line] = [line for line in axes.lines if line.get_label() == label]
        auc = rows[(rows.attack == name) & (rows.metric == "auc")]
        np.testing.assert_allclose(np.asarray(line.get_ydata()), auc.value[:3])
        heights = [segment for bar in axes.containers for segment in bar[2][0].get_segments()]
        for low, high in zip(auc.low[3:], auc.high[3:], strict=True):
            assert any(np.allclose(segment[:, 1], [low, high]) for segment in heights)
    assert "Simple RMIA" not in [line.get_label() for line in axes.lines]


@pytest.mark.usefixtures("undrawn")
def test_page_shows_values_with_intervals(recipe: RecipeResults):
    section = recipe_section.draw(recipe, alone=True)
    words = Page(section.html).words
    assert "Would more references help?" in words
    assert "quarters and halves of the 16 references" in words
    assert "is extrapolated to 32 and 64 references" in words
    assert "means over 3 replicas, on 200 samples" in words
    rows = table(recipe)
    lira = rows[(rows.attack == "lira_online") & (rows.metric == "auc")].iloc[2:]
    cells = [f"{lira.value.iloc[0]:.3f}"]
    cells += [
        f"{row.value:.3f}{row.low:.3f} to {row.high:.3f}" for row in lira.iloc[1:].itertuples()
    ]
    assert f"LiRA{''.join(cells)}" in words


@pytest.mark.usefixtures("undrawn")
def test_attacks_without_a_prediction_have_a_dash_and_the_reason(recipe: RecipeResults):
    rows = table(recipe)
    lira = (rows.attack == "lira_online") & (rows.kind == "predicted")
    rows.loc[lira, ["value", "low", "high"]] = np.nan
    rows["reason"] = rows["reason"].astype(object)
    rows.loc[lira, "reason"] = "no member has a score"
    copy = with_files(recipe, {"more_references.csv": rows})
    more = more_references.read(copy)
    assert more is not None
    point = more.attacks["lira_online"]["auc"].predicted[0]
    assert (str(point), point.interval, point.reason) == ("–", "", "no member has a score")
    html = recipe_section.draw(copy, alone=True).html
    assert Page(html).words.count("–") >= 4
    assert "Without a prediction: LiRA: no member has a score" in Page(html).words
    figure = more_references.draw(more.attacks)
    assert figure is not None
    assert "LiRA" not in [line.get_label() for line in figure.axes[0].lines]
    only_lira = {"lira_online": more.attacks["lira_online"]}
    assert more_references.draw(only_lira) is None


@pytest.mark.usefixtures("undrawn")
def test_too_few_references_are_explained(tmp_path: Path):
    settings = {"samples": 120, "attacks": ("lira_online", "loss"), "bootstraps": 0}
    few = write_workdir(tmp_path, references=6, replicas=2, **settings)
    more = more_references.read(few)
    assert more is not None
    assert (more.attacks, more.references) == ({}, [])
    assert more_references.recipe_figures(few) == {"more_references": None}
    words = Page(recipe_section.draw(few, alone=True).html).words
    assert "is not predicted: there are 3 complete pairs of references" in words


def test_strongest_attack_of_each_recipe(recipe: RecipeResults):
    facts = {"over": "targets", "targets": 1, "samples": 0, "reason": "there are too few"}
    few = recipe_of_tables({"more_references.json": facts})
    [(name, attack, growth)] = more_references.strongest([recipe_of_tables({}), few, recipe])
    more = more_references.read(recipe)
    assert more is not None
    assert (name, attack) == ("demo", next(iter(more.attacks)))
    assert repr(growth) == repr(more.attacks[attack]["auc"])


def test_comparison_of_recipes_shows_the_strongest_attack_of_each(
    recipe: RecipeResults, tmp_path: Path
):
    settings = {"samples": 120, "attacks": ("lira_online", "loss"), "bootstraps": 0}
    few = write_workdir(tmp_path / "few", name="few", references=6, replicas=2, **settings)
    summaries = [comparison.summarize(results) for results in (recipe, few)]
    html = comparison.render(summaries, "", [])
    words = Page(html).words
    assert words.count("Would more references help?") == 1
    [(name, attack, auc)] = more_references.strongest([recipe])
    cells = "".join(f"{point}{point.interval}" for point in auc.shown)
    assert f"{name}{attack_name(attack)}16{cells}" in words
    without = comparison.render(summaries[1:], "", [])
    assert "Would more references help?" not in without


@pytest.mark.usefixtures("undrawn")
def test_imported_models_have_no_plan(recipe: RecipeResults, tmp_path: Path):
    copy = copy_workdir(recipe, tmp_path / "w")
    path = copy.recipe_dir / "config.json"
    stored = json.loads(path.read_text())
    stored["config"]["corpus"]["source"] = "imported"
    path.write_text(json.dumps(stored))
    for results, has_plan in ((recipe, True), (io.read_recipe(copy.recipe_dir), False)):
        compared = comparison.render([comparison.summarize(results)], "", [])
        for html in (compared, recipe_section.draw(results, alone=True).html):
            assert "Would more references help?" in html
            assert ("lm-mia plan" in html) == has_plan


def test_points_without_a_value_are_dashes():
    growth = Growth((Point(4, 0.6), Point(16, math.nan)), (Point(32, 0.75, 0.7, 0.8),))
    assert [str(point) for point in growth.shown] == ["–", "0.750"]
    assert [point.interval for point in growth.shown] == ["", "0.700 to 0.800"]
