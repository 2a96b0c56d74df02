"""Scores and membership of groups of samples, such as all texts of one user.

Legend: N samples, G groups in the order in which they first appear.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64, as_members, check_not_masked

GroupScore = Literal["mean", "max", "min", "logsumexp", "gmean", "abs_max"]
"""How the scores of a group become one score; see `aggregate_by_group`."""


@dataclasses.dataclass(frozen=True)
class GroupScores:
    """One score per group."""

    score_G: FloatArray
    """NaN for a group without a score."""
    group_G: np.ndarray
    """The groups, in the order in which they first appear."""
    count_G: IntArray
    """Number of scores of each group."""
    left_out: int
    """Number of samples that are left out: those whose score is NaN and, for the geometric mean, those of groups with a
    score of 0 or less."""


def aggregate_by_group(score_N: ArrayLike, group_N: ArrayLike, how: GroupScore) -> GroupScores:
    """Computes one score per group from the scores of its samples.

    Args:
      score_N: scores, larger for members; NaN is left out.
      group_N: the group of each sample: numbers or texts.
      how: "mean", "max", "min"; "logsumexp", the log of the sum of exp(score); "gmean", the geometric mean, NaN for a
        group with a score of 0 or less; or "abs_max", the score with the largest absolute value, the larger one if two
        have the same.

    Returns:
      The scores of the groups.

    Raises:
      ValueError: if the shapes do not match, if `how` is unknown, if a group is missing (NaN, None), or if the sum of
        finite scores is too large.

    Source: PrivacyGuard's aggregation of the scores of a user.

    Example:
      >>> from lm_mia.stats import aggregate_by_group
      >>> groups = aggregate_by_group([1.0, 5.0, 3.0], ["b", "a", "b"], "mean")
      >>> groups.group_G, groups.score_G
      (array(['b', 'a'], dtype='<U1'), array([2., 5.]))
    """
    if how not in get_args(GroupScore):
        raise ValueError(f"how={how!r}: must be one of {', '.join(get_args(GroupScore))}")
    score_N = as_float64(score_N, "scores")
    group_G, code_N = _groups(group_N, score_N.shape)
    present_N = ~np.isnan(score_N)
    code_S, score_S = code_N[present_N], score_N[present_N]
    count_G = np.bincount(code_S, minlength=group_G.size)
    result_G = np.full(group_G.size, np.nan)
    if score_S.size:
        # Within each group in ascending order; for abs_max by absolute value, of equal ones the larger score last.
        keys = (score_S, np.abs(score_S), code_S) if how == "abs_max" else (score_S, code_S)
        sorted_S = score_S[np.lexsort(keys)]
        scored_G = count_G > 0
        count_H = count_G[scored_G]
        last_H = np.cumsum(count_H) - 1
        result_G[scored_G] = _aggregate(sorted_S, last_H - count_H + 1, last_H, how)
    left_out = int((~present_N).sum())
    if how == "gmean":
        left_out += int(count_G[np.isnan(result_G)].sum())
    return GroupScores(result_G, group_G, count_G, left_out)


def member_by_group(member_N: ArrayLike, group_N: ArrayLike) -> BoolArray:
    """Computes which groups are members.

    Args:
      member_N: booleans, whether each sample is a member.
      group_N: the group of each sample.

    Returns:
      member_G, in the order of `aggregate_by_group`.

    Raises:
      ValueError: if a group has members and non-members, or if the shapes do not match.
    """
    member_N = as_members(member_N, "member_N")
    group_G, code_N = _groups(group_N, member_N.shape)
    member_G = np.zeros(group_G.size, dtype=np.bool_)
    member_G[code_N] = member_N
    mixed_N = member_G[code_N] != member_N
    if mixed_N.any():
        name = group_G[code_N[np.argmax(mixed_N)]]
        raise ValueError(
            f"group {name!s}: has members and non-members; all samples of a group must be in the training subset, or "
            "none"
        )
    return member_G


def _groups(group_N: ArrayLike, shape: tuple[int, ...]) -> tuple[np.ndarray, IntArray]:
    """Returns the groups in the order in which they first appear, and the number of the group of each sample."""
    check_not_masked(group_N, "group_N", "leave out their samples")
    names_N: np.ndarray[Any, Any] = np.asarray(group_N)
    if len(shape) != 1 or names_N.shape != shape:
        raise ValueError(f"groups of shape {names_N.shape} do not match samples of shape {shape}")
    if names_N.dtype.kind not in "biufUSO":
        raise ValueError(f"group_N: must be numbers or texts, not {names_N.dtype}")
    if names_N.dtype.kind == "O":
        if any(name is None or name != name for name in names_N.tolist()):
            raise ValueError("group_N: a group is missing; leave out its samples")
        if len({type(name) for name in names_N.tolist()}) > 1:
            raise ValueError("group_N: must be all numbers or all texts")
    elif names_N.dtype.kind == "f" and np.isnan(names_N).any():
        raise ValueError("group_N: a group is missing; leave out its samples")
    sorted_G, first_G, code_N = np.unique(names_N, return_index=True, return_inverse=True)
    order_G = np.argsort(first_G)
    place_G = np.empty_like(order_G)
    place_G[order_G] = np.arange(order_G.size)
    return sorted_G[order_G], place_G[code_N]


def _aggregate(
    sorted_S: FloatArray, first_H: IntArray, last_H: IntArray, how: GroupScore
) -> FloatArray:
    """Aggregates runs of sorted scores, from position `first` to `last` each."""
    count_H = last_H - first_H + 1
    if how == "min":
        return sorted_S[first_H]
    if how in ("max", "abs_max"):
        return sorted_S[last_H]
    if how == "logsumexp":
        # Relative to the largest score of the group; infinite scores need no shift.
        largest_H = sorted_S[last_H]
        shift_H = np.where(np.isfinite(largest_H), largest_H, 0.0)
        with np.errstate(over="ignore", divide="ignore"):
            ratio_S = np.exp(sorted_S - np.repeat(shift_H, count_H))
            return shift_H + np.log(np.add.reduceat(ratio_S, first_H))
    if how == "gmean":
        positive_H = sorted_S[first_H] > 0
        log_S = np.log(np.where(sorted_S > 0, sorted_S, 1.0))
        return np.where(positive_H, np.exp(np.add.reduceat(log_S, first_H) / count_H), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # the mean of +inf and -inf is NaN
        total_H = np.add.reduceat(sorted_S, first_H)
    if np.any(np.isinf(total_H) & np.isfinite(sorted_S[first_H]) & np.isfinite(sorted_S[last_H])):
        raise ValueError("scores: the sum of a group is too large; divide all scores by a number")
    return total_H / count_H
