"""Results are found again only by the same key, and only while their files are as they were written."""

import dataclasses
import os
from pathlib import Path

import pytest
from synthetic_workdir import write_workdir

from analysis.io import RecipeResults
from lm_mia.attacks import unchanged
from lm_mia.attacks.unchanged import Inputs, Made
from lm_mia.config import Config
from lm_mia.store.store import open_store


@pytest.fixture
def made(tmp_path: Path) -> Made:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    made = Made(tmp_path)
    made.store("page", "key", [tmp_path / "a", tmp_path / "b"], {"lines": [1, float("nan")]})
    made.store("other", "key", [], True)
    return Made(tmp_path)  # as another command reads it


def test_results_are_found_by_their_key(made: Made):
    assert made.find("page", "key")["lines"][0] == 1
    assert made.find("page", "other key") is None
    assert made.find("no page", "key") is None
    assert made.value("page")["lines"][0] == 1
    assert made.value("no page") is None


def test_edited_and_deleted_files_are_made_again(made: Made, tmp_path: Path):
    (tmp_path / "b").write_text("B")
    os.utime(tmp_path / "b", ns=(1, 1))
    assert made.find("page", "key") is None
    assert made.find("other", "key") is True
    (tmp_path / "b").unlink()
    assert made.find("page", "key") is None


@pytest.mark.parametrize("content", ["", "[]", '{"page": 1}', '{"page": {"value": 1}}'])
def test_a_damaged_list_is_as_none(tmp_path: Path, content: str):
    (tmp_path / unchanged.FILE).write_text(content)
    assert Made(tmp_path).find("page", "key") is None


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> RecipeResults:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=60, attacks=("lira_online", "loss"), bootstraps=0)


def inputs_of(recipe: RecipeResults, c: Config | None = None, *figures: str) -> Inputs:
    found = unchanged.read_inputs({recipe.recipe_dir: (c or recipe.config, recipe.names)}, figures)
    assert found is not None
    return found


def test_keys_name_configs_scores_and_files_of_users(recipe: RecipeResults, tmp_path: Path):
    key = inputs_of(recipe).key()
    assert inputs_of(recipe).key() == key
    assert inputs_of(recipe).key(more=1) != key
    attack = dataclasses.replace(recipe.config.attack, alpha=0.01)
    assert inputs_of(recipe, dataclasses.replace(recipe.config, attack=attack)).key() != key
    figure = tmp_path / "mine.py"
    figure.write_text("x = 1")
    before = inputs_of(recipe, None, str(figure)).key()
    figure.write_text("x = 2")
    assert len({key, before, inputs_of(recipe, None, str(figure)).key()}) == 3
    figure.unlink()
    of_recipe = {recipe.recipe_dir: (recipe.config, recipe.names)}
    assert unchanged.read_inputs(of_recipe, [str(figure)]) is None


def test_nothing_stands_for_models_without_a_digest(tmp_path: Path):
    settings = {"attacks": ("lira_online", "loss"), "bootstraps": 0}
    recipe = write_workdir(tmp_path, samples=60, absent=("replica-15",), **settings)
    known = open_store(recipe.config, recipe.recipe_dir).known_digests()
    assert "" in known.values()
    of_recipe = {recipe.recipe_dir: (recipe.config, recipe.names)}
    assert unchanged.read_inputs(of_recipe, []) is None
