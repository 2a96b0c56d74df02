"""Writes the report of a workdir: report.html, and a page of each recipe of a sweep that has replicas."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from analysis.io import RecipeResults
from analysis.report import document, recipe_page, sweep_page
from lm_mia.atomic import write_atomically

FIGURES = "figures.html"
"""The page with all figures of recipes and papers."""


def write(
    workdir: Path, recipes: Sequence[RecipeResults], with_decisions: Sequence[RecipeResults]
) -> Path:
    """Writes the pages and returns the path of the main one.

    Args:
      workdir: the workdir.
      recipes: the recipes to show; without any, the page names the figures alone.
      with_decisions: those of them that have tables of decisions, and hence a page of their own beside others.
    """
    path = workdir / "report.html"
    figures = document.Fact(
        "All figures",
        Markup(
            '<a href="{}">figures.html</a>: figures of the recipes and of papers, with their claims'
        ).format(FIGURES),
    )
    if len(recipes) == 1:
        page = recipe_page.page(recipes[0], links=(figures,))
    elif recipes:
        pages = {}
        for recipe in with_decisions:
            own = recipe_page.page(recipe, from_workdir="../../")
            write_atomically(recipe.recipe_dir / "report.html", document.render(own))
            pages[recipe.name] = f"recipes/{recipe.name}/report.html"
        page = sweep_page.page(recipes, workdir.resolve().name, pages, links=(figures,))
    else:
        page = _simulations(workdir, figures)
    write_atomically(path, document.render(page))
    return path


def _simulations(workdir: Path, figures: document.Fact) -> document.Page:
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
                '<b>No model was trained or attacked.</b> The <a href="{}">figures</a> are simulations.'
            ).format(FIGURES),
        ),
        made=(figures,),
    )
