"""Thresholds, ROC curves and what is read off them; score >= threshold calls a sample a member.

Shapes: T targets, N samples, F false positive rates, K points of a curve. A one-dimensional score
array counts as one target. ``member`` is member_N, shared by all targets, or member_TxN. A NaN
score is missing: it is left out and counted. StrongMIA Appendix A.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.binomial import check_confidence
from lm_mia.stats.binomial import clopper_pearson as clopper_pearson

_BLOCK = 2**20  # bootstrap weights held at once


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
class AucInterval:
    """Area under the ROC curve of every target with a bootstrap interval."""

    auc_T: NDArray[np.float64]
    low_T: NDArray[np.float64]
    high_T: NDArray[np.float64]
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
    return float(_thresholds(np.sort(scores_N), _rates([fpr]))[0])


def tpr_at_fpr(score_TxN: ArrayLike, member: ArrayLike, fprs: ArrayLike) -> OperatingPoints:
    """Rates of every target at thresholds calibrated on its own non-members, for each rate asked.

    Args:
      score_TxN: scores, larger for members.
      member: member_N or member_TxN, booleans.
      fprs: fpr_F, rates in [0, 1], or one rate.

    Raises:
      ValueError: shapes that do not fit, non-boolean members, or as of `threshold_at_fpr`.
    """
    fpr_F = _rates(fprs)
    targets = np.atleast_2d(np.asarray(score_TxN)).shape[0]
    threshold_TxF, tpr_TxF, realised_TxF, accuracy_TxF = np.full((4, targets, fpr_F.size), np.nan)
    members_T, nonmembers_T, left_out_T = np.zeros((3, targets), dtype=np.int64)
    for t, (out, ins, left_out) in enumerate(_classes(score_TxN, member)):
        members_T[t], nonmembers_T[t], left_out_T[t] = ins.size, out.size, left_out
        if out.size == 0:
            continue
        threshold_TxF[t] = _thresholds(out, fpr_F)
        fp_F = out.size - np.searchsorted(out, threshold_TxF[t], side="left")
        realised_TxF[t] = fp_F / out.size
        if ins.size == 0:
            continue
        tp_F = ins.size - np.searchsorted(ins, threshold_TxF[t], side="left")
        tpr_TxF[t] = tp_F / ins.size
        accuracy_TxF[t] = (tp_F + out.size - fp_F) / (ins.size + out.size)
    return OperatingPoints(
        fpr_F=fpr_F,
        threshold_TxF=threshold_TxF,
        tpr_TxF=tpr_TxF,
        realised_fpr_TxF=realised_TxF,
        accuracy_TxF=accuracy_TxF,
        members_T=members_T,
        nonmembers_T=nonmembers_T,
        left_out_T=left_out_T,
    )


def mean_roc(score_TxN: ArrayLike, member: ArrayLike, fprs: ArrayLike) -> MeanRoc:
    """Mean and STD over targets of the TPR at each FPR, conservative with ties.

    Arguments and errors as of `tpr_at_fpr`. Source: StrongMIA Figures 24 and 25.
    """
    points = tpr_at_fpr(score_TxN, member, fprs)
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
    out, ins, left_out = next(_classes(score_N, member_N))
    threshold_K = np.unique(np.concatenate([out, ins]))[::-1]

    def rate(sorted_scores: NDArray[np.float64]) -> NDArray[np.float64]:
        if sorted_scores.size == 0:
            return np.full(threshold_K.size + 1, np.nan)
        called = sorted_scores.size - np.searchsorted(sorted_scores, threshold_K, side="left")
        return np.concatenate([[0.0], called / sorted_scores.size])

    return Roc(rate(out), rate(ins), np.concatenate([[np.inf], threshold_K]), left_out)


def auc(score_TxN: ArrayLike, member: ArrayLike) -> Auc:
    """Chance that a member scores above a non-member, ties 1/2; errors as of `tpr_at_fpr`."""
    rows = [(_area(out, ins), left_out) for out, ins, left_out in _classes(score_TxN, member)]
    return Auc(np.array([r[0] for r in rows]), np.array([r[1] for r in rows], dtype=np.int64))


def auc_interval(
    score_TxN: ArrayLike,
    member: ArrayLike,
    *,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> AucInterval:
    """Percentile bootstrap of the area: samples are redrawn within each class, the target stays.

    It covers the choice of samples, not the training of the target or its references. Every target
    sees the same draws for a seed, so its interval does not depend on the other targets given.

    Args:
      score_TxN, member: as of `tpr_at_fpr`.
      confidence: share of the replicates inside, in (0, 1).
      replicates: number of draws, 1 or more; seed: of the draws.

    Raises:
      ValueError: confidence or replicates out of range, or as of `tpr_at_fpr`.
    """
    check_confidence(confidence)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: must be 1 or more")
    tail = (1 - confidence) / 2
    rows: list[tuple[float, float, float, int]] = []
    for out, ins, left_out in _classes(score_TxN, member):
        low, high = np.nan, np.nan
        if out.size and ins.size:
            drawn = _bootstrap_areas(out, ins, replicates, np.random.default_rng(seed))
            low, high = np.quantile(drawn, [tail, 1 - tail])
        rows.append((_area(out, ins), float(low), float(high), left_out))
    auc_T, low_T, high_T = np.array([r[:3] for r in rows]).reshape(len(rows), 3).T
    return AucInterval(auc_T, low_T, high_T, np.array([r[3] for r in rows], dtype=np.int64))


def _classes(
    score_TxN: ArrayLike, member: ArrayLike
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64], int]]:
    """(sorted non-member scores, sorted member scores, NaN left out) of every target."""
    score_TxN, member_ = np.atleast_2d(np.asarray(score_TxN)), np.asarray(member)
    if score_TxN.ndim != 2 or member_.shape not in (score_TxN.shape, score_TxN.shape[1:]):
        raise ValueError(f"scores of shape {score_TxN.shape}, members of {member_.shape}")
    if member_.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_.dtype}")
    for row_N, in_N in zip(score_TxN, np.broadcast_to(member_, score_TxN.shape), strict=True):
        scores_N = row_N.astype(np.float64)
        there_N = ~np.isnan(scores_N)
        out, ins = np.sort(scores_N[there_N & ~in_N]), np.sort(scores_N[there_N & in_N])
        yield out, ins, scores_N.size - out.size - ins.size


def _thresholds(sorted_N: NDArray[np.float64], fpr_F: NDArray[np.float64]) -> NDArray[np.float64]:
    n = sorted_N.size
    if n == 0:
        return np.full(fpr_F.size, np.nan)
    # The largest j with j/n <= fpr; floor(fpr n) alone is one off where the product rounds.
    allowed_F = np.floor(fpr_F * n)
    allowed_F += (allowed_F + 1) / n <= fpr_F
    allowed_F -= allowed_F / n > fpr_F
    k_F = n - allowed_F.astype(np.int64)
    kth_F = sorted_N[np.maximum(k_F, 1) - 1]
    if np.any((kth_F == np.inf) & (k_F > 0)):
        raise ValueError(
            "too many non-member scores of +inf: no threshold reaches the false positive rate"
        )
    padded = np.append(sorted_N, np.inf)
    return np.where(k_F == 0, -np.inf, padded[np.searchsorted(sorted_N, kth_F, side="right")])


def _area(out: NDArray[np.float64], ins: NDArray[np.float64]) -> float:
    if not (out.size and ins.size):
        return float("nan")
    # Twice the Mann-Whitney count is a whole number, so the area is exact up to the last division.
    twice = np.searchsorted(out, ins, side="left").sum() + np.searchsorted(out, ins, "right").sum()
    return float(twice / (2 * out.size * ins.size))


def _bootstrap_areas(
    out: NDArray[np.float64], ins: NDArray[np.float64], replicates: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Areas of redrawn samples. A draw is a count for every sample, so one sorting serves all."""
    below, not_above = np.searchsorted(out, ins, "left"), np.searchsorted(out, ins, "right")
    areas: list[NDArray[np.float64]] = []
    block = max(1, _BLOCK // (out.size + ins.size))
    for start in range(0, replicates, block):
        size = min(block, replicates - start)
        up_to = np.zeros((size, out.size + 1), dtype=np.int64)
        np.cumsum(_draws(out.size, size, rng), axis=1, out=up_to[:, 1:])
        twice = up_to[:, below] + up_to[:, not_above]
        total = np.sum(_draws(ins.size, size, rng) * twice, axis=1)
        areas.append(total / (2 * out.size * ins.size))
    return np.concatenate(areas)


def _draws(n: int, replicates: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each of n samples is drawn in n draws with replacement, once a replicate."""
    drawn = rng.integers(n, size=(replicates, n)) + n * np.arange(replicates)[:, None]
    return np.bincount(drawn.ravel(), minlength=replicates * n).reshape(replicates, n)


def _rates(fprs: ArrayLike) -> NDArray[np.float64]:
    fpr_F = np.atleast_1d(np.asarray(fprs, dtype=np.float64))
    if fpr_F.ndim != 1 or not np.all((fpr_F >= 0) & (fpr_F <= 1)):
        raise ValueError("false positive rates must lie in [0, 1]")
    return fpr_F
