"""Claims of the paper about its figures, and whether this run shows them: decided by intervals, never by eye.

Holds estimates and claims, differences between recipes with intervals over targets and references, and rank
correlations of two properties of samples.

Another set of references would shift all targets of a recipe together, which the spread over targets does not show. The
variance over references is therefore added, by the jackknife: eight groups of whole pairs of references are left out,
one at a time.

Coverage: of recipes that do not differ, 1 to 5 % of these 95 % intervals excluded 0, and 2 to 9 % of those over targets
alone: 400 draws of 400 samples in each of ten settings, 16 to 64 references and 2 to 8 targets, paired or not.

T: targets, G: groups of references, N: samples, S: samples without missing values, K: bins.
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
    """A number with its confidence interval; the ends are NaN if there is no interval."""

    value: float
    low: float
    high: float
    over: str
    """What the interval is over, such as "8 targets"."""
    level: float = 0.95

    def __str__(self) -> str:
        if math.isnan(self.low):
            return f"{self.value:.3f} (no interval)"
        ends = f"{self.low:.3f} to {self.high:.3f}"
        return f"{self.value:.3f}, {100 * self.level:.3g}% interval {ends} over {self.over}"


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement of the paper about a figure, and whether this run shows it."""

    statement: str
    verdict: Verdict
    finding: str
    """The numbers behind the verdict, or why there are none."""
    estimate: Estimate | None = None
    """The number that decides; None if there are several numbers, or none."""


VarianceTerm = tuple[float, float]
"""A variance of a mean, and the degrees of freedom with which it was estimated."""


def mean_estimate(values_T: np.ndarray, over: str = "targets") -> Estimate:
    """Returns the mean of independent values with Student's t interval.

    NaN values are left out. There is no interval for fewer than two values.
    """
    finite_T = _without_nan(values_T)
    value = float(finite_T.mean()) if len(finite_T) else math.nan
    return welch_interval(value, [_mean_variance(finite_T)], f"{len(finite_T)} {over}")


def difference(
    new_T: np.ndarray,
    old_T: np.ndarray,
    *,
    paired: bool,
    over: str = "targets",
    extra_variance: VarianceTerm | None = None,
    level: float = 0.95,
) -> Estimate:
    """Returns mean(new) - mean(old) with its interval: Student's t over paired differences, or Welch's.

    Args:
      new_T, old_T: one value per target; if paired, of the same targets in the same order.
      paired: whether the values are paired.
      over: what the values are over, for the text of the estimate.
      extra_variance: a further variance term that all targets share, such as that over references.
      level: the confidence level.
    """
    if paired:
        new_T, old_T = np.asarray(new_T) - np.asarray(old_T), np.zeros(0)
    new, old = _without_nan(new_T), _without_nan(old_T)
    value = (float(new.mean()) if len(new) else math.nan) - (float(old.mean()) if len(old) else 0.0)
    counts = f"{len(new)} {over}" if paired else f"{len(new)} and {len(old)} {over}"
    counts += " and their references" if extra_variance else ""
    terms = [_mean_variance(new)]
    terms += [] if paired else [_mean_variance(old)]
    terms += [extra_variance] if extra_variance else []
    return welch_interval(value if paired or len(old) else math.nan, terms, counts, level)


def welch_interval(
    value: float, terms: Sequence[VarianceTerm], over: str, level: float = 0.95
) -> Estimate:
    """Returns a t interval around a value whose variance is the sum of terms (Welch and Satterthwaite).

    If the variance is 0, there is an interval only for the value 0, where nothing differs: elsewhere a few targets
    happen to tie.
    """
    variance = sum(v for v, _ in terms)
    if math.isnan(variance) or math.isnan(value) or (variance == 0 and value != 0):
        return Estimate(value, math.nan, math.nan, over)
    if variance == 0:
        return Estimate(value, value, value, over)
    df = variance**2 / sum(v**2 / n for v, n in terms)
    margin = float(scipy.stats.t.ppf((1 + level) / 2, df) * math.sqrt(variance))
    return Estimate(value, value - margin, value + margin, over, level)


def _mean_variance(finite_T: np.ndarray) -> VarianceTerm:
    n = len(finite_T)
    return (float(finite_T.var(ddof=1)) / n, n - 1) if n > 1 else (math.nan, 1)


def _without_nan(values_T: np.ndarray) -> np.ndarray:
    values_T = np.asarray(values_T, float)
    return values_T[~np.isnan(values_T)]


def claim_greater(statement: str, what: str, estimate: Estimate, level: float = 0.0) -> Claim:
    """Returns a claim that is seen if the whole interval lies above a level; negate the estimate to claim "less".

    Args:
      statement: the statement of the paper.
      what: what the estimate measures, for the text of the finding.
      estimate: the number that decides; without an interval the claim is not tested.
      level: the level that the interval must exceed.
    """
    if math.isnan(estimate.low):
        return claim_untested(statement, f"{what}: {estimate}")
    if estimate.low > level:
        return Claim(statement, "seen", f"{what}: {estimate}", estimate)
    position = "lies below" if estimate.high < level else "includes"
    return Claim(
        statement, "not seen", f"{what}: {estimate} (the interval {position} {level:g})", estimate
    )


def claim_equivalent(statement: str, what: str, estimate: Estimate, margin: float) -> Claim:
    """Returns a claim that is seen if the whole interval lies within ±margin.

    That the interval includes 0 would not be enough to show equivalence. Arguments are those of `claim_greater`.
    """
    if math.isnan(estimate.low):
        return claim_untested(statement, f"{what}: {estimate}")
    if -margin < estimate.low and estimate.high < margin:
        return Claim(statement, "seen", f"{what}: {estimate}, within ±{margin:g}", estimate)
    return Claim(
        statement, "not seen", f"{what}: {estimate}, not entirely within ±{margin:g}", estimate
    )


def claim_untested(statement: str, reason: str) -> Claim:
    """Returns a claim that this run cannot test, with the reason."""
    return Claim(statement, "not tested", reason)


def claim_all(statement: str, parts: list[Claim]) -> Claim:
    """Returns a claim that is seen if all its parts are, not seen if one part is not, and not tested otherwise."""
    verdicts = {part.verdict for part in parts}
    verdict: Verdict = "not tested"
    if "not seen" in verdicts:
        verdict = "not seen"
    elif verdicts == {"seen"}:
        verdict = "seen"
    return Claim(statement, verdict, "; ".join(part.finding for part in parts))


def claim_up_and_down(statement: str, steps: Sequence[tuple[str, Estimate]]) -> Claim:
    """Returns a claim that is seen if the whole interval of one step lies above 0, and that of another below 0.

    Args:
      statement: the statement of the paper, that a quantity is not monotone.
      steps: (what the step measures, its estimate) between neighboring recipes.
    """
    finding = "; ".join(f"{what}: {step}" for what, step in steps)
    if len(steps) < 2 or any(math.isnan(step.low) for _, step in steps):
        return claim_untested(statement, finding or "there is only one recipe")
    up, down = any(s.low > 0 for _, s in steps), any(s.high < 0 for _, s in steps)
    return Claim(statement, "seen" if up and down else "not seen", finding)


def auc_per_target(result: AttackResult) -> np.ndarray:
    """Returns auc_T."""
    return result.auc_T


def recipe_difference(
    new: RecipeResults,
    old: RecipeResults,
    references: int,
    value: Callable[[AttackResult], np.ndarray] = auc_per_target,
    *,
    steps: tuple[int, int] = (0, 0),
    level: float = 0.95,
) -> Estimate:
    """Returns the mean over targets of a value of LiRA under one recipe minus that under another.

    Args:
      new, old: the recipes.
      references: the number of references with which the targets of both are attacked.
      value: returns one number per target, such as the AUC.
      steps: training steps of the new and the old models; 0 is the end of training.
      level: the confidence level.

    Returns:
      The difference, with an interval over targets and references. Targets are paired if `same_targets`.
    """

    def values(group_left_out: int | None) -> tuple[np.ndarray, np.ndarray]:
        new_T, old_T = (
            value(
                read_attack(recipe, references=references, step=step, group_left_out=group_left_out)
            )
            for recipe, step in zip((new, old), steps, strict=True)
        )
        return new_T, old_T

    over_references = jackknife_variance(references, lambda g: _mean_gap(*values(g)))
    new_T, old_T = values(None)
    paired = same_targets(new, old)
    return difference(new_T, old_T, paired=paired, extra_variance=over_references, level=level)


def gain_difference(
    new: RecipeResults, old: RecipeResults, references: int, steps: tuple[tuple[int, int], ...]
) -> Estimate:
    """Returns how much the AUC of one recipe gains between two training steps, minus the gain of another recipe.

    Args:
      new, old: the recipes.
      references: the number of references with which their targets are attacked.
      steps: (first, last) training step of the new and of the old models.
    """

    def gain(recipe: RecipeResults, ends: tuple[int, int], group: int | None) -> np.ndarray:
        first_T, last_T = (
            read_attack(recipe, references=references, step=step, group_left_out=group).auc_T
            for step in ends
        )
        return last_T - first_T

    def gains(group: int | None) -> tuple[np.ndarray, np.ndarray]:
        return gain(new, steps[0], group), gain(old, steps[1], group)

    over_references = jackknife_variance(references, lambda g: _mean_gap(*gains(g)))
    new_T, old_T = gains(None)
    paired = same_targets(new, old)
    return difference(new_T, old_T, paired=paired, extra_variance=over_references)


def _mean_gap(new_T: np.ndarray, old_T: np.ndarray) -> float:
    return float(np.nanmean(new_T) - np.nanmean(old_T))


def same_targets(new: RecipeResults, old: RecipeResults) -> bool:
    """Returns whether the targets of two recipes are trained on the same subsets of the same population."""
    new_seeds, old_seeds = (
        [target.subset_seed for target in recipe.targets] for recipe in (new, old)
    )
    return new.population.sha256 == old.population.sha256 and new_seeds == old_seeds


def jackknife_variance(references: int, value: Callable[[int], float]) -> VarianceTerm:
    """Returns the variance of a value over the choice of references; NaN if there are too few to leave a group out.

    Args:
      references: the number of references.
      value: returns the value without the group of references of this number.
    """
    if references < 2 * JACKKNIFE_GROUPS:
        return math.nan, 1
    without_G = np.array([value(g) for g in range(JACKKNIFE_GROUPS)])
    return float((JACKKNIFE_GROUPS - 1) * without_G.var()), JACKKNIFE_GROUPS - 1


_NORMAL_975 = float(scipy.stats.norm.ppf(0.975))


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of two quantities, with its 95 % interval over the choice of samples."""

    r: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_two_digits(self.r)} [{_two_digits(self.low)}, {_two_digits(self.high)}]"

    @classmethod
    def from_samples(cls, x_N: np.ndarray, y_N: np.ndarray) -> Self | None:
        """Returns the rank correlation of x and y; None if one is constant or there are at most three samples.

        Infinite values are ranked; samples with a NaN are left out. The interval is Fisher's, with the standard
        deviation of Bonett and Wright (2000) for ranks.
        """
        present_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S = (scipy.stats.rankdata(v[present_N]) for v in (x_N, y_N))
        if len(x_S) <= 3 or np.ptp(x_S) == 0 or np.ptp(y_S) == 0:
            return None
        r = float(np.clip(np.corrcoef(x_S, y_S)[0, 1], -1, 1))
        margin = _NORMAL_975 * math.sqrt((1 + r * r / 2) / (len(x_S) - 3))
        with np.errstate(divide="ignore"):
            z = np.arctanh(r)
        return cls(r, float(np.tanh(z - margin)), float(np.tanh(z + margin)))


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
