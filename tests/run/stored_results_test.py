"""What status and plan find among the results of a recipe."""

import dataclasses
import shutil
from pathlib import Path

import tiny_run
from tiny_config import change
from tiny_run import Tiny, tiny

from lm_mia.run.stored_results import count_pieces, unfinished_table_stages
from lm_mia.run.sweep import SweepRecipe, read_sweep

__all__ = ["tiny"]  # a fixture


def with_setting(recipe: SweepRecipe, name: str, value: object) -> SweepRecipe:
    return dataclasses.replace(recipe, config=change(recipe.config, name, value))


def test_stages_are_unfinished_without_their_results(tiny: Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    [recipe] = read_sweep(None, str(workdir), []).recipes
    extracting = with_setting(recipe, "extract.samples", 8)
    assert unfinished_table_stages(recipe) == set()
    assert unfinished_table_stages(extracting) == {"extract"}
    other = with_setting(extracting, "attack.alpha", 0.5)
    assert unfinished_table_stages(other) == {"attack", "extract"}
    assert unfinished_table_stages(with_setting(recipe, "attack.replicas", 0)) == set()
    shutil.rmtree(tiny_run.recipe_of(workdir) / "pieces")
    assert unfinished_table_stages(recipe) == {"attack"}


def test_attacks_of_users_are_not_loaded(tiny: Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    file = tmp_path / "mine.py"
    file.write_text("raise AssertionError('this file must not be run')\n")
    [recipe] = read_sweep(None, str(workdir), []).recipes
    names = (*recipe.config.attack.attacks, f"{file}:attack")
    stored, wanted = count_pieces(with_setting(recipe, "attack.attacks", names))
    assert stored == wanted > 10
    headline = with_setting(recipe, "attack.headline", f"{file}:attack")
    # The attack that the rule chooses is not wanted then.
    stored, wanted = count_pieces(headline)
    assert stored == wanted > 10
