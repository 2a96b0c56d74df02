"""Views of recipes that consist of a store alone, or of tables alone."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import experiments
from analysis.io import RecipeResults
from lm_mia import config
from lm_mia.attacks.experiment import Content, RecipeView, TokenSettings
from lm_mia.attacks.exports import TABLES, with_declared
from lm_mia.attacks.pieces import pieces_of
from lm_mia.attacks.spec import RecipeNeeds
from lm_mia.data.population import Population
from lm_mia.store.store import Store


class _Files(Mapping[str, Callable[[RecipeView], Content]]):
    """The tables that are files in a folder when they are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Callable[[RecipeView], Content]:
        if not (self._folder / name).is_file():
            raise KeyError(name)
        return lambda _: _read(self._folder / name)

    def __iter__(self) -> Iterator[str]:
        return (path.name for path in self._folder.glob("*"))

    def __len__(self) -> int:
        return len([*self])


def recipe_of_files(folder: Path, *names: str, c: config.Config | None = None) -> RecipeResults:
    """Returns a recipe with these names whose tables are the files in FOLDER/tables, and which has nothing else."""
    if folder.is_dir():
        (folder / "manifest.json").write_text(
            "{}"
        )  # so that it counts as a recipe with a population
    return _recipe(folder, _Files(folder / "tables"), names or ("recipe",), c or config.Config())


def recipe_of_tables(tables: Mapping[str, Content]) -> RecipeResults:
    """Returns a recipe that has these tables, by their file names, and nothing else."""
    functions = {name: lambda _, content=content: content for name, content in tables.items()}
    return _recipe(Path("recipe"), functions, ("recipe",), config.Config())


def _recipe(
    folder: Path,
    tables: Mapping[str, Callable[[RecipeView], Content]],
    names: tuple[str, ...],
    c: config.Config,
) -> RecipeResults:
    nothing: Any = None
    view = RecipeView(folder.name, nothing, nothing, c.attack, nothing, tables)
    # Nothing is kept, since tests write other files.
    object.__setattr__(view, "_once", _Forgets())
    recipe = RecipeResults(folder, c, names, folder)
    vars(recipe)["view"] = view  # the cached property
    return recipe


class _Forgets(dict[Any, Any]):
    """Says of every key that it is missing, so that what it stands for is computed again."""

    def __contains__(self, key: object) -> bool:
        return False


def _read(path: Path) -> Content:
    if path.suffix == ".json":
        return json.loads(path.read_text())
    return pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)


def silent(*_: Any) -> None:
    """Shows nothing."""


def view_of(
    store: Store,
    population: Population,
    c: config.Attack,
    folder: Path,
    declared: RecipeNeeds | None = None,
    tokens: TokenSettings | None = None,
    progress: Callable[[str, float, float], None] = silent,
    say: Callable[[str], None] = silent,
    recipe: str = "recipe",
) -> RecipeView:
    """Returns a view whose pieces are in a folder; `recipe` stands for the hash of the recipe."""
    tokens, declared = tokens or TokenSettings(), declared or RecipeNeeds()
    declared = experiments.with_those_of_every_recipe(declared)
    return RecipeView(
        "recipe",
        store,
        lambda: population,
        c,
        pieces_of(store, recipe, c, folder, tokens.samples),
        with_declared(TABLES, declared),
        declared,
        tokens,
        progress=progress,
        say=say,
    )
