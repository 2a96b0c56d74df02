"""ROC curves of causal evaluation: rates of weighted members and non-members at a grid of thresholds.

The false positive rate is a weighted share of the non-members, or the mean of what an outcome model predicts for the
members, or both. A bootstrap replicate only changes the count of each sample; scores are sorted and predictions
computed once.

Legend: A members, B non-members, J residuals, D distinct scores and K thresholds, both in descending order, G groups of
samples with similar predictions, F false positive rates, Q bootstrap replicates.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used

from lm_mia.stats.array_types import FloatArray, IntArray

MAX_DISTINCT_SCORES = 2048
"""With an outcome model and more distinct scores, thresholds are the larger half of this number and evenly spaced ranks
of the other scores."""
MAX_PREDICTIONS = 1024
"""With more predictions of an outcome model, neighbors are replaced by their mean, in groups of equal weight."""


@dataclasses.dataclass(frozen=True)
class CausalCurve:
    """A causal ROC curve from (0, 0): shares of scores at or above each threshold, with and without membership."""

    threshold_K: FloatArray
    """Descending; +inf at the first point, where no sample is called a member."""
    fpr_K: FloatArray
    tpr_K: FloatArray


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predicted outcomes without membership: means, and the share of outcomes at or above each threshold."""

    mean_A: FloatArray
    group_A: IntArray
    share_GxK: FloatArray


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Sorted scores of both classes with everything that does not depend on how often a sample is drawn."""

    score_A: FloatArray
    """Ascending."""
    score_B: FloatArray
    """Ascending."""
    weight_B: FloatArray | None
    """Weights of the non-members; None if only the outcome model is used."""
    unit_weight: float
    """The weight of one member on the scale of weight_B, by which normalize="members" divides; NaN for "weights"."""
    threshold_K: FloatArray
    is_thinned: bool
    """Whether not every distinct score is a threshold."""
    position_A: IntArray
    """Position of the largest threshold that is not above the score of each member."""
    position_B: IntArray
    members: Predictions | None
    """Predictions for members; None without an outcome model."""
    nonmembers: Predictions | None
    """Predictions for non-members; None unless weights are used, too."""


@dataclasses.dataclass(frozen=True)
class CausalMetrics:
    """Metrics of one set of counts."""

    ate: float
    auc: float
    youden: float
    tpr_F: FloatArray
    realized_fpr_F: FloatArray
    fpr_K: FloatArray
    tpr_K: FloatArray


def evaluation_set(
    score_A: FloatArray,
    score_B: FloatArray,
    *,
    weight_B: FloatArray | None,
    unit_weight: float,
    mean_A: FloatArray | None = None,
    mean_B: FloatArray | None = None,
    residual_J: FloatArray | None = None,
) -> EvaluationSet:
    """Sorts the scores and computes the predictions at all thresholds; weights are those of the base estimate."""
    order_A, order_B = np.argsort(score_A), np.argsort(score_B)
    score_A, score_B = score_A[order_A], score_B[order_B]
    if weight_B is not None:
        weight_B = weight_B[order_B]
    distinct_D = np.unique(np.concatenate([score_A, score_B]))[::-1]
    threshold_K = np.append(np.inf, distinct_D)
    num_distinct = distinct_D.size
    if residual_J is not None:
        distinct_D = _thinned(distinct_D)
        # Between two scores, predicted rates change but true positive rates do not: with the next larger number of each
        # score, the curve has this horizontal part.
        pairs_Dx2 = np.column_stack([np.nextafter(distinct_D, np.inf), distinct_D])
        threshold_K = np.concatenate([[np.inf], pairs_Dx2.ravel(), [-np.inf]])
    ascending_K = threshold_K[:0:-1]
    position_A, position_B = (
        ascending_K.size - np.searchsorted(ascending_K, score, side="right") + 1
        for score in (score_A, score_B)
    )
    members = nonmembers = None
    if residual_J is not None and mean_A is not None and mean_B is not None:
        residual_J = np.sort(residual_J)
        ones_A = np.ones(score_A.size)
        members = _predict(mean_A[order_A], ones_A, residual_J, distinct_D)
        if weight_B is not None:
            nonmembers = _predict(mean_B[order_B], weight_B, residual_J, distinct_D)
    return EvaluationSet(
        score_A=score_A,
        score_B=score_B,
        weight_B=weight_B,
        unit_weight=unit_weight,
        threshold_K=threshold_K,
        is_thinned=distinct_D.size < num_distinct,
        position_A=position_A,
        position_B=position_B,
        members=members,
        nonmembers=nonmembers,
    )


def predicted_rates(
    samples: EvaluationSet, count_QxA: FloatArray, count_QxB: FloatArray
) -> list[FloatArray] | list[None]:
    """Computes what the outcome model contributes to the false positive rates of Q bootstrap replicates at once.

    This is the mean prediction for the members, minus the weighted mean prediction for the non-members if there are
    weights.
    """
    if samples.members is None:
        return [None] * len(count_QxA)
    members_Q = count_QxA.sum(axis=1)
    rate_QxK = _total_shares(samples.members, count_QxA) / members_Q[:, None]
    if samples.nonmembers is not None and samples.weight_B is not None:
        weight_QxB = count_QxB * samples.weight_B
        total_Q = members_Q * samples.unit_weight
        if np.isnan(samples.unit_weight):
            total_Q = weight_QxB.sum(axis=1)
        rate_QxK -= _total_shares(samples.nonmembers, weight_QxB) / total_Q[:, None]
    return list(rate_QxK)


def causal_metrics(
    samples: EvaluationSet,
    count_A: FloatArray,
    count_B: FloatArray,
    predicted_K: FloatArray | None,
    fpr_F: FloatArray,
) -> CausalMetrics:
    """Computes the metrics if each sample occurs as often as its count says.

    With an outcome model the false positive rates are replaced by the nearest ones (in least squares) that do not fall
    as the threshold falls, and clipped to [0, 1]: those of AIPW are differences and need not be a distribution. This
    never increases the sum of squared errors over the thresholds.
    """
    # Sums of products, because a multi-threaded dot product is slow while other processes use the cores.
    K = samples.threshold_K.size
    drawn_members = float(count_A.sum())
    positives_K = np.cumsum(np.bincount(samples.position_A, count_A, K))
    mean_in = float(np.sum(count_A * samples.score_A)) / drawn_members
    mean_out = 0.0
    mass_K = np.zeros(K)  # weight of the non-members with their score at each threshold
    total = 1.0
    if samples.weight_B is not None:
        weight_B = samples.weight_B * count_B
        mass_K = np.bincount(samples.position_B, weight_B, K)
        # The last sum is the total, so that the curve ends at exactly 1.
        total = float(np.cumsum(mass_K)[-1])
        if not np.isnan(samples.unit_weight):
            total = drawn_members * samples.unit_weight
        value_B = samples.score_B
        if samples.nonmembers is not None:
            value_B = value_B - samples.nonmembers.mean_A
        mean_out = float(np.sum(weight_B * value_B)) / total
    fpr_K = np.asarray(np.cumsum(mass_K) / total, dtype=np.float64)
    if samples.members is not None and predicted_K is not None:
        mean_out += float(np.sum(count_A * samples.members.mean_A)) / drawn_members
        fpr_K += predicted_K
        fpr_K = np.clip(scipy.optimize.isotonic_regression(fpr_K).x, 0.0, 1.0)
        fpr_K[[0, -1]] = 0.0, 1.0  # at +inf and -inf
        mass_K, total = np.diff(fpr_K, prepend=0.0), 1.0
    # The area under the curve counts ties as 1/2. With weights of 1 the product is exact, and only the division rounds.
    twice_area = float(np.sum(mass_K * (positives_K + np.append(0.0, positives_K[:-1]))))
    tpr_K = positives_K / drawn_members
    k_F = np.searchsorted(fpr_K, fpr_F, side="right") - 1
    if samples.members is None:
        # The threshold is a score of non-members, as that of `threshold_at_fpr`, unless all samples are called members.
        # Predicted rates change at so many scores that the smallest threshold is as good.
        last_mass_K = np.maximum.accumulate(np.where(mass_K > 0, np.arange(K), 0))
        k_F = np.where(k_F == K - 1, k_F, last_mass_K[k_F])
    tpr_F, realized_fpr_F = tpr_K[k_F], fpr_K[k_F]
    if samples.is_thinned:  # the score that reaches the rate is between two thresholds
        tpr_F, realized_fpr_F = np.interp(fpr_F, fpr_K, tpr_K), fpr_F
    return CausalMetrics(
        ate=mean_in - mean_out,
        auc=twice_area / (2 * drawn_members * total),
        youden=float(np.max(tpr_K - fpr_K)),
        tpr_F=tpr_F,
        realized_fpr_F=realized_fpr_F,
        fpr_K=fpr_K,
        tpr_K=tpr_K,
    )


def _thinned(distinct_D: FloatArray) -> FloatArray:
    """Returns all distinct scores if they are few, else the largest ones and evenly spaced ranks down to the last."""
    if distinct_D.size <= MAX_DISTINCT_SCORES:
        return distinct_D
    half = MAX_DISTINCT_SCORES // 2
    rank = np.linspace(half, distinct_D.size - 1, half).round().astype(np.int64)
    return np.concatenate([distinct_D[:half], distinct_D[rank]])


def _predict(
    mean_A: FloatArray, weight_A: FloatArray, residual_J: FloatArray, distinct_D: FloatArray
) -> Predictions:
    """Computes the shares of the sorted residuals that are above, or at or above, each score minus each mean."""
    group_A, center_G = np.arange(mean_A.size), mean_A
    if mean_A.size > MAX_PREDICTIONS:
        order_A = np.argsort(mean_A)
        middle_A = np.cumsum(weight_A[order_A]) - weight_A[order_A] / 2
        group_A = np.empty(mean_A.size, dtype=np.int64)
        group_A[order_A] = MAX_PREDICTIONS * (middle_A / weight_A.sum())
        np.minimum(group_A, MAX_PREDICTIONS - 1, out=group_A)
        weight_G = np.bincount(group_A, weight_A, MAX_PREDICTIONS)
        # A group without weight has no influence.
        center_G = np.bincount(group_A, weight_A * mean_A, MAX_PREDICTIONS) / np.where(
            weight_G > 0, weight_G, 1.0
        )
    # Searching for ascending numbers is faster.
    difference_GxD = distinct_D[::-1] - center_G[:, None]
    share_GxK = np.zeros((center_G.size, 2 * distinct_D.size + 2))
    not_above_GxD = np.searchsorted(residual_J, difference_GxD, side="right")
    below_GxD = np.searchsorted(residual_J, difference_GxD)
    share_GxK[:, -2:0:-2] = 1 - below_GxD / residual_J.size
    share_GxK[:, -3:0:-2] = 1 - not_above_GxD / residual_J.size
    share_GxK[:, -1] = 1.0
    return Predictions(mean_A, group_A, share_GxK)


def _total_shares(predictions: Predictions, weight_QxA: FloatArray) -> FloatArray:
    groups = len(predictions.share_GxK)
    weight_QxG = np.array([np.bincount(predictions.group_A, w_A, groups) for w_A in weight_QxA])
    return weight_QxG @ predictions.share_GxK
