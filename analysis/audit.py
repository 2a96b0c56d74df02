"""Audit: what the scores of each attack show about epsilon of differential privacy, as bounds and as estimates.

All numbers are about the first replica or, without replicas, the first target.
"""

import math
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from analysis import io, plotting
from analysis.io import RecipeResults, Record
from lm_mia.attacks.registry import attack_name

TABLE, CURVE_TABLE = "audit.csv", "audit_curve.csv"

Audits = Mapping[str, Mapping[str, Record]]
"""Attack -> method -> row."""


def read(recipe: RecipeResults) -> Audits:
    """Reads tables/audit.csv; attacks with a larger bound come first, then those with a larger estimate."""
    audits: dict[str, dict[str, Record]] = {}
    for row in io.read_table(recipe, TABLE):
        audits.setdefault(row["attack"], {})[row["method"]] = row

    def order(item: tuple[str, Mapping[str, Record]]) -> tuple[float, ...]:
        methods = ("one_run", "one_run_gaussian", "estimate_max")
        values = [item[1][name]["epsilon"] if name in item[1] else 0.0 for name in methods]
        return tuple(-value if value == value else math.inf for value in values)

    return dict(sorted(audits.items(), key=order))


def _canaries(row: Record) -> str:
    return (
        "samples, which was drawn by coin tosses"
        if row["adjacency"] == "add_remove"
        else "pairs of a member and a non-member"
    )


def draw(curves: Mapping[str, Sequence[Record]], audits: Audits) -> Figure:
    """Draws epsilon against the number of guesses, and the ceiling.

    Args:
      curves: rows of audit_curve.csv by attack.
      audits: the result of `read`.
    """
    figure = plotting.new_figure(6.2, 3.6)
    axes = figure.subplots()
    names = [name for name in audits if name in curves]
    for name in names:
        if name not in plotting.ATTACKS:
            continue
        color, line, marker = plotting.ATTACKS[name]
        best: dict[float, float] = {}
        for row in curves[name]:
            best[row["guesses"]] = max(best.get(row["guesses"], 0.0), row["epsilon"])
        guesses = sorted(best)
        axes.plot(
            guesses,
            [best[n] for n in guesses],
            color=color,
            linestyle=line,
            marker=marker,
            markersize=4,
            label=attack_name(name),
        )
    ceiling = audits[names[0]]["one_run"]["ceiling"]
    axes.axhline(
        ceiling, color=plotting.BLACK, linestyle="--", linewidth=1.2, label="perfect attack"
    )
    axes.set_xscale("log", base=2)
    axes.set_ylim(-0.03 * ceiling, 1.08 * ceiling)
    axes.set_xlabel("Number of guesses")
    axes.set_ylabel("Lower bound on epsilon")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if no bound holds."""
    curves: dict[str, list[Record]] = {}
    for row in io.read_table(recipe, CURVE_TABLE):
        curves.setdefault(row["attack"], []).append(row)
    return {"audit": draw(curves, read(recipe)) if curves else None}
