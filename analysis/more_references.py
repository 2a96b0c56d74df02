"""What more references would add to each attack of a recipe: a figure, and rows for the tables of the page.

The numbers are those of more_references.csv; nothing is extrapolated here.
"""

import dataclasses
import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis import formatting, io, plotting
from analysis.io import RecipeResults
from lm_mia import stats
from lm_mia.attacks.registry import attack_name

TABLE = "more_references.csv"


@dataclasses.dataclass(frozen=True)
class Point:
    """A metric with some number of references."""

    references: int
    value: float
    """NaN if it is unknown or cannot be predicted."""
    low: float = math.nan
    """Ends of the 95% interval of a prediction; NaN for observed values."""
    high: float = math.nan
    reason: str = ""
    """Why there is no prediction."""

    def __str__(self) -> str:
        return "–" if math.isnan(self.value) else f"{self.value:.3f}"

    @property
    def interval(self) -> str:
        """The interval as text; empty if there is none."""
        return "" if math.isnan(self.low) else f"{self.low:.3f} to {self.high:.3f}"


@dataclasses.dataclass(frozen=True)
class Growth:
    """A metric of an attack by number of references, ascending."""

    observed: tuple[Point, ...]
    """The last one is with all references."""
    predicted: tuple[Point, ...]

    @property
    def now(self) -> Point:
        """The metric with all references."""
        return self.observed[-1]

    @property
    def shown(self) -> tuple[Point, ...]:
        """The metric with all references, and the predictions."""
        return self.now, *self.predicted


@dataclasses.dataclass(frozen=True)
class MoreReferences:
    """What more references would add to the attacks of a recipe."""

    models: str
    """The attacked models, such as "8 targets"."""
    samples: int
    reason: str = ""
    """Why there are no numbers."""
    attacks: dict[str, dict[str, Growth]] = dataclasses.field(default_factory=dict)
    """Attack -> metric -> numbers; attacks with a higher AUC today come first."""

    @property
    def reasons(self) -> list[str]:
        """The attacks without a prediction, with the reason: "LiRA: the value is 0 or 1 with 4 references"."""
        reasons = [
            f"{attack_name(name)}: {growth.predicted[0].reason}"
            for name, metrics in self.attacks.items()
            for growth in metrics.values()
            if growth.predicted[0].reason
        ]
        return list(dict.fromkeys(reasons))

    @property
    def unseen_share(self) -> float:
        """`stats.unseen_share` of the references today; NaN without numbers."""
        return stats.unseen_share(self.references[0]) if self.references else math.nan

    @property
    def references(self) -> list[int]:
        """The number of references today, and those of the predictions; empty without numbers."""
        for metrics in self.attacks.values():
            return [point.references for point in metrics["auc"].shown]
        return []


def read(recipe: RecipeResults) -> MoreReferences | None:
    """Reads what more references would add to a recipe; None if the recipe has no such tables."""
    if not recipe.view.has("more_references.json"):
        return None
    facts = recipe.view.facts("more_references")
    models = formatting.plural(facts["targets"], facts["over"].removesuffix("s"))
    more = MoreReferences(models, facts["samples"], facts["reason"])
    if more.reason:
        return more
    points: dict[str, dict[str, dict[str, list[Point]]]] = {}
    for row in io.read_table(recipe, TABLE):
        reason = row["reason"] if isinstance(row["reason"], str) else ""
        point = Point(row["references"], row["value"], row["low"], row["high"], reason)
        by_kind = points.setdefault(row["attack"], {}).setdefault(row["metric"], {})
        by_kind.setdefault(row["kind"], []).append(point)
    attacks = {
        name: {
            metric: Growth(tuple(kinds["observed"]), tuple(kinds["predicted"]))
            for metric, kinds in metrics.items()
        }
        for name, metrics in points.items()
    }

    def strength(name: str) -> float:
        auc = attacks[name]["auc"].now.value
        return -math.inf if math.isnan(auc) else auc

    order = sorted(attacks, key=strength, reverse=True)
    return dataclasses.replace(more, attacks={name: attacks[name] for name in order})


def draw(attacks: dict[str, dict[str, Growth]]) -> Figure | None:
    """Draws the AUC against the number of references: observed values and, with intervals, predictions.

    Args:
      attacks: as `MoreReferences.attacks`.

    Returns:
      The figure; None if no attack that figures show has a prediction.
    """
    growths = {
        name: attacks[name]["auc"]
        for name in plotting.ATTACKS
        if name in attacks and not math.isnan(attacks[name]["auc"].predicted[0].value)
    }
    if not growths:
        return None
    figure = plotting.new_figure(6.2, 4.6)
    axes = figure.subplots()
    for i, (name, growth) in enumerate(growths.items()):
        color, dash, marker = plotting.ATTACKS[name]
        # Beside each other, so that intervals do not overlap.
        apart = 2 ** (0.09 * (i - (len(growths) - 1) / 2))
        axes.plot(
            [point.references * apart for point in growth.observed],
            [point.value for point in growth.observed],
            color=color,
            marker=marker,
            linestyle=dash,
            markersize=4.5,
            label=attack_name(name),
        )
        axes.plot(
            [point.references * apart for point in growth.shown],
            [point.value for point in growth.shown],
            color=color,
            linestyle=":",
            linewidth=1.2,
        )
        axes.errorbar(
            [point.references * apart for point in growth.predicted],
            [point.value for point in growth.predicted],
            yerr=[
                [point.value - point.low for point in growth.predicted],
                [point.high - point.value for point in growth.predicted],
            ],
            color=color,
            marker=marker,
            markerfacecolor="white",
            markersize=4.5,
            linestyle="",
            linewidth=1.2,
            capsize=2.5,
        )
    axes.set_xscale("log", base=2)
    first = next(iter(growths.values()))
    counts = [point.references for point in (*first.observed, *first.predicted)]
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    now, next_count = first.now.references, first.predicted[0].references
    axes.axvspan(
        math.sqrt(now * next_count), counts[-1] * 1.4, color=plotting.GREY, alpha=0.1, linewidth=0
    )
    axes.set(xlabel="Reference models", ylabel="AUC", xlim=(counts[0] / 1.4, counts[-1] * 1.4))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def recipe_figures(recipe: RecipeResults) -> dict[str, Figure | None]:
    """Draws the figure of a recipe; None if nothing is predicted."""
    more = read(recipe)
    return {"more_references": draw(more.attacks) if more else None}


def strongest(recipes: Sequence[RecipeResults]) -> list[tuple[str, str, Growth]]:
    """Returns (recipe, attack, AUC) of the attack with the highest AUC today of each recipe that has a prediction."""
    rows = []
    for recipe in recipes:
        more = read(recipe)
        if more and more.attacks:
            attack, metrics = next(iter(more.attacks.items()))
            rows.append((recipe.name, attack, metrics["auc"]))
    return rows
