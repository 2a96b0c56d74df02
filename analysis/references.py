"""AUC of every attack against its number of references (StrongMIA Figures 1 and 10)."""

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
_LOOKS = (
    (style.BLUE, "o", "-"),
    (style.ORANGE, "s", "--"),
    (style.GREEN, "^", "-."),
    (style.PURPLE, "D", ":"),
)


def draw(attacks: Sequence[Record]) -> Figure:
    """Mean AUC over targets and its deviation; an attack without references is a level line."""
    figure = style.new_figure(6.2, 4.7)
    axes = figure.subplots()
    names = list(dict.fromkeys(r["attack"] for r in attacks if r["references"] > 0))
    counts = sorted({r["references"] for r in attacks if r["references"] > 0})
    for i, name in enumerate(names):
        color, marker, dash = _LOOKS[i % len(_LOOKS)]
        rows = sorted((r for r in attacks if r["attack"] == name), key=lambda r: r["references"])
        count, mean, std = (np.array([r[c] for r in rows], float) for c in COLUMNS[1:])
        apart = 2 ** (0.07 * (i - (len(names) - 1) / 2))
        axes.errorbar(
            count * apart,
            mean,
            yerr=np.nan_to_num(std),
            color=color,
            marker=marker,
            linestyle=dash,
            capsize=3,
            markersize=5,
            label=workdir.attack_name(name),
        )
    for row in attacks:
        if row["references"] == 0 and not math.isnan(row["auc_mean"]):
            mean, std = row["auc_mean"], 0 if math.isnan(row["auc_std"]) else row["auc_std"]
            axes.axhline(
                mean,
                color=style.VERMILLION,
                linestyle=(0, (6, 2)),
                label=workdir.attack_name(row["attack"]),
            )
            axes.axhspan(mean - std, mean + std, color=style.VERMILLION, alpha=0.15, linewidth=0)
    axes.axhline(0.5, color=style.GREY, linestyle=":", label="Chance")
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(c) for c in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="Reference models", ylabel="AUC")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def figures(folder: Path) -> dict[str, Figure]:
    """The figure of a workdir."""
    return {"auc_references": draw(workdir.table(folder, "attacks.csv", COLUMNS))}


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
