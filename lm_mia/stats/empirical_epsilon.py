"""Empirical epsilon: the log ratio of the rates of an attack, which is an estimate, not a bound.

By differential privacy, TPR <= exp(epsilon) FPR + delta and TNR <= exp(epsilon) FNR + delta for the true rates of any
attack. Solved for epsilon with observed rates, this is an estimate: thresholds that are chosen after seeing the
membership, the largest of many estimates and a false positive rate of 0 all make it too large. The bounds are
`independent_trials_bound` and `one_run_bound`.

Legend: T targets, N samples, G rates, Q replicates that are drawn at once, 4 the rates TPR, FPR, TNR and FNR.

Source: PrivacyGuard, Section 3.2.1 and Eq. 2.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.inputs import as_counts, as_float64, check_delta
from lm_mia.stats.intervals import MIN_CLUSTERS, check_confidence
from lm_mia.stats.resamples import Resamples, drawn_blocks, sorted_clusters

_RATES_G = np.arange(1, 100) / 100


@dataclasses.dataclass(frozen=True)
class EmpiricalEpsilons:
    """Empirical epsilon at the thresholds where each of the four rates reaches given values.

    +inf where the error rate in the denominator is 0, NaN where the rate in the numerator is at most delta.
    """

    rates_G: FloatArray
    tpr_G: FloatArray
    """ln((TPR - delta) / FPR) at the highest threshold with TPR >= rate."""
    fpr_G: FloatArray
    """The same at the lowest threshold with FPR <= rate."""
    tnr_G: FloatArray
    """ln((TNR - delta) / FNR) at the lowest threshold with TNR >= rate."""
    fnr_G: FloatArray
    """The same at the highest threshold with FNR <= rate."""
    left_out: int
    """Number of NaN scores."""


@dataclasses.dataclass(frozen=True)
class EpsilonIntervals:
    """Empirical epsilons and balanced accuracy of each target, with percentile bootstrap intervals.

    Epsilons are at most ln(number of members). All are NaN if there is no score of a member or of a non-member; the
    ends of the intervals are also NaN with fewer than 50 clusters of members or of non-members.
    """

    at_tpr_T: FloatArray
    """Epsilon at the highest threshold whose TPR is at least ``at_tpr``."""
    at_tpr_low_T: FloatArray
    at_tpr_high_T: FloatArray
    largest_T: FloatArray
    """Largest epsilon over all thresholds at which a rate is 0.01, ..., 0.99."""
    largest_low_T: FloatArray
    largest_high_T: FloatArray
    balanced_accuracy_T: FloatArray
    """Largest balanced accuracy over all thresholds."""
    balanced_accuracy_low_T: FloatArray
    balanced_accuracy_high_T: FloatArray
    left_out_T: IntArray
    """Number of NaN scores."""


def empirical_epsilons(
    score_N: ArrayLike, member_N: ArrayLike, *, delta: float, rates_G: ArrayLike | None = None
) -> EmpiricalEpsilons:
    """Computes the empirical epsilon at the thresholds where TPR, FPR, TNR and FNR reach given rates.

    These are estimates, not bounds, and may be negative. Tied scores are on the same side of every threshold.

    Args:
      score_N: membership scores of one target, larger for members; NaN scores are left out.
      member_N: booleans, whether each sample is a member.
      delta: of (epsilon, delta)-differential privacy, in [0, 1).
      rates_G: rates in [0, 1], by default 0.01, 0.02, ..., 0.99.

    Returns:
      The estimates; all NaN if there is no score of a member or of a non-member.

    Raises:
      ValueError: if the shapes do not match, if member_N is not boolean, or if delta or a rate is out of range.

    Source: PrivacyGuard, Eq. 2.

    Example:
      Three of four members and one of four non-members have a score of at least 3:

      >>> import numpy as np
      >>> from lm_mia.stats import empirical_epsilons
      >>> member_N = np.arange(8) < 4
      >>> result = empirical_epsilons([5, 4, 3, 1, 3, 2, 1, 0], member_N, delta=0.0, rates_G=0.75)
      >>> bool(np.isclose(result.tpr_G[0], np.log(3)))
      True
    """
    check_delta(delta)
    rate_G = ranking.as_fprs(_RATES_G if rates_G is None else rates_G)
    if np.ndim(score_N) != 1:
        raise ValueError(f"scores of shape {np.shape(score_N)}: must be those of one target")
    nonmembers, members, left_out = next(ranking.sorted_classes(score_N, member_N))
    if nonmembers.size and members.size:
        once = _drawn_once(nonmembers.size), _drawn_once(members.size)
        epsilon_4xG = _epsilons(_Ranks.of(nonmembers, members), *once, rate_G, delta)[0]
    else:
        epsilon_4xG = np.full((4, rate_G.size), np.nan)
    return EmpiricalEpsilons(rate_G, *epsilon_4xG, left_out=left_out)


def capped_epsilon(epsilon: ArrayLike, members: int) -> FloatArray:
    """Caps empirical epsilons at ln(members), as PrivacyGuard does; this includes +inf, and NaN stays NaN.

    The cap is the epsilon of an attack that finds all members and makes one error in as many decisions.

    Args:
      epsilon: of any shape.
      members: number of members, at least 1.

    Returns:
      The smaller of epsilon and ln(members).

    Raises:
      ValueError: if members is not a whole number, or below 1.
    """
    if not as_counts(members, "members"):
        raise ValueError(f"members={members}: must be at least 1")
    return np.minimum(as_float64(epsilon, "epsilon"), np.log(members))


def epsilon_intervals(
    score_TxN: ArrayLike,
    member: ArrayLike,
    *,
    delta: float,
    at_tpr: float = 0.01,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
    cluster_N: ArrayLike | None = None,
) -> EpsilonIntervals:
    """Computes percentile bootstrap intervals of empirical epsilons and of the largest balanced accuracy.

    These are estimates. **Neither end of an interval is a lower bound on epsilon**: the bootstrap treats the samples as
    independent trials, it is inaccurate for few false positives, and the largest of many estimates is biased upwards,
    as docs/results/statistics.md shows. PrivacyGuard calls the upper end of ``largest`` the empirical epsilon.

    The draws are those of `bootstrap_intervals`: the numbers of members and of non-members are the same in all
    replicates unless there are clusters.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out. A one-dimensional array is treated as
        one target.
      member: booleans, member_N or member_TxN.
      delta: of (epsilon, delta)-differential privacy, in [0, 1).
      at_tpr: the true positive rate of the first estimate, in [0, 1].
      confidence: share of the replicates inside the interval, in (0, 1).
      replicates: number of replicates, at least 1.
      seed: seed of the draws.
      cluster_N: the cluster of each sample, as for `bootstrap_intervals`.

    Returns:
      The estimates, and the ends of their intervals.

    Raises:
      ValueError: as for `bootstrap_intervals`, or if delta or at_tpr is out of range.

    Source: PrivacyGuard, Section 3.2.1.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import epsilon_intervals
      >>> member_N = np.arange(4000) < 2000
      >>> score_N = np.random.default_rng(0).normal(size=4000) + member_N
      >>> result = epsilon_intervals(score_N, member_N, delta=1e-5, at_tpr=0.1, replicates=200)
      >>> bool(result.at_tpr_low_T[0] < result.at_tpr_T[0] < result.at_tpr_high_T[0])
      True
    """
    check_confidence(confidence)
    check_delta(delta)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: must be at least 1")
    tpr_1 = ranking.as_fprs(at_tpr)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    value_and_ends: list[FloatArray] = []
    left_out_T: list[int] = []
    classes = ranking.sorted_classes(score_TxN, member)
    for (nonmembers, members, left_out), clusters in zip(
        classes, sorted_clusters(score_TxN, member, cluster_N), strict=False
    ):
        left_out_T.append(left_out)
        value_and_ends_3x3 = np.full((3, 3), np.nan)
        if nonmembers.size and members.size:
            ranks = _Ranks.of(nonmembers, members)
            drawn = _drawn_once(nonmembers.size), _drawn_once(members.size)
            value_and_ends_3x3[:1] = _statistics(ranks, *drawn, tpr_1, delta)
            if clusters is None or clusters.smallest_count >= MIN_CLUSTERS:
                statistic_Qx3 = np.concatenate(
                    [
                        _statistics(ranks, *drawn, tpr_1, delta)
                        for drawn in drawn_blocks(nonmembers, members, clusters, replicates, seed)
                    ]
                )
                has_both_Q = ~np.isnan(statistic_Qx3[:, 2])
                value_and_ends_3x3[1:] = np.quantile(statistic_Qx3[has_both_Q], tails, axis=0)
        value_and_ends.append(value_and_ends_3x3)
    value_Tx3x3 = np.array(value_and_ends).reshape(len(value_and_ends), 3, 3)
    at_tpr_3xT, largest_3xT, accuracy_3xT = value_Tx3x3.transpose(2, 1, 0)
    left_out = np.array(left_out_T, dtype=np.int64)
    return EpsilonIntervals(*at_tpr_3xT, *largest_3xT, *accuracy_3xT, left_out_T=left_out)


def _drawn_once(n: int) -> Resamples:
    """Returns one replicate that holds each of n samples once."""
    drawn = Resamples(n, 1)
    drawn.take(np.ones((1, 1), dtype=np.int64), np.zeros(n, dtype=np.int64))
    return drawn


@dataclasses.dataclass(frozen=True)
class _Ranks:
    """How many samples of each class have lower scores, so that replicates need not search for the scores drawn."""

    nonmembers_below_N: IntArray
    """Number of non-members with a lower score than each member, in the order of the members' scores."""
    members_below_N: IntArray
    """Number of members with a lower score than each member."""
    nonmembers_up_to_N: IntArray
    """Number of non-members whose score is at most that of each non-member, in the order of their scores."""
    members_up_to_N: IntArray
    """Number of members whose score is at most that of each non-member."""

    @classmethod
    def of(cls, nonmembers: ranking.Scores, members: ranking.Scores) -> _Ranks:
        """Returns the ranks of sorted scores."""
        classes = nonmembers, members
        below = (np.searchsorted(scores, members, side="left") for scores in classes)
        up_to = (np.searchsorted(scores, nonmembers, side="right") for scores in classes)
        return cls(*below, *up_to)


def _statistics(
    ranks: _Ranks,
    drawn_nonmembers: Resamples,
    drawn_members: Resamples,
    tpr_1: FloatArray,
    delta: float,
) -> FloatArray:
    """Computes epsilon at the TPR, the largest epsilon and the balanced accuracy of each replicate.

    Args:
      ranks: of all samples.
      drawn_nonmembers: draws of the non-members.
      drawn_members: draws of the members.
      tpr_1: the true positive rate of the first statistic.
      delta: of (epsilon, delta)-differential privacy.
    """
    drawn = drawn_nonmembers, drawn_members
    epsilon_Qx4xG = _epsilons(ranks, *drawn, np.concatenate([tpr_1, _RATES_G]), delta)
    largest_Q = np.fmax.reduce(epsilon_Qx4xG[:, :, 1:], axis=(1, 2))
    epsilon_Qx2 = np.column_stack([epsilon_Qx4xG[:, 0, 0], largest_Q])
    accuracy_Q = _max_balanced_accuracies(*drawn, ranks.nonmembers_below_N)
    return np.column_stack([capped_epsilon(epsilon_Qx2, drawn_members.n), accuracy_Q])


def _epsilons(
    ranks: _Ranks,
    drawn_nonmembers: Resamples,
    drawn_members: Resamples,
    rate_G: FloatArray,
    delta: float,
) -> FloatArray:
    """Computes epsilon_Qx4xG of each replicate: at the thresholds that TPR, FPR, TNR and FNR determine.

    NaN in a replicate without members or without non-members.
    """
    nonmembers_Qx1, members_Qx1 = (d.total_Q[:, None] for d in (drawn_nonmembers, drawn_members))
    n_Qx1, m_Qx1 = np.maximum(nonmembers_Qx1, 1), np.maximum(members_Qx1, 1)
    at_least = _counts_at_members(
        ranks,
        drawn_nonmembers,
        drawn_members,
        # Members that must be detected for TPR >= rate and for FNR <= rate.
        np.hstack([_smallest_count(m_Qx1, rate_G), ranking.min_true_negatives(m_Qx1, rate_G)]),
    )
    above = _counts_above_nonmembers(
        ranks,
        drawn_nonmembers,
        drawn_members,
        # Non-members that must not be detected for FPR <= rate and for TNR >= rate.
        np.hstack([ranking.min_true_negatives(n_Qx1, rate_G), _smallest_count(n_Qx1, rate_G)]),
    )
    (by_tpr, by_fnr), (by_fpr, by_tnr) = (
        np.split(np.stack(counts), 2, axis=-1) for counts in (at_least, above)
    )
    fp_Qx4xG, tp_Qx4xG = np.stack([by_tpr, by_fpr, by_tnr, by_fnr], axis=-2)
    n_Qx1x1, m_Qx1x1 = n_Qx1[:, None], m_Qx1[:, None]
    by_nonmember_rates = [False, False, True, True]  # TNR and FNR instead of TPR and FPR
    correct_Qx4xG, wrong_Qx4xG = tp_Qx4xG / m_Qx1x1, fp_Qx4xG / n_Qx1x1
    correct_Qx4xG[:, by_nonmember_rates] = 1.0 * (n_Qx1x1 - fp_Qx4xG[:, 2:]) / n_Qx1x1
    wrong_Qx4xG[:, by_nonmember_rates] = 1.0 * (m_Qx1x1 - tp_Qx4xG[:, 2:]) / m_Qx1x1
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon_Qx4xG = np.log(correct_Qx4xG - delta) - np.log(wrong_Qx4xG)
    epsilon_Qx4xG[correct_Qx4xG <= delta] = np.nan
    epsilon_Qx4xG[(nonmembers_Qx1 * members_Qx1 == 0)[:, 0]] = np.nan
    return epsilon_Qx4xG


def _counts_at_members(
    ranks: _Ranks, drawn_nonmembers: Resamples, drawn_members: Resamples, k_QxG: IntArray
) -> tuple[IntArray, IntArray]:
    """Counts the drawn non-members and members at or above the k-th largest drawn member; none for k = 0."""
    total_Qx1 = drawn_members.total_Q[:, None]
    kth_QxG = drawn_members.kth_smallest(total_Qx1 + 1 - np.maximum(k_QxG, 1))
    counts = tuple(
        drawn.total_Q[:, None] - drawn.drawn_before(below_N.take(kth_QxG))
        for below_N, drawn in (
            (ranks.nonmembers_below_N, drawn_nonmembers),
            (ranks.members_below_N, drawn_members),
        )
    )
    return np.where(k_QxG == 0, 0, counts[0]), np.where(k_QxG == 0, 0, counts[1])


def _counts_above_nonmembers(
    ranks: _Ranks, drawn_nonmembers: Resamples, drawn_members: Resamples, k_QxG: IntArray
) -> tuple[IntArray, IntArray]:
    """Counts the drawn non-members and members above the k-th smallest drawn non-member; all for k = 0."""
    kth_QxG = drawn_nonmembers.kth_smallest(np.maximum(k_QxG, 1))
    counts = tuple(
        drawn.total_Q[:, None] - np.where(k_QxG == 0, 0, drawn.drawn_before(up_to_N.take(kth_QxG)))
        for up_to_N, drawn in (
            (ranks.nonmembers_up_to_N, drawn_nonmembers),
            (ranks.members_up_to_N, drawn_members),
        )
    )
    return counts[0], counts[1]


def _smallest_count(n: IntArray, rate_G: FloatArray) -> IntArray:
    """Computes the smallest k with k / n >= rate in floating-point arithmetic."""
    k = np.ceil(rate_G * n)
    k -= (k - 1) / n >= rate_G
    k += k / n < rate_G
    return k.astype(np.int64)


def _max_balanced_accuracies(
    drawn_nonmembers: Resamples, drawn_members: Resamples, below_N: np.ndarray
) -> FloatArray:
    """Computes `max_balanced_accuracy` of each replicate; NaN without members or without non-members.

    ``below_N`` is the number of non-members with a lower score than each member.
    """
    # For a threshold at each member: TP n - FP m = (m - FN) n - (n - TN) m = TN m - FN n.
    n_Q, m_Q = drawn_nonmembers.total_Q, drawn_members.total_Q
    difference_QxN = np.take(drawn_nonmembers.up_to_QxN1, below_N, axis=1)
    difference_QxN -= drawn_nonmembers.up_to_QxN1[:, :1]
    difference_QxN *= m_Q[:, None]
    difference_QxN -= (drawn_members.up_to_QxN1[:, :-1] - drawn_members.up_to_QxN1[:, :1]) * n_Q[
        :, None
    ]
    best_Q = np.maximum(difference_QxN.max(axis=1), 0)
    with np.errstate(invalid="ignore"):
        return (1 + best_Q / (n_Q * m_Q)) / 2
