"""Flips between replicas: CCDFs (StrongMIA Figure 26), coin-flip shares against FPR (Figure 5a)."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import style
import workdir
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from workdir import Record

SHARE_COLUMNS = (
    "fpr",
    "bin",
    "low",
    "high",
    "members_percent",
    "nonmembers_percent",
    "members",
    "nonmembers",
)
CLASSES = (("Members", True, style.MEMBER, "-"), ("Non-members", False, style.NONMEMBER, "--"))


def panel_fprs(fprs: Sequence[float], focus: float, most: int = 4) -> list[float]:
    """The FPRs that get a panel: the focus and those nearest to it on a log axis, ascending."""
    return sorted(sorted(fprs, key=lambda f: abs(math.log(f / focus)))[:most])


def ccdf(flip_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct flip rates, share of samples with at least that flip rate); NaN are left out."""
    flip_N = flip_N[~np.isnan(flip_N)]
    values, first = np.unique(np.sort(flip_N), return_index=True)
    return values, 1 - first / max(len(flip_N), 1)


def draw_ccdf(flip: Mapping[float, np.ndarray], member_N: np.ndarray, facts: Record) -> Figure:
    """A panel for every FPR: share of members and of non-members whose flip rate is x or more.

    Args:
      flip: flip rate of every sample, by FPR.
      member_N: whether the sample is in the targets' training subset.
      facts: flips.json, for the cutoff and the largest flip rate.
    """
    rows, columns = -(-len(flip) // 2), min(len(flip), 2)
    figure = style.new_figure(6.2, 0.9 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (fpr, flip_N) in zip(grid.flat, flip.items(), strict=False):
        for label, is_member, color, dash in CLASSES:
            values, share = ccdf(flip_N[member_N == is_member])
            end = facts["max_flip_rate"]
            x, y = np.concatenate([[0.0], values, [end]]), np.concatenate([[1.0], share, [0.0]])
            axes.step(x, y, where="pre", color=color, linestyle=dash, label=label)
        if workdir.decides(facts):
            axes.axvline(
                facts["cutoff"],
                color=style.GREY,
                linestyle="-.",
                linewidth=1.2,
                label="Coin-flip cutoff",
            )
        axes.set_title(f"FPR {workdir.percent(fpr)}")
        axes.set(xlim=(0, 1.02 * facts["max_flip_rate"]), ylim=(0, 1.03))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in list(grid.flat)[len(flip) :]:
        axes.set_visible(False)
    figure.supxlabel("Flip rate", fontsize="medium")
    figure.supylabel("Samples with at least this flip rate", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def draw_coin_flips(shares: Sequence[Record]) -> Figure:
    """Share of coin-flip decisions among members and among non-members, against FPR."""
    rows = sorted((r for r in shares if r["bin"] == "coin flip"), key=lambda r: r["fpr"])
    fpr = [r["fpr"] for r in rows]
    figure = style.new_figure(6.2, 4.0)
    axes = figure.subplots()
    for label, is_member, color, dash in CLASSES:
        share = [r["members_percent" if is_member else "nonmembers_percent"] for r in rows]
        axes.plot(
            fpr,
            share,
            color=color,
            linestyle=dash,
            marker="o" if is_member else "s",
            label=label,
            clip_on=False,
        )
    axes.set_xscale("log")
    shown = style.labelled(fpr)
    axes.set_xticks(shown, [workdir.percent(f) for f in shown])
    axes.minorticks_off()
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 1 else 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))
    axes.set(xlabel="False positive rate", ylabel="Coin-flip decisions")
    axes.legend(loc="best")
    return figure


def figures(folder: Path) -> dict[str, Figure | None]:
    """Both figures of a workdir; the coin-flip shares are None if there are too few replicas to test."""
    facts = workdir.flip_facts(folder)
    fprs = panel_fprs(facts["config"]["fprs"], facts["config"]["focus_fpr"])
    columns = workdir.samples(folder, ["member", *(f"flip_{f:g}" for f in fprs)])
    flip = {f: columns[f"flip_{f:g}"].astype(float) for f in fprs}
    shares = workdir.table(folder, "flip_shares.csv", SHARE_COLUMNS)
    return {
        "flip_ccdf": draw_ccdf(flip, columns["member"].astype(bool), facts),
        "coin_flip_share": draw_coin_flips(shares) if workdir.decides(facts) else None,
    }


if __name__ == "__main__":
    sys.exit(workdir.script(__doc__, figures))
