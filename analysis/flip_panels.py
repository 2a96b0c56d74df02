"""Flips between replicas: flip rates, coin-flip decisions, and the ROC curve with and without these.

What StrongMIA's Figures 5 and 26 to 30 are made of, and the figures of a run's own page.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from analysis import io, plotting
from analysis.formatting import plus_minus
from analysis.io import Record
from analysis.plotting import CLASSES
from analysis.tables import SHARE_COLUMNS


def panel_fprs(fprs: Sequence[float], focus: float, most: int = 4) -> list[float]:
    """The FPRs that get a panel: the focus and those nearest to it on a log axis, ascending."""
    return sorted(sorted(fprs, key=lambda f: abs(math.log(f / focus)))[:most])


def ccdf(flip_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct flip rates, share of samples with at least that flip rate); NaN are left out."""
    flip_N = flip_N[~np.isnan(flip_N)]
    values, first = np.unique(np.sort(flip_N), return_index=True)
    return values, 1 - first / max(len(flip_N), 1)


def shown_fprs(facts: Record, wanted: Sequence[float]) -> list[float]:
    """Those of the wanted FPRs that the tables have."""
    return [f for f in wanted if any(math.isclose(f, there) for there in facts["config"]["fprs"])]


def split(folder: Path, column: str) -> tuple[np.ndarray, np.ndarray]:
    """A column of samples.parquet: (of members, of non-members) that have a value."""
    found = io.samples(folder, ["member", column])
    value_N, member_N = found[column].astype(float), found["member"].astype(bool)
    there_N = ~np.isnan(value_N)
    return value_N[there_N & member_N], value_N[there_N & ~member_N]


def both(a: Path, b: Path, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A column of samples.parquet of two workdirs, and who is a member; WorkdirError if that differs."""
    of_a, of_b = (io.samples(folder, ["member", column]) for folder in (a, b))
    if not np.array_equal(of_a["member"], of_b["member"]):
        raise io.WorkdirError(f"{a} and {b} do not have the same members")
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
    if io.decides(facts):
        axes.axvline(
            facts["cutoff"],
            color=plotting.GREY,
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
    figure = plotting.new_figure(6.2, 0.9 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (fpr, flip_N) in zip(grid.flat, flip.items(), strict=False):
        ccdf_panel(axes, flip_N, member_N, facts)
        axes.set_title(f"FPR {io.percent(fpr)}")
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
        column = "member_fraction" if is_member else "nonmember_fraction"
        share = [100 * r[column] for r in rows]
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
    shown = plotting.labelled(fpr)
    axes.set_xticks(shown, [io.percent(f) for f in shown])
    axes.minorticks_off()
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 1 else 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))


def annotate_tpr(axes: Axes, error_rates: Sequence[Record]) -> None:
    """Mean TPR ± STD above a panel whose x axis is the FPR, at every rate."""
    low, high = np.log(axes.get_xlim())
    wanted = [(math.log(row["fpr"]) - low) / (high - low) for row in error_rates]
    where = plotting.spread(wanted, 0.045, 0, 1)
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
    figure = plotting.new_figure(6.2, 4.0)
    axes = figure.subplots()
    shares_panel(axes, shares, "coin flip")
    axes.set(xlabel="False positive rate", ylabel="Coin-flip decisions")
    axes.legend(loc="best")
    return figure


CURVE_COLUMNS = ("fpr", "binned_by", "class", "x_mean", "flip_rate_mean", "samples", "left_out")
CURVE_PANELS = (
    ("distance", "Distance to the threshold"),
    ("posterior", "Posterior of membership"),
)


def curves_at(rows: Sequence[Record], fpr: float) -> list[Record]:
    """The rows of tables/flip_curves.csv at one FPR."""
    return [r for r in rows if math.isclose(r["fpr"], fpr)]


def bin_sizes(rows: Sequence[Record]) -> tuple[int, int]:
    """The fewest and the most samples that a point stands for; (0, 0) without points."""
    sizes = [int(r["samples"]) for r in rows]
    return min(sizes, default=0), max(sizes, default=0)


def curves_panel(axes: Axes, rows: Sequence[Record], against: str, facts: Record) -> None:
    """Flip rate against one quantity, a point for every bin; rows and facts as of ``draw_curves``."""
    for label, is_member, color, dash in CLASSES:
        name = "members" if is_member else "nonmembers"
        bins = [r for r in rows if r["binned_by"] == against and r["class"] == name]
        axes.plot(
            [r["x_mean"] for r in bins],
            [r["flip_rate_mean"] for r in bins],
            color=color,
            linestyle=dash,
            linewidth=1.2,
            marker="o" if is_member else "s",
            markersize=3.5,
            label=label,
        )
    if io.decides(facts):
        axes.axhline(
            facts["cutoff"], color=plotting.GREY, linestyle="-.", lw=1.2, label="Coin-flip cutoff"
        )
    axes.set(ylim=(0, 1.05 * facts["max_flip_rate"]))
    axes.set_xlim(left=0, right=1 if against == "posterior" else None)


def draw_curves(rows: Sequence[Record], facts: Record) -> Figure:
    """A panel for each of both quantities, a point for every bin of about equally many samples.

    Args:
      rows: those of tables/flip_curves.csv at the FPR that is shown.
      facts: flips.json, for the cutoff and the largest flip rate.
    """
    figure = plotting.new_figure(6.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (against, title) in zip(panels, CURVE_PANELS, strict=True):
        curves_panel(axes, rows, against, facts)
        axes.set_xlabel(title + "\n(mean over replicas)")
    panels[0].set_ylabel("Flip rate, mean of a bin")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


COIN_FREE_COLUMNS = ("fpr", "tpr_mean", "tpr_coin_free")
_CURVES: tuple[tuple[str, str, str, plotting.Dash], ...] = (
    ("tpr_mean", "All true positives", plotting.BLUE, "-"),
    ("tpr_coin_free", "Without coin flips", plotting.VERMILLION, "--"),
)


def draw_coin_free(curves: Sequence[Record], band: tuple[float, float]) -> Figure:
    """Both curves on logarithmic axes and on linear ones, with the band of the partial areas shaded.

    Args:
      curves: rows of tables/coin_free_roc.csv.
      band: of attack.band.
    """
    figure = plotting.new_figure(6.2, 3.9)
    left, right = figure.subplots(1, 2)
    coin_free_panels(left, right, curves, band)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


def coin_free_panels(
    left: Axes, right: Axes, curves: Sequence[Record], band: tuple[float, float]
) -> None:
    """Both curves, on the left on logarithmic axes and on the right on linear ones; as of ``draw_coin_free``."""
    fpr = np.array([r["fpr"] for r in curves], float)
    lowest = []
    for axes, log in ((left, True), (right, False)):
        for name, label, color, dash in _CURVES:
            tpr = np.array([r[name] for r in curves], float)
            shown = (fpr > 0) & (tpr > 0) if log else np.ones(len(fpr), bool)
            axes.plot(fpr[shown], tpr[shown], color=color, linestyle=dash, label=label)
            lowest += [float(fpr[shown].min())] if log and shown.any() else []
        axes.axvspan(*band, color=plotting.GREY, alpha=0.13, linewidth=0, label=_band(band))
    plotting.finish(left, lowest)
    _linear(right)


def _linear(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="False positive rate")
    axes.set_xticks([0, 0.5, 1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _band(band: tuple[float, float]) -> str:
    return f"FPR {io.percent(band[0])} to {io.percent(band[1])}"


def run_figures(folder: Path) -> dict[str, Figure | None]:
    """The figures of a run; those of coin flips are None if there are too few replicas to test."""
    facts = io.flip_facts(folder)
    fprs = panel_fprs(facts["config"]["fprs"], facts["config"]["focus_fpr"])
    columns = io.samples(folder, ["member", *(f"flip_rate_{f:g}" for f in fprs)])
    flip = {f: columns[f"flip_rate_{f:g}"].astype(float) for f in fprs}
    shares = io.table(folder, "flip_shares.csv", SHARE_COLUMNS)
    curves = io.table(folder, "flip_curves.csv", CURVE_COLUMNS)
    coin_free = io.table(folder, "coin_free_roc.csv", COIN_FREE_COLUMNS)
    found: dict[str, Figure | None] = {
        "flip_ccdf": draw_ccdf(flip, columns["member"].astype(bool), facts),
        "flip_curves": draw_curves(curves_at(curves, facts["config"]["focus_fpr"]), facts),
        "coin_flip_share": None,
        "coin_free_roc": None,
    }
    if io.decides(facts):
        found["coin_flip_share"] = draw_coin_flips(shares)
        found["coin_free_roc"] = draw_coin_free(coin_free, tuple(facts["config"]["band"]))
    return found
