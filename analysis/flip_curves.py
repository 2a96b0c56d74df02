"""Flip rate against the distance to the threshold and against the posterior, by class (StrongMIA Figures 26 and 27)."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import style
import workdir
from flips import CLASSES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from workdir import Record

COLUMNS = ("fpr", "against", "class", "x_mean", "flip_mean", "samples", "left_out")
PANELS = (
    ("distance", "Distance to the threshold"),
    ("posterior", "Posterior of membership"),
)


def at(rows: Sequence[Record], fpr: float) -> list[Record]:
    """The rows of tables/flip_curves.csv at one FPR."""
    return [r for r in rows if math.isclose(r["fpr"], fpr)]


def bin_sizes(rows: Sequence[Record]) -> tuple[int, int]:
    """The fewest and the most samples that a point stands for; (0, 0) without points."""
    sizes = [int(r["samples"]) for r in rows]
    return min(sizes, default=0), max(sizes, default=0)


def panel(axes: Axes, rows: Sequence[Record], against: str, facts: Record) -> None:
    """Flip rate against one quantity, a point for every bin; rows and facts as of ``draw``."""
    for label, is_member, color, dash in CLASSES:
        name = "members" if is_member else "nonmembers"
        bins = [r for r in rows if r["against"] == against and r["class"] == name]
        axes.plot(
            [r["x_mean"] for r in bins],
            [r["flip_mean"] for r in bins],
            color=color,
            linestyle=dash,
            linewidth=1.2,
            marker="o" if is_member else "s",
            markersize=3.5,
            label=label,
        )
    if workdir.decides(facts):
        axes.axhline(
            facts["cutoff"], color=style.GREY, linestyle="-.", lw=1.2, label="Coin-flip cutoff"
        )
    axes.set(ylim=(0, 1.05 * facts["max_flip_rate"]))
    axes.set_xlim(left=0, right=1 if against == "posterior" else None)


def draw(rows: Sequence[Record], facts: Record) -> Figure:
    """A panel for each of both quantities, a point for every bin of about equally many samples.

    Args:
      rows: those of tables/flip_curves.csv at the FPR that is shown.
      facts: flips.json, for the cutoff and the largest flip rate.
    """
    figure = style.new_figure(6.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (against, title) in zip(panels, PANELS, strict=True):
        panel(axes, rows, against, facts)
        axes.set_xlabel(title + "\n(mean over replicas)")
    panels[0].set_ylabel("Flip rate, mean of a bin")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def figures(folder: Path) -> dict[str, Figure]:
    """The figure of a workdir, at the focus FPR."""
    facts = workdir.flip_facts(folder)
    rows = workdir.table(folder, "flip_curves.csv", COLUMNS)
    return {"flip_curves": draw(at(rows, facts["config"]["focus_fpr"]), facts)}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
