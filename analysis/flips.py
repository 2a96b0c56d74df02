"""Flips between replicas: CCDFs (StrongMIA Figure 26), coin-flip shares against FPR (Figure 5a)."""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import style
import workdir
from findings import plus_minus
from matplotlib.axes import Axes
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


def decisive(folder: Path) -> Record:
    """flips.json of a workdir; WorkdirError if it has too few replicas to tell a decision from a coin flip."""
    facts = workdir.flip_facts(folder)
    if not workdir.decides(facts):
        raise workdir.WorkdirError(
            f"{folder}: {facts['replicas']} replicas are too few to tell a decision from a coin flip"
        )
    return facts


def shown_fprs(facts: Record, wanted: Sequence[float]) -> list[float]:
    """Those of the wanted FPRs that the tables have."""
    return [f for f in wanted if any(math.isclose(f, there) for there in facts["config"]["fprs"])]


def split(folder: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of samples.parquet: (of members, of non-members) that have a value."""
    found = workdir.samples(folder, ["member", column])
    value_N, member_N = found[column].astype(float), found["member"].astype(bool)
    there_N = ~np.isnan(value_N)
    return value_N[there_N & member_N], value_N[there_N & ~member_N]


def both(a: Path, b: Path, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of samples.parquet of two workdirs, and who is a member; WorkdirError if that differs."""
    of_a, of_b = (workdir.samples(folder, ["member", column]) for folder in (a, b))
    if not np.array_equal(of_a["member"], of_b["member"]):
        raise workdir.WorkdirError(f"{a} and {b} do not have the same members")
    return of_a[column].astype(float), of_b[column].astype(float), of_a["member"].astype(bool)


def like_coins(votes_N: np.ndarray, facts: Record) -> np.ndarray:
    """1 where so many votes for membership are like coin flips, 0 where they are not, NaN where there are none."""
    low, high = facts["k_low"], facts["replicas"] - facts["k_low"]
    return np.where(np.isnan(votes_N), np.nan, (votes_N >= low) & (votes_N <= high))


def ccdf_panel(axes: Axes, flip_N: np.ndarray, member_N: np.ndarray, facts: Record) -> None:
    """Share of members and of non-members whose flip rate is x or more."""
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
    axes.set(xlim=(0, 1.02 * facts["max_flip_rate"]), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


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
        ccdf_panel(axes, flip_N, member_N, facts)
        axes.set_title(f"FPR {workdir.percent(fpr)}")
    for axes in list(grid.flat)[len(flip) :]:
        axes.set_visible(False)
    figure.supxlabel("Flip rate", fontsize="medium")
    figure.supylabel("Samples with at least this flip rate", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def shares_panel(axes: Axes, shares: Sequence[Record], name: str) -> None:
    """Share of a bin of flip rates among members and among non-members, against FPR."""
    rows = sorted((r for r in shares if r["bin"] == name), key=lambda r: r["fpr"])
    fpr = [r["fpr"] for r in rows]
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


def annotate_tpr(axes: Axes, error_rates: Sequence[Record]) -> None:
    """Mean TPR ± STD above a panel whose x axis is the FPR, at every rate."""
    low, high = np.log(axes.get_xlim())
    wanted = [(math.log(row["fpr"]) - low) / (high - low) for row in error_rates]
    where = style.spread(wanted, 0.045, 0, 1)
    for row, x in zip(error_rates, where, strict=True):
        text = plus_minus(row["tpr_mean"], row["tpr_std"])
        axes.annotate(
            text,
            (x, 1.02),
            xycoords="axes fraction",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8.5,
        )


def draw_coin_flips(shares: Sequence[Record]) -> Figure:
    """Share of coin-flip decisions among members and among non-members, against FPR."""
    figure = style.new_figure(6.2, 4.0)
    axes = figure.subplots()
    shares_panel(axes, shares, "coin flip")
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
