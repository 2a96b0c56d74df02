"""Confidence intervals: bootstrap and exact intervals of AUC and TPR, and exact (Clopper-Pearson) intervals of a rate.

docs/results/statistics.md has the simulated coverage of each.

The bootstrap resamples members and non-members separately or, if samples depend on each other within clusters such as
documents, whole clusters with their members and non-members. It recalibrates the threshold in every replicate. A
replicate is stored as a count per sample, so that the scores are sorted only once.

Legend: T targets, N samples (of one class in the helpers, where N1 is N + 1), F false positive rates, S statistics (the
AUC and one TPR per rate), Q replicates that are drawn at once.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_counts
from lm_mia.stats.resamples import Clusters, Resamples, drawn_blocks, sorted_clusters

MIN_COUNT = 10
"""A TPR has a bootstrap interval if at least this many false positives are allowed, and if at least this many members
are detected and at least this many are not. The bootstrap cannot extrapolate beyond the observed scores: with fewer,
the intervals contain the true TPR far less often than they should. The interval of `tpr_interval` replaces them."""
MIN_CLUSTERS = 50
"""If samples depend on each other within clusters, there are intervals only with at least this many clusters of members
and of non-members. The percentile bootstrap of few clusters gives intervals that are too short."""


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Computes the exact two-sided confidence interval of a binomial rate.

    The interval covers the true rate with a probability of at least ``confidence``. It is valid for counts whose
    threshold was fixed beforehand, not for a TPR at a threshold that was calibrated on the same samples: use
    `bootstrap_intervals` or `tpr_interval` there.

    Args:
      successes: number of successes, of any shape.
      trials: number of trials, broadcast with successes.
      confidence: in (0, 1); each tail has half of the remainder.

    Returns:
      ``(low, high)``; low is 0 without successes, high is 1 without failures, and without trials they are 0 and 1.

    Raises:
      ValueError: if confidence is out of range, if the counts are not whole numbers, or unless
        0 <= successes <= trials.

    Source: Clopper and Pearson 1934, as quantiles of beta distributions.

    Example:
      >>> from lm_mia.stats import clopper_pearson
      >>> low, high = clopper_pearson(5, 100)
      >>> round(float(low), 4), round(float(high), 4)
      (0.0164, 0.1128)
    """
    check_confidence(confidence)
    hits, n = np.broadcast_arrays(as_counts(successes, "successes"), as_counts(trials, "trials"))
    if not np.all(hits <= n):
        raise ValueError("counts must satisfy 0 <= successes <= trials")
    tail = (1 - confidence) / 2
    # The beta distributions of the two closed ends do not exist; valid parameters replace them here.
    low = scipy.special.betaincinv(np.maximum(hits, 1), n - hits + 1, tail)
    high = scipy.special.betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - tail)
    return np.where(hits == 0, 0.0, low), np.where(hits == n, 1.0, high)


def tpr_interval(
    score_TxN: ArrayLike, member: ArrayLike, fprs: ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Computes the exact confidence interval of the TPR at each false positive rate.

    The true threshold of a rate is unknown, but the number of the n non-members that reach it is binomial, with n
    trials and the rate as its probability. Therefore two of the sorted non-member scores are limits of the threshold,
    each with an error of at most a quarter of 1 - confidence. The Clopper-Pearson limits of the share of members above
    each of them, with errors of the same size, are the ends of the interval.

    The interval covers the TPR at the rate with a probability of at least ``confidence`` for any distributions of the
    scores, also with ties, if the samples are independent. It is wider than that of `bootstrap_intervals`, but it
    also exists where few samples are called members, and even where n is too small for the rate (`nonmembers_needed`).
    Like the bootstrap, it covers the choice of samples, not the training of the target or of its references.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out. A one-dimensional array is treated as
        one target.
      member: booleans, member_N or member_TxN.
      fprs: one false positive rate in [0, 1], or several.
      confidence: in (0, 1).

    Returns:
      ``(low_TxF, high_TxF)``; NaN if there is no score of a member or of a non-member.

    Raises:
      ValueError: if confidence is out of range, or as for `tpr_at_fpr`.

    Source: order statistics as limits of a quantile: David and Nagaraja 2003, Section 7.1.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import tpr_interval
      >>> member_N = np.arange(1000) < 500
      >>> score_N = np.random.default_rng(0).normal(size=1000) + 2 * member_N
      >>> low, high = tpr_interval(score_N, member_N, 0.01)
      >>> np.round(low, 2), np.round(high, 2)
      (array([[0.26]]), array([[0.58]]))
    """
    check_confidence(confidence)
    fpr_F = ranking.as_fprs(fprs)
    ends = [
        _exact_ends(nonmembers, members, fpr_F, confidence)
        for nonmembers, members, _ in ranking.sorted_classes(score_TxN, member)
    ]
    low_TxF, high_TxF = np.array(ends).reshape(len(ends), 2, fpr_F.size).transpose(1, 0, 2)
    return low_TxF, high_TxF


def _exact_ends(
    nonmembers: ranking.Scores, members: ranking.Scores, fpr_F: FloatArray, confidence: float
) -> tuple[FloatArray, FloatArray]:
    """Returns the ends of `tpr_interval` of one target, from the sorted scores of both classes."""
    n, m, error = nonmembers.size, members.size, (1 - confidence) / 4
    if not (n and m):
        return np.full(fpr_F.size, np.nan), np.full(fpr_F.size, np.nan)
    # Except for an error on each side, at least `fewest` and at most `most` non-members reach the true threshold.
    fewest_F, most_F = (_binomial_quantile(p, n, fpr_F) for p in (error, 1 - error))
    # Only members above the limit count: tied scores may be below the true threshold.
    above = m - np.searchsorted(members, nonmembers, "right")
    hits_low_F = np.where(fewest_F > 0, above[n - np.maximum(fewest_F, 1)], 0)
    hits_high_F = np.where(most_F < n, above[n - np.minimum(most_F, n - 1) - 1], m)
    level = 1 - 2 * error
    return clopper_pearson(hits_low_F, m, confidence=level)[0], clopper_pearson(
        hits_high_F, m, confidence=level
    )[1]


def _binomial_quantile(q: float, n: int, p_F: FloatArray) -> IntArray:
    """Returns the smallest count whose cumulative probability is at least q, as `scipy.stats.binom.ppf` does.

    Loading `scipy.stats` takes 0.6 s, and the attack stage needs nothing else of it.
    """
    low_F, high_F = np.zeros(p_F.shape, np.int64), np.full(p_F.shape, n)
    while (low_F < high_F).any():
        middle_F = (low_F + high_F) // 2
        reaches_F = scipy.special.bdtr(middle_F, n, p_F) >= q
        low_F, high_F = (
            np.where(reaches_F, low_F, middle_F + 1),
            np.where(reaches_F, middle_F, high_F),
        )
    return low_F


def check_confidence(confidence: float) -> None:
    """Raises ValueError unless confidence is in (0, 1)."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be between 0 and 1, both excluded")


@dataclasses.dataclass(frozen=True)
class BootstrapIntervals:
    """AUC and TPRs of each target with their confidence intervals.

    All are NaN if there is no score of a member or of a non-member. The ends of a TPR that rests on fewer than
    `MIN_COUNT` samples are those of `tpr_interval`. With clusters, a TPR that rests on fewer than `MIN_COUNT` of them
    has no interval: report the number of true positives instead. All ends are NaN with fewer than `MIN_CLUSTERS`
    clusters of members or of non-members.
    """

    fpr_F: FloatArray
    """The requested false positive rates."""
    auc_T: FloatArray
    auc_low_T: FloatArray
    auc_high_T: FloatArray
    tpr_TxF: FloatArray
    tpr_low_TxF: FloatArray
    tpr_high_TxF: FloatArray
    exact_TxF: BoolArray
    """Whether the ends of a TPR are those of `tpr_interval` instead of the bootstrap's."""
    left_out_T: IntArray
    """Number of NaN scores."""

    @property
    def method_TxF(self) -> np.ndarray:
        """What the interval of each TPR is: "bootstrap", "exact", or "" without an interval."""
        method_TxF = np.where(self.exact_TxF, "exact", "bootstrap")
        return np.where(np.isnan(self.tpr_low_TxF), "", method_TxF)


def bootstrap_intervals(
    score_TxN: ArrayLike,
    member: ArrayLike,
    fprs: ArrayLike = (),
    *,
    cluster_N: ArrayLike | None = None,
    confidence: float = 0.95,
    replicates: int = 1000,
    seed: int = 0,
) -> BootstrapIntervals:
    """Computes percentile bootstrap intervals of the AUC and of the TPR at each false positive rate.

    The intervals cover the choice of samples, not the training of the target or of its references. A replicate draws
    as many members and as many non-members as there are, with replacement, and computes exactly what `tpr_at_fpr`
    computes for them: its threshold is the next distinct score among the drawn non-members. If so many drawn scores are
    +inf that no threshold reaches a rate, its TPR is 0. All targets
    share the draws of a seed, so the interval of a target does not depend on the other targets.

    A TPR has no bootstrap interval if it rests on too few samples (`MIN_COUNT` = 10): if fewer than 10 of the n
    non-members may be called members (fpr * n < 10), if fewer than 10 members are detected, or if fewer than 10 are
    not. The exact interval of `tpr_interval` is returned instead.

    If samples depend on each other, as pieces of one document do, give their clusters: a replicate then draws as many
    clusters as there are, with replacement, and all samples of each. Clusters usually have members as well as
    non-members. The numbers of members and of non-members differ between replicates, and replicates without one of
    them are left out. The 10 samples above must then be of 10 clusters, otherwise there is no interval, since the exact
    one is for independent samples. There are no intervals at all with fewer than `MIN_CLUSTERS` = 50 clusters of
    members or of non-members.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out. A one-dimensional array is treated as
        one target.
      member: booleans, member_N or member_TxN.
      fprs: one false positive rate in [0, 1], or several; by default only the AUC is computed.
      cluster_N: the cluster of each sample, as any integer; None if the samples are independent.
      confidence: share of the replicates inside the interval, in (0, 1); each tail has half of the remainder.
      replicates: number of replicates, at least 1.
      seed: seed of the draws.

    Returns:
      Estimates and ends of the intervals.

    Raises:
      ValueError: if confidence or replicates is out of range, if there is not one integer per sample in cluster_N, or
        as for `tpr_at_fpr`.

    Source: Efron and Tibshirani 1993, Section 13.3; Davison and Hinkley 1997, Section 3.8, for clusters.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import bootstrap_intervals
      >>> member_N = np.arange(1000) < 500
      >>> score_N = np.random.default_rng(0).normal(size=1000) + member_N
      >>> result = bootstrap_intervals(score_N, member_N, [0.01, 0.1], replicates=200)
      >>> bool(result.auc_low_T[0] < result.auc_T[0] < result.auc_high_T[0])
      True

      At an FPR of 0.01 only 5 of the 500 non-members may be called members, which is too few for the bootstrap:

      >>> result.exact_TxF
      array([[ True, False]])
    """
    check_confidence(confidence)
    if replicates < 1:
        raise ValueError(f"replicates={replicates}: must be at least 1")
    tail = (1 - confidence) / 2
    fpr_F = ranking.as_fprs(fprs)
    value_and_ends: list[FloatArray] = []
    exact_TxF: list[BoolArray] = []
    left_out_T: list[int] = []
    classes = ranking.sorted_classes(score_TxN, member)
    for (nonmembers, members, left_out), clusters in zip(
        classes, sorted_clusters(score_TxN, member, cluster_N), strict=False
    ):
        value_and_ends_3xS = np.full((3, 1 + fpr_F.size), np.nan)
        is_exact_F = np.zeros(fpr_F.size, np.bool_)
        if nonmembers.size and members.size:
            threshold_F = ranking.thresholds_at_fprs(nonmembers, fpr_F)
            tp_F = ranking.count_at_or_above(members, threshold_F)
            tpr_F = np.where(ranking.too_low(nonmembers.size, fpr_F), np.nan, tp_F / members.size)
            value_and_ends_3xS[0] = [ranking.auc_from_sorted(nonmembers, members), *tpr_F]
            statistic_QxS = _replicate_statistics(
                nonmembers, members, clusters, fpr_F, replicates, seed
            )
            if clusters is None or clusters.smallest_count >= MIN_CLUSTERS:
                has_both_Q = ~np.isnan(statistic_QxS[:, 0])
                value_and_ends_3xS[1:] = np.quantile(
                    statistic_QxS[has_both_Q], [tail, 1 - tail], axis=0
                )
            allowed_F = nonmembers.size - ranking.min_true_negatives(nonmembers.size, fpr_F)
            fewest_F = np.minimum(np.minimum(allowed_F, tp_F), members.size - tp_F)
            if clusters is None:
                is_exact_F = fewest_F < MIN_COUNT
                value_and_ends_3xS[1:, 1:][:, is_exact_F] = _exact_ends(
                    nonmembers, members, fpr_F[is_exact_F], confidence
                )
            else:
                few_F = clusters.fewest(allowed_F, tp_F) < MIN_COUNT
                value_and_ends_3xS[1:, 1:][:, few_F] = np.nan
        value_and_ends.append(value_and_ends_3xS)
        exact_TxF.append(is_exact_F)
        left_out_T.append(left_out)
    targets = len(value_and_ends)
    value_Tx3xS = np.array(value_and_ends).reshape(targets, 3, 1 + fpr_F.size)
    auc_T, auc_low_T, auc_high_T = value_Tx3xS[:, :, 0].T
    tpr_TxF, tpr_low_TxF, tpr_high_TxF = value_Tx3xS[:, :, 1:].transpose(1, 0, 2)
    return BootstrapIntervals(
        fpr_F=fpr_F,
        auc_T=auc_T,
        auc_low_T=auc_low_T,
        auc_high_T=auc_high_T,
        tpr_TxF=tpr_TxF,
        tpr_low_TxF=tpr_low_TxF,
        tpr_high_TxF=tpr_high_TxF,
        exact_TxF=np.array(exact_TxF).reshape(targets, fpr_F.size),
        left_out_T=np.array(left_out_T, dtype=np.int64),
    )


def _replicate_statistics(
    nonmembers: ranking.Scores,
    members: ranking.Scores,
    clusters: Clusters | None,
    fpr_F: FloatArray,
    replicates: int,
    seed: int,
) -> FloatArray:
    """Computes the AUC and the TPRs of each replicate, from the sorted scores of both classes.

    They are NaN in a replicate without members or without non-members.
    """
    below_N = np.searchsorted(nonmembers, members, "left")
    not_above_N = np.searchsorted(nonmembers, members, "right")
    has_ties = not np.array_equal(below_N, not_above_N)
    scratch_QxN = np.empty((0, members.size), dtype=np.int64)
    blocks: list[FloatArray] = []
    for drawn_nonmembers, drawn_members in drawn_blocks(
        nonmembers, members, clusters, replicates, seed
    ):
        size = len(drawn_nonmembers.count_QxN1)
        if len(scratch_QxN) < size:  # The first block is the largest.
            scratch_QxN = np.empty((size, members.size), dtype=np.int64)
        # Pairs with the higher score for the member count twice and tied pairs once, which keeps integers.
        scratch = scratch_QxN[:size]
        twice_Q = _count_ordered_pairs(drawn_nonmembers, drawn_members, below_N, scratch)
        if has_ties:
            twice_Q += _count_ordered_pairs(drawn_nonmembers, drawn_members, not_above_N, scratch)
        else:
            twice_Q += twice_Q
        nonmembers_Q, members_Q = drawn_nonmembers.total_Q, drawn_members.total_Q
        tp_QxF = _count_true_positives(nonmembers, members, fpr_F, drawn_nonmembers, drawn_members)
        with np.errstate(divide="ignore", invalid="ignore"):
            auc_Q = twice_Q / (2 * nonmembers_Q * members_Q)
            statistic_QxS = np.column_stack([auc_Q, tp_QxF / members_Q[:, None]])
        statistic_QxS[(nonmembers_Q == 0) | (members_Q == 0)] = np.nan
        blocks.append(statistic_QxS)
    return np.concatenate(blocks)


def _count_ordered_pairs(
    drawn_nonmembers: Resamples,
    drawn_members: Resamples,
    rank_N: np.ndarray,
    scratch_QxN: IntArray,
) -> IntArray:
    """Counts the pairs of a drawn member and a drawn non-member that is among the first rank_N samples of its class."""
    up_to_QxN1 = drawn_nonmembers.up_to_QxN1
    np.take(up_to_QxN1, rank_N, axis=1, out=scratch_QxN, mode="clip")  # mode="raise" would copy
    scratch_QxN -= up_to_QxN1[:, :1]
    return np.einsum("rn,rn->r", drawn_members.count_QxN1[:, 1:], scratch_QxN)


def _count_true_positives(
    nonmembers: ranking.Scores,
    members: ranking.Scores,
    fpr_F: FloatArray,
    drawn_nonmembers: Resamples,
    drawn_members: Resamples,
) -> IntArray:
    """Counts the drawn members at or above the threshold of `threshold_at_fpr` for the drawn non-members.

    Samples that were not drawn are skipped. The k-th smallest draw is the first sample up to which k were drawn, and
    the threshold is the first drawn sample with a larger score: one draw after all draws of scores up to it. If k = 0,
    all members are counted. No threshold is above a k-th score of +inf, so that no member is counted.
    """
    total_Qx1 = drawn_nonmembers.total_Q[:, None]
    k_QxF = ranking.min_true_negatives(np.maximum(total_Qx1, 1), fpr_F)
    kth_QxF = nonmembers[drawn_nonmembers.kth_smallest(np.maximum(k_QxF, 1))]
    up_to_kth_QxF = drawn_nonmembers.drawn_before(np.searchsorted(nonmembers, kth_QxF, "right"))
    next_QxF = nonmembers[drawn_nonmembers.kth_smallest(up_to_kth_QxF + 1)]
    next_QxF[up_to_kth_QxF == total_Qx1] = np.inf
    below_QxF = np.searchsorted(members, next_QxF)
    below_QxF[k_QxF == 0] = 0
    below_QxF[(kth_QxF == np.inf) & (k_QxF > 0)] = members.size
    return drawn_members.total_Q[:, None] - drawn_members.drawn_before(below_QxF)
