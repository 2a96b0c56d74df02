"""Decisions of many replicas about each sample: votes, flip rates, flip bins and mean error rates.

Legend: T targets, R replicas (the targets that have thresholds), N samples, C samples of a chunk, F false positive
rates, 5 flip bins between 6 edges.

Replicas share their training subset, so membership is member_N. NaN votes mark samples without a score from every
replica; they are left out and counted. Votes of blocks of samples can be concatenated, and counts can be added.
StrongMIA, Section 5 and Appendices E.2.1 and E.2.4.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.coin_flip import as_num_replicas, as_vote_counts, coin_flip_cutoff
from lm_mia.stats.inputs import as_float64, as_members, as_real
from lm_mia.stats.per_sample import check_posterior
from lm_mia.stats.roc import MeanStd, OperatingPoints, mean_std_over_targets

FLIP_BIN_NAMES = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
"""Names of the five flip bins, in order of their flip rates."""

COIN_FLIP_BIN = 4
"""Index of the last flip bin, of decisions that are indistinguishable from coin flips."""
VERY_UNSTABLE_BIN = 3
"""Index of the flip bin before the last."""

# Fractions, so that rounding errors cannot move a flip rate across an edge.
_INNER_EDGES = (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5))
# Cells of one target that are processed at once (votes in bytes, distances in float64): they fit the cache.
_VOTE_CELLS, _DISTANCE_CELLS = 2**21, 2**17


@dataclasses.dataclass(frozen=True)
class Votes:
    """Member decisions of each sample at each rate, counted over replicas."""

    votes_FxN: FloatArray
    """Integers from 0 to ``replicas``; NaN for a sample without a score from every replica."""
    replicas: int
    """Number of targets that have thresholds, B."""
    left_out: int
    """Number of samples whose votes are NaN."""


def count_votes(score_TxN: ArrayLike, threshold_TxF: ArrayLike) -> Votes:
    """Counts the replicas that decide "member", that is, score >= threshold, for each sample and rate.

    A target whose thresholds are NaN (a lost run) is not a replica. A sample that lacks the score of any replica gets
    NaN rather than fewer votes, so that all votes are out of the same number B.

    Args:
      score_TxN: membership scores.
      threshold_TxF: thresholds of each target, for example from `tpr_at_fpr`; in any order, possibly infinite.

    Returns:
      Votes and the number of replicas.

    Raises:
      ValueError: if the shapes do not match, or if a target has thresholds at some rates only.

    Source: StrongMIA, Eqs. 7 and 10 (B1).

    Example:
      >>> from lm_mia.stats import count_votes
      >>> count_votes([[0.1, 0.9], [0.8, 0.7]], [[0.5], [0.5]]).votes_FxN
      array([[1., 2.]])
    """
    score_TxN, threshold_TxF = as_real(score_TxN, "scores"), as_float64(threshold_TxF, "thresholds")
    replica_R = targets_with_thresholds(score_TxN, threshold_TxF)
    rates, samples = threshold_TxF.shape[1], score_TxN.shape[1]
    votes_FxN = np.empty((rates, samples))
    left_out = 0
    step = max(1, _VOTE_CELLS // max(1, rates))
    for start in range(0, samples, step):
        score_TxC = score_TxN[:, start : start + step]
        missing_C = np.zeros(score_TxC.shape[1], dtype=np.bool_)
        # The smallest integer type that holds B is the fastest to add. Comparing with all thresholds at once is faster
        # than searching each score among its thresholds, even with a hundred of them.
        votes_FxC = np.zeros((rates, missing_C.size), dtype=np.min_scalar_type(replica_R.size))
        decision_FxC = np.empty(votes_FxC.shape, dtype=np.bool_)
        for t in replica_R:
            score_C = score_TxC[t].astype(np.float64, copy=False)
            np.greater_equal(score_C, threshold_TxF[t][:, None], out=decision_FxC)
            np.add(votes_FxC, decision_FxC, out=votes_FxC)
            missing_C |= np.isnan(score_C)
        votes_FxN[:, start : start + step] = votes_FxC
        votes_FxN[:, start : start + step][:, missing_C] = np.nan
        left_out += int(missing_C.sum())
    return Votes(votes_FxN, replica_R.size, left_out)


def targets_with_thresholds(score_TxN: np.ndarray, threshold_TxF: FloatArray) -> np.ndarray:
    """Returns the indices of the targets that have thresholds, which are the replicas; the others are lost runs.

    Raises:
      ValueError: if the shapes do not match, or if a target has thresholds at some rates only.
    """
    if score_TxN.ndim != 2 or threshold_TxF.ndim != 2 or len(score_TxN) != len(threshold_TxF):
        raise ValueError(
            f"scores of shape {score_TxN.shape} do not match thresholds of shape "
            f"{threshold_TxF.shape}"
        )
    missing_TxF = np.isnan(threshold_TxF)
    if np.any(missing_TxF.any(axis=1) & ~missing_TxF.all(axis=1)):
        raise ValueError("the thresholds of a target must be NaN at all rates or at none")
    return np.flatnonzero(~missing_TxF.any(axis=1))


def flip_rate(votes_N: ArrayLike, replicas: int) -> FloatArray:
    """Computes the share of pairs of replicas that disagree about a sample: 2 B0 B1 / (B (B - 1)).

    Args:
      votes_N: number of member votes B1 of each sample, of any shape; NaN marks a missing number.
      replicas: number of votes per sample, B; at least 2. B0 = B - B1.

    Returns:
      Flip rates of the shape of votes_N, from 0 to `max_flip_rate`; NaN where the votes are NaN.

    Raises:
      ValueError: if replicas is below 2, or if the votes are not integers from 0 to replicas.

    Source: StrongMIA, Eq. 10.

    Example:
      >>> from lm_mia.stats import flip_rate
      >>> flip_rate([0, 1, 2, 4], replicas=4).round(3)
      array([0.   , 0.5  , 0.667, 0.   ])
    """
    replicas = as_num_replicas(replicas)
    votes, missing = as_vote_counts(votes_N, replicas)
    rate = 2 * votes * (replicas - votes) / (replicas * (replicas - 1))
    return np.where(missing, np.nan, rate)


def max_flip_rate(replicas: int) -> float:
    """Computes the largest possible flip rate of B replicas: 2 floor(B/2) ceil(B/2) / (B (B - 1)).

    It is above 1/2, and approaches 1/2 as B grows.

    Args:
      replicas: number of votes per sample, B; at least 2.

    Returns:
      A flip rate.

    Raises:
      ValueError: if replicas is below 2.

    Source: StrongMIA, Appendix E.2.1.

    Example:
      >>> from lm_mia.stats import max_flip_rate
      >>> round(max_flip_rate(127), 3)
      0.504
    """
    replicas = as_num_replicas(replicas)
    return 2 * (replicas // 2) * ((replicas + 1) // 2) / (replicas * (replicas - 1))


def flip_bin_edges(replicas: int, alpha: float = 0.05) -> FloatArray:
    """Returns the edges of the flip bins: [0, .1) [.1, .25) [.25, .4) [.4, t) [t, max], with t the coin-flip cutoff.

    With few replicas t is below 0.4. The coin-flip bin takes precedence: edges above t are moved to t, and bins between
    equal edges remain empty. With up to 5 replicas (alpha = 0.05), t is 0 and all samples are in the last bin.

    Args:
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the coin-flip test, in (0, 1).

    Returns:
      edges_6, in ascending order.

    Raises:
      ValueError: if replicas is below 2 or alpha is outside (0, 1).
    """
    _, cutoff = coin_flip_cutoff(replicas, alpha)
    inner = [min(float(edge), cutoff) for edge in _INNER_EDGES]
    return np.array([0.0, *inner, cutoff, max_flip_rate(replicas)])


def flip_bins(votes_N: ArrayLike, replicas: int, alpha: float = 0.05) -> FloatArray:
    """Returns the index of each sample's flip bin, 0 to 4, with edges as in `flip_bin_edges`.

    The bins are determined in exact arithmetic. A sample is in bin 4, coin flip, if k_low <= votes <= replicas - k_low,
    with k_low from `coin_flip_cutoff`.

    Args:
      votes_N: number of member votes of each sample, of any shape; NaN marks a missing number.
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the coin-flip test, in (0, 1).

    Returns:
      Indices of the shape of votes_N; NaN where the votes are NaN. `FLIP_BIN_NAMES` names the bins.

    Raises:
      ValueError: if replicas is below 2, if alpha is outside (0, 1), or if the votes are not integers from 0 to
        replicas.
    """
    replicas = as_num_replicas(replicas)
    votes, missing = as_vote_counts(votes_N, replicas)
    k_low, _ = coin_flip_cutoff(replicas, alpha)
    # There are few possible votes and many samples, so bins are looked up in a table.
    k = np.arange(replicas + 1)
    disagreeing_pairs, pairs = 2 * k * (replicas - k), replicas * (replicas - 1)
    bin_of_votes = np.zeros(k.size)
    for edge in _INNER_EDGES:
        bin_of_votes += disagreeing_pairs * edge.denominator >= pairs * edge.numerator
    bin_of_votes[k_low : replicas - k_low + 1] = COIN_FLIP_BIN
    return np.where(missing, np.nan, bin_of_votes[votes])


def mean_distance_to_threshold(
    posterior_TxN: ArrayLike, threshold_posterior_TxF: ArrayLike
) -> FloatArray:
    """Computes the mean over replicas of the absolute distance of a sample's posterior from the target's threshold.

    Both are posteriors in [0, 1]: `posterior` maps a threshold of +inf to 1 and of -inf to 0. As in `count_votes`, a
    target with NaN thresholds (a lost run) is not a replica, and a sample that lacks the posterior of any replica gets
    NaN.

    Args:
      posterior_TxN: posterior probability of membership of each sample.
      threshold_posterior_TxF: thresholds of each target, as posteriors.

    Returns:
      distance_FxN, in [0, 1]; NaN without replicas.

    Raises:
      ValueError: if the shapes do not match, if a target has thresholds at some rates only, or if a number is outside
        [0, 1].

    Source: StrongMIA, Appendix E.2.5, Figures 26 and 27.
    """
    posterior_TxN = as_real(posterior_TxN, "posteriors")
    threshold_TxF = as_float64(threshold_posterior_TxF, "thresholds")
    replica_R = targets_with_thresholds(posterior_TxN, threshold_TxF)
    rates, samples = threshold_TxF.shape[1], posterior_TxN.shape[1]
    check_posterior(threshold_TxF)
    distance_FxN = np.full((rates, samples), 0.0 if replica_R.size else np.nan)
    step = max(1, _DISTANCE_CELLS // max(1, rates))
    for start in range(0, samples, step):
        sum_FxC = distance_FxN[:, start : start + step]
        distance_FxC = np.empty(sum_FxC.shape)
        for t in replica_R:
            posterior_C = posterior_TxN[t, start : start + step].astype(np.float64, copy=False)
            check_posterior(posterior_C)
            np.subtract(posterior_C, threshold_TxF[t][:, None], out=distance_FxC)
            np.abs(distance_FxC, out=distance_FxC)
            sum_FxC += distance_FxC
    return distance_FxN / max(1, replica_R.size)


@dataclasses.dataclass(frozen=True)
class FlipBinCounts:
    """Number of members and of non-members in each flip bin, at each rate. Counts of blocks of samples can be added."""

    member_Fx5: IntArray
    nonmember_Fx5: IntArray
    left_out_F: IntArray
    """Number of samples with NaN votes."""

    def __add__(self, other: FlipBinCounts) -> FlipBinCounts:
        """Adds the counts of another block of samples.

        Raises:
          ValueError: if the numbers of false positive rates differ.
        """
        if self.left_out_F.shape != other.left_out_F.shape:
            raise ValueError("counts can only be added at the same false positive rates")
        return FlipBinCounts(
            self.member_Fx5 + other.member_Fx5,
            self.nonmember_Fx5 + other.nonmember_Fx5,
            self.left_out_F + other.left_out_F,
        )


@dataclasses.dataclass(frozen=True)
class FlipBinShares:
    """Share of the members and of the non-members in each flip bin, at each rate (StrongMIA, Tables 3 and 4)."""

    edges_6: FloatArray
    """Flip rates between the bins, from 0 to the maximum; a bin contains its lower edge."""
    member_Fx5: FloatArray
    """Shares in [0, 1]; NaN if no member has votes."""
    nonmember_Fx5: FloatArray
    """Shares in [0, 1]; NaN if no non-member has votes."""
    members_F: IntArray
    """Number of members that have votes."""
    nonmembers_F: IntArray
    """Number of non-members that have votes."""
    left_out_F: IntArray
    """Number of samples with NaN votes."""


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Error rates at fixed false positive rates, mean and STD over targets (StrongMIA, Tables 1 and 2)."""

    nominal_fpr_F: FloatArray
    """The requested rates; ``fpr`` holds the realized rates, which are at most these."""
    accuracy: MeanStd
    """(TP + TN) / number of samples with a score."""
    balanced_accuracy: MeanStd
    """(TPR + TNR) / 2; equal to ``accuracy`` if there are as many members as non-members."""
    fnr: MeanStd
    fpr: MeanStd
    tnr: MeanStd
    tpr: MeanStd
    left_out_T: IntArray
    """Number of NaN scores of each target."""
    targets_left_out: int
    """Number of targets without a score of a member or without one of a non-member."""


def count_flip_bins(
    votes_FxN: ArrayLike, member_N: ArrayLike, replicas: int, alpha: float = 0.05
) -> FlipBinCounts:
    """Counts the members and non-members in each flip bin, at one or more false positive rates.

    Args:
      votes_FxN: number of member votes; NaN marks a missing number. A one-dimensional array is treated as one rate.
      member_N: booleans, whether each sample is a member.
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the coin-flip test, in (0, 1).

    Returns:
      Counts, which `flip_bin_shares` turns into shares.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, or as for `flip_bins`.
    """
    bin_FxN, member_N = np.atleast_2d(flip_bins(votes_FxN, replicas, alpha)), as_members(member_N)
    if bin_FxN.ndim != 2 or member_N.shape != bin_FxN.shape[1:]:
        raise ValueError(
            f"votes of shape {bin_FxN.shape} do not match members of shape {member_N.shape}"
        )
    bins = len(FLIP_BIN_NAMES)
    missing_FxN = np.isnan(bin_FxN)
    # One count covers the bins of non-members, the bins of members, and a last bin for missing votes.
    index_FxN = np.where(missing_FxN, 2 * bins, bin_FxN + bins * member_N).astype(np.int64)
    count_Fx11 = np.array([np.bincount(index_N, minlength=2 * bins + 1) for index_N in index_FxN])
    count_Fx11 = count_Fx11.reshape(len(bin_FxN), 2 * bins + 1).astype(np.int64, copy=False)
    return FlipBinCounts(
        member_Fx5=count_Fx11[:, bins : 2 * bins],
        nonmember_Fx5=count_Fx11[:, :bins],
        left_out_F=count_Fx11[:, 2 * bins],
    )


def flip_bin_shares(counts: FlipBinCounts, replicas: int, alpha: float = 0.05) -> FlipBinShares:
    """Computes the share of members and of non-members in each flip bin.

    Args:
      counts: result of `count_flip_bins`, summed over all samples.
      replicas: number of votes per sample, B, as passed to `count_flip_bins`; it determines the edges.
      alpha: level of the coin-flip test, as passed to `count_flip_bins`.

    Returns:
      Shares in [0, 1], with the edges of the bins.

    Raises:
      ValueError: if replicas is below 2 or alpha is outside (0, 1).

    Source: StrongMIA, Tables 3 and 4, Figures 28 and 29.
    """
    return FlipBinShares(
        edges_6=flip_bin_edges(replicas, alpha),
        member_Fx5=_shares(counts.member_Fx5),
        nonmember_Fx5=_shares(counts.nonmember_Fx5),
        members_F=counts.member_Fx5.sum(axis=1),
        nonmembers_F=counts.nonmember_Fx5.sum(axis=1),
        left_out_F=counts.left_out_F,
    )


def error_rates(points: OperatingPoints) -> ErrorRates:
    """Averages accuracies and error rates over targets, each at its own thresholds.

    Targets without a score of a member or without one of a non-member are left out and counted. The paper prints no STD
    of FPR and TNR, because it takes them as given. Here they are the realized rates, which can vary if scores are tied.

    Args:
      points: operating points from `tpr_at_fpr`.

    Returns:
      Means and STDs (ddof=0) over targets.

    Source: StrongMIA, Tables 1 and 2.
    """
    complete_T = (points.members_T > 0) & (points.nonmembers_T > 0)
    tpr_TxF, fpr_TxF = points.tpr_TxF[complete_T], points.realized_fpr_TxF[complete_T]
    return ErrorRates(
        nominal_fpr_F=points.fpr_F,
        accuracy=mean_std_over_targets(points.accuracy_TxF[complete_T]),
        balanced_accuracy=mean_std_over_targets(points.balanced_accuracy_TxF[complete_T]),
        fnr=mean_std_over_targets(1 - tpr_TxF),
        fpr=mean_std_over_targets(fpr_TxF),
        tnr=mean_std_over_targets(1 - fpr_TxF),
        tpr=mean_std_over_targets(tpr_TxF),
        left_out_T=points.left_out_T,
        targets_left_out=int(np.sum(~complete_T)),
    )


def _shares(count_Fx5: IntArray) -> FloatArray:
    total_Fx1 = count_Fx5.sum(axis=1, keepdims=True)
    nan_Fx5 = np.full(count_Fx5.shape, np.nan)
    return np.divide(count_Fx5, total_Fx1, out=nan_Fx5, where=total_Fx1 > 0)
