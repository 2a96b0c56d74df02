"""What more references would add: the AUC or the TPR of an attack, extrapolated to more references than there are.

The references are divided into quarters, and the attack is repeated with each quarter and each half, which is two
quarters (`REFERENCE_SETS_SxQ`). The growth of the metric from quarters to halves and to all references shows how it
will continue, and its variation between halves shows how much it depends on the choice of the references.

Legend: S sets of references, Q quarters, K numbers of references to predict.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Literal

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_counts, as_float64, check_rates

_PAIRS_OF_QUARTERS = tuple(itertools.combinations(range(4), 2))
REFERENCE_SETS_SxQ = np.array(
    [
        *(np.arange(4) == q for q in range(4)),
        *(np.isin(np.arange(4), pair) for pair in _PAIRS_OF_QUARTERS),
        np.ones(4, np.bool_),
    ]
)
"""Which quarters of the references make up each set, as booleans: the 4 quarters, the 6 halves, and all. Halves i and
5 - i are complements."""
_QUARTERS, _HALVES, _ALL = slice(0, 4), slice(4, 10), 10
_SPLITS = 3  # ways to divide four quarters into two halves
_MIN_TARGETS = 8  # for the smaller variance of the AUC; with 1 to 4, its intervals covered 83% to 92% of simulations
_SLOWEST, _FASTEST = 0.25, 1.25
"""The range that the interval allows for the growth from each further doubling of the references, as a multiple of the
growth from the previous doubling. The multiple is 1/2 if the metric is linear in 1/R. The range was chosen on the
recipes for tuning of docs/results/attacks.md."""


@dataclasses.dataclass(frozen=True)
class MoreReferences:
    """A metric as predicted for larger numbers of references, with 95% intervals; NaN without a prediction.

    Arrays have the shape (..., K).
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray


def predict_more_references(
    value: ArrayLike,
    references: tuple[int, int, int],
    predicted: ArrayLike,
    metric: Literal["auc", "tpr"],
    *,
    targets: int,
) -> MoreReferences:
    """Predicts the AUC or the TPR of an attack on the same targets and samples with more references.

    Let y(R) be the probit of the metric with R references. Means and variances that are estimated from R references
    have errors with variances proportional to 1/R, so y is expanded in powers of 1/R:

        AUC:  y(R) = a + b / R + c / R^2
        TPR:  y(R) = a + b / R

    Both curves pass through y of all M references. The curve of the AUC also passes through the mean of y over the
    quarters and over the halves. That of the TPR, which is too noisy for a curvature, passes through the mean over the
    halves (Richardson extrapolation). The probit is used because, for normal scores, the probit of the AUC is
    proportional to the distance between the two distributions in standard deviations. (Its power -2 is linear in 1/R
    for scores with normal errors, but diverges for an AUC near 0.5.)

    The 95% interval is for what an attack with R references would show, if new references are added to the M ones:

        [y(R) - sqrt(t^2 V + (y(R) - L)^2), y(R) + sqrt(t^2 V + (U - y(R))^2)]

    V is the variance due to the choice of the references, estimated from the differences between complementary halves,
    with t the 97.5% quantile of Student's distribution with 3 degrees of freedom. Let w be the variance of y between
    sets of M references; it is the mean of (y_A - y_B)^2 / 2 over the three pairs of halves A and B, divided by 2.

    - AUC of 8 or more targets: V = w (1 - M/R). The mean AUC is a mean over many pairs of samples and models, so the
      deviation of a set is nearly the mean of those of its references. It is the same for all references and for their
      halves, and cancels in their difference. With M of R references in common, the prediction and the truth differ by
      (1 - M/R) (e_old - e_new).
    - TPR, and AUC of fewer targets: V = w ((1 + s)^2 + M/R) + s^2 w_halves / 6, where y(R) = y(M) + s (y(M) - mean y of
      the halves) and w_halves is the variance of y between halves. A TPR is decided by the few samples near the
      threshold, which are other samples with other references, and the AUC of a single target is not additive over
      references either. The values of overlapping sets are therefore treated as independent.

    L and U allow for an error of the curve: there, each further doubling of the references adds 1/4, or 5/4, of what
    the previous doubling added. (If y is linear in 1/R, it adds 1/2.) A metric that falls is continued likewise.

    The interval does not cover other targets or samples, since the question is what these would show. It assumes that
    new references are like these M, which cannot be seen from them: `unseen_share` says which share of the new ones may
    be unlike all of these, such as models whose training went badly. It is not valid
    for attacks that change their behavior beyond M references, such as LiRA with per-sample variances that become
    useful only there. benchmarks/more_references.py measures how often it misses.

    Args:
      value: AUC or TPR with each set of `REFERENCE_SETS_SxQ`, mean over targets; shape (..., S).
      references: the numbers of references in a quarter, in a half (two quarters), and in total. The total may be more
        than two halves, if it is not divisible by four.
      predicted: the numbers of references to predict, predicted_K; larger than the total.
      metric: what the values are.
      targets: the number of targets with different training subsets over which the values are means. Replicas of one
        target count as one.

    Returns:
      The predictions, NaN where a value is NaN, 0 or 1.

    Raises:
      ValueError: if the shape of the values, a value, or a number of references or targets is invalid.

    Source: derived here. Expansion in 1/R: Richardson (1911); balanced halves: McCarthy (1969), Pseudo-replication.

    Example:
      >>> from lm_mia.stats import predict_more_references
      >>> quarters, halves, all_references = [0.60] * 4, [0.64] * 6, 0.66
      >>> more = predict_more_references([*quarters, *halves, all_references], (8, 16, 32), [64, 128], "auc", targets=8)
      >>> more.value.round(3)
      array([0.67 , 0.675])
    """
    quarter, half, count = references
    value_S = as_float64(value, "values")
    predicted_K = np.atleast_1d(as_float64(predicted, "predicted"))
    if value_S.shape[-1:] != REFERENCE_SETS_SxQ.shape[:1]:
        raise ValueError(
            f"values of shape {value_S.shape}: the last axis must have {len(REFERENCE_SETS_SxQ)} values, one for each "
            "set of REFERENCE_SETS_SxQ"
        )
    check_rates(value_S, "values")
    if not (0 < 2 * quarter == half and 2 * half <= count):
        raise ValueError(
            f"references={references}: must be the numbers in a quarter, in two quarters, and in all references"
        )
    if targets < 1:
        raise ValueError(f"targets={targets}: must be 1 or more")
    if predicted_K.ndim != 1 or not np.all(predicted_K > count):
        raise ValueError(f"predicted={predicted}: must be numbers above the {count} references")
    is_usable = np.all((value_S > 0) & (value_S < 1), axis=-1, keepdims=True)
    y_S = scipy.special.ndtri(np.where(is_usable, value_S, np.nan))
    y_quarters, y_halves, y_all = (
        y_S[..., _QUARTERS].mean(axis=-1, keepdims=True),
        y_S[..., _HALVES].mean(axis=-1, keepdims=True),
        y_S[..., _ALL, None],
    )
    growth = y_all - y_halves
    # Factors of the growth, for each predicted number.
    step_K = (1 / count - 1 / predicted_K) / (1 / half - 1 / count)
    y_K = y_all + step_K * growth
    if metric == "auc":
        # Newton's interpolation in x = 1/R: the second divided difference times (x - x_all) (x - x_half).
        x_quarter, x_half, x_all, x_K = 1 / quarter, 1 / half, 1 / count, 1 / predicted_K
        slope_late = growth / (x_all - x_half)
        slope_early = (y_halves - y_quarters) / (x_half - x_quarter)
        curvature = (slope_late - slope_early) / (x_all - x_quarter)
        y_K = y_K + curvature * (x_K - x_all) * (x_K - x_half)
    difference = y_S[..., 4:7] - y_S[..., 9:6:-1]  # between complementary halves
    variance_halves = (difference**2).mean(axis=-1, keepdims=True) / 2
    variance_all = variance_halves * half / count
    if metric == "auc" and targets >= _MIN_TARGETS:
        variance_K = variance_all * (1 - count / predicted_K)
    else:
        variance_K = variance_all * ((1 + step_K) ** 2 + count / predicted_K)
        variance_K = variance_K + step_K**2 * variance_halves / len(_PAIRS_OF_QUARTERS)
    per_doubling, doublings_K = growth / np.log2(count / half), np.log2(predicted_K / count)
    limits = [
        y_all + per_doubling * factor * (factor**doublings_K - 1) / (factor - 1)
        for factor in (_SLOWEST, _FASTEST)
    ]
    lowest_K = np.minimum(y_K, np.minimum(*limits))
    highest_K = np.maximum(y_K, np.maximum(*limits))
    margin_K = scipy.special.stdtrit(_SPLITS, 0.975) * np.sqrt(variance_K)
    return MoreReferences(
        value=scipy.special.ndtr(y_K),
        low=scipy.special.ndtr(y_K - np.hypot(margin_K, y_K - lowest_K)),
        high=scipy.special.ndtr(y_K + np.hypot(margin_K, highest_K - y_K)),
    )


def unseen_share(references: int) -> float:
    """Returns the largest share of unusual references that is compatible with none among those that were trained.

    If each reference is unusual with probability p, none of M is with probability (1 - p)^M, which is at least 5% up to
    p = 1 - 0.05^(1 / M): 31% for 8 references, 17% for 16 and 9% for 32. This is the 95% Clopper-Pearson upper bound
    for a count of 0.

    Args:
      references: M, the number of references, at least 1.

    Returns:
      A share of the new references, in (0, 1).

    Raises:
      ValueError: if there is no reference.

    Example:
      >>> from lm_mia.stats import unseen_share
      >>> round(unseen_share(32), 2)
      0.09
    """
    if as_counts(references, "references").min() < 1:
        raise ValueError(f"references={references}: must be 1 or more")
    return 1 - 0.05 ** (1 / references)
