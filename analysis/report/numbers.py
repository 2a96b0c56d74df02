"""Formats numbers of the report page: with an interval, half of it has one significant digit.

The same estimate is written in three ways: `plain` for sentences and descriptions, `markup` for cells of tables, and
`label` for charts, where room is scarce.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

MISSING = "–"
"""Stands in the place of a number that is not known."""
MAX_DECIMALS = 4
"""Of an estimate; an interval that is narrower, or has no width by accident, adds no more digits."""


@dataclass(frozen=True)
class Estimate:
    """A quantity and its 95 % interval, as fractions: 0.25, not 25. Without an interval, both of its ends are NaN."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)

    @property
    def has_interval(self) -> bool:
        """Whether both ends of the interval are known and finite."""
        return self.is_known and math.isfinite(self.low) and math.isfinite(self.high)

    def contains(self, value: float) -> bool:
        """Returns whether a value lies in the interval; False without one."""
        return self.has_interval and self.low <= value <= self.high


@dataclass(frozen=True)
class Unit:
    """How a fraction is written."""

    scale: float
    """What it is multiplied by."""
    decimals: int
    """Decimals of a number without an interval."""


PER_100 = Unit(100, 0)
"""Members found and false alarms per 100, and shares in %."""
FRACTION = Unit(1, 2)
"""An AUC."""


def decimals(estimate: Estimate, unit: Unit = PER_100) -> int:
    """Returns the number of decimals: with it, half of the interval has one significant digit."""
    half = unit.scale * (estimate.high - estimate.low) / 2
    if not estimate.has_interval or half <= 0:
        return unit.decimals
    # The subtrahend keeps half an interval of 0.1, which floats miss slightly, at one decimal.
    return min(MAX_DECIMALS, max(0, math.ceil(-math.log10(half) - 1e-9)))


def value(estimate: Estimate, unit: Unit = PER_100) -> str:
    """Formats the value alone, with the decimals that its interval allows: "25"; a dash if it is not known."""
    return _number(estimate.value, estimate, unit)


def interval(estimate: Estimate, unit: Unit = PER_100) -> str:
    """Formats the interval alone: "18 to 32"; empty if there is none."""
    if not estimate.has_interval:
        return ""
    return f"{_number(estimate.low, estimate, unit)} to {_number(estimate.high, estimate, unit)}"


def plain(estimate: Estimate, unit: Unit = PER_100) -> str:
    """Formats an estimate for a sentence: "25 (18 to 32)"."""
    text = value(estimate, unit)
    return f"{text} ({interval(estimate, unit)})" if estimate.has_interval else text


def percent(estimate: Estimate) -> str:
    """Formats a share for a sentence: "46 % (41 to 51)"."""
    text = value(estimate) + (" %" if estimate.is_known else "")
    return f"{text} ({interval(estimate)})" if estimate.has_interval else text


def markup(estimate: Estimate, unit: Unit = PER_100) -> Markup:
    """Formats an estimate for a cell of a table: the interval is small, and stands in a column of its own."""
    text = Markup.escape(value(estimate, unit))
    if not estimate.has_interval:
        return text
    return text + Markup(' <small class="interval">{}</small>').format(interval(estimate, unit))


def fraction(estimate: Estimate) -> Markup:
    """Formats a fraction for a cell with three decimals, whatever its interval, as other programs print it."""
    if not estimate.is_known:
        return Markup(MISSING)
    text = Markup.escape(f"{estimate.value:.3f}".replace("-", "−"))
    if not estimate.has_interval:
        return text
    ends = f"{estimate.low:.3f} to {estimate.high:.3f}".replace("-", "−")
    return text + Markup(' <small class="interval">{}</small>').format(ends)


def label(estimate: Estimate, unit: Unit = PER_100) -> str:
    """Formats an estimate for a chart: "25 (18–32)"; with a negative end, "−1 (−3 to 1)"."""
    text = plain(estimate, unit)
    return text if "−" in text else text.replace(" to ", "–")


def rate(fpr: float) -> str:
    """Formats a chosen rate per 100, which has no error: 0.01 -> "1", 0.001 -> "0.1", 0.05 -> "5"."""
    return f"{100 * fpr:.6g}"


def false_alarms(fpr: float) -> str:
    """Formats a rate with its noun: "1 false alarm per 100", "0.1 false alarms per 100"."""
    return f"{rate(fpr)} false alarm{'' if rate(fpr) == '1' else 's'} per 100"


def count(number: int) -> str:
    """Formats a count in full: "1,024"."""
    return f"{number:,}"


def words(items: Sequence[str]) -> str:
    """Joins items as a sentence does: "RMIA", "LiRA and RMIA", "LiRA, RMIA and loss"."""
    if len(items) < 2:
        return "".join(items)
    return ", ".join(items[:-1]) + " and " + items[-1]


def _number(number: float, estimate: Estimate, unit: Unit) -> str:
    if math.isnan(number):
        return MISSING
    digits = decimals(estimate, unit)
    rounded = (
        round(unit.scale * number, digits) + 0.0
    )  # -0.0 + 0.0 is 0.0, so that there is no "-0"
    return f"{rounded:,.{digits}f}".replace("-", "−")
