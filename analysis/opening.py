"""Opens the recipes of a workdir, with the tables of every recipe and those that figures need.

This is not in `analysis.io`, which experiments read their tables with, since it knows the experiments.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis import experiments
from analysis.io import RecipeResults, SweepResults, read_json, read_workdir
from lm_mia.attacks.headline import effective_attack
from lm_mia.attacks.requests import recipe_needs
from lm_mia.attacks.spec import FigureNeed, RecipeModels, RecipeNeeds
from lm_mia.config.recipe import check_format, from_dict
from lm_mia.errors import UserError


def read_recipes(
    workdir: Path,
    names: Sequence[str] | None = None,
    progress: Callable[[str, float, float], None] = lambda *_: None,
) -> SweepResults:
    """Reads the recipes of a workdir, in the order in which they were added to it.

    Args:
      workdir: the workdir, with one recipe or more.
      names: names of the recipes to read; None reads all.
      progress: as in `SweepResults`.

    Raises:
      UserError: there is no such workdir or recipe, or a config.json is damaged.
    """
    listed = read_workdir(workdir)["recipes"]
    existing = [name for name in listed if (workdir / "recipes" / name / "config.json").is_file()]
    recipes = [read_recipe(workdir / "recipes" / name) for name in existing]
    if not recipes and not read_workdir(workdir)["figures"]:
        raise UserError(f"{workdir}: there are no recipes in it; run lm-mia run first")
    if names is None:
        return SweepResults(recipes, workdir, progress)
    by_name = {name: recipe for recipe in recipes for name in (*recipe.names, recipe.name)}
    for name in names:
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, 3) or list(by_name)[:10]
            raise UserError(
                f"--recipe={name}: {workdir} has no such recipe; did you mean {' or '.join(close)}?"
            )
    selected = {by_name[name].recipe_dir for name in names}
    chosen = [recipe for recipe in recipes if recipe.recipe_dir in selected]
    return SweepResults(chosen, workdir, progress)


def read_recipe(recipe_dir: Path) -> RecipeResults:
    """Reads the recipe in WORKDIR/recipes/NAME; raises UserError if there is none, or if it has another format."""
    fields = ("config", "names", "population", "format")
    record = read_json(recipe_dir, "config.json", fields, command="run")
    check_format(record, recipe_dir)
    try:
        config = from_dict(record["config"])
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{recipe_dir}: config.json was written by another version of lm_mia, with other fields; "
            "draw it with that version"
        ) from error
    folder = config.population.folder or recipe_dir.parents[1] / "populations"
    population_dir = Path(folder) / str(record["population"])
    headline = config.attack.headline
    config = dataclasses.replace(config, attack=effective_attack(config))
    names = tuple(record["names"])
    return RecipeResults(
        recipe_dir,
        config,
        names,
        population_dir,
        tables_of_every_recipe,
        chosen_headline=headline,
    )


def with_needs(recipes: SweepResults, needs: Sequence[FigureNeed]) -> SweepResults:
    """Returns recipes whose view has what figures need; those with damaged scores are unchanged."""
    attacked: dict[str, RecipeModels] = {}
    for recipe in recipes.recipes:
        with contextlib.suppress(UserError):  # such as damaged scores, which its section reports
            attacked[recipe.name] = recipe.attackable
    of_figures = recipe_needs(needs, attacked)

    def with_declared(recipe: RecipeResults) -> RecipeResults:
        if recipe.name not in of_figures:
            return recipe
        needed = of_figures[recipe.name]
        return dataclasses.replace(
            recipe,
            declared=lambda: experiments.with_those_of_every_recipe(needed),
            progress=recipes.progress,
        )

    views = map(with_declared, recipes.recipes)
    return SweepResults([*views, *recipes.without_population], recipes.workdir, recipes.progress)


def tables_of_every_recipe() -> RecipeNeeds:
    """Returns what is declared for a recipe without figures."""
    return experiments.with_those_of_every_recipe(RecipeNeeds())
