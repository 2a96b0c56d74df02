"""Membership advantage: how much better than chance an adversary decides who is a member, given one score.

Numbers without "mean" are about the first replica, to which the intervals belong.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import io, plotting
from analysis.formatting import percent
from analysis.io import RecipeResults, Record
from lm_mia.attacks.registry import attack_name

TABLE = "advantage.csv"


def read(recipe: RecipeResults) -> dict[float, list[Record]]:
    """Reads tables/advantage.csv; returns prior -> rows, in the order of the config.

    Attacks with a larger advantage at the first prior come first, for every prior. Rows without a number are left out.
    """
    rows = [row for row in io.read_table(recipe, TABLE) if row["held_out"] == row["held_out"]]
    by_prior: dict[float, list[Record]] = {}
    for row in rows:
        by_prior.setdefault(row["prior"], []).append(row)
    first = next(iter(by_prior.values()), [])
    order = {row["attack"]: -row["held_out"] for row in first}
    return {
        prior: sorted(of_prior, key=lambda row: order.get(row["attack"], math.inf))
        for prior, of_prior in by_prior.items()
    }


def _draw_bar(axes: Axes, line: int, row: Record) -> None:
    """Draws the estimates of one attack at one prior."""
    axes.barh(line, row["held_out"], height=0.62, color=plotting.BLUE)
    axes.barh(
        line, row["plug_in"], height=0.78, facecolor="none", edgecolor=plotting.GREY, linewidth=1.0
    )
    if not math.isnan(row["held_out_low"]):
        below = row["held_out"] - row["held_out_low"]
        axes.errorbar(
            row["held_out"],
            line,
            xerr=[[below], [0]],
            color=plotting.BLACK,
            capsize=3,
            linewidth=1.6,
        )
    for name, color in (("held_out", plotting.VERMILLION), ("plug_in", plotting.ORANGE)):
        value = row[f"shuffled_{name}"]
        axes.plot([value, value], [line - 0.39, line + 0.39], color=color, linewidth=2.0)


def draw(by_prior: Mapping[float, Sequence[Record]]) -> Figure:
    """Draws a panel for each prior, with a bar for each attack.

    Args:
      by_prior: the result of `read`, not empty.
    """
    attacks = [row["attack"] for row in next(iter(by_prior.values()))]
    columns = min(2, len(by_prior))
    lines = -(-len(by_prior) // columns)
    figure = plotting.new_figure(6.2, lines * (0.9 + 0.36 * len(attacks)) + 0.8)
    panels = [*figure.subplots(lines, columns, squeeze=False, sharey=True).flat]
    for axes, (prior, rows) in zip(panels, by_prior.items(), strict=False):
        for row in rows:
            _draw_bar(axes, attacks.index(row["attack"]), row)
        axes.axvline(
            rows[0]["baseline"], color=plotting.BLACK, linestyle="--", linewidth=1.2, zorder=1
        )
        axes.set_title(f"Prior {percent(prior)}")
        axes.grid(axis="y", visible=False)
        axes.set_xlim(min(0, *(row["held_out"] for row in rows)), 1)
        axes.set_xticks([0, 0.5, 1])
    for axes in panels[len(by_prior) :]:
        axes.set_visible(False)
    panels[0].set_yticks(range(len(attacks)), [attack_name(name) for name in attacks])
    panels[0].set_ylim(len(attacks) - 0.4, -0.6)
    figure.supxlabel("Membership advantage", fontsize="medium")
    handles = [
        Patch(facecolor=plotting.BLUE, label="held-out, with lower end of interval"),
        Patch(facecolor="none", edgecolor=plotting.GREY, label="plug-in"),
        Line2D(
            [],
            [],
            color=plotting.VERMILLION,
            linestyle="none",
            marker="|",
            label="held-out, shuffled",
        ),
        Line2D(
            [],
            [],
            color=plotting.ORANGE,
            linestyle="none",
            marker="|",
            label="plug-in, shuffled",
        ),
        Line2D([], [], color=plotting.BLACK, linestyle="--", label="baseline"),
    ]
    for handle in handles[2:4]:
        handle.set(markersize=9, markeredgewidth=2.0)
    figure.legend(handles=handles, loc="outside upper left", ncols=2, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if no attack has an advantage, since a class has too few scores."""
    by_prior = read(recipe)
    return {"advantage": draw(by_prior) if by_prior else None}
