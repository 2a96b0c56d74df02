"""Flip rates between replicas, coin-flip decisions, and the ROC curve with and without them.

Panels of StrongMIA's Figures 5 and 26 to 30. N: samples.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from analysis import io, plotting
from analysis.formatting import percent, plus_minus
from analysis.io import Record
from analysis.plotting import CLASSES
from lm_mia import stats


def ccdf(flip_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (distinct flip rates, share of samples with at least that flip rate); NaN values are left out."""
    flip_N = flip_N[~np.isnan(flip_N)]
    values, first = np.unique(np.sort(flip_N), return_index=True)
    return values, 1 - first / max(len(flip_N), 1)


def available_fprs(facts: Record, wanted: Sequence[float]) -> list[float]:
    """Returns those of the wanted FPRs that the tables have."""
    fprs = facts["config"]["fprs"]
    return [f for f in wanted if any(math.isclose(f, fpr) for fpr in fprs)]


def draw_ccdf_panel(axes: Axes, flip_N: np.ndarray, member_N: np.ndarray, facts: Record) -> None:
    """Draws the share of members and of non-members whose flip rate is at least x."""
    for label, is_member, color, linestyle in CLASSES:
        values, share = ccdf(flip_N[member_N == is_member])
        end = facts["max_flip_rate"]
        x, y = np.concatenate([[0.0], values, [end]]), np.concatenate([[1.0], share, [0.0]])
        axes.step(x, y, where="pre", color=color, linestyle=linestyle, label=label)
    if io.coin_flip_test_has_power(facts):
        axes.axvline(
            facts["cutoff"],
            color=plotting.GREY,
            linestyle="-.",
            linewidth=1.2,
            label="Coin-flip cutoff",
        )
    axes.set(xlim=(0, 1.02 * facts["max_flip_rate"]), ylim=(0, 1.03))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


_AT_127 = f", range at {stats.STRONGMIA_REPLICAS} replicas"


def draw_shares_panel(axes: Axes, shares: Sequence[Record], bin_name: str) -> None:
    """Draws the share of members and of non-members in a bin of flip rates against the FPR.

    For coin flips, bands show what 127 replicas would show.
    """
    rows = sorted((r for r in shares if r["bin"] == bin_name), key=lambda r: r["fpr"])
    fprs = [r["fpr"] for r in rows]
    for label, is_member, color, linestyle in CLASSES:
        column = "member_fraction" if is_member else "nonmember_fraction"
        share = [100 * r[column] for r in rows]
        axes.plot(
            fprs,
            share,
            color=color,
            linestyle=linestyle,
            marker="o" if is_member else "s",
            label=label,
            clip_on=False,
        )
        if bin_name == "coin flip":
            low, high = ([100 * r[f"{column}_127_{end}"] for r in rows] for end in ("low", "high"))
            axes.fill_between(
                fprs, low, high, color=color, alpha=0.18, linewidth=0, label=f"{label}{_AT_127}"
            )
    axes.set_xscale("log")
    ticks = plotting.separated_ticks(fprs)
    axes.set_xticks(ticks, [percent(f) for f in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 1 else 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))


def annotate_tpr(axes: Axes, error_rates: Sequence[Record]) -> None:
    """Writes the mean TPR ± STD at each FPR above a panel whose x axis is the FPR."""
    low, high = np.log(axes.get_xlim())
    wanted = [(math.log(row["fpr"]) - low) / (high - low) for row in error_rates]
    positions = plotting.spread_labels(wanted, 0.045, 0, 1)
    for row, x in zip(error_rates, positions, strict=True):
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


CURVE_PANELS = (
    ("distance", "Distance to the threshold"),
    ("posterior", "Posterior of membership"),
)
"""The quantities of tables/flip_curves.csv with the labels of their axes."""


def rows_at_fpr(rows: Sequence[Record], fpr: float) -> list[Record]:
    """Returns the rows of tables/flip_curves.csv at one FPR."""
    return [r for r in rows if math.isclose(r["fpr"], fpr)]


def bin_sizes(rows: Sequence[Record]) -> tuple[int, int]:
    """Returns the smallest and the largest number of samples per point; (0, 0) without points."""
    sizes = [int(r["samples"]) for r in rows]
    return min(sizes, default=0), max(sizes, default=0)


def draw_curves_panel(axes: Axes, rows: Sequence[Record], against: str, facts: Record) -> None:
    """Draws the flip rate against one quantity, a point per bin; rows and facts are those of `draw_curves`."""
    for label, is_member, color, linestyle in CLASSES:
        name = "members" if is_member else "nonmembers"
        bins = [r for r in rows if r["binned_by"] == against and r["class"] == name]
        axes.plot(
            [r["x_mean"] for r in bins],
            [r["flip_rate_mean"] for r in bins],
            color=color,
            linestyle=linestyle,
            linewidth=1.2,
            marker="o" if is_member else "s",
            markersize=3.5,
            label=label,
        )
    if io.coin_flip_test_has_power(facts):
        axes.axhline(
            facts["cutoff"], color=plotting.GREY, linestyle="-.", lw=1.2, label="Coin-flip cutoff"
        )
    axes.set(ylim=(0, 1.05 * facts["max_flip_rate"]))
    axes.set_xlim(left=0, right=1 if against == "posterior" else None)


_COIN_FREE_CURVES: tuple[tuple[str, str, str, plotting.LineStyle], ...] = (
    ("tpr_mean", "All true positives", plotting.BLUE, "-"),
    ("tpr_coin_free", "Without coin flips", plotting.VERMILLION, "--"),
    ("tpr_unstable_free", "Without very unstable ones either", plotting.GREEN, "-."),
)


def draw_coin_free_panels(
    left: Axes, right: Axes, rows: Sequence[Record], band: tuple[float, float]
) -> None:
    """Draws the curves of `draw_coin_free`: on logarithmic axes on the left, on linear axes on the right."""
    fpr_G = np.array([r["fpr"] for r in rows], float)
    lowest = []
    for axes, is_log in ((left, True), (right, False)):
        for column, label, color, linestyle in _COIN_FREE_CURVES:
            tpr_G = np.array([r[column] for r in rows], float)
            visible_G = (fpr_G > 0) & (tpr_G > 0) if is_log else np.ones(len(fpr_G), bool)
            axes.plot(
                fpr_G[visible_G], tpr_G[visible_G], color=color, linestyle=linestyle, label=label
            )
            lowest += [float(fpr_G[visible_G].min())] if is_log and visible_G.any() else []
        band_label = f"FPR {percent(band[0])} to {percent(band[1])}"
        axes.axvspan(*band, color=plotting.GREY, alpha=0.13, linewidth=0, label=band_label)
    plotting.finish_roc_axes(left, lowest)
    _finish_linear_axes(right)


def _finish_linear_axes(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=plotting.GREY, linestyle=":")
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="False positive rate")
    axes.set_xticks([0, 0.5, 1])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
