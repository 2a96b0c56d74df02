"""What is stored of the results of a recipe, for commands that neither compute results nor run code of users."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lm_mia import user_files
from lm_mia.attacks.spec import FigureNeed
from lm_mia.errors import UserError
from lm_mia.run.sweep import SweepRecipe

if TYPE_CHECKING:
    from lm_mia.attacks.experiment import RecipeView


def open_results(
    recipe: SweepRecipe, figure_needs: Sequence[FigureNeed] = (), *, with_user_attacks: bool = False
) -> "RecipeView":
    """Opens the results of a recipe as a view that computes nothing.

    Args:
      recipe: the recipe.
      figure_needs: what is read in addition to the tables of decisions.
      with_user_attacks: whether the attacks in files of the user are included, whose files are then run.

    Raises:
      UserError: the score store is damaged, or a file of the user fails.
    """
    from lm_mia.attacks.exports import open_view  # loads pandas, as the others do
    from lm_mia.data.population import open_population
    from lm_mia.run.pipeline import requested_attacks

    c = recipe.config
    if not with_user_attacks:
        names = tuple(name for name in c.attack.attacks if not user_files.is_in_file(name))
        attack = dataclasses.replace(c.attack, attacks=names)
        if user_files.is_in_file(attack.headline):
            attack = dataclasses.replace(attack, headline="lira_online")  # which is always listed
        c = dataclasses.replace(c, attack=attack)
        recipe = dataclasses.replace(recipe, config=c)
    population = open_population(recipe.population_dir, verify=False)
    needs = requested_attacks([(recipe, population)], figure_needs)[recipe.name]
    view = open_view(c, recipe.folder, lambda: population, needs)
    return dataclasses.replace(view, computes=False)


def count_pieces(recipe: SweepRecipe) -> tuple[int, int]:
    """Returns how many pieces of the attacks stage are stored, and how many the config asks for.

    Attacks in files of the user, and what experiments need in addition, are not counted. If the scores are damaged, or
    there are too few models, nothing is stored of one piece.
    """
    from lm_mia.attacks import runner

    try:
        view = open_results(recipe)
        if view.c.replicas:
            _ = view.replicas  # raises Unavailable if there are too few models
        return runner.count_pieces(view)
    except UserError:
        return 0, 1


def is_report_outdated(workdir: Path) -> bool:
    """Returns whether the report of a workdir is older than an exported table of one of its recipes."""
    from lm_mia.attacks import unchanged

    return unchanged.is_report_outdated(workdir)
