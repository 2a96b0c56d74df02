"""The mean ROC curve of LiRA with and without true positives that are like coin flips (StrongMIA Figure 30)."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import roc
import style
import workdir
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from workdir import Record

COLUMNS = ("fpr", "tpr_mean", "tpr_coin_free")
AREA_COLUMNS = (
    *("low", "high", "curve", "pauc", "pauc_normalised", "lift", "lift_normalised"),
    *("lift_retained_percent", "mean_tpr_dropped_percent"),
)
_CURVES: tuple[tuple[str, str, str, style.Dash], ...] = (
    ("tpr_mean", "All true positives", style.BLUE, "-"),
    ("tpr_coin_free", "Without coin flips", style.VERMILLION, "--"),
)


def draw(curves: Sequence[Record], band: tuple[float, float]) -> Figure:
    """Both curves on logarithmic axes and on linear ones, with the band of the partial areas shaded.

    Args:
      curves: rows of tables/coin_free_roc.csv.
      band: of attack.band.
    """
    figure = style.new_figure(6.2, 3.9)
    left, right = figure.subplots(1, 2)
    panels(left, right, curves, band)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def panels(left: Axes, right: Axes, curves: Sequence[Record], band: tuple[float, float]) -> None:
    """Both curves, on the left on logarithmic axes and on the right on linear ones; as of ``draw``."""
    fpr = np.array([r["fpr"] for r in curves], float)
    lowest = []
    for axes, log in ((left, True), (right, False)):
        for name, label, color, dash in _CURVES:
            tpr = np.array([r[name] for r in curves], float)
            shown = (fpr > 0) & (tpr > 0) if log else np.ones(len(fpr), bool)
            axes.plot(fpr[shown], tpr[shown], color=color, linestyle=dash, label=label)
            lowest += [float(fpr[shown].min())] if log and shown.any() else []
        axes.axvspan(*band, color=style.GREY, alpha=0.13, linewidth=0, label=_band(band))
    roc.finish(left, lowest)
    _linear(right)


def _linear(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=style.GREY, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="False positive rate")
    axes.set_xticks([0, 0.5, 1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _band(band: tuple[float, float]) -> str:
    return f"FPR {workdir.percent(band[0])} to {workdir.percent(band[1])}"


def figures(folder: Path) -> dict[str, Figure | None]:
    """The figure of a workdir; None if there are too few replicas to tell a coin flip."""
    facts = workdir.flip_facts(folder)
    curves = workdir.table(folder, "coin_free_roc.csv", COLUMNS)
    if not workdir.decides(facts):
        return {"coin_free_roc": None}
    return {"coin_free_roc": draw(curves, tuple(facts["config"]["band"]))}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
