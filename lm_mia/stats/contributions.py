"""What true positives are made of: how many rest on decisions that retraining would flip.

Shapes: T targets, of which R have thresholds (the replicas of `lm_mia.stats.flips`), N samples, F
false positive rates, K points of a curve, 5 flip bins. Bins are made once from all replicas, so
only true positives vary from target to target. StrongMIA Appendix E.2.6.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.coin_flip import coin_flip_cutoff, whole_replicas, whole_votes
from lm_mia.stats.flips import BIN_NAMES, COIN_FLIP, VERY_UNSTABLE, live_targets
from lm_mia.stats.roc import MeanStd, mean_std

_WORD = 64  # bits


@dataclasses.dataclass(frozen=True)
class Part:
    """True positives of some flip bins."""

    tp: MeanStd
    share: MeanStd
    """Of the target's true positives, in [0, 1]: means of ratios, not ratios of means. NaN where no
    target has a true positive."""


@dataclasses.dataclass(frozen=True)
class Contributions:
    """True positives at each rate and what flips among them (StrongMIA Tables 5 and 6)."""

    tp: MeanStd
    tpr: MeanStd
    very_unstable: Part
    coin_flip: Part
    union: Part
    """Of the two bins, made from each target's sum: its STD is not the sum of theirs."""
    members_F: NDArray[np.int64]
    """M: members with votes, the denominator of every TPR here."""
    replicas: int
    """R: targets averaged over."""


@dataclasses.dataclass(frozen=True)
class VoteCounts:
    """Votes for members at K rates, summed over members; counts of blocks of samples add."""

    positive_K: NDArray[np.int64]
    """True positives, summed over replicas."""
    coin_positive_K: NDArray[np.int64]
    """Those of members in the coin-flip bin."""
    members_K: NDArray[np.int64]
    """Members with votes."""

    def __add__(self, other: "VoteCounts") -> "VoteCounts":
        """Counts of both blocks; ValueError if they are of different rates."""
        if self.members_K.shape != other.members_K.shape:
            raise ValueError("only counts at the same false positive rates add")
        return VoteCounts(
            self.positive_K + other.positive_K,
            self.coin_positive_K + other.coin_positive_K,
            self.members_K + other.members_K,
        )


def true_positives(
    score_TxN: ArrayLike, threshold_TxF: ArrayLike, bin_FxN: ArrayLike, member_N: ArrayLike
) -> NDArray[np.int64]:
    """Members that each replica finds at each rate, by the flip bin of the member.

    Targets with NaN thresholds (lost runs) are no replicas and have no row, for their 0 would count
    in the means. What comes back for blocks of samples adds up to the whole.

    Args:
      score_TxN: scores.
      threshold_TxF: thresholds of each target.
      bin_FxN: of `lm_mia.stats.flips.flip_bins`, at the votes of these scores and thresholds; NaN
        where a sample has no votes: it is left out.
      member_N: booleans.

    Returns:
      tp_RxFx5, exact.

    Raises:
      ValueError: as of `live_targets`; shapes that do not fit, non-boolean members, or bins other
        than 0 to 4 and NaN.
    """
    score_TxN, threshold_TxF = np.asarray(score_TxN), np.asarray(threshold_TxF, dtype=np.float64)
    bin_FxN, member_N = np.asarray(bin_FxN, dtype=np.float64), np.asarray(member_N)
    live_R = live_targets(score_TxN, threshold_TxF)
    rates = threshold_TxF.shape[1]
    if bin_FxN.shape != (rates, score_TxN.shape[1]):
        raise ValueError(f"{rates} thresholds, scores of shape {score_TxN.shape}, bins of another")
    member_C = np.flatnonzero(_checked(member_N, bin_FxN.shape[1:]))
    bin_FxC = bin_FxN[:, member_C]

    # Decisions and bins as bits: 64 samples are intersected and counted by one instruction each.
    padded = -(-member_C.size // _WORD) * _WORD
    in_bin_Fx5xP = np.zeros((rates, len(BIN_NAMES), padded), dtype=np.bool_)
    in_bin_Fx5xP[..., : member_C.size] = bin_FxC[:, None] == np.arange(len(BIN_NAMES))[:, None]
    if in_bin_Fx5xP.sum() != np.count_nonzero(~np.isnan(bin_FxC)):
        raise ValueError(f"flip bins must be 0 to {COIN_FLIP}, or NaN")
    bin_Fx5xW = _words(in_bin_Fx5xP)
    decision_FxP = np.zeros((rates, padded), dtype=np.bool_)
    tp_RxFx5 = np.empty((live_R.size, rates, len(BIN_NAMES)), dtype=np.int64)
    for r, t in enumerate(live_R):
        score_C = score_TxN[t].take(member_C).astype(np.float64, copy=False)
        threshold_Fx1 = threshold_TxF[t][:, None]
        np.greater_equal(score_C, threshold_Fx1, out=decision_FxP[:, : member_C.size])
        found_Fx5xW = np.bitwise_count(_words(decision_FxP)[:, None] & bin_Fx5xW)
        tp_RxFx5[r] = found_Fx5xW.sum(axis=-1, dtype=np.int64)
    return tp_RxFx5


def contributions(tp_RxFx5: ArrayLike, members_F: ArrayLike) -> Contributions:
    """Means and STDs (ddof 0) over replicas of true positives, by what flips among them.

    A replica without a true positive has shares of 0; where no replica has any, that is, where the
    mean TPR is 0, shares are suppressed (NaN). Without members TPRs are NaN, without replicas all.

    Args:
      tp_RxFx5: of `true_positives`, summed over all samples.
      members_F: members with votes at each rate.

    Raises:
      ValueError: shapes that do not fit, or more true positives than members.

    Source: StrongMIA Tables 5 and 6; Appendix E.2.6, mean of ratios.
    """
    tp_RxFx5 = np.asarray(tp_RxFx5, dtype=np.int64)
    members_F = np.asarray(members_F, dtype=np.int64)
    if tp_RxFx5.ndim != 3 or tp_RxFx5.shape[1:] != (members_F.size, len(BIN_NAMES)):
        raise ValueError(f"true positives of shape {tp_RxFx5.shape}, members of {members_F.shape}")
    tp_RxF = tp_RxFx5.sum(axis=2)
    if np.any((tp_RxF > members_F) | (tp_RxFx5 < 0).any(axis=2)):
        raise ValueError("true positives must lie between 0 and the members")

    def part(*bins: int) -> Part:
        of_RxF = tp_RxFx5[:, :, bins].sum(axis=2)
        share_RxF = np.divide(of_RxF, tp_RxF, out=np.zeros(tp_RxF.shape), where=tp_RxF > 0)
        share_RxF[:, ~tp_RxF.any(axis=0)] = np.nan
        return Part(mean_std(of_RxF.astype(np.float64)), mean_std(share_RxF))

    nan_RxF = np.full(tp_RxF.shape, np.nan)
    return Contributions(
        tp=mean_std(tp_RxF.astype(np.float64)),
        tpr=mean_std(np.divide(tp_RxF, members_F, out=nan_RxF, where=members_F > 0)),
        very_unstable=part(VERY_UNSTABLE),
        coin_flip=part(COIN_FLIP),
        union=part(VERY_UNSTABLE, COIN_FLIP),
        members_F=members_F,
        replicas=len(tp_RxFx5),
    )


def vote_counts(
    votes_KxN: ArrayLike, member_N: ArrayLike, replicas: int, alpha: float = 0.05
) -> VoteCounts:
    """Votes for members, and those for members whose decisions are like a coin's, at each rate.

    Args:
      votes_KxN: of `lm_mia.stats.flips.votes`; NaN is missing.
      member_N: booleans.
      replicas: B, 2 or more.
      alpha: level of the coin-flip test.

    Raises:
      ValueError: as of `flip_rate` and `coin_flip_cutoff`, or shapes that do not fit.
    """
    votes_KxN, member_N = np.asarray(votes_KxN, dtype=np.float64), np.asarray(member_N)
    if votes_KxN.ndim != 2:
        raise ValueError(f"votes of shape {votes_KxN.shape}: must have one row a rate")
    member_C = np.flatnonzero(_checked(member_N, votes_KxN.shape[1:]))
    replicas = whole_replicas(replicas)
    k_low, _ = coin_flip_cutoff(replicas, alpha)
    count_3xK = np.empty((3, len(votes_KxN)), dtype=np.int64)
    for k, votes_N in enumerate(votes_KxN):
        whole_C, missing_C = whole_votes(votes_N.take(member_C), replicas)
        with_votes = np.bincount(whole_C, minlength=replicas + 1)
        with_votes[0] -= np.count_nonzero(missing_C)  # they are filled with 0
        positive = with_votes * np.arange(replicas + 1)
        coins = positive[k_low : replicas - k_low + 1]
        count_3xK[:, k] = positive.sum(), coins.sum(), with_votes.sum()
    return VoteCounts(*count_3xK)


def coin_free_roc(
    counts: VoteCounts, replicas: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean TPR over replicas, and what is left of it without coin-flip decisions.

    The second is a diagnosis, not the curve of any one threshold rule: the members that are removed
    differ from rate to rate, so it may fall where the first one rises. It still holds positives
    that are very unstable without being like a coin's.

    Args:
      counts: of `vote_counts`, summed over all samples.
      replicas: B, 1 or more, as the votes were counted with.

    Returns:
      ``(tpr_raw_K, tpr_coin_free_K)``; NaN at a rate without members. The paper clips the second at
      0 against noise of its subtraction, and so does this, though counts are exact.

    Raises:
      ValueError: replicas below 1.

    Source: StrongMIA Eq. 24, Figure 30.
    """
    if replicas < 1:
        raise ValueError(f"replicas={replicas}: must be 1 or more")
    decisions_K = counts.members_K * replicas

    def rate(positive_K: NDArray[np.int64]) -> NDArray[np.float64]:
        nan_K = np.full(decisions_K.shape, np.nan)
        return np.divide(positive_K, decisions_K, out=nan_K, where=decisions_K > 0)

    free_K = np.maximum(counts.positive_K - counts.coin_positive_K, 0)
    return rate(counts.positive_K), rate(free_K)


def _checked(member_N: NDArray, shape_N: tuple[int, ...]) -> NDArray[np.bool_]:
    if member_N.shape != shape_N or member_N.dtype != np.bool_:
        raise ValueError(
            f"members must be booleans of shape {shape_N}, not {member_N.dtype} of {member_N.shape}"
        )
    return member_N


def _words(bit_P: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Booleans, a multiple of 64 along the last axis, as bits of whole numbers."""
    return np.packbits(bit_P, axis=-1).view(np.uint64)
