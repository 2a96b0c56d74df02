from pathlib import Path

import pytest
from synthetic_figures import folder

from analysis.io import Recipes

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="session")
def recipes(folder: Path) -> Recipes:
    """Of the synthetic sweep."""
    return Recipes(sorted(p.parent for p in folder.glob("*/config.json")))
