"""Claims of the paper about its figures, and whether this run shows them: decided by intervals, never by eye.

Holds estimates with their intervals, claims with their verdicts and p-values, rank correlations of two properties of
samples, and means in bins.

An interval should cover everything that would be drawn anew if the experiment were repeated: the models, the references
and the samples. `Estimate.not_covered` names what an interval holds fixed; a claim with such an interval is at best
"seen in these models".

The p-value of a claim is the smallest alpha at which the interval with confidence 1 - alpha decides the claim, either
way. For "greater" it is that of the two-sided t-test. A claim is decided if its p-value is below 0.05, which is the
same as a 95% interval that lies on one side. If the truth is at the boundary of a claim, "seen" and "opposite" have a
probability of 2.5% each.

N: samples, S: samples without missing values, K: bins, P: p-values.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, Self, get_args

import numpy as np
import scipy.stats

from lm_mia import stats

Verdict = Literal["seen", "seen in these models", "opposite", "undecided", "not tested"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
ALPHA = 0.05
"""A claim is decided if its p-value is below this number."""


@dataclasses.dataclass(frozen=True)
class VarianceTerm:
    """A part of the variance of an estimate."""

    variance: float
    degrees_of_freedom: float
    """Those with which this part was estimated."""


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

        If the variance is 0, there is an interval only for the value 0, where nothing differs: elsewhere a few models
        happen to tie.
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
    """One statement of the paper about a figure, and whether this run shows it."""

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

        - seen: the whole 95% interval lies where the statement says.
        - seen in these models: so it does, but it holds models, references or samples fixed.
        - opposite: the whole interval lies on the other side, and it covers everything.
        - undecided: none of these.
        - not tested: there is no interval.
        """
        if math.isnan(self.p_value):
            return "not tested"
        if not self.p_value < ALPHA:
            return "undecided"
        if self.holds:
            return "seen" if self.is_complete else "seen in these models"
        return "opposite" if self.is_complete else "undecided"


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
    # The smaller side decides: both are far away if the margin is wide, and the other is further away if it is not.
    nearest = math.copysign(margin, estimate.value)
    return Claim(
        statement,
        finding,
        abs(estimate.value) < margin,
        estimate.p_value(nearest),
        not estimate.not_covered,
        estimate,
    )


def claim_untested(statement: str, reason: str) -> Claim:
    """Returns a claim that this run cannot test, with the reason."""
    return Claim(statement, reason)


def claim_all(statement: str, parts: Sequence[Claim]) -> Claim:
    """Returns the claim that all parts hold.

    It is seen if all parts are, and its p-value is then the largest of theirs. It is opposite if one part is, after
    Bonferroni's correction for the number of parts. If it is not opposite and a part is not tested, neither is the
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


_NORMAL_975 = float(scipy.stats.norm.ppf(0.975))


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of two quantities, with its 95 % interval over the choice of samples."""

    r: float
    samples: int

    def __str__(self) -> str:
        return f"{_two_digits(self.r)} [{_two_digits(self.low)}, {_two_digits(self.high)}]"

    @classmethod
    def from_samples(cls, x_N: np.ndarray, y_N: np.ndarray) -> Self | None:
        """Returns the rank correlation of x and y; None if one is constant or there are at most three samples.

        Infinite values are ranked; samples with a NaN are left out.
        """
        present_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S = (scipy.stats.rankdata(v[present_N]) for v in (x_N, y_N))
        if len(x_S) <= 3 or np.ptp(x_S) == 0 or np.ptp(y_S) == 0:
            return None
        return cls(float(np.clip(np.corrcoef(x_S, y_S)[0, 1], -1, 1)), len(x_S))

    @property
    def low(self) -> float:
        """The lower end of the interval, which is Fisher's."""
        return self._end(-1)

    @property
    def high(self) -> float:
        """The upper end of the interval, which is Fisher's."""
        return self._end(1)

    def _end(self, sign: int) -> float:
        with np.errstate(divide="ignore"):
            return float(np.tanh(np.arctanh(self.r) + sign * _NORMAL_975 * self._standard_error))

    @property
    def _standard_error(self) -> float:
        """The standard error of arctanh(r), of Bonett and Wright (2000) for ranks."""
        return math.sqrt((1 + self.r**2 / 2) / (self.samples - 3))

    def estimate(self, over: str, not_covered: tuple[str, ...]) -> Estimate:
        """Returns the correlation with a symmetric interval over samples, for claims; arguments as in `Estimate`."""
        return Estimate(self.r, (1 - self.r**2) * self._standard_error, math.inf, over, not_covered)


@dataclasses.dataclass(frozen=True)
class BinnedMeans:
    """Means of y in K bins of x with about equally many samples, with 95 % bands over the choice of samples."""

    x_K: np.ndarray
    y_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    count_K: np.ndarray

    @classmethod
    def from_samples(cls, x_N: np.ndarray, y_N: np.ndarray, bins: int) -> Self:
        """Returns the means of y, fractions in [0, 1], in up to ``bins`` bins of x.

        Bands are Clopper-Pearson's if every y is 0 or 1, and normal otherwise. Samples with a NaN are left out. Equal
        values of x stay in one bin, so there may be fewer bins (`equal_count_bins`).
        """
        binned = stats.equal_count_bins(x_N, y_N, bins)
        y_K, count_K = binned.y_mean_K, binned.count_K
        if np.isin(y_N[~np.isnan(y_N)], (0, 1)).all():
            low_K, high_K = stats.clopper_pearson(np.rint(y_K * count_K), count_K)
        else:
            square_K = stats.equal_count_bins(x_N, y_N**2, bins).y_mean_K
            # The variance of the mean of a bin; unknown for a single sample.
            with np.errstate(divide="ignore", invalid="ignore"):
                variance_K = np.maximum(square_K - y_K**2, 0) / (count_K - 1)
            margin_K = _NORMAL_975 * np.sqrt(variance_K)
            low_K, high_K = np.clip(y_K - margin_K, 0, 1), np.clip(y_K + margin_K, 0, 1)
        return cls(binned.x_mean_K, y_K, low_K, high_K, count_K)


def _two_digits(number: float) -> str:
    """Formats a number with two decimals, without a sign before zero."""
    return f"{round(number, 2) + 0:.2f}".replace("-", "−")
