"""Thresholds, ROC curves and metrics derived from them; a score >= threshold means the decision "member".

Legend: T targets, N samples, F false positive rates, K points of a curve. A one-dimensional array of scores is treated
as one target. ``member`` is member_N, shared by all targets, or member_TxN. A NaN score is missing: it is left out and
counted. StrongMIA, Appendices A and E.2.6.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64, as_real, check_rates


@dataclasses.dataclass(frozen=True)
class OperatingPoints:
    """Decisions of T targets at F false positive rates, in counts and rates.

    Rates are NaN if there is no score of a member or of a non-member.
    """

    fpr_F: FloatArray
    """The requested false positive rates."""
    threshold_TxF: FloatArray
    tpr_TxF: FloatArray
    """True positive rates. NaN, unless at the vertex, at a rate above 0 for which there are too few non-members:
    `nonmembers_needed` says how many it needs. The same holds for both accuracies."""
    realized_fpr_TxF: FloatArray
    """False positive rates at the thresholds, at most fpr_F."""
    accuracy_TxF: FloatArray
    """(TP + TN) / number of samples with a score."""
    balanced_accuracy_TxF: FloatArray
    """(TPR + 1 - realized FPR) / 2."""
    auc_T: FloatArray
    """Area under the ROC curve, as computed by `auc`."""
    members_T: IntArray
    """Number of members with a score."""
    nonmembers_T: IntArray
    """Number of non-members with a score."""
    left_out_T: IntArray
    """Number of NaN scores."""


@dataclasses.dataclass(frozen=True)
class RocCurve:
    """An empirical ROC curve from (0, 0) to (1, 1), with one point per distinct score."""

    fpr_K: FloatArray
    tpr_K: FloatArray
    threshold_K: FloatArray
    """Descending; +inf at the first point, where no sample is called a member."""
    left_out: int
    """Number of NaN scores."""


@dataclasses.dataclass(frozen=True)
class Auc:
    """Area under the ROC curve of each target."""

    auc_T: FloatArray
    """NaN if there is no score of a member or of a non-member."""
    left_out_T: IntArray
    """Number of NaN scores."""


@dataclasses.dataclass(frozen=True)
class MaxBalancedAccuracy:
    """Largest balanced accuracy of each target over all thresholds."""

    balanced_accuracy_T: FloatArray
    """NaN if there is no score of a member or of a non-member."""
    left_out_T: IntArray
    """Number of NaN scores."""


@dataclasses.dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation (ddof=0, as in StrongMIA) over targets."""

    mean_F: FloatArray
    std_F: FloatArray


@dataclasses.dataclass(frozen=True)
class MeanRocCurve:
    """ROC curve averaged over targets at fixed false positive rates."""

    fpr_F: FloatArray
    """The requested false positive rates."""
    tpr: MeanStd
    left_out_T: IntArray
    """Number of NaN scores of each target."""
    targets_left_out: int
    """Number of targets without a score of a member or without one of a non-member."""


def threshold_at_fpr(nonmember_scores: ArrayLike, fpr: float, *, at: str = "paper") -> float:
    """Returns the threshold of the paper at a false positive rate: a score of a non-member.

    Let k = ceil((1 - fpr) n) for n scores. The threshold is the smallest score above the k-th smallest one: +inf if
    there is none, -inf if k = 0, and NaN if n = 0. So at most j = n - k of the n non-members reach it, the lowest of
    them exactly. Tied scores are never separated, so the realized rate may be lower than requested, but never higher.

    A new sample that was not trained on, exchangeable with the n non-members, is called a member with a probability
    of j / (n + 1), and of at most (j + 1) / (n + 1) if scores are tied. For fpr < 1/n, j is 0 and the threshold +inf:
    `nonmembers_needed` says how many scores the rate needs.

    Other tools, such as scikit-learn's roc_curve and the code of Carlini et al., report the last vertex of the ROC
    curve: they also call the members between the k-th smallest score and the next one. The realized rate is the same,
    but (j + 1) / (n + 1) of new samples are called members, which at the lowest rate is twice as many.

    Args:
      nonmember_scores: n scores, one-dimensional.
      fpr: false positive rate in [0, 1]. The largest j / n that is <= fpr in floating-point arithmetic is allowed: 45
        of 100 at 0.45, but 0 of 10 at 1 - 0.9, which is slightly below 0.1.
      at: "paper", or "vertex" for the last vertex of the ROC curve. Its threshold is the smallest number above the
        k-th smallest score, of the type of the scores (float16, float32 or float64), so compare it with scores of this
        type or of a wider one. If that score is 0, it is a subnormal number, which JAX and other libraries that flush
        subnormal numbers take for 0: compare in numpy.

    Returns:
      A threshold; decide "member" where score >= threshold. A score of +inf reaches every threshold.

    Raises:
      ValueError: if fpr is outside [0, 1]; if a score is NaN (`tpr_at_fpr` leaves NaN scores out and counts them); if
        so many scores are +inf that no threshold reaches fpr; or if `at` is unknown.

    Source: StrongMIA, Appendix A: tau is the next distinct score above the k-th smallest.

    Example:
      The largest of four non-members, and all members that reach it, are called members:

      >>> from lm_mia.stats import threshold_at_fpr
      >>> threshold = threshold_at_fpr([1.0, 2.0, 3.0, 4.0], fpr=0.25)
      >>> threshold
      4.0
      >>> [score >= threshold for score in (3.0, 3.5, 4.0)]
      [False, False, True]
      >>> threshold_at_fpr([1.0, 2.0, 3.0, 4.0], fpr=0.25, at="vertex")
      3.0000000000000004
    """
    scores_N = as_real(nonmember_scores, "nonmember_scores")
    if scores_N.ndim != 1:
        raise ValueError(f"nonmember_scores of shape {scores_N.shape}: must have one dimension")
    sorted_N = ranking.sort_scores(scores_N.copy())
    if sorted_N.size < scores_N.size:
        raise ValueError("nonmember_scores must not contain NaN; tpr_at_fpr leaves NaN scores out")
    fpr_F = ranking.as_fprs([fpr])
    return float(ranking.thresholds_at_fprs(sorted_N, fpr_F, _is_vertex(at, fpr_F))[0])


def tpr_at_fpr(
    score_TxN: ArrayLike,
    member: ArrayLike,
    fprs: ArrayLike,
    *,
    at: str | Sequence[str] = "paper",
) -> OperatingPoints:
    """Computes TPR, accuracy and AUC of each target, at thresholds calibrated on its own non-members.

    The thresholds are those of `threshold_at_fpr`: by default the paper's, while scikit-learn's roc_curve and the code
    of Carlini et al. report the last vertex of the ROC curve, whose TPR is never lower. Among random scores, the mean
    TPR is j / (n + 1) if j of n non-members may be called members, and (j + 1) / (n + 1) at the vertex.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out.
      member: booleans, member_N or member_TxN.
      fprs: one false positive rate in [0, 1], or several.
      at: "paper", or "vertex" for the last vertex; one for all rates, or one for each.

    Returns:
      Thresholds and rates of each target at each false positive rate.

    Raises:
      ValueError: if the shapes do not match, if member is not boolean, if a rate is outside [0, 1], if so many
        non-member scores are +inf that no threshold reaches a rate, or if `at` is unknown.

    Source: StrongMIA, Appendix A.

    Example:
      >>> from lm_mia.stats import tpr_at_fpr
      >>> member_N = [False, False, False, False, True, True]
      >>> points = tpr_at_fpr([1.0, 2.0, 3.0, 4.0, 3.5, 5.0], member_N, [0.1, 0.25, 0.5])
      >>> points.threshold_TxF
      array([[inf,  4.,  3.]])
      >>> points.realized_fpr_TxF
      array([[0.  , 0.25, 0.5 ]])
      >>> points.tpr_TxF  # a rate of 0.1 needs 10 non-members
      array([[nan, 0.5, 1. ]])
      >>> tpr_at_fpr([1.0, 2.0, 3.0, 4.0, 3.5, 5.0], member_N, 0.25, at="vertex").tpr_TxF
      array([[1.]])
    """
    fpr_F = ranking.as_fprs(fprs)
    is_vertex_F = _is_vertex(at, fpr_F)
    targets = np.atleast_2d(np.asarray(score_TxN)).shape[0]
    threshold_TxF, tpr_TxF, realized_fpr_TxF, accuracy_TxF = np.full(
        (4, targets, fpr_F.size), np.nan
    )
    auc_T = np.full(targets, np.nan)
    members_T, nonmembers_T, left_out_T = np.zeros((3, targets), dtype=np.int64)
    for t, (nonmembers, members, left_out) in enumerate(ranking.sorted_classes(score_TxN, member)):
        members_T[t], nonmembers_T[t], left_out_T[t] = members.size, nonmembers.size, left_out
        if nonmembers.size == 0:
            continue
        threshold_TxF[t] = ranking.thresholds_at_fprs(nonmembers, fpr_F, is_vertex_F)
        fp_F = ranking.count_at_or_above(nonmembers, threshold_TxF[t])
        realized_fpr_TxF[t] = fp_F / nonmembers.size
        if members.size == 0:
            continue
        has_tpr_F = is_vertex_F | ~ranking.too_low(nonmembers.size, fpr_F)
        tp_F = np.where(has_tpr_F, ranking.count_at_or_above(members, threshold_TxF[t]), np.nan)
        tpr_TxF[t] = tp_F / members.size
        accuracy_TxF[t] = (tp_F + nonmembers.size - fp_F) / (members.size + nonmembers.size)
        auc_T[t] = ranking.auc_from_sorted(nonmembers, members)
    return OperatingPoints(
        fpr_F=fpr_F,
        threshold_TxF=threshold_TxF,
        tpr_TxF=tpr_TxF,
        realized_fpr_TxF=realized_fpr_TxF,
        accuracy_TxF=accuracy_TxF,
        balanced_accuracy_TxF=(tpr_TxF + 1 - realized_fpr_TxF) / 2,
        auc_T=auc_T,
        members_T=members_T,
        nonmembers_T=nonmembers_T,
        left_out_T=left_out_T,
    )


def _is_vertex(at: str | Sequence[str], fpr_F: FloatArray) -> BoolArray:
    """Returns whether the threshold of each rate is at the last vertex of the ROC curve."""
    rules = [at] * fpr_F.size if isinstance(at, str) else [*at]
    if len(rules) != fpr_F.size or not {*rules} <= {"paper", "vertex"}:
        raise ValueError(
            f'at={at!r}: must be "paper" or "vertex", or one of them for each of {fpr_F.size} rates'
        )
    return np.array([rule == "vertex" for rule in rules], dtype=np.bool_)


def concatenate_operating_points(points: Sequence[OperatingPoints]) -> OperatingPoints:
    """Concatenates the targets of several operating points at the same false positive rates.

    This allows targets to be processed one at a time, possibly in threads, without holding all scores in memory.

    Args:
      points: one or more operating points, all at the same rates.

    Returns:
      The operating points of all targets, in order.

    Raises:
      ValueError: if points is empty or the rates differ.
    """
    if not points or any(not np.array_equal(p.fpr_F, points[0].fpr_F) for p in points):
        raise ValueError("points must hold one or more operating points, all at the same rates")
    names = [f.name for f in dataclasses.fields(OperatingPoints) if f.name != "fpr_F"]
    arrays = {name: np.concatenate([getattr(p, name) for p in points]) for name in names}
    return OperatingPoints(fpr_F=points[0].fpr_F, **arrays)


def mean_roc_curve(points: OperatingPoints) -> MeanRocCurve:
    """Computes the mean and STD over targets of the TPR at each FPR.

    Tied scores are never separated, as in `threshold_at_fpr`. Targets without a score of a member or without one of a
    non-member are left out and counted.

    Args:
      points: operating points from `tpr_at_fpr`, with ``at="vertex"`` for points of the ROC curves.

    Returns:
      The mean ROC curve.

    Source: StrongMIA, Figures 24 and 25.
    """
    complete_T = (points.members_T > 0) & (points.nonmembers_T > 0)
    tpr = mean_std_over_targets(points.tpr_TxF[complete_T])
    return MeanRocCurve(points.fpr_F, tpr, points.left_out_T, int(np.sum(~complete_T)))


def mean_std_over_targets(value_TxF: FloatArray) -> MeanStd:
    """Computes mean and STD (ddof=0) of each column; NaN, without a warning, if there is no target."""
    if value_TxF.shape[0] == 0:
        nan_F = np.full(value_TxF.shape[1], np.nan)
        return MeanStd(nan_F, nan_F.copy())
    return MeanStd(value_TxF.mean(axis=0), value_TxF.std(axis=0))


def roc_curve(score_N: ArrayLike, member_N: ArrayLike) -> RocCurve:
    """Computes the complete ROC curve of one target; tied scores are one point, and no point is dropped.

    Args:
      score_N: membership scores of one target, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.

    Returns:
      The curve. The TPRs are NaN if no member has a score, and the FPRs are NaN if no non-member has one.

    Raises:
      ValueError: if the scores are not one-dimensional, if the shapes do not match, or if member_N is not boolean.

    Example:
      >>> from lm_mia.stats import roc_curve
      >>> curve = roc_curve([1.0, 2.0, 2.0, 3.0], [False, False, True, True])
      >>> curve.fpr_K
      array([0. , 0. , 0.5, 1. ])
      >>> curve.tpr_K
      array([0. , 0.5, 1. , 1. ])
    """
    if np.ndim(score_N) != 1:
        raise ValueError(f"scores of shape {np.shape(score_N)}: must be those of one target")
    nonmembers, members, left_out = next(ranking.sorted_classes(score_N, member_N))
    threshold_K = np.unique(np.concatenate([nonmembers, members])).astype(np.float64)[::-1]

    def rate(sorted_scores: ranking.Scores) -> FloatArray:
        if sorted_scores.size == 0:
            return np.full(threshold_K.size + 1, np.nan)
        positives_K = ranking.count_at_or_above(sorted_scores, threshold_K)
        return np.concatenate([[0.0], positives_K / sorted_scores.size])

    thresholds_K = np.concatenate([[np.inf], threshold_K])
    return RocCurve(rate(nonmembers), rate(members), thresholds_K, left_out)


def auc(score_TxN: ArrayLike, member: ArrayLike) -> Auc:
    """Computes the area under the ROC curve of each target, exactly.

    It is the probability that a random member scores above a random non-member, with ties counted as 1/2.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out.
      member: booleans, member_N or member_TxN.

    Returns:
      The area of each target, in [0, 1].

    Raises:
      ValueError: if the shapes do not match or member is not boolean.

    Example:
      >>> from lm_mia.stats import auc
      >>> auc([1.0, 2.0, 2.0, 3.0], [False, False, True, True]).auc_T
      array([0.875])
    """
    auc_T: list[float] = []
    left_out_T: list[int] = []
    for nonmembers, members, left_out in ranking.sorted_classes(score_TxN, member):
        auc_T.append(ranking.auc_from_sorted(nonmembers, members))
        left_out_T.append(left_out)
    return Auc(np.array(auc_T), np.array(left_out_T, dtype=np.int64))


def max_balanced_accuracy(score_TxN: ArrayLike, member: ArrayLike) -> MaxBalancedAccuracy:
    """Computes the largest balanced accuracy of each target, (TPR + 1 - FPR) / 2, over all thresholds.

    The threshold is chosen by the membership of the same samples, so the value is biased upwards: without leakage it is
    above 1/2 by about 0.43 / sqrt(n) for n members and n non-members. It is never below 1/2, which the threshold +inf
    reaches.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out.
      member: booleans, member_N or member_TxN.

    Returns:
      The largest value of each target, in [1/2, 1].

    Raises:
      ValueError: if the shapes do not match or member is not boolean.

    Source: the "accuracy" of PrivacyGuard, Tables 2 and 3.

    Example:
      >>> from lm_mia.stats import max_balanced_accuracy
      >>> member_N = [False, False, True, False, True]
      >>> max_balanced_accuracy([1.0, 2.0, 2.0, 3.0, 4.0], member_N).balanced_accuracy_T
      array([0.75])
    """
    value_T: list[float] = []
    left_out_T: list[int] = []
    for nonmembers, members, left_out in ranking.sorted_classes(score_TxN, member):
        left_out_T.append(left_out)
        if not (nonmembers.size and members.size):
            value_T.append(np.nan)
            continue
        # The best threshold is the score of a member, or +inf. Of tied members only the first counts all of them, and
        # it has the largest value.
        tp_N = members.size - np.arange(members.size)
        fp_N = nonmembers.size - np.searchsorted(nonmembers, members, side="left")
        difference = max(0, int(np.max(nonmembers.size * tp_N - members.size * fp_N)))
        value_T.append((1 + difference / (nonmembers.size * members.size)) / 2)
    return MaxBalancedAccuracy(np.array(value_T), np.array(left_out_T, dtype=np.int64))


def partial_auc(
    tpr_K: ArrayLike, fpr_K: ArrayLike, a: float, b: float, *, normalized: bool = False
) -> float:
    """Computes the area under a ROC curve between two false positive rates, by the trapezoidal rule.

    Args:
      tpr_K: true positive rates of any curve over fpr_K: of one target, a mean, or a coin-flip-free curve (StrongMIA,
        Eq. 24).
      fpr_K: false positive rates in ascending order. Points at the same rate form a vertical step, which has no area:
        at a the curve continues from the last point of the step, at b it ends at the first.
      a: lower end of the band.
      b: upper end of the band, 0 <= a < b <= 1. The curve is linear between points.
      normalized: whether to divide the area by b - a, which gives the mean TPR over the band, in [0, 1].

    Returns:
      The area; NaN if a TPR in the band or next to it is NaN.

    Raises:
      ValueError: if the band is not valid, if a rate is outside [0, 1], if the false positive rates are not in
        ascending order, or if the curve does not cover the band.

    Source: StrongMIA, Appendix E.2.6, pAUC and pAUC_norm.

    Example:
      >>> from lm_mia.stats import partial_auc
      >>> partial_auc([0.0, 0.5, 1.0], [0.0, 0.25, 1.0], 0.0, 0.25)
      0.0625
    """
    tpr, fpr = as_float64(tpr_K, "TPRs"), as_float64(fpr_K, "FPRs")
    if tpr.ndim != 1 or tpr.shape != fpr.shape:
        raise ValueError(
            f"TPRs of shape {tpr.shape} and FPRs of shape {fpr.shape}: must be one curve"
        )
    check_rates(tpr, "true positive rates")
    if not 0 <= a < b <= 1:
        raise ValueError(f"band [{a}, {b}]: must satisfy 0 <= a < b <= 1")
    if not (np.all((fpr >= 0) & (fpr <= 1)) and np.all(np.diff(fpr) >= 0)):
        raise ValueError("false positive rates must be in [0, 1] and in ascending order")
    if not (fpr.size and fpr[0] <= a and b <= fpr[-1]):
        raise ValueError(f"the curve does not span the band [{a}, {b}]")
    # The points start .. stop - 1 are inside the band; its ends are interpolated with the points just outside.
    start, stop = int(np.searchsorted(fpr, a, "right")), int(np.searchsorted(fpr, b, "left"))

    def interpolated_tpr(left: int, rate: float) -> float:
        weight = (rate - fpr[left]) / (fpr[left + 1] - fpr[left])
        return (1 - weight) * tpr[left] + weight * tpr[left + 1]

    x = np.concatenate([[a], fpr[start:stop], [b]])
    y = np.concatenate(
        [[interpolated_tpr(start - 1, a)], tpr[start:stop], [interpolated_tpr(stop - 1, b)]]
    )
    return float(np.trapezoid(y, x)) / (b - a if normalized else 1.0)


def lift(
    tpr_K: ArrayLike, fpr_K: ArrayLike, a: float, b: float, *, normalized: bool = False
) -> float:
    """Computes how far a partial AUC exceeds that of random guessing.

    Guessing has an area of (b^2 - a^2) / 2, or (a + b) / 2 if normalized. The normalized lift is the mean difference
    between the TPR and the FPR over the band.

    Args:
      tpr_K: true positive rates, as for `partial_auc`.
      fpr_K: false positive rates in ascending order.
      a: lower end of the band.
      b: upper end of the band, 0 <= a < b <= 1.
      normalized: whether to divide by b - a.

    Returns:
      The lift, which is 0 for random guessing; NaN if a TPR in the band or next to it is NaN.

    Raises:
      ValueError: as for `partial_auc`.

    Source: StrongMIA, Appendix E.2.6, Lift and Lift_norm.
    """
    excess = partial_auc(tpr_K, fpr_K, a, b) - (b * b - a * a) / 2
    return excess / (b - a) if normalized else excess
