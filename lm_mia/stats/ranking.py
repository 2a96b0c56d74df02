"""Sorted classes of a target, exact thresholds and the exact area: what every ranking metric needs.

Shapes: T targets, N samples, F false positive rates. Scores of float32 stay so, as comparing them
needs no more; every other type becomes float64. All calls that take time release the GIL, so
targets can be ranked in threads. StrongMIA Appendix A.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = 2**16
"""Members merged at once by `area`: with their non-members they fit a core's cache."""

Scores = NDArray[np.float32] | NDArray[np.float64]


def classes(score_TxN: ArrayLike, member: ArrayLike) -> Iterator[tuple[Scores, Scores, int]]:
    """Sort the scores of every target, class by class.

    Args:
      score_TxN: scores, larger for members; one dimension is one target. NaN is missing.
      member: member_N or member_TxN, booleans.

    Yields:
      ``(out, ins, left_out)``: sorted non-member scores, sorted member scores, number of NaN.

    Raises:
      ValueError: shapes that do not fit, or members that are not booleans.
    """
    score_TxN, member_ = np.atleast_2d(np.asarray(score_TxN)), np.asarray(member)
    if score_TxN.ndim != 2 or member_.shape not in (score_TxN.shape, score_TxN.shape[1:]):
        raise ValueError(f"scores of shape {score_TxN.shape}, members of {member_.shape}")
    if member_.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_.dtype}")
    for row_N, in_N in zip(score_TxN, np.broadcast_to(member_, score_TxN.shape), strict=True):
        out, ins = _sorted(row_N, ~in_N), _sorted(row_N, in_N)
        yield out, ins, row_N.size - out.size - ins.size


def rates(fprs: ArrayLike) -> NDArray[np.float64]:
    """False positive rates, or one, as fpr_F; ValueError if one is outside [0, 1] or NaN."""
    fpr_F = np.atleast_1d(np.asarray(fprs, dtype=np.float64))
    if fpr_F.ndim != 1 or not np.all((fpr_F >= 0) & (fpr_F <= 1)):
        raise ValueError("false positive rates must lie in [0, 1]")
    return fpr_F


def ranks(n: int, fpr_F: NDArray[np.float64]) -> NDArray[np.int64]:
    """k_F = ceil((1 - fpr) n): how many of n non-members must not be called, from 0 to n.

    What may be called is the largest j with j/n <= fpr as floating-point numbers; floor(fpr n)
    alone is one off where the product rounds.
    """
    allowed_F = np.floor(fpr_F * n)
    allowed_F += (allowed_F + 1) / n <= fpr_F
    allowed_F -= allowed_F / n > fpr_F
    return n - allowed_F.astype(np.int64)


def thresholds(sorted_N: Scores, fpr_F: NDArray[np.float64]) -> NDArray[np.float64]:
    """threshold_F as of `lm_mia.stats.roc.threshold_at_fpr`, from sorted non-member scores.

    NaN without a score. Raises ValueError if scores of +inf let no threshold reach a rate.
    """
    n = sorted_N.size
    if n == 0:
        return np.full(fpr_F.size, np.nan)
    k_F = ranks(n, fpr_F)
    kth_F = sorted_N[np.maximum(k_F, 1) - 1]
    if np.any((kth_F == np.inf) & (k_F > 0)):
        raise ValueError(
            "too many non-member scores of +inf: no threshold reaches the false positive rate"
        )
    next_F = np.searchsorted(sorted_N, kth_F, side="right")
    threshold_F = np.where(next_F < n, sorted_N[np.minimum(next_F, n - 1)], np.inf)
    return np.where(k_F == 0, -np.inf, threshold_F.astype(np.float64))


def called(sorted_N: Scores, threshold_F: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores are at or above each threshold, which must be a number of their type."""
    # Of another type than the scores, the thresholds would make searchsorted convert all scores.
    return sorted_N.size - np.searchsorted(sorted_N, threshold_F.astype(sorted_N.dtype))


def area(out: Scores, ins: Scores) -> float:
    """Chance that a member scores above a non-member, ties 1/2; NaN if a class has no score.

    Args:
      out, ins: sorted scores of non-members and members, of one type.

    Twice the Mann-Whitney count is a whole number, so only the last division rounds. Time is linear
    in the samples: classes are merged piece by piece, in memory that does not grow with them.
    """
    if not (out.size and ins.size):
        return float("nan")
    twice = 0
    for start in range(0, ins.size, _STEP):
        part = ins[start : start + _STEP]
        low = int(np.searchsorted(out, part[0], side="left"))
        high = int(np.searchsorted(out, part[-1], side="right"))
        twice += 2 * low * part.size + _twice(out[low:high], part)
    return twice / (2 * out.size * ins.size)


def _sorted(score_N: NDArray, chosen_N: NDArray[np.bool_]) -> Scores:
    """The chosen scores, sorted, without NaN."""
    chosen = np.compress(chosen_N, score_N)  # ten times as fast as indexing with the booleans
    if chosen.dtype != np.float32:
        chosen = chosen.astype(np.float64, copy=False)
    chosen.sort()
    # NaN sorts to the end.
    return chosen[: np.searchsorted(chosen, chosen.dtype.type(np.nan))]


def _twice(out: Scores, ins: Scores) -> int:
    """Pairs with the member above, counted twice, and tied pairs, counted once."""
    if out.size == 0:
        return 0
    if out.size > 4 * ins.size:  # few members, or many ties: a merge would walk through all of out
        left, right = np.searchsorted(out, ins, "left"), np.searchsorted(out, ins, "right")
        return int(left.sum() + right.sum())
    # A stable sort of two sorted runs is one merge, and equal non-members come before members.
    order = np.argsort(np.concatenate([out, ins]), kind="stable")
    not_above = np.flatnonzero(order >= out.size) - np.arange(ins.size)
    # Below all of out, not_above - 1 is the last of out: not equal either.
    tied = np.flatnonzero(out[not_above - 1] == ins)
    ties = not_above[tied].sum() - np.searchsorted(out, ins[tied], "left").sum()
    return int(2 * not_above.sum() - ties)
