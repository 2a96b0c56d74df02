from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from synthetic_figures import folder

from analysis import page, plotting
from analysis.experiments import MODULES
from analysis.io import SweepResults
from analysis.opening import read_recipes, with_needs

__all__ = ["folder"]  # a fixture


@pytest.fixture(scope="session")
def recipes(folder: Path) -> SweepResults:
    """The recipes of the synthetic sweep, with what all figures need."""
    return with_needs(read_recipes(folder), page.figure_needs([*MODULES]))


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """Figures are drawn in the style of all figures, as on pages."""
    with plotting.style():
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes the name of a figure to its files instead of drawing it, for tests that read only text and tables.

    Drawing takes most of the time of a page. The figures of the papers are drawn in `page_test`, those of a recipe in
    `recipe_figures_test`, and a whole page with recipes that have replicas or targets in
    `page_test.test_the_page_of_a_paper_has_its_figures_and_claims`.
    """

    def save(_: Figure, figures_dir: Path, name: str) -> Path:
        figures_dir.mkdir(parents=True, exist_ok=True)
        for suffix in plotting.FORMATS:
            (figures_dir / f"{name}.{suffix}").write_text(name)
        return figures_dir / f"{name}.png"

    monkeypatch.setattr(plotting, "save", save)
