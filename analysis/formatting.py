"""Formats numbers and names for readers: counts, percentages, means with standard deviations, attacks, model sizes."""

import decimal
import math
from typing import TYPE_CHECKING

from lm_mia.printing import plural

if TYPE_CHECKING:
    from analysis.io import RecipeResults

MIN_HEADLINE_REPLICAS = 12
"""The fewest replicas with which a share of coin flips is a main number; with fewer, the test has too little power."""


def percent(share: float) -> str:
    """Formats a fraction as a percentage of three significant digits: 0.05 -> 5%, 0.001 -> 0.1%, 0.12345 -> 12.3%."""
    return f"{100 * share:.3g}%" if abs(share) < 0.9995 else f"{100 * share:.0f}%"


def needs_nonmembers(fpr: float) -> str:
    """Says what stands in the place of a TPR if the non-members are too few for the false positive rate."""
    from lm_mia import stats  # loads for a second, and few readers need it

    return f"needs {plural(stats.nonmembers_needed(fpr), 'non-member')}"


def lower_bound(epsilon: float) -> str:
    """Formats a lower bound, rounded down: 2.669 -> "2.66"; below 0.01, one significant digit: 0.0048 -> "0.004"."""
    exact = decimal.Decimal(str(epsilon))
    digits = max(2, -exact.adjusted()) if exact else 2
    return f"{exact.quantize(decimal.Decimal(1).scaleb(-digits), decimal.ROUND_FLOOR):f}"


def plus_minus(mean: float, std: float, digits: int = 3) -> str:
    """Formats a mean and its standard deviation: "0.831 ± 0.004"; a dash for a NaN mean, no ± for a NaN deviation."""
    if math.isnan(mean):
        return "–"
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def size_label(recipe: "RecipeResults") -> str:
    """Returns the model size of a recipe for a legend: "140M", or the number of parameters in dense layers: "98.3k"."""
    if recipe.is_imported:
        return "imported"
    model, parameters = recipe.config.model, recipe.parameters
    if model.size != "custom" and model.kind == "gpt":
        return model.size
    return f"{parameters / 1e6:.3g}M" if parameters >= 1e6 else f"{parameters / 1e3:.3g}k"


def size_title(recipe: "RecipeResults") -> str:
    """Returns the model size of a recipe for a title: "98k parameters"."""
    return size_label(recipe) + ("" if recipe.is_imported else " parameters")
