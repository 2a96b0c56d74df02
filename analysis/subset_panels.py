"""The AUC of LiRA on each replica, all of one training subset, and on each reference with its own subset."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis import io, plotting, tables
from analysis.formatting import plural
from analysis.io import RecipeResults
from lm_mia.attacks import evaluations
from lm_mia.attacks.spec import Request


def read_replica_aucs(recipe: RecipeResults) -> list[float]:
    """Reads the AUC of online LiRA with all references on each replica."""
    main = recipe.view.replicas.main
    table = recipe.view.pieces.table(Request(main, evaluations.operating_points))
    auc_M: list[float] = table.drop_duplicates("target")["auc"].tolist()
    return auc_M


def draw_auc_by_subset(replica_auc: Sequence[float], reference_auc: Sequence[float]) -> Figure:
    """Draws a dot for each model, with the mean and one standard deviation, in a line for each kind of target."""
    figure = plotting.new_figure(6.2, 2.4)
    axes = figure.subplots()
    groups = (
        (f"{plural(len(replica_auc), 'replica')}\nof one subset", replica_auc, plotting.ORANGE),
        (
            f"{plural(len(reference_auc), 'reference')}\nwith different subsets",
            reference_auc,
            plotting.BLUE,
        ),
    )
    for line, (_, auc, color) in enumerate(groups):
        # Neighbors in the order of the models are at different heights, so that equal dots can be told apart.
        height = line + 0.09 * (np.arange(len(auc)) % 5 - 2)
        axes.plot(auc, height, "o", color=color, alpha=0.6, markersize=4.5, markeredgewidth=0)
        axes.errorbar(
            np.mean(auc),
            line + 0.35,
            xerr=np.std(auc),
            color=plotting.BLACK,
            marker="D",
            markersize=4,
            capsize=3,
            linewidth=1.4,
        )
    axes.set_yticks(range(len(groups)), [name for name, _, _ in groups])
    axes.set_ylim(len(groups) - 0.4, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("AUC of LiRA")
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if there are fewer than two AUCs of a kind."""
    replicas = [auc for auc in read_replica_aucs(recipe) if not math.isnan(auc)]
    rows = io.read_table(recipe, tables.REFERENCE_TARGETS)
    references = [row["auc"] for row in rows if not math.isnan(row["auc"])]
    enough = len(replicas) > 1 and len(references) > 1
    return {"auc_by_subset": draw_auc_by_subset(replicas, references) if enough else None}
