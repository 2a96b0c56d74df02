"""Writes the report of a workdir: report.html, and a page of each recipe of a sweep that has replicas."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup

from analysis.io import RecipeResults
from analysis.report import document, recipe_page, sweep_page
from lm_mia.atomic import write_atomically


def write(
    workdir: Path,
    recipes: Sequence[RecipeResults],
    with_decisions: Sequence[RecipeResults],
    figure_pages: Mapping[str, str],
) -> Path:
    """Writes the pages and returns the path of the main one.

    Args:
      workdir: the workdir.
      recipes: the recipes to show; without any, the page names the pages of figures alone.
      with_decisions: those of them that have tables of decisions, and hence a page of their own beside others.
      figure_pages: the path of each page of figures -> what it is about.
    """
    path = workdir / "report.html"
    names = Markup(", ").join(
        Markup('<a href="{}">{}</a>').format(*page) for page in figure_pages.items()
    )
    links = [document.Fact("Figures", names)] if figure_pages else []
    if len(recipes) == 1:
        page = recipe_page.page(recipes[0], links=links)
    elif recipes:
        pages = {}
        for recipe in with_decisions:
            own = recipe_page.page(recipe, from_workdir="../../")
            write_atomically(recipe.recipe_dir / "report.html", document.render(own))
            pages[recipe.name] = f"recipes/{recipe.name}/report.html"
        page = sweep_page.page(recipes, workdir.resolve().name, pages, links=links)
    else:
        page = _simulations(workdir, names)
    write_atomically(path, document.render(page))
    return path


def _simulations(workdir: Path, figures: document.Text) -> document.Page:
    """Returns the page of a workdir without recipes."""
    name = workdir.resolve().name
    return document.Page(
        title=f"{name}: membership inference report",
        name=name,
        kind="simulations",
        written=document.today(),
        question="What do the simulations show?",
        lead=(
            Markup(
                "<b>No model was trained or attacked.</b> The figures are simulations: {}."
            ).format(figures),
        ),
    )
