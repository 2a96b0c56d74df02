"""Whether stronger attacks make more stable decisions: TPR and coin flips of each attack, compared with LiRA's.

All attacks are compared at attack.focus_fpr, over the same replicas and samples.
"""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis import io, plotting
from analysis.formatting import percent
from analysis.io import RecipeResults, Record
from analysis.tables import scores_same_samples
from lm_mia.attacks.registry import attack_name

TABLE = "attack_flips.csv"
COMPARED = ("tpr", "member_flip_rate", "member_coin_flips", "coin_flip_tp_fraction")
"""The numbers that are compared with those of LiRA."""
_DIFFERENCES = [f"{n}_minus_lira{end}" for n in COMPARED for end in ("", "_low", "_high")]
_OTHER_MARKERS = "<>pXh*dH8"
"""Markers of the attacks that have no style in `plotting.ATTACKS`, drawn in outline."""


def read(recipe: RecipeResults) -> list[Record]:
    """Reads the rows of tables/attack_flips.csv at attack.focus_fpr, those with the highest TPR first."""
    focus = recipe.view.facts("flips")["config"]["focus_fpr"]
    rows = io.read_table(recipe, TABLE)
    at_focus = [row for row in rows if math.isclose(row["fpr"], focus)]
    return sorted(at_focus, key=lambda r: math.inf if math.isnan(r["tpr_mean"]) else -r["tpr_mean"])


def comparable(rows: Sequence[Record]) -> list[Record]:
    """Returns the rows with a TPR that are about the same samples as LiRA, LiRA among them."""
    return [row for row in rows if scores_same_samples(row) and not math.isnan(row["tpr_mean"])]


def direction(row: Record, name: str) -> int:
    """Returns the sign of the difference from LiRA; 0 if its interval contains 0, or if there is none."""
    low, high = (row[f"{name}_minus_lira_{end}"] for end in ("low", "high"))
    return int(low > 0) - int(high < 0)


def verdict(rows: Sequence[Record]) -> str:
    """Returns what the numbers say about the strongest attack besides LiRA; empty if there is none to compare.

    Args:
      rows: the result of `read`.
    """
    rows = comparable(rows)
    others = [row for row in rows if row["attack"] != "lira_online"]
    lira = next((row for row in rows if row["attack"] == "lira_online"), None)
    if lira is None or not others:
        return ""
    best = others[0]
    name, fpr = attack_name(best["attack"]), percent(best["fpr"])
    strength = ("weaker", "neither clearly stronger nor weaker", "stronger")[
        direction(best, "tpr") + 1
    ]
    stability = ("fewer", "neither clearly more nor fewer", "more")[
        direction(best, "member_coin_flips") + 1
    ]
    sentences = [
        f"{name} is {strength} than LiRA, and decides {stability} members like a coin flip."
        if direction(best, "tpr")
        else f"{name} is {strength} than LiRA; it decides {stability} members like a coin flip.",
        f"At an FPR of {fpr} its TPR is {best['tpr_mean']:.3f}, that of LiRA {lira['tpr_mean']:.3f} "
        f"(difference {interval(best, 'tpr')}).",
        f"It decides {100 * best['member_coin_flips']:.1f}% of the members like a coin flip, LiRA "
        f"{100 * lira['member_coin_flips']:.1f}% (difference {interval(best, 'member_coin_flips')}).",
    ]
    if not math.isnan(best["coin_flip_tp_fraction"] + lira["coin_flip_tp_fraction"]):
        sentences.append(
            f"Of its true positives, {100 * best['coin_flip_tp_fraction']:.1f}% are on coin flips, of LiRA's "
            f"{100 * lira['coin_flip_tp_fraction']:.1f}% (difference {interval(best, 'coin_flip_tp_fraction')})."
        )
    return " ".join(sentences)


def interval(row: Record, name: str) -> str:
    """Formats a difference from LiRA with its 95% interval: "0.052, 95% interval 0.040 to 0.064".

    Differences of shares are in percentage points: "5.4 percentage points, 95% interval 1.9 to 8.9".
    """
    value, low, high = (row[f"{name}_minus_lira{end}"] for end in ("", "_low", "_high"))
    scale, digits, unit = (1, 3, "") if name == "tpr" else (100, 1, " percentage points")
    text = f"{scale * value:.{digits}f}{unit}"
    if math.isnan(low):
        return f"{text}, no interval"
    return f"{text}, 95% interval {scale * low:.{digits}f} to {scale * high:.{digits}f}"


def summary(rows: Sequence[Record]) -> str:
    """Returns how many of the stronger attacks are more or less stable than LiRA, as far as intervals decide it.

    Args:
      rows: the result of `read`.
    """
    others = [row for row in comparable(rows) if row["attack"] != "lira_online"]
    stronger = [row for row in others if direction(row, "tpr") > 0]
    if not stronger:
        return "No attack has a significantly higher TPR than LiRA."
    parts = []
    for name, what in (
        ("member_coin_flips", "coin flips among the members"),
        ("coin_flip_tp_fraction", "coin flips among the true positives"),
    ):
        signs = [direction(row, name) for row in stronger]
        parts.append(
            f"{signs.count(1)} have more {what}, {signs.count(-1)} fewer, and {signs.count(0)} neither"
        )
    return (
        f"Of the attacks with a higher TPR than LiRA ({len(stronger)}), as far as the intervals of the differences "
        f"decide it, {'; '.join(parts)}."
    )


_PANELS = (
    ("member_coin_flips", "Members decided like coin flips"),
    ("coin_flip_tp_fraction", "True positives on coin flips"),
)


def drawn(rows: Sequence[Record]) -> list[Record]:
    """Returns the rows that the figure shows: those of `comparable`, without attacks that use no references.

    The TPR of the latter is so much lower that the other attacks could not be told apart.
    """
    return [row for row in comparable(rows) if row["references"]]


def draw(rows: Sequence[Record]) -> Figure:
    """Draws, against the TPR, the share of coin flips among the members and among the true positives of each attack.

    Error bars are the 95% intervals of the differences from LiRA, which a dotted line shows.

    Args:
      rows: the result of `drawn`.
    """
    figure = plotting.new_figure(6.2, 3.4 + 0.24 * math.ceil(len(rows) / 3))
    panels = figure.subplots(1, 2)
    others = iter(_OTHER_MARKERS * len(rows))
    for row in rows:
        style = plotting.ATTACKS.get(row["attack"])
        color, _, marker = style or (plotting.BLACK, "-", next(others))
        is_lira = row["attack"] == "lira_online"
        for axes, (name, _) in zip(panels, _PANELS, strict=True):
            if is_lira:
                axes.axhline(100 * row[name], color=color, linestyle=":", linewidth=1.0)
            margin = row[f"{name}_minus_lira_high"] - row[f"{name}_minus_lira"]
            if not math.isnan(margin):
                axes.errorbar(
                    row["tpr_mean"],
                    100 * row[name],
                    100 * margin,
                    color=color,
                    capsize=2.5,
                    linewidth=1.0,
                )
            axes.plot(
                row["tpr_mean"],
                100 * row[name],
                color=color,
                marker=marker,
                markersize=11 if is_lira else 7,
                markerfacecolor="none" if is_lira or not style else color,
                linestyle="none",
                label=attack_name(row["attack"]),
            )
    for axes, (_, title) in zip(panels, _PANELS, strict=True):
        axes.set_title(title)
        axes.margins(0.12)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}%"))
    figure.supxlabel(f"TPR at {percent(rows[0]['fpr'])} FPR", fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None with too few replicas for the coin-flip test, or with nothing to compare."""
    facts = recipe.view.facts("flips")
    rows = drawn(read(recipe))
    is_drawn = io.coin_flip_test_has_power(facts) and len(rows) > 1
    return {"attack_flips": draw(rows) if is_drawn else None}
