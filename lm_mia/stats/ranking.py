"""Sorted scores of members and non-members, exact thresholds and the exact AUC, for all ranking metrics.

Legend: T targets, N samples, F false positive rates. float16 and float32 scores keep their type, because comparisons
need no more precision; all other types are converted to float64. All slow calls release the GIL, so targets can be
ranked in threads. StrongMIA, Appendix A.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64, as_members, as_real

_STEP = 2**16
"""Number of members that `auc_from_sorted` merges at once: with their non-members they fit the cache of a core."""

Scores = NDArray[np.float16] | NDArray[np.float32] | NDArray[np.float64]


def sorted_classes(score_TxN: ArrayLike, member: ArrayLike) -> Iterator[tuple[Scores, Scores, int]]:
    """Sorts the scores of each target, separately for non-members and members.

    Args:
      score_TxN: scores, larger for members; NaN marks a missing score. A one-dimensional array is treated as one
        target.
      member: booleans, member_N or member_TxN.

    Yields:
      ``(nonmembers, members, left_out)`` of each target: the sorted scores of non-members and of members, and the
      number of NaN scores.

    Raises:
      ValueError: if the shapes do not match or member is not boolean.
    """
    score_TxN, member = np.atleast_2d(as_real(score_TxN, "scores")), as_members(member)
    if score_TxN.ndim != 2 or member.shape not in (score_TxN.shape, score_TxN.shape[1:]):
        raise ValueError(
            f"scores of shape {score_TxN.shape} do not match members of shape {member.shape}"
        )
    member_TxN = np.broadcast_to(member, score_TxN.shape)
    for score_N, member_N in zip(score_TxN, member_TxN, strict=True):
        # np.compress is ten times as fast as boolean indexing.
        nonmembers, members = (
            sort_scores(np.compress(class_N, score_N)) for class_N in (~member_N, member_N)
        )
        yield nonmembers, members, score_N.size - nonmembers.size - members.size


def as_fprs(fprs: ArrayLike) -> FloatArray:
    """Converts one or more false positive rates to fpr_F.

    Raises:
      ValueError: if a rate is outside [0, 1] or NaN.
    """
    fpr_F = np.atleast_1d(as_float64(fprs, "false positive rates"))
    if fpr_F.ndim != 1 or not np.all((fpr_F >= 0) & (fpr_F <= 1)):
        raise ValueError("false positive rates must be one number or a list of numbers in [0, 1]")
    return fpr_F


def min_true_negatives(n: int | IntArray, fpr_F: FloatArray) -> IntArray:
    """Computes k_F = ceil((1 - fpr) n), the smallest number of true negatives among n non-members.

    With an array n_Rx1 the result is k_RxF.

    The number of allowed false positives is the largest j with j / n <= fpr in floating-point arithmetic. floor(fpr n)
    differs from it by one where the product is rounded.
    """
    allowed_F = np.floor(fpr_F * n)
    allowed_F += (allowed_F + 1) / n <= fpr_F
    allowed_F -= allowed_F / n > fpr_F
    return n - allowed_F.astype(np.int64)


def too_low(n: int | IntArray, fpr_F: FloatArray) -> BoolArray:
    """Returns whether each rate, above 0, allows no false positive among n non-members (`nonmembers_needed`).

    With an array n_Tx1 the result is TxF.
    """
    return (fpr_F > 0) & (fpr_F < 1 / np.maximum(n, 1))


def nonmembers_needed(fpr: float) -> int:
    """Returns how many non-members a false positive rate needs: the smallest n for which one of n is allowed.

    With fewer, no score is a threshold, and there is no true positive rate.

    Args:
      fpr: false positive rate in (0, 1].

    Returns:
      The smallest n with 1 / n <= fpr in floating-point arithmetic.

    Raises:
      ValueError: if fpr is outside (0, 1]; no number of non-members shows a rate of 0.

    Example:
      >>> from lm_mia.stats import nonmembers_needed
      >>> nonmembers_needed(0.001), nonmembers_needed(0.3)
      (1000, 4)
    """
    if not 0 < fpr <= 1:
        raise ValueError(f"fpr={fpr}: must be above 0 and at most 1")
    inverse = 1 / fpr  # rounded, and so possibly to the next larger or smaller whole number
    if math.isinf(inverse):
        raise ValueError(
            f"fpr={fpr}: no number of non-members shows so low a rate; use a higher one"
        )
    n = math.ceil(inverse)
    return n - 1 if n > 1 and 1 / (n - 1) <= fpr else n if 1 / n <= fpr else n + 1


def thresholds_at_fprs(
    sorted_N: Scores, fpr_F: FloatArray, is_vertex_F: bool | BoolArray = False
) -> FloatArray:
    """Computes the thresholds of `threshold_at_fpr` from sorted non-member scores.

    Args:
      sorted_N: sorted scores.
      fpr_F: false positive rates.
      is_vertex_F: whether the threshold is at the last vertex of the ROC curve instead of the paper's.

    Returns:
      threshold_F; NaN without a score.

    Raises:
      ValueError: if so many scores are +inf that no threshold reaches a rate.
    """
    return thresholds_of_targets(sorted_N[None], fpr_F, is_vertex_F)[0]


def thresholds_of_targets(
    sorted_TxN: Scores, fpr_F: FloatArray, is_vertex_F: bool | BoolArray = False
) -> FloatArray:
    """Computes threshold_TxF of targets with equally many non-members; see `thresholds_at_fprs`."""
    targets, n = sorted_TxN.shape
    if n == 0:
        return np.full((targets, fpr_F.size), np.nan)
    k_F = min_true_negatives(n, fpr_F)
    kth_TxF = sorted_TxN.take(np.maximum(k_F, 1) - 1, axis=1)
    next_TxF = np.empty(kth_TxF.shape)
    for sorted_N, kth_F, next_F in zip(sorted_TxN, kth_TxF, next_TxF, strict=True):
        position_F = np.searchsorted(sorted_N, kth_F, side="right")
        next_F[:] = np.where(position_F < n, sorted_N.take(position_F, mode="clip"), np.inf)
    if np.any(is_vertex_F):
        next_TxF = np.where(is_vertex_F, next_larger(kth_TxF), next_TxF)
    return threshold_above(np.broadcast_to(k_F, kth_TxF.shape), kth_TxF, next_TxF)


def threshold_above(k: IntArray, kth: np.ndarray, following: np.ndarray) -> FloatArray:
    """Returns the threshold at which the k non-members with the lowest scores are true negatives.

    Args:
      k: the result of `min_true_negatives`.
      kth: the k-th smallest score of non-members; any number if k = 0.
      following: by the paper's rule, the smallest of their scores above it; +inf if there is none.

    Returns:
      following, or -inf if k = 0.

    Raises:
      ValueError: if a k-th smallest score is +inf, which no threshold exceeds.
    """
    check_finite_thresholds(kth[k > 0])
    return np.where(k == 0, -np.inf, following)


def check_finite_thresholds(kth: np.ndarray) -> None:
    """Raises ValueError if a score that a threshold must exceed is +inf."""
    if np.any(kth == np.inf):
        raise ValueError(
            "too many non-member scores of +inf: no threshold reaches the false positive rate"
        )


def next_larger(score: np.ndarray) -> FloatArray:
    """Returns the smallest number of the type of the scores above each score, as float64."""
    with np.errstate(over="ignore"):  # above the largest finite number is inf
        # In the type of the scores: compared with a float32 score, the next float64 would be rounded to the score.
        # Above 0 it is subnormal. numpy compares such numbers exactly, also after XLA, which flushes them to 0, has run
        # in the process. The smallest normal number would miss scores such as posteriors of 1e-310.
        return np.nextafter(score, score.dtype.type(np.inf)).astype(np.float64)


def count_at_or_above(sorted_N: Scores, threshold_F: FloatArray) -> IntArray:
    """Counts the scores at or above each threshold; thresholds must be representable in the type of the scores."""
    # With thresholds of another type, searchsorted would convert all scores.
    return sorted_N.size - np.searchsorted(sorted_N, threshold_F.astype(sorted_N.dtype))


def auc_from_sorted(nonmembers: Scores, members: Scores) -> float:
    """Computes the probability that a member scores above a non-member, with ties counted as 1/2.

    Twice the Mann-Whitney count is an integer, so only the final division is rounded. Time is linear in the number of
    samples: the classes are merged in pieces, with constant memory.

    Args:
      nonmembers: sorted scores.
      members: sorted scores of the same type.

    Returns:
      The AUC; NaN if there are no members or no non-members.
    """
    if not (nonmembers.size and members.size):
        return float("nan")
    twice = 0
    for start in range(0, members.size, _STEP):
        piece = members[start : start + _STEP]
        low = int(np.searchsorted(nonmembers, piece[0], side="left"))
        high = int(np.searchsorted(nonmembers, piece[-1], side="right"))
        twice += 2 * low * piece.size + _twice_mann_whitney(nonmembers[low:high], piece)
    return twice / (2 * nonmembers.size * members.size)


def sort_scores(score_N: np.ndarray) -> Scores:
    """Sorts scores, which `as_real` converted, in place, and returns them without NaN."""
    score_N.sort()
    # NaN is sorted to the end.
    return score_N[: np.searchsorted(score_N, score_N.dtype.type(np.nan))]


def _twice_mann_whitney(nonmembers: Scores, members: Scores) -> int:
    """Counts each pair in which the member has the higher score twice, and each tied pair once."""
    if nonmembers.size == 0:
        return 0
    if (
        nonmembers.size > 4 * members.size
    ):  # few members or many ties: searching is faster than merging
        left = np.searchsorted(nonmembers, members, "left")
        right = np.searchsorted(nonmembers, members, "right")
        return int(left.sum() + right.sum())
    # A stable sort of two sorted runs is a merge, in which non-members come before equal members.
    order = np.argsort(np.concatenate([nonmembers, members]), kind="stable")
    not_above = np.flatnonzero(order >= nonmembers.size) - np.arange(members.size)
    # For a member below all non-members, index -1 is the largest non-member, which does not equal it either.
    tied = np.flatnonzero(nonmembers[not_above - 1] == members)
    ties = not_above[tied].sum() - np.searchsorted(nonmembers, members[tied], "left").sum()
    return int(2 * not_above.sum() - ties)
