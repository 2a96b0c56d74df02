"""What the paper says of its figures, and whether it is seen here: by intervals, never by eye.

Estimates and claims; differences between recipes, whose intervals are over targets and over references; and rank
correlations of two quantities of samples.

Another set of references would move all targets of a recipe together, which targets alone do not show. So the variance
over references is added, by the jackknife: references are taken away in eight groups of whole pairs, one at a time.

Of recipes that are alike, 1 to 5 % of these 95 % intervals missed 0, and 2 to 9 % of those over targets alone: 400
draws of 400 samples in each of ten settings, 16 to 64 references and 2 to 8 targets, paired or not.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Literal, Self

import numpy as np
import scipy.stats

from analysis.attacks import AttackResult, read_attack
from analysis.io import RecipeResults
from lm_mia import stats
from lm_mia.config.needs import JACKKNIFE_GROUPS

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
    far = float(scipy.stats.t.ppf((1 + level) / 2, df) * math.sqrt(variance))
    return Estimate(value, value - far, value + far, over, level)


def _part(known_T: np.ndarray) -> Part:
    n = len(known_T)
    return (float(known_T.var(ddof=1)) / n, n - 1) if n > 1 else (math.nan, 1)


def _known(values_T: np.ndarray) -> np.ndarray:
    values_T = np.asarray(values_T, float)
    return values_T[~np.isnan(values_T)]


def claim_greater(statement: str, what: str, estimate: Estimate, level: float = 0.0) -> Claim:
    """Seen if the whole interval lies above a level; for a claim of less, give the negative."""
    if math.isnan(estimate.low):
        return claim_untested(statement, f"{what}: {estimate}")
    if estimate.low > level:
        return Claim(statement, "seen", f"{what}: {estimate}", estimate)
    why = "the opposite" if estimate.high < level else f"the interval has {level:g} in it"
    return Claim(statement, "not seen", f"{what}: {estimate} ({why})", estimate)


def claim_equivalent(statement: str, what: str, estimate: Estimate, margin: float) -> Claim:
    """Seen if the whole interval lies within a margin of 0: that nothing is found would not be enough."""
    if math.isnan(estimate.low):
        return claim_untested(statement, f"{what}: {estimate}")
    if -margin < estimate.low and estimate.high < margin:
        return Claim(statement, "seen", f"{what}: {estimate}, within {margin:g} of 0", estimate)
    return Claim(
        statement, "not seen", f"{what}: {estimate}, not all within {margin:g} of 0", estimate
    )


def claim_untested(statement: str, why: str) -> Claim:
    """A claim that this run has no numbers for."""
    return Claim(statement, "not tested", why)


def claim_all(statement: str, parts: list[Claim]) -> Claim:
    """Seen if every part is; not seen if one part is not; otherwise not tested."""
    verdicts = {part.verdict for part in parts}
    verdict: Verdict = "not tested"
    if "not seen" in verdicts:
        verdict = "not seen"
    elif verdicts == {"seen"}:
        verdict = "seen"
    return Claim(statement, verdict, "; ".join(part.said for part in parts))


def auc(found: AttackResult) -> np.ndarray:
    """auc_T, of which differences are, unless something else is said."""
    return found.auc_T


def compared(
    new: RecipeResults,
    old: RecipeResults,
    references: int,
    value: Callable[[AttackResult], np.ndarray] = auc,
    *,
    steps: tuple[int, int] = (0, 0),
    level: float = 0.95,
) -> Estimate:
    """Mean over targets of a value of LiRA under one recipe less under another.

    Args:
      new, old: the recipes.
      references: with which the targets of both are attacked.
      value: one number a target, of an attack on all.
      steps: score points of new and old; 0: their ends.
      level: of the interval.

    Returns:
      The difference; targets are paired where they are of the same subsets of one population.
    """

    def both(without: int | None) -> tuple[np.ndarray, np.ndarray]:
        found = [
            value(read_attack(r, references=references, step=step, group_left_out=without))
            for r, step in zip((new, old), steps, strict=True)
        ]
        return found[0], found[1]

    also = jackknifed(references, lambda g: _gap(*both(g)))
    return difference(*both(None), paired=paired(new, old), also=also, level=level)


def gained(
    new: RecipeResults, old: RecipeResults, references: int, steps: tuple[tuple[int, int], ...]
) -> Estimate:
    """What one recipe's AUC gains between two score points, less what another's does.

    Args:
      new, old: the recipes.
      references: with which their targets are attacked.
      steps: (from, to) of new, and of old.
    """

    def gains(recipe: RecipeResults, step: tuple[int, int], without: int | None) -> np.ndarray:
        first, last = (
            read_attack(recipe, references=references, step=s, group_left_out=without).auc_T
            for s in step
        )
        return last - first

    def both(without: int | None) -> tuple[np.ndarray, np.ndarray]:
        return gains(new, steps[0], without), gains(old, steps[1], without)

    also = jackknifed(references, lambda g: _gap(*both(g)))
    return difference(*both(None), paired=paired(new, old), also=also)


def _gap(new_T: np.ndarray, old_T: np.ndarray) -> float:
    return float(np.nanmean(new_T) - np.nanmean(old_T))


def jackknifed(references: int, value: Callable[[int], float]) -> Part:
    """Returns the variance of a value over the choice of references; NaN if there are too few to leave a group out.

    Args:
      references: their number.
      value: given the number of a group, the value without that group.
    """
    if references < 2 * JACKKNIFE_GROUPS:
        return math.nan, 1
    without_G = np.array([value(g) for g in range(JACKKNIFE_GROUPS)])
    return float((JACKKNIFE_GROUPS - 1) * without_G.var()), JACKKNIFE_GROUPS - 1


_Z = float(scipy.stats.norm.ppf(0.975))


@dataclasses.dataclass(frozen=True)
class Trend:
    """Spearman's rank correlation of two quantities, with its 95 % interval over the choice of samples."""

    r: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_two(self.r)} [{_two(self.low)}, {_two(self.high)}]"

    @classmethod
    def of(cls, x_N: np.ndarray, y_N: np.ndarray) -> Self | None:
        """The trend of numbers, of which some may be infinite; None if one of both is the same for all samples.

        Samples with a NaN are left out. The interval is Fisher's, with the deviation of Bonett and Wright (2000) for
        ranks; of three samples or fewer there is none.
        """
        there_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S = (scipy.stats.rankdata(v[there_N]) for v in (x_N, y_N))
        if len(x_S) <= 3 or np.ptp(x_S) == 0 or np.ptp(y_S) == 0:
            return None
        r = float(np.clip(np.corrcoef(x_S, y_S)[0, 1], -1, 1))
        far = _Z * math.sqrt((1 + r * r / 2) / (len(x_S) - 3))
        with np.errstate(divide="ignore"):
            z = np.arctanh(r)
        return cls(r, float(np.tanh(z - far)), float(np.tanh(z + far)))


@dataclasses.dataclass(frozen=True)
class Curve:
    """Means of y in bins of x with 95 % bands over the choice of samples; K bins of about equally many samples."""

    x_K: np.ndarray
    y_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    count_K: np.ndarray

    @classmethod
    def of(cls, x_N: np.ndarray, y_N: np.ndarray, bins: int) -> Self:
        """The curve of shares: Clopper-Pearson bands where every y is 0 or 1, normal ones otherwise.

        Samples with a NaN are left out; equal x stay together, so that bins may be fewer (`equal_count_bins`).
        """
        found = stats.equal_count_bins(x_N, y_N, bins)
        y_K, count_K = found.y_mean_K, found.count_K
        if np.isin(y_N[~np.isnan(y_N)], (0, 1)).all():
            low_K, high_K = stats.clopper_pearson(np.rint(y_K * count_K), count_K)
        else:
            square_K = stats.equal_count_bins(x_N, y_N**2, bins).y_mean_K
            # the variance within a bin, over samples - 1; of one sample it is not known
            with np.errstate(divide="ignore", invalid="ignore"):
                variance_K = np.maximum(square_K - y_K**2, 0) / (count_K - 1)
            far_K = _Z * np.sqrt(variance_K)
            low_K, high_K = np.clip(y_K - far_K, 0, 1), np.clip(y_K + far_K, 0, 1)
        return cls(found.x_mean_K, y_K, low_K, high_K, count_K)


def _two(number: float) -> str:
    """Two digits, and no minus before a zero."""
    return f"{round(number, 2) + 0:.2f}".replace("-", "−")


def paired(new: RecipeResults, old: RecipeResults) -> bool:
    """Whether the targets of two recipes are trained on the same subsets of one population."""
    subsets = [[target.subset_seed for target in recipe.divided[1]] for recipe in (new, old)]
    return new.population.sha256 == old.population.sha256 and subsets[0] == subsets[1]


def claim_up_and_down(statement: str, steps: Sequence[tuple[str, Estimate]]) -> Claim:
    """Seen if one step is up and one is down, each with its whole interval."""
    said = "; ".join(f"{what}: {step}" for what, step in steps)
    if len(steps) < 2 or any(math.isnan(step.low) for _, step in steps):
        return claim_untested(statement, said or "one recipe")
    up, down = any(s.low > 0 for _, s in steps), any(s.high < 0 for _, s in steps)
    return Claim(statement, "seen" if up and down else "not seen", said)
