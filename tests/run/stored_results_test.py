"""What status and plan find among the results of a recipe."""

import dataclasses
import shutil
from pathlib import Path

import tiny_run
from tiny_config import change
from tiny_run import Tiny, tiny

from lm_mia.run.stored_results import count_pieces
from lm_mia.run.sweep import SweepRecipe, read_sweep

__all__ = ["tiny"]  # a fixture


def with_setting(recipe: SweepRecipe, name: str, value: object) -> SweepRecipe:
    return dataclasses.replace(recipe, config=change(recipe.config, name, value))


def test_pieces_of_other_settings_and_deleted_ones_are_not_stored(tiny: Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    [recipe] = read_sweep(None, str(workdir), []).recipes
    stored, wanted = count_pieces(recipe)
    assert stored == wanted > 10
    stored, wanted = count_pieces(with_setting(recipe, "attack.alpha", 0.5))
    assert stored < wanted
    shutil.rmtree(tiny_run.recipe_of(workdir) / "pieces")
    assert count_pieces(recipe) == (0, wanted)


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
