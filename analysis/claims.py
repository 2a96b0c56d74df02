"""What the paper says of its figures, and whether it is seen here: by intervals, never by eye."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["seen", "not seen", "not tested"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its interval; NaN where there is none."""

    value: float
    low: float
    high: float
    over: str
    """What the interval is over, such as "8 targets"."""
    level: float = 0.95

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f}, without an interval"
        ends = f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.value:.3f}, {100 * self.level:.3g}% interval {ends} over {self.over}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement of the paper about a figure, and what is seen of it here."""

    statement: str
    verdict: Verdict
    said: str
    """The numbers behind the verdict, or why there are none."""
    estimate: Estimate | None = None
    """None where there are several, or none."""


Part = tuple[float, float]
"""A variance of a mean, and the degrees of freedom that it was estimated with."""


def mean(values_T: np.ndarray, over: str = "targets") -> Estimate:
    """The mean of independent values, by Student's t; one value or none has no interval. NaN are left out."""
    known_T = _known(values_T)
    value = float(known_T.mean()) if len(known_T) else math.nan
    return interval(value, [_part(known_T)], f"{len(known_T)} {over}")


def difference(
    new_T: np.ndarray,
    old_T: np.ndarray,
    *,
    paired: bool,
    over: str = "targets",
    also: Part | None = None,
    level: float = 0.95,
) -> Estimate:
    """Mean of new less mean of old: of the differences of the same targets, or (Welch) of targets of two recipes.

    Args:
      new_T, old_T: one a target; the same targets in the same order, if they are paired.
      paired: whether they are.
      over: what they are, for people.
      also: a further part of the variance, which all targets share: that over references.
      level: of the interval.
    """
    if paired:
        new_T, old_T = np.asarray(new_T) - np.asarray(old_T), np.zeros(0)
    new, old = _known(new_T), _known(old_T)
    value = (float(new.mean()) if len(new) else math.nan) - (float(old.mean()) if len(old) else 0.0)
    counts = f"{len(new)} {over}" if paired else f"{len(new)} and {len(old)} {over}"
    counts += " and their references" if also else ""
    parts = [_part(new), *([] if paired else [_part(old)]), *([also] if also else [])]
    return interval(value if paired or len(old) else math.nan, parts, counts, level)


def interval(value: float, parts: Sequence[Part], over: str, level: float = 0.95) -> Estimate:
    """Student's interval of a value whose variance is the sum of parts (Welch and Satterthwaite).

    Values that are all the same have one only at 0, where nothing differs: elsewhere they are ties of a few targets.
    """
    variance = sum(v for v, _ in parts)
    if math.isnan(variance) or math.isnan(value) or (variance == 0 and value != 0):
        return Estimate(value, math.nan, math.nan, over)
    if variance == 0:
        return Estimate(value, value, value, over)
    df = variance**2 / sum(v**2 / n for v, n in parts)
    far = float(stats.t.ppf((1 + level) / 2, df) * math.sqrt(variance))
    return Estimate(value, value - far, value + far, over, level)


def _part(known_T: np.ndarray) -> Part:
    n = len(known_T)
    return (float(known_T.var(ddof=1)) / n, n - 1) if n > 1 else (math.nan, 1)


def _known(values_T: np.ndarray) -> np.ndarray:
    values_T = np.asarray(values_T, float)
    return values_T[~np.isnan(values_T)]


def above(statement: str, what: str, estimate: Estimate, level: float = 0.0) -> Claim:
    """Seen if the whole interval lies above a level; for a claim of less, give the negative."""
    if math.isnan(estimate.low):
        return untested(statement, f"{what}: {estimate}")
    if estimate.low > level:
        return Claim(statement, "seen", f"{what}: {estimate}", estimate)
    why = "the opposite" if estimate.high < level else f"the interval has {level:g} in it"
    return Claim(statement, "not seen", f"{what}: {estimate} ({why})", estimate)


def near(statement: str, what: str, estimate: Estimate, margin: float) -> Claim:
    """Seen if the whole interval lies within a margin of 0: that nothing is found would not be enough."""
    if math.isnan(estimate.low):
        return untested(statement, f"{what}: {estimate}")
    if -margin < estimate.low and estimate.high < margin:
        return Claim(statement, "seen", f"{what}: {estimate}, within {margin:g} of 0", estimate)
    return Claim(
        statement, "not seen", f"{what}: {estimate}, not all within {margin:g} of 0", estimate
    )


def untested(statement: str, why: str) -> Claim:
    """A claim that this run has no numbers for."""
    return Claim(statement, "not tested", why)


def every(statement: str, parts: list[Claim]) -> Claim:
    """Seen if every part is; not seen if one part is not; otherwise not tested."""
    verdicts = {part.verdict for part in parts}
    verdict: Verdict = "not tested"
    if "not seen" in verdicts:
        verdict = "not seen"
    elif verdicts == {"seen"}:
        verdict = "seen"
    return Claim(statement, verdict, "; ".join(part.said for part in parts))
