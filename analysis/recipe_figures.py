"""The figures of one recipe, WORKDIR/figures/RECIPE-FIGURE.png and .pdf, to which the details of its page link."""

import contextlib

from matplotlib.figure import Figure

from analysis import extraction, io, plotting
from analysis.experiments import RECIPE_FIGURES
from analysis.experiments.causal import zero_run
from analysis.experiments.mace import advantage
from analysis.experiments.privacyguard import audit
from analysis.experiments.reliability import pooling
from analysis.experiments.strongmia import samples, training
from analysis.io import RecipeResults
from lm_mia.errors import Unavailable

_MODULES = (training, samples, extraction, advantage, audit, pooling, zero_run)


def write(recipe: RecipeResults) -> None:
    """Draws and writes the figures that the results of a recipe allow, and deletes the files of the others."""
    figures: dict[str, Figure | None] = {}
    folder = io.parent_workdir(recipe.recipe_dir) / "figures"
    with plotting.style():
        for module in _MODULES:
            with contextlib.suppress(Unavailable):  # the models or the settings do not allow it
                figures |= module.recipe_figures(recipe)
        for name in RECIPE_FIGURES:
            file = f"{recipe.name}-{name}"
            if figure := figures.get(name):
                plotting.save(figure, folder, file)
            else:
                plotting.remove(folder, file)
