"""Flip rates between replicas, coin-flip decisions, and the ROC curve with and without them.

Panels of StrongMIA's Figures 5 and 26 to 30, and figures of the section of a recipe. N: samples.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from analysis import io, plotting, tables
from analysis.formatting import percent, plus_minus
from analysis.io import RecipeResults, Record
from analysis.plotting import CLASSES
from lm_mia import stats


def panel_fprs(fprs: Sequence[float], focus: float, max_panels: int = 4) -> list[float]:
    """Returns the FPRs that get a panel, ascending: the focus FPR and those nearest to it on a log axis."""
    return sorted(sorted(fprs, key=lambda f: abs(math.log(f / focus)))[:max_panels])


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


def draw_ccdf(flip: Mapping[float, np.ndarray], member_N: np.ndarray, facts: Record) -> Figure:
    """Draws, in a panel per FPR, the share of members and of non-members whose flip rate is at least x.

    Args:
      flip: the flip rate of every sample, by FPR.
      member_N: whether the sample is in the training subset of the replicas.
      facts: flips.json, for the cutoff and the largest flip rate.
    """
    rows, columns = -(-len(flip) // 2), min(len(flip), 2)
    figure = plotting.new_figure(6.2, 0.9 + 2.3 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, (fpr, flip_N) in zip(grid.flat, flip.items(), strict=False):
        draw_ccdf_panel(axes, flip_N, member_N, facts)
        axes.set_title(f"FPR {percent(fpr)}")
    for axes in list(grid.flat)[len(flip) :]:
        axes.set_visible(False)
    figure.supxlabel("Flip rate", fontsize="medium")
    figure.supylabel("Samples with at least this flip rate", fontsize="medium")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


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


def draw_coin_flips(shares: Sequence[Record]) -> Figure:
    """Draws the share of coin-flip decisions among members and among non-members against the FPR."""
    figure = plotting.new_figure(6.2, 4.0)
    axes = figure.subplots()
    draw_shares_panel(axes, shares, "coin flip")
    axes.set(xlabel="False positive rate", ylabel="Coin-flip decisions")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def draw_coin_flips_by_replicas(rows: Sequence[Record]) -> Figure:
    """Draws the observed share of coin flips with its standard error, and its range, against the number of replicas.

    Args:
      rows: rows of tables/flip_shares_by_replicas.csv.
    """
    figure = plotting.new_figure(6.2, 4.0)
    axes = figure.subplots()
    replicas = np.array([r["replicas"] for r in rows], float)
    for label, is_member, color, linestyle in CLASSES:
        column = "member_fraction" if is_member else "nonmember_fraction"
        share, error, low, high = (
            np.array([100 * r[f"{column}{suffix}"] for r in rows])
            for suffix in ("", "_se", "_127_low", "_127_high")
        )
        x = replicas * (0.97 if is_member else 1.03)  # side by side
        axes.errorbar(
            x,
            share,
            error,
            color=color,
            linestyle=linestyle,
            marker="o" if is_member else "s",
            markersize=5,
            capsize=2.5,
            label=label,
        )
        axes.vlines(x, low, high, color=color, alpha=0.3, linewidth=7, label=f"{label}{_AT_127}")
    axes.set_xscale("log")
    axes.set_xticks(replicas, [f"{count:.0f}" for count in replicas])
    axes.minorticks_off()
    axes.set_xlim(replicas.min() / 1.25, replicas.max() * 1.25)
    axes.set_ylim(bottom=0, top=None if axes.get_ylim()[1] > 1 else 1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))
    axes.set(
        xlabel="Number of replicas", ylabel=f"Coin-flip decisions at {percent(rows[0]['fpr'])} FPR"
    )
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


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


def draw_curves(rows: Sequence[Record], facts: Record) -> Figure:
    """Draws the flip rate against distance and against posterior, a point per bin of about equally many samples.

    Args:
      rows: rows of tables/flip_curves.csv at one FPR.
      facts: flips.json, for the cutoff and the largest flip rate.
    """
    figure = plotting.new_figure(6.2, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (against, label) in zip(panels, CURVE_PANELS, strict=True):
        draw_curves_panel(axes, rows, against, facts)
        axes.set_xlabel(label + "\n(mean over replicas)")
    panels[0].set_ylabel("Mean flip rate")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


_COIN_FREE_CURVES: tuple[tuple[str, str, str, plotting.LineStyle], ...] = (
    ("tpr_mean", "All true positives", plotting.BLUE, "-"),
    ("tpr_coin_free", "Without coin flips", plotting.VERMILLION, "--"),
    ("tpr_unstable_free", "Without very unstable ones either", plotting.GREEN, "-."),
)


def draw_coin_free(rows: Sequence[Record], band: tuple[float, float]) -> Figure:
    """Draws the mean ROC curve with and without unstable decisions, on logarithmic and on linear axes.

    Args:
      rows: rows of tables/coin_free_roc.csv.
      band: the range of FPRs attack.band, which is shaded.
    """
    figure = plotting.new_figure(6.2, 3.9)
    left, right = figure.subplots(1, 2)
    draw_coin_free_panels(left, right, rows, band)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


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


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figures of a recipe; those about coin flips are None if there are too few replicas for the test."""
    facts = recipe.view.facts("flips")
    fprs = panel_fprs(facts["config"]["fprs"], facts["config"]["focus_fpr"])
    columns = io.read_samples(recipe, ["member", *(f"flip_rate_{f:g}" for f in fprs)])
    flip = {f: columns[f"flip_rate_{f:g}"].astype(float) for f in fprs}
    shares = tables.read_flip_shares(recipe)
    curves = io.read_table(recipe, "flip_curves.csv")
    coin_free = io.read_table(recipe, "coin_free_roc.csv")
    figures: dict[str, Figure | None] = {
        "flip_ccdf": draw_ccdf(flip, columns["member"].astype(bool), facts),
        "flip_curves": draw_curves(rows_at_fpr(curves, facts["config"]["focus_fpr"]), facts),
        "coin_flip_share": None,
        "coin_flips_by_replicas": None,
        "coin_free_roc": None,
    }
    if io.coin_flip_test_has_power(facts):
        figures["coin_flip_share"] = draw_coin_flips(shares)
        by_replicas = tables.read_coin_flips_by_replicas(recipe)
        figures["coin_flips_by_replicas"] = draw_coin_flips_by_replicas(by_replicas)
        figures["coin_free_roc"] = draw_coin_free(coin_free, tuple(facts["config"]["band"]))
    return figures
