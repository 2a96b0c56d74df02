"""What more references would add to the attacks of a recipe, and their cost, for ``lm-mia plan``.

The numbers are those of more_references.csv.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import rich.box
from rich.table import Table

from lm_mia.attacks.spec import FigureNeed
from lm_mia.errors import UserError
from lm_mia.printing import format_duration
from lm_mia.run.stored_results import open_results
from lm_mia.run.sweep import SweepRecipe

Cell = dict[str, float]
"""A number with its interval: "value", and for predictions "low" and "high"; NaN if it is unknown."""


@dataclasses.dataclass(frozen=True)
class Forecast:
    """What more references would add to the attacks of one recipe."""

    recipe: str
    focus_fpr: float
    references: int
    """The number of references of the attacks that were computed."""
    reason: str = ""
    """Why there is no prediction at all."""
    attacks: dict[str, dict[str, dict[int, Cell]]] = dataclasses.field(default_factory=dict)
    """Attack -> metric -> number of references, from all that are present -> value."""
    hours: dict[int, float] = dataclasses.field(default_factory=dict)
    """Larger number of references -> hours of the references that are added; empty if they are unknown."""

    def strongest(self) -> list[str]:
        """Returns the names of the attacks, those with a higher AUC today first."""
        auc = {
            name: metrics["auc"][self.references]["value"] for name, metrics in self.attacks.items()
        }
        return sorted(
            auc, key=lambda name: -math.inf if math.isnan(auc[name]) else auc[name], reverse=True
        )


def read_forecast(
    recipe: SweepRecipe,
    hours_per_model: float | None,
    read_needs: Callable[[], Sequence[FigureNeed]],
) -> Forecast | None:
    """Reads what the last `lm-mia attack` computed.

    Args:
      recipe: the recipe.
      hours_per_model: the time that it takes to train and score a model, None if it is unknown.
      read_needs: returns needs with the study of more references; it is called if the recipe has scores.

    Returns:
      The predictions; None if the recipe has not been attacked with its present models and settings.
    """
    try:
        if not recipe.folder.is_dir():
            return None
        view = open_results(recipe, read_needs(), with_user_attacks=True)
        facts = view.facts("more_references")
        references = facts["references"]
        forecast = Forecast(recipe.name, view.c.focus, references, facts["reason"])
        if facts["reason"]:
            return forecast
        rows = view.table("more_references.csv").to_dict("records")
    except UserError:
        return None
    attacks: dict[str, dict[str, dict[int, Cell]]] = {}
    for row in rows:
        if row["references"] >= references:
            values = attacks.setdefault(row["attack"], {}).setdefault(row["metric"], {})
            values[row["references"]] = {name: row[name] for name in ("value", "low", "high")}
    larger = sorted({n for m in attacks.values() for values in m.values() for n in values})[1:]
    hours: dict[int, float] = {}
    if hours_per_model is not None:
        hours = {count: hours_per_model * (count - references) for count in larger}
    return dataclasses.replace(forecast, attacks=attacks, hours=hours)


def as_json(forecast: Forecast | None) -> dict[str, Any] | None:
    """Returns a forecast as plain values, with None for unknown numbers."""
    if forecast is None:
        return None

    def plain(cell: Cell) -> dict[str, float | None]:
        return {name: None if math.isnan(number) else number for name, number in cell.items()}

    attacks = {
        name: {
            m: {str(n): plain(cell) for n, cell in cells.items()} for m, cells in metrics.items()
        }
        for name, metrics in forecast.attacks.items()
    }
    return {
        "references": forecast.references,
        "reason": forecast.reason,
        "attacks": attacks,
        "hours": {str(count): hours for count, hours in forecast.hours.items()},
    }


def to_table(forecasts: Sequence[Forecast], time_name: str) -> tuple[Table | None, list[str]]:
    """Returns a table of forecasts, with all attacks of a single recipe or the strongest of each, and notes below it.

    The table is None if there is no prediction for any recipe.

    Args:
      forecasts: the forecasts.
      time_name: what their hours are, "time" or "chip time".
    """
    alone = len(forecasts) == 1
    shown = [forecast for forecast in forecasts if forecast.attacks]
    notes = [
        f"{f.recipe}: no prediction for more references: {f.reason}" for f in forecasts if f.reason
    ]
    if not shown:
        return None, notes
    table = Table(
        box=rich.box.SIMPLE_HEAD,
        pad_edge=False,
        title="What more references would add",
        title_justify="left",
    )
    for name in ("recipe", "attack"):
        table.add_column(name, no_wrap=True)
    headers = ["references", "AUC now", "with 2x", "with 4x", "TPR now", "with 2x", "with 4x"]
    has_hours = any(forecast.hours for forecast in shown)
    for name in (*headers, *([f"{time_name}\nfor 2x", "\nfor 4x"] if has_hours else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for forecast in shown:
        for i, name in enumerate(forecast.strongest()[: None if alone else 1]):
            metrics = forecast.attacks[name]
            numbers = [
                _format(cell)
                for metric in ("auc", f"tpr_at_{forecast.focus_fpr:g}")
                for cell in metrics.get(metric, {0: {}, 1: {}, 2: {}}).values()
            ]
            times = [
                format_duration(3600 * hours) if i == 0 else "" for hours in forecast.hours.values()
            ]
            recipe = forecast.recipe if i == 0 else ""
            table.add_row(recipe, name, str(forecast.references), *numbers, *times)
    rates = sorted({forecast.focus_fpr for forecast in shown})
    at = f"an FPR of {rates[0]:g}" if len(rates) == 1 else "attack.focus_fpr of each recipe"
    notes = [
        f"TPR          at {at}",
        "2x, 4x       2 and 4 times the references that are present now, on the same targets and samples, with 95%",
        "             intervals; a dash: there is no prediction, more_references.csv has the reason",
        "             the intervals hold if the new references are like the present ones; even if none of these is",
        f"             unusual, such as a model that trained badly, {_unseen(shown)} of the new ones may be",
        *([f"{time_name:12} of the references that would be added"] if has_hours else []),
        *(
            []
            if alone
            else [
                "attack       the one with the highest AUC now; the report and --json have the others"
            ]
        ),
        *notes,
    ]
    return table, notes


def _unseen(forecasts: Sequence[Forecast]) -> str:
    """Returns the largest share of unusual references that may be unseen, or its range over the recipes."""
    from lm_mia import stats  # loads scipy, which other plans do not need

    shares = [stats.unseen_share(forecast.references) for forecast in forecasts]
    return f"up to {' to '.join(dict.fromkeys(f'{share:.0%}' for share in (min(shares), max(shares))))}"


def _format(cell: Cell) -> str:
    value, low, high = (cell.get(name, math.nan) for name in ("value", "low", "high"))
    if math.isnan(value):
        return "-"
    return f"{value:.3f}" + ("" if math.isnan(low) else f"\n{low:.3f}-{high:.3f}")
