from pathlib import Path

import pytest
from synthetic_figures import folder

from analysis.io import SweepResults, read_recipes

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="session")
def recipes(folder: Path) -> SweepResults:
    """The recipes of the synthetic sweep."""
    return read_recipes(folder)
