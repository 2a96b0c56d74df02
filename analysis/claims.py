"""What the paper says of its figures, and whether it is seen here: by intervals, never by eye."""

import dataclasses
import math
from typing import Literal

import numpy as np
from scipy import stats

Verdict = Literal["seen", "not seen", "not tested"]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float
    over: str
    """What the interval is over, such as "8 targets"."""

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f}, without an interval"
        return f"{self.value:.3f}, 95% interval {self.low:.3f} to {self.high:.3f} over {self.over}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement of the paper about a figure, and what is seen of it here."""

    statement: str
    verdict: Verdict
    said: str
    """The numbers behind the verdict, or why there are none."""
    estimate: Estimate | None = None


def mean(values_T: np.ndarray, over: str = "targets") -> Estimate:
    """The mean of independent values, by Student's t; one value or none has no interval."""
    known_T = np.asarray(values_T, float)
    known_T = known_T[~np.isnan(known_T)]
    if len(known_T) < 2:
        value = float(known_T[0]) if len(known_T) else math.nan
        return Estimate(value, math.nan, math.nan, f"{len(known_T)} {over}")
    far = stats.t.ppf(0.975, len(known_T) - 1) * known_T.std(ddof=1) / math.sqrt(len(known_T))
    value = float(known_T.mean())
    return Estimate(value, float(value - far), float(value + far), f"{len(known_T)} {over}")


def difference(
    new_T: np.ndarray, old_T: np.ndarray, *, paired: bool, over: str = "targets"
) -> Estimate:
    """Mean of new minus mean of old: of the differences of the same targets, or (Welch) of targets of two recipes."""
    if paired:
        return mean(np.asarray(new_T) - np.asarray(old_T), over)
    new, old = (np.asarray(v, float)[~np.isnan(v)] for v in (new_T, old_T))
    counts = f"{len(new)} and {len(old)} {over}"
    value = float(new.mean() - old.mean()) if len(new) and len(old) else math.nan
    if min(len(new), len(old)) < 2:
        return Estimate(value, math.nan, math.nan, counts)
    if new.var() + old.var() == 0:
        return Estimate(value, value, value, counts)
    interval = stats.ttest_ind(new, old, equal_var=False).confidence_interval(0.95)
    return Estimate(value, float(interval.low), float(interval.high), counts)


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
