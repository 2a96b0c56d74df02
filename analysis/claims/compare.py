"""Claims about figures, and whether this run shows them, as decided by intervals.

This module has estimates with their intervals, and claims with their verdicts and p-values.

An interval should cover everything that would be drawn anew if the experiment were repeated: the models, the references
and the samples. `Estimate.not_covered` names what an interval holds fixed; a claim with such an interval is at best
"supported for these models only".

The p-value of a claim is the smallest alpha at which the interval with confidence 1 - alpha decides the claim, either
way. For "greater" it is that of the two-sided t-test. A claim is decided if its p-value is below 0.05, which is the
same as a 95% interval that lies on one side. If the truth is at the boundary of a claim, "supported" and
"contradicted" have a probability of 2.5% each.

T: models, P: p-values.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal, Self, get_args

import numpy as np
import scipy  # its parts are loaded when they are first used

Verdict = Literal[
    "supported", "supported for these models only", "contradicted", "undecided", "not tested"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ALPHA = 0.05
"""A claim is decided if its p-value is below this number."""


@dataclasses.dataclass(frozen=True)
class VarianceTerm:
    """A part of the variance of an estimate."""

    variance: float
    degrees_of_freedom: float
    """The degrees of freedom of the estimate of this part."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its standard error, which is NaN if it is unknown; there is no interval then."""

    value: float
    standard_error: float
    degrees_of_freedom: float
    over: str
    """What the interval is over, such as "8 targets"."""
    not_covered: tuple[str, ...] = ()
    """What would be drawn anew in a repetition of the experiment, but is held fixed by the interval."""

    @classmethod
    def from_variance(
        cls,
        value: float,
        terms: Sequence[VarianceTerm],
        over: str,
        not_covered: tuple[str, ...] = (),
    ) -> Self:
        """Returns an estimate whose variance is the sum of terms, with Satterthwaite's degrees of freedom.

        If the variance is 0, there is an interval only for the value 0, where the compared numbers are identical. For
        other values, a variance of 0 is a coincidence among few models.
        """
        variance = sum(term.variance for term in terms)
        if not (variance > 0 or (variance == 0 and value == 0)):
            return cls(value, math.nan, math.nan, over, not_covered)
        spread = sum(term.variance**2 / term.degrees_of_freedom for term in terms)
        df = variance**2 / spread if spread else math.inf
        return cls(value, math.sqrt(variance), df, over, not_covered)

    def __neg__(self) -> Self:
        return dataclasses.replace(self, value=-self.value)

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return not (math.isnan(self.standard_error) or math.isnan(self.value))

    @property
    def low(self) -> float:
        """The lower end of the 95% interval; NaN if there is none."""
        return self.value - self._margin

    @property
    def high(self) -> float:
        """The upper end of the 95% interval; NaN if there is none."""
        return self.value + self._margin

    @property
    def _margin(self) -> float:
        quantile = scipy.stats.t.ppf(1 - ALPHA / 2, self.degrees_of_freedom)
        return float(quantile) * self.standard_error

    def p_value(self, level: float = 0.0) -> float:
        """Returns the p-value of the two-sided t-test that the true value is ``level``; NaN without an interval."""
        distance = abs(self.value - level)
        if not self.has_interval:
            return math.nan
        if self.standard_error == 0:
            return float(distance == 0)
        return float(2 * scipy.stats.t.sf(distance / self.standard_error, self.degrees_of_freedom))

    def __str__(self) -> str:
        if not self.has_interval:
            return f"{self.value:.3f} (no interval)"
        fixed = f"; it holds {' and '.join(self.not_covered)} fixed" if self.not_covered else ""
        ends = f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.value:.3f}, 95% interval {ends} over {self.over}{fixed}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement about a figure, and whether this run shows it."""

    statement: str
    finding: str
    """The numbers behind the verdict, or why there are none."""
    holds: bool = False
    """Whether the statement is true of the estimated values, whatever their intervals."""
    p_value: float = math.nan
    """As in the docstring of the module; NaN if the claim is not tested."""
    is_complete: bool = True
    """Whether the intervals cover everything that would be drawn anew."""
    estimate: Estimate | None = None
    """The number that decides; None if there are several numbers, or none."""

    @property
    def verdict(self) -> Verdict:
        """What this run shows about the statement.

        - supported: the whole 95% interval lies where the statement says.
        - supported for these models only: so it does, but it holds models, references or samples fixed.
        - contradicted: the whole interval lies on the other side, and it covers everything.
        - undecided: none of these.
        - not tested: there is no interval.
        """
        if math.isnan(self.p_value):
            return "not tested"
        if not self.p_value < ALPHA:
            return "undecided"
        if self.holds:
            return "supported" if self.is_complete else "supported for these models only"
        return "contradicted" if self.is_complete else "undecided"


def independent_difference(
    new_T: np.ndarray, old_T: np.ndarray, over: str, not_covered: tuple[str, ...] = ()
) -> Estimate:
    """Returns mean(new) - mean(old) of independent values with Welch's t interval.

    NaN values are left out. There is no interval if fewer than two values remain on one side.

    Args:
      new_T, old_T: the values.
      over: what the values are over, for the text of the estimate.
      not_covered: as in `Estimate`.
    """
    sides = [v[~np.isnan(v)] for v in (np.asarray(new_T, float), np.asarray(old_T, float))]
    if any(len(side) < 2 for side in sides):
        means = [float(side.mean()) if len(side) else math.nan for side in sides]
        return Estimate(means[0] - means[1], math.nan, math.nan, over, not_covered)
    terms = [VarianceTerm(float(x.var(ddof=1)) / len(x), len(x) - 1) for x in sides]
    value = float(sides[0].mean() - sides[1].mean())
    counts = f"{len(sides[0])} and {len(sides[1])} {over}"
    return Estimate.from_variance(value, terms, counts, not_covered)


def claim_greater(statement: str, what: str, estimate: Estimate, level: float = 0.0) -> Claim:
    """Returns the claim that an estimate is above a level; negate the estimate to claim "less".

    Args:
      statement: the statement of the paper.
      what: what the estimate measures, for the text of the finding.
      estimate: the number that decides; without an interval the claim is not tested.
      level: the level.
    """
    finding = f"{what}: {estimate}"
    if estimate.has_interval and not estimate.low > level:
        position = "lies below" if estimate.high < level else "includes"
        finding += f" (the interval {position} {level:g})"
    return Claim(
        statement,
        finding,
        estimate.value > level,
        estimate.p_value(level),
        not estimate.not_covered,
        estimate,
    )


def claim_equivalent(statement: str, what: str, estimate: Estimate, margin: float) -> Claim:
    """Returns the claim that an estimate is within ±margin; that the interval includes 0 would not be enough.

    Arguments are those of `claim_greater`.
    """
    finding = f"{what}: {estimate}"
    if estimate.has_interval:
        inside = -margin < estimate.low and estimate.high < margin
        outside = estimate.high < -margin or estimate.low > margin
        position = "within" if inside else "outside" if outside else "not entirely within"
        finding += f", {position} ±{margin:g}"
    # The margin that is nearest to the value decides: if the interval does not reach it, it does not reach the other.
    nearest = math.copysign(margin, estimate.value)
    return Claim(
        statement,
        finding,
        abs(estimate.value) < margin,
        estimate.p_value(nearest),
        not estimate.not_covered,
        estimate,
    )


def claim_different(statement: str, what: str, estimate: Estimate, margin: float) -> Claim:
    """Returns the claim that an estimate is outside ±margin, the opposite of `claim_equivalent`."""
    equivalent = claim_equivalent(statement, what, estimate, margin)
    return dataclasses.replace(equivalent, holds=abs(estimate.value) > margin)


def claim_below(
    statement: str, what: str, bound: float, estimates: Mapping[str, Estimate]
) -> Claim:
    """Returns the claim that several numbers are all below a bound.

    Args:
      statement: the statement of the paper.
      what: what the numbers measure, such as "AUC".
      bound: the bound.
      estimates: where each number was measured, such as "with 8 references" -> bound minus the number.
    """
    parts = [
        claim_greater("", f"{bound:g} minus {what} {where}", gap)
        for where, gap in estimates.items()
    ]
    return claim_all(statement, parts)


def claim_untested(statement: str, reason: str) -> Claim:
    """Returns a claim that this run cannot test, with the reason."""
    return Claim(statement, reason)


def claim_all(statement: str, parts: Sequence[Claim]) -> Claim:
    """Returns the claim that all parts hold.

    It is supported if all parts are, and its p-value is then the largest of theirs. It is contradicted if one is, after
    Bonferroni's correction for the number of parts. If it is not contradicted and a part is not tested, neither is the
    claim.
    """
    finding = "; ".join(part.finding for part in parts)
    tested = [part for part in parts if not math.isnan(part.p_value)]
    false = [part for part in tested if not part.holds]
    p_false = min((min(len(tested) * part.p_value, 1.0) for part in false), default=math.nan)
    refuting = [p for p in false if len(tested) * p.p_value == p_false]
    is_refuted = p_false < ALPHA and any(part.is_complete for part in refuting)
    if not is_refuted and len(tested) < max(len(parts), 1):
        return claim_untested(statement, finding)
    if false:
        return Claim(statement, finding, False, p_false, any(p.is_complete for p in refuting))
    p_true = max(part.p_value for part in tested)
    return Claim(statement, finding, True, p_true, all(part.is_complete for part in tested))


def claim_any(statement: str, parts: Sequence[Claim]) -> Claim:
    """Returns the claim that at least one part holds, the opposite of the claim that no part does (`claim_all`).

    It is supported if one part is, after Bonferroni's correction for the number of parts, so that choosing the part
    that shows it best does not favor the claim. It is contradicted if all parts are. If it is not supported and a part
    is not tested, neither is the claim.
    """
    none = claim_all(statement, [dataclasses.replace(part, holds=not part.holds) for part in parts])
    if math.isnan(none.p_value):
        return none
    return dataclasses.replace(none, holds=not none.holds)


def claim_up_and_down(statement: str, steps: Sequence[tuple[str, Estimate]]) -> Claim:
    """Returns the claim that a quantity is not monotone: that one step goes up and another goes down.

    Any step may show each direction, so the smallest p-values are multiplied by the number of steps (Bonferroni). The
    opposite is that all steps go in the same direction; its p-value is the largest of theirs.

    Args:
      statement: the statement of the paper.
      steps: (what the step measures, its estimate) between neighboring recipes.
    """
    finding = "; ".join(f"{what}: {step}" for what, step in steps)
    estimates = [step for _, step in steps]
    if len(steps) < 2 or not all(step.has_interval for step in estimates):
        return claim_untested(statement, finding or "there is only one recipe")
    is_complete = not any(step.not_covered for step in estimates)
    rises, falls = (
        [step.p_value() for step in estimates if sign * step.value > 0] for sign in (1, -1)
    )
    if rises and falls:
        p_value = min(1.0, len(steps) * max(min(rises), min(falls)))
        return Claim(statement, finding, True, p_value, is_complete)
    return Claim(statement, finding, False, max(step.p_value() for step in estimates), is_complete)


def holm(p_P: Sequence[float]) -> list[float]:
    """Returns the p-values adjusted for their number by Holm's method; NaN values are not counted and stay NaN.

    If all claims with an adjusted p-value below alpha are taken as decided, the probability that one of them is decided
    wrongly is at most alpha, whatever the dependence between the claims.

    Args:
      p_P: the p-values.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.

    Example:
      >>> holm([0.01, 0.04, 0.03])
      [0.03, 0.06, 0.06]
    """
    adjusted, largest = [math.nan] * len(p_P), 0.0
    ascending = sorted((p, i) for i, p in enumerate(p_P) if not math.isnan(p))
    for rank, (p, i) in enumerate(ascending):
        largest = max(largest, min(1.0, (len(ascending) - rank) * p))
        adjusted[i] = largest
    return adjusted
