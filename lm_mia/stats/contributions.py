"""True positives by the flip bin of the member: how many rest on decisions that retraining would flip.

Legend: T targets, R replicas (the targets that have thresholds), N samples, C samples that are members, F false
positive rates, K points of a curve, 5 flip bins, V numbers of votes, W words of 64 bits, P bits (C padded to a multiple
of 64).

Flip bins are computed once from all replicas, so only the true positives vary between targets. StrongMIA, Appendix
E.2.6.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.coin_flip import as_num_replicas, as_vote_counts
from lm_mia.stats.flips import (
    COIN_FLIP_BIN,
    FLIP_BIN_NAMES,
    VERY_UNSTABLE_BIN,
    flip_bins,
    targets_with_thresholds,
)
from lm_mia.stats.inputs import as_counts, as_float64, as_members, as_real
from lm_mia.stats.roc import MeanStd, mean_std_over_targets

_WORD_BITS = 64


@dataclasses.dataclass(frozen=True)
class BinContribution:
    """True positives of one or more flip bins."""

    tp: MeanStd
    """Number of true positives."""
    share: MeanStd
    """Share of each target's true positives, in [0, 1]: a mean of ratios. NaN if no target has a true positive."""
    ratio_of_means_F: FloatArray
    """Mean number of these true positives divided by the mean number of all; NaN if no target has a true positive."""


@dataclasses.dataclass(frozen=True)
class TprContributions:
    """True positives at each rate, and how many of them are in unstable flip bins (StrongMIA, Tables 5 and 6)."""

    tp: MeanStd
    """Number of true positives."""
    tpr: MeanStd
    """True positives divided by ``members_F``."""
    very_unstable: BinContribution
    coin_flip: BinContribution
    union: BinContribution
    """Both bins together. Computed from each target's sum, so its STD is not the sum of their STDs."""
    members_F: IntArray
    """Number of members that have votes."""
    replicas: int
    """Number of targets that were averaged, R."""


@dataclasses.dataclass(frozen=True)
class MemberVoteCounts:
    """Votes for members at K rates, summed over members. Counts of blocks of samples can be added."""

    true_positives_K: IntArray
    """Number of true positives, summed over replicas."""
    coin_flip_true_positives_K: IntArray
    """The same, for members in the coin-flip bin only."""
    unstable_true_positives_K: IntArray
    """The same, for members in the very unstable and in the coin-flip bin."""
    members_K: IntArray
    """Number of members that have votes."""

    def __add__(self, other: MemberVoteCounts) -> MemberVoteCounts:
        """Adds the counts of another block of samples.

        Raises:
          ValueError: if the numbers of false positive rates differ.
        """
        if self.members_K.shape != other.members_K.shape:
            raise ValueError("counts can only be added at the same false positive rates")
        return MemberVoteCounts(
            self.true_positives_K + other.true_positives_K,
            self.coin_flip_true_positives_K + other.coin_flip_true_positives_K,
            self.unstable_true_positives_K + other.unstable_true_positives_K,
            self.members_K + other.members_K,
        )


def count_true_positives(
    score_TxN: ArrayLike, threshold_TxF: ArrayLike, bin_FxN: ArrayLike, member_N: ArrayLike
) -> IntArray:
    """Counts the true positives of each replica at each rate, by the flip bin of the member.

    Targets with NaN thresholds (lost runs) are not replicas and are left out. The results for blocks of samples add up
    to the result for all samples.

    Args:
      score_TxN: membership scores.
      threshold_TxF: thresholds of each target.
      bin_FxN: flip bins from `flip_bins`, for the votes at these scores and thresholds. NaN marks a sample without
        votes, which is not counted.
      member_N: booleans, whether each sample is a member.

    Returns:
      tp_RxFx5, exact counts.

    Raises:
      ValueError: if the shapes do not match, if a target has thresholds at some rates only, if member_N is not boolean,
        or if a bin is not 0 to 4 or NaN.
    """
    score_TxN, threshold_TxF = as_real(score_TxN, "scores"), as_float64(threshold_TxF, "thresholds")
    bin_FxN, member_N = as_float64(bin_FxN, "flip bins"), as_members(member_N)
    replica_R = targets_with_thresholds(score_TxN, threshold_TxF)
    rates = threshold_TxF.shape[1]
    if bin_FxN.shape != (rates, score_TxN.shape[1]):
        raise ValueError(
            f"flip bins of shape {bin_FxN.shape} do not match {rates} thresholds and scores of "
            f"shape {score_TxN.shape}"
        )
    member_C = np.flatnonzero(_check_shape(member_N, bin_FxN.shape[1:]))
    bin_FxC = bin_FxN[:, member_C]

    # Decisions and bins are packed into bits, so that one instruction intersects and one counts 64 samples.
    padded = -(-member_C.size // _WORD_BITS) * _WORD_BITS
    in_bin_Fx5xP = np.zeros((rates, len(FLIP_BIN_NAMES), padded), dtype=np.bool_)
    in_bin_Fx5xP[..., : member_C.size] = bin_FxC[:, None] == np.arange(len(FLIP_BIN_NAMES))[:, None]
    if in_bin_Fx5xP.sum() != np.count_nonzero(~np.isnan(bin_FxC)):
        raise ValueError(f"flip bins must be 0 to {COIN_FLIP_BIN}, or NaN")
    bin_Fx5xW = _pack_words(in_bin_Fx5xP)
    decision_FxP = np.zeros((rates, padded), dtype=np.bool_)
    tp_RxFx5 = np.empty((replica_R.size, rates, len(FLIP_BIN_NAMES)), dtype=np.int64)
    for r, t in enumerate(replica_R):
        score_C = score_TxN[t].take(member_C).astype(np.float64, copy=False)
        threshold_Fx1 = threshold_TxF[t][:, None]
        np.greater_equal(score_C, threshold_Fx1, out=decision_FxP[:, : member_C.size])
        tp_Fx5xW = np.bitwise_count(_pack_words(decision_FxP)[:, None] & bin_Fx5xW)
        tp_RxFx5[r] = tp_Fx5xW.sum(axis=-1, dtype=np.int64)
    return tp_RxFx5


def tpr_contributions(tp_RxFx5: ArrayLike, members_F: ArrayLike) -> TprContributions:
    """Computes the mean and STD over replicas of the true positives and of the shares of unstable flip bins.

    A replica without true positives has shares of 0. If no replica has a true positive, so that the mean TPR is 0, the
    shares are NaN. Without members the TPRs are NaN, and without replicas everything is.

    Args:
      tp_RxFx5: result of `count_true_positives`, summed over all samples.
      members_F: number of members that have votes, at each rate.

    Returns:
      Means and STDs (ddof=0) of counts, rates and shares in [0, 1].

    Raises:
      ValueError: if the shapes do not match or there are more true positives than members.

    Source: StrongMIA, Tables 5 and 6; Appendix E.2.6, mean of ratios and ratio of means.
    """
    tp_RxFx5 = as_counts(tp_RxFx5, "true positives")
    members_F = as_counts(members_F, "numbers of members")
    if tp_RxFx5.ndim != 3 or tp_RxFx5.shape[1:] != (members_F.size, len(FLIP_BIN_NAMES)):
        raise ValueError(
            f"true positives of shape {tp_RxFx5.shape} do not match members of shape "
            f"{members_F.shape}"
        )
    tp_RxF = tp_RxFx5.sum(axis=2)
    if np.any((tp_RxF > members_F) | (tp_RxFx5 < 0).any(axis=2)):
        raise ValueError("true positives must be between 0 and the number of members")

    def contribution(*bins: int) -> BinContribution:
        tp_of_bins_RxF = tp_RxFx5[:, :, bins].sum(axis=2)
        share_RxF = np.divide(tp_of_bins_RxF, tp_RxF, out=np.zeros(tp_RxF.shape), where=tp_RxF > 0)
        share_RxF[:, ~tp_RxF.any(axis=0)] = np.nan
        total_F = tp_RxF.sum(axis=0)
        return BinContribution(
            mean_std_over_targets(tp_of_bins_RxF.astype(np.float64)),
            mean_std_over_targets(share_RxF),
            np.divide(
                tp_of_bins_RxF.sum(axis=0),
                total_F,
                out=np.full(total_F.shape, np.nan),
                where=total_F > 0,
            ),
        )

    nan_RxF = np.full(tp_RxF.shape, np.nan)
    tpr_RxF = np.divide(tp_RxF, members_F, out=nan_RxF, where=members_F > 0)
    return TprContributions(
        tp=mean_std_over_targets(tp_RxF.astype(np.float64)),
        tpr=mean_std_over_targets(tpr_RxF),
        very_unstable=contribution(VERY_UNSTABLE_BIN),
        coin_flip=contribution(COIN_FLIP_BIN),
        union=contribution(VERY_UNSTABLE_BIN, COIN_FLIP_BIN),
        members_F=members_F,
        replicas=len(tp_RxFx5),
    )


def count_member_votes(
    votes_KxN: ArrayLike, member_N: ArrayLike, replicas: int, alpha: float = 0.05
) -> MemberVoteCounts:
    """Counts the votes for members at each rate: in total, in the coin-flip bin, and in the two least stable bins.

    Args:
      votes_KxN: votes from `count_votes`; NaN marks a sample without votes.
      member_N: booleans, whether each sample is a member.
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the coin-flip test.

    Returns:
      Counts, which `coin_flip_free_roc` turns into curves.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, or as for `flip_rate` and `coin_flip_cutoff`.
    """
    votes_KxN, member_N = as_float64(votes_KxN, "votes"), as_members(member_N)
    if votes_KxN.ndim != 2:
        raise ValueError(
            f"votes of shape {votes_KxN.shape}: must be two-dimensional, rates x samples"
        )
    member_C = np.flatnonzero(_check_shape(member_N, votes_KxN.shape[1:]))
    replicas = as_num_replicas(replicas)
    bin_V = flip_bins(np.arange(replicas + 1), replicas, alpha)
    count_4xK = np.empty((4, len(votes_KxN)), dtype=np.int64)
    for k, votes_N in enumerate(votes_KxN):
        votes_C, missing_C = as_vote_counts(votes_N.take(member_C), replicas)
        members_by_votes = np.bincount(votes_C, minlength=replicas + 1)
        members_by_votes[0] -= np.count_nonzero(missing_C)  # as_vote_counts sets missing votes to 0
        tp_by_votes = members_by_votes * np.arange(replicas + 1)
        count_4xK[:, k] = (
            tp_by_votes.sum(),
            tp_by_votes[bin_V == COIN_FLIP_BIN].sum(),
            tp_by_votes[bin_V >= VERY_UNSTABLE_BIN].sum(),
            members_by_votes.sum(),
        )
    return MemberVoteCounts(*count_4xK)


def coin_flip_free_roc(
    counts: MemberVoteCounts, replicas: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Computes the mean TPR over replicas, with and without the true positives of unstable decisions.

    The second and third curves are diagnostics, not ROC curves of a threshold rule: the removed members differ between
    rates, so they may fall where the first curve rises.

    Args:
      counts: result of `count_member_votes`, summed over all samples.
      replicas: number of votes per sample, B, as passed to `count_member_votes`.

    Returns:
      ``(tpr_K, coin_flip_free_tpr_K, unstable_free_tpr_K)``: all true positives, without those of coin flips, and
      without those of very unstable decisions and coin flips. NaN at a rate without members. The last two are clipped
      at 0 as in the paper, although the counts are exact.

    Raises:
      ValueError: if replicas is below 1.

    Source: StrongMIA, Eq. 24 and Figure 30; the third curve is described at the end of Appendix E.2.6.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: must be at least 1")
    decisions_K = counts.members_K * replicas

    def rate(true_positives_K: IntArray) -> FloatArray:
        nan_K = np.full(decisions_K.shape, np.nan)
        return np.divide(true_positives_K, decisions_K, out=nan_K, where=decisions_K > 0)

    def rate_without(removed_K: IntArray) -> FloatArray:
        return rate(np.maximum(counts.true_positives_K - removed_K, 0))

    return (
        rate(counts.true_positives_K),
        rate_without(counts.coin_flip_true_positives_K),
        rate_without(counts.unstable_true_positives_K),
    )


def _check_shape(member_N: BoolArray, shape_N: tuple[int, ...]) -> BoolArray:
    if member_N.shape != shape_N:
        raise ValueError(f"members of shape {member_N.shape}: must have the shape {shape_N}")
    return member_N


def _pack_words(bit_P: BoolArray) -> np.ndarray:
    """Packs booleans, whose last axis is a multiple of 64, into the bits of uint64 words."""
    return np.packbits(bit_P, axis=-1).view(np.uint64)
