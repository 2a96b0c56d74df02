"""ROC curves on log-log axes: LiRA per number of references, loss, chance (StrongMIA Figure 1)."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import style
import workdir
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from workdir import Record

COLUMNS = ("attack", "references", "fpr", "tpr_mean", "tpr_std")


def draw(roc: Sequence[Record], attacks: Sequence[Record], attack: str = "lira_online") -> Figure:
    """Curves of ``attack`` per number of references: mean over targets, band of one deviation.

    Args:
      roc: rows of tables/roc.csv.
      attacks: rows of tables/attacks.csv, for the AUC in the legend.
      attack: which attack has a curve per number of references.
    """
    auc = {(r["attack"], r["references"]): (r["auc_mean"], r["auc_std"]) for r in attacks}
    counts = _spread(sorted({r["references"] for r in roc if r["attack"] == attack}), 6)
    figure = style.new_figure(6.2, 4.9)
    axes = figure.subplots()
    lowest = [1.0]
    lines = [
        (attack, count, color, "-")
        for count, color in zip(counts, style.shades(len(counts)), strict=True)
    ]
    for name, count, color, dash in [*reversed(lines), ("loss", 0, style.VERMILLION, "--")]:
        curve = [r for r in roc if r["attack"] == name and r["references"] == count]
        fpr, mean, std = (
            np.array([r[c] for r in curve], float) for c in ("fpr", "tpr_mean", "tpr_std")
        )
        shown = (fpr > 0) & (mean > 0)
        if not shown.any():
            continue
        label = _label(name, count, *auc.get((name, count), (math.nan, math.nan)))
        axes.plot(fpr[shown], mean[shown], color=color, linestyle=dash, label=label)
        low, high = np.maximum(mean - std, 1e-12)[shown], np.minimum(mean + std, 1)[shown]
        axes.fill_between(fpr[shown], low, high, color=color, alpha=0.18, linewidth=0)
        lowest.append(float(fpr[shown].min()))
    axes.plot(
        [min(lowest), 1],
        [min(lowest), 1],
        color=style.GREY,
        linestyle=":",
        label="Chance (AUC 0.5)",
    )
    axes.set(xscale="log", yscale="log", xlim=(min(lowest), 1), ylim=(min(lowest), 1.1))
    axes.set(xlabel="False positive rate", ylabel="True positive rate")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda share, _: workdir.percent(share)))
    axes.legend(loc="lower right")
    return figure


def figures(folder: Path) -> dict[str, Figure]:
    """The ROC figure of a workdir."""
    attacks = workdir.table(folder, "attacks.csv", ("attack", "references", "auc_mean", "auc_std"))
    return {"roc": draw(workdir.table(folder, "roc.csv", COLUMNS), attacks)}


def _label(attack: str, references: int, auc: float, std: float) -> str:
    name = workdir.attack_name(attack) + (f", {references} references" if references else " attack")
    return (
        name if math.isnan(auc) else f"{name} (AUC {auc:.3f} ± {0 if math.isnan(std) else std:.3f})"
    )


def _spread(values: list[int], most: int) -> list[int]:
    """At most ``most`` of the values, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[i] for i in sorted({round(p) for p in np.linspace(0, len(values) - 1, most)})]


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
