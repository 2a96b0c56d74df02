"""Lower bounds on epsilon from independent trials: each score comes from a training run of its own.

For scores of a single run, whose samples influence each other, use `one_run_bound`.

Legend: N trials, C thresholds.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_delta
from lm_mia.stats.intervals import check_confidence, clopper_pearson
from lm_mia.stats.ties import as_ids, order_with_keys


@dataclasses.dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon."""

    epsilon: float
    """The lower bound: with the requested confidence, the mechanism is not (epsilon', delta)-differentially private for
    any smaller epsilon'. 0 if the scores show no leakage."""
    level: float
    """Largest probability with which the bound may exceed the true epsilon: 1 - confidence."""
    hypotheses: int
    """Number of thresholds among which the level is divided (Bonferroni correction)."""
    ceiling: float
    """The bound of a perfect attack, whose scores separate all members from all non-members."""
    left_out: int
    """Number of NaN scores. They count as trials whose score is neither above nor below any threshold."""


def independent_trials_bound(
    score_N: ArrayLike,
    member_N: ArrayLike,
    *,
    delta: float = 0.0,
    confidence: float = 0.95,
    id_N: ArrayLike | None = None,
    seed: int = 0,
) -> EpsilonBound:
    """Computes a lower bound on epsilon from scores of independent training runs.

    Each trial trains a model with or without the sample and computes one score; the trials of a class must be
    independent and have the same distribution. Scores of many samples under one model do not meet this.

    Thresholds are order statistics of one class, whose ranks are fixed before the scores are seen: samples that score
    above the (c + 1)-th largest non-member are called members, for c = 0, 1, 2, 4, ... up to half of the non-members,
    and likewise samples that score below the (c + 1)-th smallest member are called non-members. At such a threshold the
    true error rate of that class is stochastically at most a beta variable, and the number of errors of the other class
    is binomial, so both error rates have upper Clopper-Pearson limits. Each limit has the level (1 - confidence) /
    (2 H) for H thresholds. Tied scores are ordered by keys, which are functions of the seed and of the id of the trial
    alone, as for `count_guesses`.

    A correction for the number of observed thresholds, such as the vertices of the ROC curve, would not be valid,
    because that number depends on the scores.

    Args:
      score_N: one score per trial, larger for members. NaN counts as a trial whose score is neither above nor below
        any threshold.
      member_N: booleans, whether the sample was in the training subset in each trial.
      delta: of (epsilon, delta)-differential privacy, in [0, 1).
      confidence: in (0, 1).
      id_N: ids of the trials, by which ties are broken: different integers, 0 or larger. By default, their positions.
      seed: seed of the keys.

    Returns:
      The bound.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, if delta or confidence is out of range, if two
        ids are equal, or if there are no members or no non-members.

    Source: Clopper-Pearson limits of the error rates as in Nasr et al. 2021, Adversary Instantiation, Section IV, but
    at thresholds that do not depend on the trials of the other class.

    Example:
      64 members that all score above 64 non-members:

      >>> import numpy as np
      >>> from lm_mia.stats import independent_trials_bound
      >>> bound = independent_trials_bound(np.arange(128.0), np.arange(128) >= 64)
      >>> round(bound.epsilon, 3), bound.hypotheses
      (2.264, 14)
    """
    check_confidence(confidence)
    check_delta(delta)
    score_N, member_N = as_float64(score_N, "scores"), as_members(member_N, "member_N")
    if score_N.ndim != 1 or member_N.shape != score_N.shape:
        raise ValueError(
            f"scores of shape {score_N.shape} do not match members of shape {member_N.shape}"
        )
    left_out = int(np.isnan(score_N).sum())
    rank_N = np.empty(score_N.size)
    rank_N[order_with_keys(score_N, as_ids(id_N, score_N.size), seed)] = np.arange(score_N.size)
    rank_N[np.isnan(score_N)] = np.nan
    members, nonmembers = rank_N[member_N], rank_N[~member_N]
    if not (members.size and nonmembers.size):
        raise ValueError("member_N: there must be members and non-members")
    level = 1 - confidence
    errors = [_threshold_errors(members, nonmembers), _threshold_errors(-nonmembers, -members)]
    hypotheses = sum(c_C.size for c_C, _ in errors)
    each = level / hypotheses
    epsilon = 0.0
    for (c_C, missed_C), n, m in zip(
        errors, (nonmembers.size, members.size), (members.size, nonmembers.size), strict=True
    ):
        wrong_C, missing_C = _upper(c_C, n, each / 2), _upper(missed_C, m, each / 2)
        epsilon = max(epsilon, _largest(wrong_C, missing_C, delta))
    return EpsilonBound(
        epsilon=epsilon,
        level=level,
        hypotheses=hypotheses,
        ceiling=epsilon_ceiling(members.size, nonmembers.size, each, delta),
        left_out=left_out,
    )


def epsilon_ceiling(members: int, nonmembers: int, level: float, delta: float) -> float:
    """Computes the largest bound that independent trials can give, which is that of a perfect attack.

    Args:
      members: number of trials with the sample, at least 1.
      nonmembers: number of trials without it, at least 1.
      level: error probability of a single threshold, split equally between the two classes; in (0, 1).
      delta: of (epsilon, delta)-differential privacy, in [0, 1).

    Returns:
      The largest epsilon.

    Raises:
      ValueError: if a number or a probability is out of range.

    Example:
      >>> from lm_mia.stats import epsilon_ceiling
      >>> round(epsilon_ceiling(64, 64, 0.05, 0.0), 4)
      2.8246
    """
    counts = as_counts([members, nonmembers], "members and nonmembers")
    if not counts.all():
        raise ValueError("members and nonmembers: must be at least 1")
    check_delta(delta)
    if not 0 < level < 1:
        raise ValueError(f"level={level}: must be between 0 and 1, both excluded")
    none = np.zeros(1, dtype=np.int64)
    missing_1, wrong_1 = (_upper(none, n, level / 2) for n in counts.tolist())
    return max(0.0, _largest(wrong_1, missing_1, delta))


def _threshold_errors(members: FloatArray, nonmembers: FloatArray) -> tuple[IntArray, IntArray]:
    """Returns the number c_C of non-members above each threshold, and the number of members that are not above it.

    NaN is above no threshold.
    """
    half = nonmembers.size // 2
    c_C = np.array([0, *(2**i for i in range(half.bit_length()))], dtype=np.int64)
    descending_N = -np.sort(-np.where(np.isnan(nonmembers), -np.inf, nonmembers))
    sorted_N = np.sort(np.where(np.isnan(members), -np.inf, members))
    return c_C, np.searchsorted(sorted_N, descending_N[c_C], side="right")


def _upper(errors_C: IntArray, trials: int, level: float) -> FloatArray:
    """Returns the one-sided upper Clopper-Pearson limit of an error rate."""
    return clopper_pearson(errors_C, trials, confidence=1 - 2 * level)[1]


def _largest(first_C: FloatArray, second_C: FloatArray, delta: float) -> float:
    """Returns the largest ln((1 - a - delta) / b) over both orders of the error rates a and b, perhaps -inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = [
            np.log(np.maximum(1 - a_C - delta, 0)) - np.log(b_C)
            for a_C, b_C in ((first_C, second_C), (second_C, first_C))
        ]
    return float(np.max(ratios))
