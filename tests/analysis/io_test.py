"""Reading of workdirs, and messages about missing or damaged parts."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from views import recipe_of_tables

from analysis import attacks, io, opening
from analysis.io import RecipeResults, SweepResults
from lm_mia import config, events
from lm_mia.attacks.spec import Variant
from lm_mia.errors import Unavailable, UserError


def test_families_are_ordered_and_recipes_share_names(recipes: SweepResults):
    sizes = [size for size, _ in recipes.family("fixed")]
    assert sizes == ["10M", "44M", "140M", "302M", "1018M"]
    assert recipes["fixed-140M"] is recipes["main"]
    assert [int(n) for n, _ in recipes.family("data")] == [192, 384, 768, 1536, 3456]


def test_unknown_recipes_raise_or_return_the_default(recipes: SweepResults):
    with pytest.raises(Unavailable, match="recipe nonsense"):
        recipes["nonsense"]
    assert recipes.get("nonsense") is None
    assert recipes.get("nonsense", 0) == 0
    assert recipes.get("fixed-140M") is recipes["main"]


def test_steps_of_score_points_by_epoch(recipes: SweepResults):
    epochs = recipes["epochs-140M"]
    assert epochs.step_after(4) == 0
    assert epochs.step_after(1) * 4 == config.total_steps(epochs.config)
    aucs = [
        attacks.read_attack(epochs, Variant(step=epochs.step_after(e))).auc_T.mean()
        for e in (1, 2, 3, 4)
    ]
    assert aucs == sorted(aucs)


def test_folders_without_recipes_are_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"config\.json"):
        opening.read_recipe(tmp_path)
    with pytest.raises(UserError, match=r"none: .*; run lm-mia run"):
        opening.read_recipes(tmp_path / "none")
    with pytest.raises(UserError, match=r"no recipes.*; run lm-mia run"):
        opening.read_recipes(tmp_path)


def test_recipes_are_selected_by_any_of_their_names(folder: Path):
    results = opening.read_recipes(folder, ["data-384", "fixed-140M"])
    assert [r.name for r in results.recipes] == ["main", "data-384"]
    assert "fixed-140M" in results.recipes[0].names
    with pytest.raises(UserError, match=r"--recipe=data-38: .*\bdata-384 or "):
        opening.read_recipes(folder, ["data-38"])


def test_only_complete_events_of_the_recipe_are_read(tmp_path: Path):
    recipe = tmp_path / "recipes" / "a"
    recipe.mkdir(parents=True)
    lines = [
        '{"event": "train", "recipe": "a", "step": 3, "time": "2026-01-02"}',
        '{"event": "train", "recipe": "b", "model": "a", "step": 2, "time": "2026-01-01"}',
        '{"event": "scored", "recipe": "a", "of": "train", "time": "2026-01-01"}',
        '{"event": "train", "recipe": "a", "st',
        '{"event": "train", "recipe": "a", "step": 1, "time": "2026-01-01"}',
    ]
    (tmp_path / events.FOLDER).mkdir()
    (tmp_path / events.FOLDER / "log.jsonl").write_text("\n".join(lines))
    read = RecipeResults(recipe, config.Config(), ("a",), tmp_path)
    assert [e["step"] for e in io.read_events(read, "train")] == [1, 3]


def test_targets_stay_the_same_while_references_are_added(recipes: SweepResults):
    main = recipes["main"]
    attack = dataclasses.replace(main.config.attack, references=92)
    enlarged = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=attack))
    assert (enlarged.references, enlarged.targets) == (main.references, main.targets)
    assert enlarged.replicas == main.replicas


def test_two_recipes_with_one_name_are_reported(recipes: SweepResults, tmp_path: Path):
    one = recipes["data-384"]
    other = dataclasses.replace(one, recipe_dir=tmp_path / "recipes" / "b")
    with pytest.raises(UserError, match=r"name='data-384': .*data-384 and .*/b .*; select"):
        io.SweepResults([one, other])
    assert list(io.SweepResults([one])) == ["data-384"]
    # a recipe whose command was stopped before it built the population
    unbuilt = dataclasses.replace(other, population_dir=tmp_path / "populations" / "c")
    results = io.SweepResults([one, unbuilt])
    assert (results.recipes, results.without_population) == ([one], [unbuilt])


def test_unscored_epochs_are_reported(recipes: SweepResults):
    recipe = recipes["epochs-140M"]
    stored = json.loads((recipe.recipe_dir / "config.json").read_text())["config"]
    assert 1 in stored["score"]["at_epochs"]
    score = dataclasses.replace(recipe.config.score, at_epochs=(2.0,))
    later = dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, score=score))
    with pytest.raises(Unavailable, match=r"epochs-140M: .*epoch 1"):
        later.step_after(1)
    assert later.step_after(2) > 0


def test_missing_integers_and_empty_columns_are_nan() -> None:
    table = pd.DataFrame({"id": pd.array([None, 7], "Int64"), "none": [None, None], "x": [0.1, 2]})
    recipe = recipe_of_tables({"x.csv": table})
    first, second = io.read_table(recipe, "x.csv")
    assert math.isnan(first["id"])
    assert (second["id"], first["x"]) == (7, 0.1)
    assert math.isnan(second["none"])
    assert io.read_samples(recipe, ["id"], "x.csv")["id"].dtype == float
    with pytest.raises(Unavailable, match=r"\by\.csv"):
        io.read_table(recipe, "y.csv")
