from pathlib import Path

import pytest
from synthetic_figures import folder

from analysis.io import Recipes, read_recipes

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="session")
def recipes(folder: Path) -> Recipes:
    """Of the synthetic sweep."""
    return read_recipes(folder)
