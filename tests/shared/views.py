"""Views of recipes that consist of a store alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.exports import TABLES
from lm_mia.attacks.pieces import pieces_of
from lm_mia.attacks.spec import RecipeNeeds
from lm_mia.attacks.token_tables import TokenSettings
from lm_mia.data.population import Population
from lm_mia.store.store import Store


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
    tokens = tokens or TokenSettings()
    return RecipeView(
        "recipe",
        store,
        lambda: population,
        c,
        pieces_of(store, recipe, c, folder, tokens.samples),
        TABLES,
        declared or RecipeNeeds(),
        tokens,
        progress,
        say,
    )
