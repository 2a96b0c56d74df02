"""Numbers of attacks, as a page reads them."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from analysis.report.strength import Strength

METRICS = ("tpr", "second_tpr", "auc", "missed")
NAN = math.nan


def of_attacks(
    attacks: Sequence[str], headline: str, *, models: int = 1, has_replicas: bool | None = None
) -> Strength:
    """Returns the numbers of attacks, the first of which finds least."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (i, attack), metric in itertools.product(enumerate(attacks), METRICS):
        value = 0.1 + 0.01 * i + 0.1 * METRICS.index(metric)
        rows[attack, metric] = {"value": value, "low": value - 0.05, "high": value + 0.05}
        difference = {"minus_headline": value - 0.3}
        difference |= {"minus_headline_low": value - 0.35, "minus_headline_high": value - 0.2}
        rows[attack, metric] |= difference if attack != headline else dict.fromkeys(difference, NAN)
    counts = {"members": 1024, "nonmembers": 1000, "references": 32}
    of_models = [counts | {"tpr": 0.2 + 0.01 * t} for t in range(models)]
    has_replicas = models > 1 if has_replicas is None else has_replicas
    return Strength(headline, 0.01, 0.05, rows, of_models, has_replicas)
