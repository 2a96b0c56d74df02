"""Thresholds, ROC curves and what is read off them; score >= threshold calls a sample a member.

Shapes: T targets, N samples, F false positive rates, K points of a curve. A one-dimensional score
array counts as one target. ``member`` is member_N, shared by all targets, or member_TxN. A NaN
score is missing: it is left out and counted. StrongMIA Appendices A and E.2.6.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats import ranking


@dataclasses.dataclass(frozen=True)
class OperatingPoints:
    """Decisions of T targets at F false positive rates, counted; NaN where a class has no score."""

    fpr_F: NDArray[np.float64]
    """As asked for."""
    threshold_TxF: NDArray[np.float64]
    tpr_TxF: NDArray[np.float64]
    realised_fpr_TxF: NDArray[np.float64]
    """At most fpr_F."""
    accuracy_TxF: NDArray[np.float64]
    """(TP + TN) / samples with a score."""
    balanced_accuracy_TxF: NDArray[np.float64]
    """(TPR + 1 - realised FPR) / 2."""
    auc_T: NDArray[np.float64]
    """As of `auc`."""
    members_T: NDArray[np.int64]
    """Members with a score."""
    nonmembers_T: NDArray[np.int64]
    left_out_T: NDArray[np.int64]
    """NaN scores."""


@dataclasses.dataclass(frozen=True)
class Roc:
    """An empirical ROC curve from (0, 0) to (1, 1), one point a distinct score."""

    fpr_K: NDArray[np.float64]
    tpr_K: NDArray[np.float64]
    threshold_K: NDArray[np.float64]
    """Falling; +inf at the first point, which calls nothing a member."""
    left_out: int


@dataclasses.dataclass(frozen=True)
class Auc:
    """Area under the ROC curve of every target."""

    auc_T: NDArray[np.float64]
    """NaN where a class has no score."""
    left_out_T: NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class MeanStd:
    """Mean and standard deviation (ddof = 0, as in StrongMIA) over targets."""

    mean_F: NDArray[np.float64]
    std_F: NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class MeanRoc:
    """ROC curve averaged over targets at fixed false positive rates."""

    fpr_F: NDArray[np.float64]
    tpr: MeanStd
    left_out_T: NDArray[np.int64]
    targets_left_out: int
    """Targets without a score in one of the classes."""


def threshold_at_fpr(nonmember_scores: ArrayLike, fpr: float) -> float:
    """The lowest non-member score that, as a threshold, has a false positive rate of at most fpr.

    With n scores sorted and k = ceil((1 - fpr) n): the next distinct score above the k-th smallest;
    +inf if there is none (so below 1/n no member is found either), -inf if k = 0, NaN if n = 0.
    Ties are never split: the realised rate may be lower than asked, never higher.

    Args:
      nonmember_scores: n scores, one dimension.
      fpr: rate in [0, 1]; what is allowed is the largest j/n that is <= fpr as floating-point
        numbers: 0.45 of 100 is 45, and 1 - 0.9 of 10, a little below 0.1, is 0.

    Raises:
      ValueError: fpr outside [0, 1]; a NaN score (leave it out, and count it, as `tpr_at_fpr`
        does); so many scores of +inf that no threshold reaches fpr.

    Source: StrongMIA Appendix A, the order-statistic form; its infimum form is not attained.
    """
    scores_N = np.asarray(nonmember_scores, dtype=np.float64)
    if scores_N.ndim != 1 or np.isnan(scores_N).any():
        raise ValueError("nonmember_scores must have one dimension and no NaN")
    return float(ranking.thresholds(np.sort(scores_N), ranking.rates([fpr]))[0])


def tpr_at_fpr(score_TxN: ArrayLike, member: ArrayLike, fprs: ArrayLike) -> OperatingPoints:
    """Rates of every target at thresholds calibrated on its own non-members, for each rate asked.

    Args:
      score_TxN: scores, larger for members.
      member: member_N or member_TxN, booleans.
      fprs: fpr_F, rates in [0, 1], or one rate.

    Raises:
      ValueError: shapes that do not fit, non-boolean members, or as of `threshold_at_fpr`.
    """
    fpr_F = ranking.rates(fprs)
    targets = np.atleast_2d(np.asarray(score_TxN)).shape[0]
    threshold_TxF, tpr_TxF, realised_TxF, accuracy_TxF = np.full((4, targets, fpr_F.size), np.nan)
    auc_T = np.full(targets, np.nan)
    members_T, nonmembers_T, left_out_T = np.zeros((3, targets), dtype=np.int64)
    for t, (out, ins, left_out) in enumerate(ranking.classes(score_TxN, member)):
        members_T[t], nonmembers_T[t], left_out_T[t] = ins.size, out.size, left_out
        if out.size == 0:
            continue
        threshold_TxF[t] = ranking.thresholds(out, fpr_F)
        fp_F = ranking.called(out, threshold_TxF[t])
        realised_TxF[t] = fp_F / out.size
        if ins.size == 0:
            continue
        tp_F = ranking.called(ins, threshold_TxF[t])
        tpr_TxF[t] = tp_F / ins.size
        accuracy_TxF[t] = (tp_F + out.size - fp_F) / (ins.size + out.size)
        auc_T[t] = ranking.area(out, ins)
    return OperatingPoints(
        fpr_F=fpr_F,
        threshold_TxF=threshold_TxF,
        tpr_TxF=tpr_TxF,
        realised_fpr_TxF=realised_TxF,
        accuracy_TxF=accuracy_TxF,
        balanced_accuracy_TxF=(tpr_TxF + 1 - realised_TxF) / 2,
        auc_T=auc_T,
        members_T=members_T,
        nonmembers_T=nonmembers_T,
        left_out_T=left_out_T,
    )


def concatenate(points: Sequence[OperatingPoints]) -> OperatingPoints:
    """The targets of all points, in order, as one; ValueError without any or if the rates differ.

    So targets can be decided one at a time, in threads, without their scores held at once.
    """
    if not points or any(not np.array_equal(p.fpr_F, points[0].fpr_F) for p in points):
        raise ValueError("operating points must be one or more, all at the same rates")
    along_T = [f.name for f in dataclasses.fields(OperatingPoints) if f.name != "fpr_F"]
    whole = {name: np.concatenate([getattr(p, name) for p in points]) for name in along_T}
    return OperatingPoints(fpr_F=points[0].fpr_F, **whole)


def mean_roc(points: OperatingPoints) -> MeanRoc:
    """Mean and STD over targets of the TPR at each FPR, conservative with ties.

    Targets without a score in one of the classes are left out and counted. Source: StrongMIA
    Figures 24 and 25.
    """
    whole_T = (points.members_T > 0) & (points.nonmembers_T > 0)
    tpr = mean_std(points.tpr_TxF[whole_T])
    return MeanRoc(points.fpr_F, tpr, points.left_out_T, int(np.sum(~whole_T)))


def mean_std(value_TxF: NDArray[np.float64]) -> MeanStd:
    """Mean and STD (ddof = 0) of each column; NaN, without a warning, if there is no row."""
    if value_TxF.shape[0] == 0:
        nan_F = np.full(value_TxF.shape[1], np.nan)
        return MeanStd(nan_F, nan_F.copy())
    return MeanStd(value_TxF.mean(axis=0), value_TxF.std(axis=0))


def roc_curve(score_N: ArrayLike, member_N: ArrayLike) -> Roc:
    """The whole ROC curve of one target; tied scores are one point, and no point is dropped.

    The rates of a class without a score are NaN. Errors as of `tpr_at_fpr`.
    """
    if np.ndim(score_N) != 1:
        raise ValueError(f"scores of shape {np.shape(score_N)}: must be one target's")
    out, ins, left_out = next(ranking.classes(score_N, member_N))
    threshold_K = np.unique(np.concatenate([out, ins])).astype(np.float64)[::-1]

    def rate(sorted_scores: ranking.Scores) -> NDArray[np.float64]:
        if sorted_scores.size == 0:
            return np.full(threshold_K.size + 1, np.nan)
        called_K = ranking.called(sorted_scores, threshold_K)
        return np.concatenate([[0.0], called_K / sorted_scores.size])

    return Roc(rate(out), rate(ins), np.concatenate([[np.inf], threshold_K]), left_out)


def auc(score_TxN: ArrayLike, member: ArrayLike) -> Auc:
    """Chance that a member scores above a non-member, ties 1/2; errors as of `tpr_at_fpr`."""
    rows = [(ranking.area(out, ins), left) for out, ins, left in ranking.classes(score_TxN, member)]
    return Auc(np.array([r[0] for r in rows]), np.array([r[1] for r in rows], dtype=np.int64))


def partial_auc(
    tpr_K: ArrayLike, fpr_K: ArrayLike, a: float, b: float, *, normalised: bool = False
) -> float:
    """Area under a ROC curve between two false positive rates, by trapezoids on its points.

    Args:
      tpr_K: true positive rates, of one target or a mean; any curve over fpr_K, so also the
        coin-flip-free one (StrongMIA Eq. 24).
      fpr_K: false positive rates, not falling. Points of one rate are a vertical step, which has
        no area: the curve leaves a by its last point there and reaches b at its first.
      a, b: ends of the band, 0 <= a < b <= 1; between points the curve is a straight line.
      normalised: divide by b - a, which gives the mean TPR over the band, in [0, 1].

    Returns:
      The area; NaN if a TPR in the band or next to it is NaN.

    Raises:
      ValueError: a band out of order, rates that fall, or a curve that does not span the band.

    Source: StrongMIA Appendix E.2.6, pAUC and pAUC_norm.
    """
    tpr, fpr = np.asarray(tpr_K, dtype=np.float64), np.asarray(fpr_K, dtype=np.float64)
    if tpr.ndim != 1 or tpr.shape != fpr.shape:
        raise ValueError(f"TPRs of shape {tpr.shape}, FPRs of {fpr.shape}: must be one curve")
    if not 0 <= a < b <= 1:
        raise ValueError(f"band [{a}, {b}]: must satisfy 0 <= a < b <= 1")
    if not np.all(np.diff(fpr) >= 0):
        raise ValueError("false positive rates of a curve must not fall, nor be NaN")
    if not (fpr.size and fpr[0] <= a and b <= fpr[-1]):
        raise ValueError(f"the curve does not span the band [{a}, {b}]")
    # Points start .. stop - 1 lie inside the band; the two just outside serve its ends.
    start, stop = int(np.searchsorted(fpr, a, "right")), int(np.searchsorted(fpr, b, "left"))

    def height(after: int, rate: float) -> float:
        share = (rate - fpr[after]) / (fpr[after + 1] - fpr[after])
        return (1 - share) * tpr[after] + share * tpr[after + 1]

    x = np.concatenate([[a], fpr[start:stop], [b]])
    y = np.concatenate([[height(start - 1, a)], tpr[start:stop], [height(stop - 1, b)]])
    return float(np.trapezoid(y, x)) / (b - a if normalised else 1.0)


def lift(
    tpr_K: ArrayLike, fpr_K: ArrayLike, a: float, b: float, *, normalised: bool = False
) -> float:
    """`partial_auc` less that of guessing, (b^2 - a^2) / 2, or (a + b) / 2 where normalised.

    0 for a coin; normalised it is the mean gap above chance in the band. Arguments and errors as of
    `partial_auc`. Source: StrongMIA Appendix E.2.6, Lift and Lift_norm.
    """
    gap = partial_auc(tpr_K, fpr_K, a, b) - (b * b - a * a) / 2
    return gap / (b - a) if normalised else gap
