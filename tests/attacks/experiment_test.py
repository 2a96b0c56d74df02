"""Views: what they compute when it is missing, and what they say if a recipe does not allow it."""

import dataclasses
import io
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from synthetic_scores import SMALL, SyntheticScores, write_scores
from views import view_of

from analysis.experiments.causal import zero_run
from analysis.experiments.open import variance
from lm_mia.attacks import (
    evaluations,
    experiment,
    exports,
    replicas,
    runner,
)
from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.spec import AttackSpec, RecipeNeeds, Request
from lm_mia.errors import Unavailable, UserError

C = dataclasses.replace(SMALL, attacks=("lira_online", "loss"), bootstraps=0)
LIRA = AttackSpec("lira_online", False, (0, 1), tuple(range(2, 12)))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 2)


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("scores"), C, 200, "balanced")


@pytest.fixture
def view(scores: SyntheticScores, tmp_path: Path) -> RecipeView:
    needs = RecipeNeeds([Request(LIRA, evaluations.operating_points)])
    return view_of(scores.store, scores.population, C, tmp_path / "pieces", needs)


def test_missing_tables_are_computed_and_equal_the_exported_ones(view: RecipeView, tmp_path: Path):
    first = view.table("attacks.csv")
    exports.write_tables(view, tmp_path / "tables")
    again = dataclasses.replace(view)
    for name in view.tables:
        path = tmp_path / "tables" / name
        assert path.exists() == again.has(name), name
        if path.suffix == ".csv" and path.exists():
            of_view = pd.read_csv(path)
            of_file = pd.read_csv(io.StringIO(again.table(name).to_csv(index=False)))
            pd.testing.assert_frame_equal(of_view, of_file)
    pd.testing.assert_frame_equal(again.table("attacks.csv"), first)
    assert again.facts("flips")["replicas"] == C.replicas


def test_nothing_is_computed_twice(
    view: RecipeView, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    calls: list[int] = []
    evaluate = experiment.evaluate

    def spy(*args):
        counts = evaluate(*args)
        calls.append(counts["computed"])
        return counts

    monkeypatch.setattr(experiment, "evaluate", spy)
    view.table("thresholds.csv")
    view.table("attacks.csv")  # computed together with the first
    assert len(calls) == 1
    assert calls[0] > 2
    damaged = next((tmp_path / "pieces").glob("thresholds-*.parquet"))
    expected = view.table("thresholds.csv")
    damaged.write_bytes(damaged.read_bytes()[:-20])
    again = dataclasses.replace(view)
    pd.testing.assert_frame_equal(again.table("thresholds.csv"), expected)
    again.table("flip_shares.csv")
    assert calls[1:] == [1]


def test_exchanged_scores_are_attacked_by_nobody(scores: SyntheticScores, tmp_path: Path):
    shutil.copytree(scores.store.path, tmp_path / "scores.zarr")
    store = dataclasses.replace(scores.store, path=tmp_path / "scores.zarr")
    first, other = (store.path / "member" / "c" / str(i) / "0" for i in (0, 2))
    first.write_bytes(other.read_bytes())
    view = view_of(store, scores.population, C, tmp_path / "pieces", RecipeNeeds())
    with pytest.raises(UserError, match=r"values of .*written"):
        view.table("attacks.csv")
    assert not [*(tmp_path / "pieces").glob("*.parquet")]


def test_a_folder_that_cannot_be_written_keeps_pieces_in_memory(
    view: RecipeView, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = {name: view.table(name) for name in ("attacks.csv", "shuffled.csv")}
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != folder and access(path, mode))
    c, population = view.c, view.population
    other = view_of(view.store, population, c, folder, view.declared)
    for name, table in expected.items():
        pd.testing.assert_frame_equal(other.table(name), table)
    assert other.table("samples.parquet", ["id", "member"]).columns.tolist() == ["id", "member"]
    assert not [*folder.iterdir()]


def test_changes_of_a_table_by_its_reader_reach_nobody_else(view: RecipeView):
    table = view.table("thresholds.csv")
    table["fpr"] = 7.0
    assert not (view.table("thresholds.csv")["fpr"] == 7).any()
    table = view.pieces.table(Request(LIRA, evaluations.operating_points))
    table["auc"] = 7.0
    assert not (view.pieces.table(Request(LIRA, evaluations.operating_points))["auc"] == 7).any()


def test_results_that_a_recipe_does_not_have_say_why(view: RecipeView, scores: SyntheticScores):
    undeclared = Request(dataclasses.replace(LIRA, attack="loss"), evaluations.operating_points)
    with pytest.raises(Unavailable, match=r"^recipe: .* of loss; run lm-mia attack"):
        view.pieces.table(undeclared)
    with pytest.raises(Unavailable, match="table nonsense"):
        view.table("nonsense.csv")
    reasons = {
        "pooling.csv": "attack.leave_one_out must be set",
        zero_run.TABLE: "attack.zero_run must be set",
        variance.TABLE: r"attack.replica_inits must be above 1",
        "recency_rates.parquet": "there is no table recency_rates.parquet",
        "intervals.csv": "attack.bootstraps=0",
        "sample_losses.csv": "no figure of the config reads losses of single samples",
        "resampled_references.csv": "attack.resample_references",
    }
    for name, reason in reasons.items():
        with pytest.raises(Unavailable, match=reason):
            view.table(name)
    few = dataclasses.replace(C, replicas=0)
    without = view_of(scores.store, scores.population, few, view.stored.results.folder)
    with pytest.raises(Unavailable, match=r"attack.replicas=0: "):
        without.table("attacks.csv")
    assert not without.has("flips.json")


def test_asking_for_all_results_computes_none(view: RecipeView, tmp_path: Path):
    runner.ask(view)
    assert not [*tmp_path.rglob("*.parquet")]
    runner.run(view, tmp_path / "tables")
    again = dataclasses.replace(view)
    runner.ask(again)
    assert again.stored.results.unused() == []
