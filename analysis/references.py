"""AUC of the main attacks against their number of references (StrongMIA Figures 1 and 10)."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import style
import workdir
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from workdir import Record

COLUMNS = ("attack", "references", "auc_mean", "auc_std")
_MARGIN = 1.35
"""Where names begin, as a multiple of the largest number of references."""


def draw(attacks: Sequence[Record]) -> Figure:
    """Mean AUC over targets and its deviation, named at the right; the loss attack is a level line."""
    rows = [r for r in attacks if r["attack"] in style.ATTACKS and not math.isnan(r["auc_mean"])]
    counts = sorted({r["references"] for r in rows if r["references"] > 0}) or [1]
    names = [n for n in style.ATTACKS if any(r["attack"] == n for r in rows)]
    figure = style.new_figure(6.2, 4.6)
    axes = figure.subplots()
    ends = {}
    for i, name in enumerate(names):
        color, dash, marker = style.ATTACKS[name]
        mine = sorted((r for r in rows if r["attack"] == name), key=lambda r: r["references"])
        count, mean, std = (np.array([r[c] for r in mine], float) for c in COLUMNS[1:])
        std, ends[name] = np.nan_to_num(std), float(mean[-1])
        if not count.any():
            axes.axhline(mean[-1], color=color, linestyle=dash)
            low, high = mean[-1] - std[-1], mean[-1] + std[-1]
            axes.axhspan(low, high, color=color, alpha=0.15, linewidth=0)
            continue
        apart = 2 ** (0.06 * (i - (len(names) - 1) / 2))
        axes.errorbar(
            count * apart,
            mean,
            yerr=std,
            color=color,
            marker=marker,
            linestyle=dash,
            capsize=2.5,
            markersize=4.5,
            markerfacecolor="white" if dash != "-" else color,
        )
    axes.axhline(0.5, color=style.GREY, linestyle=":")
    axes.set_xscale("log", base=2)
    shown = style.labelled(counts)
    axes.set_xticks(shown, [str(c) for c in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="Reference models", ylabel="AUC", xlim=(counts[0] / 1.2, counts[-1] * 1.2))
    low, high = axes.get_ylim()
    low, high = min(low, 0.48), max(high, 0.52)
    axes.set_ylim(low, high)
    labels = [(workdir.attack_name(n), y, *style.ATTACKS[n][:2]) for n, y in ends.items()]
    labels.append(("Chance", 0.5, style.GREY, ":"))
    heights = style.spread([y for _, y, _, _ in labels], 0.062 * (high - low), low, high)
    line = {"arrowstyle": "-", "linewidth": 1.6, "shrinkA": 2, "shrinkB": 0, "relpos": (0, 0.5)}
    for (label, y, color, dash), height in zip(labels, heights, strict=True):
        axes.annotate(
            label,
            xy=(counts[-1] * 1.2, y),
            xytext=(counts[-1] * 1.2 * _MARGIN, height),
            va="center",
            fontsize=10.5,
            annotation_clip=False,
            arrowprops=line | {"color": color, "linestyle": dash},
        )
    return figure


def figures(folder: Path) -> dict[str, Figure]:
    """The figure of a workdir."""
    return {"auc_references": draw(workdir.table(folder, "attacks.csv", COLUMNS))}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
