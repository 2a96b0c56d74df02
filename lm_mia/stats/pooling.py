"""Thresholds and rates over all models and samples together, and for each sample over the models.

A cell is the score of one sample under one model. A score >= threshold means the decision "member". All functions
but `pooled_tprs_of_parts` accept memory maps and process blocks of samples, so that memory stays small.

Legend: M models, N samples, C samples of a chunk, K scores of a block, F false positive rates, R ranks, P parts of
the samples, B bins. Scores are larger for members; a NaN score is missing: it is left out and counted. Reliability is
Jälkö, Pradhan, Räisä and Honkela 2026, On Reliability of Efficient Membership Inference Vulnerability Evaluation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_counts, as_float64, as_members, as_real
from lm_mia.stats.lira import chunks_of_samples
from lm_mia.stats.moments import divide_or_nan
from lm_mia.stats.order_statistics import order_statistics

_CELLS = 2**20  # scores that are processed at once
_BINS_PER_UNIT = 2**10  # of log(1 + z^2): 2^14 bins up to |z| = 2,980
_MAX_FREEDOM = 1e6

ThresholdRule = Literal["conservative", "linear"]


@dataclasses.dataclass(frozen=True)
class PooledRates:
    """Decisions over all models and samples, in counts and rates.

    The sum of the results for blocks of samples is that for all samples.
    """

    called_in_F: IntArray
    """Number of scores of members at or above the threshold."""
    called_out_F: IntArray
    """Number of scores of non-members at or above the threshold."""
    in_cells: int
    """Number of scores of members."""
    out_cells: int
    """Number of scores of non-members."""
    left_out: int
    """Number of NaN scores."""

    @property
    def tpr_F(self) -> FloatArray:
        """True positive rates; NaN without a score of a member."""
        return self.called_in_F / (self.in_cells or math.nan)

    @property
    def realized_fpr_F(self) -> FloatArray:
        """False positive rates; NaN without a score of a non-member."""
        return self.called_out_F / (self.out_cells or math.nan)

    def __add__(self, other: PooledRates) -> PooledRates:
        """Returns the decisions over the samples of both."""
        return PooledRates(
            self.called_in_F + other.called_in_F,
            self.called_out_F + other.called_out_F,
            self.in_cells + other.in_cells,
            self.out_cells + other.out_cells,
            self.left_out + other.left_out,
        )


@dataclasses.dataclass(frozen=True)
class SampleRates:
    """Decisions on each sample over the models, in counts."""

    called_in_FxN: IntArray
    """Number of models trained on the sample whose score is at or above the threshold."""
    called_out_FxN: IntArray
    """Number of models not trained on the sample whose score is at or above the threshold."""
    in_N: IntArray
    """Number of models trained on the sample that have a score."""
    out_N: IntArray
    """Number of models not trained on the sample that have a score."""
    left_out: int
    """Number of NaN scores."""

    @property
    def tpr_FxN(self) -> FloatArray:
        """True positive rate of each sample; NaN without a score of a model trained on it."""
        return _shares(self.called_in_FxN, self.in_N)

    @property
    def fpr_FxN(self) -> FloatArray:
        """False positive rate of each sample; NaN without a score of a model not trained on it."""
        return _shares(self.called_out_FxN, self.out_N)


@dataclasses.dataclass(frozen=True)
class RateSpread:
    """Mean and variance over samples of the share of models that call a sample a member."""

    mean: float
    """Number of positive decisions divided by the number of decisions."""
    variance: float
    """Estimated variance of the samples' true rates, without binomial noise; it may be negative."""


def pooled_threshold(
    score_MxN: ArrayLike,
    member_MxN: ArrayLike,
    fprs: ArrayLike,
    *,
    rule: ThresholdRule = "conservative",
) -> FloatArray:
    """Computes the threshold that has a given false positive rate over all models and samples together.

    With n scores of non-members, the threshold is

    - "conservative": that of `threshold_at_fpr`, the smallest of them above the k-th smallest, where
      k = ceil((1 - fpr) n); the realized FPR is never larger than requested.
    - "linear": the smallest number above NumPy's quantile at 1 - fpr, which is interpolated between two scores.
      Reliability's code uses it, with score > quantile. It allows ceil(fpr (n - 1)) false positives, so the realized
      FPR may be larger than requested by up to 1/n.

    The rate holds on average over samples, and may differ considerably between them. Scores and labels must be those
    that the rates are computed from: a threshold from the scores of another number of models has another FPR, since the
    errors of the references' moments are part of the scores.

    Args:
      score_MxN: membership scores, larger for members; NaN scores are left out. A memory map is read 2 to 4 times, in
        blocks of samples, and once more if scores are tied at a threshold; it is neither sorted nor copied.
      member_MxN: booleans, whether each sample was in each model's training subset.
      fprs: one false positive rate in [0, 1], or several.
      rule: "conservative" or "linear".

    Returns:
      threshold_F, numbers of the type of the scores; NaN without a score of a non-member. With "conservative", -inf if
      all non-members may be called members, and +inf if none may be or if no score is above the k-th smallest.

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, if a rate is outside [0, 1], if the rule is
        unknown, or if so many scores of non-members are +inf that no threshold reaches a rate.

    Source: Reliability, Eq. 18, and section 6.1, "Concatenated TPR".

    Example:
      >>> from lm_mia.stats import pooled_threshold
      >>> score_2x3 = [[1.0, 5.0, 2.0], [3.0, 4.0, 9.0]]
      >>> member_2x3 = [[False, True, False], [False, False, True]]
      >>> pooled_threshold(score_2x3, member_2x3, [0.25, 0.5])
      array([4., 3.])
      >>> pooled_threshold(score_2x3, member_2x3, [0.25, 0.5], rule="linear").round(3)
      array([3.25, 2.5 ])
    """
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    fpr_F = ranking.as_fprs(fprs)
    _check_rule(rule)
    count = 0

    def ranks(n: int) -> IntArray:
        nonlocal count
        count = n
        if rule == "linear":
            lower_F = np.floor((n - 1) * (1 - fpr_F)).astype(np.int64)
            return np.concatenate([lower_F, np.minimum(lower_F + 1, n - 1)])
        kth_F = np.maximum(ranking.min_true_negatives(n, fpr_F), 1) - 1
        return np.concatenate([kth_F, np.minimum(kth_F + 1, n - 1)])

    value_R = order_statistics(lambda: _nonmember_blocks(score_MxN, member_MxN), ranks)
    if count == 0:
        return np.full(fpr_F.size, np.nan)
    lower_F, upper_F = value_R[: fpr_F.size], value_R[fpr_F.size :]
    if rule == "linear":
        quantile_F = _interpolate(lower_F, upper_F, (count - 1) * (1 - fpr_F))
        ranking.check_finite_thresholds(quantile_F)
        return _smallest_above(quantile_F, score_MxN.dtype)
    if np.any(tied_F := upper_F == lower_F):
        upper_F[tied_F] = np.inf
        for score_K in _nonmember_blocks(score_MxN, member_MxN):
            for f in np.flatnonzero(tied_F):
                above_K = np.compress(score_K > lower_F[f], score_K)
                upper_F[f] = above_K.min(initial=upper_F[f])
    return ranking.threshold_above(ranking.min_true_negatives(count, fpr_F), lower_F, upper_F)


def per_sample_threshold(
    score_MxN: ArrayLike,
    member_MxN: ArrayLike,
    fprs: ArrayLike,
    *,
    rule: ThresholdRule = "conservative",
) -> FloatArray:
    """Computes the threshold of each sample that has a given false positive rate over the models not trained on it.

    The rules are those of `pooled_threshold`. Only models that were not trained on a sample count: Reliability requires
    more than 1/fpr models in one place and 2/fpr in another, but with n such models, a rate below 1/n allows no false
    positive. Then there is no conservative threshold, and the linear threshold allows one.

    Args:
      score_MxN: membership scores, larger for members; NaN scores are left out.
      member_MxN: booleans, whether each sample was in each model's training subset.
      fprs: one false positive rate in [0, 1], or several.
      rule: "conservative" or "linear".

    Returns:
      threshold_FxN, numbers of the type of the scores. NaN for a sample without a score of a non-member, or with so
      many such scores of +inf that no threshold reaches the rate; and, for "conservative", for a sample with fewer than
      1/fpr scores of non-members.

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, if a rate is outside [0, 1], or if the rule
        is unknown.

    Source: Reliability, Eq. 16, and section 6.1, "Average TPR/Sample".
    """
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    fpr_F = ranking.as_fprs(fprs)
    _check_rule(rule)
    threshold_FxN = np.full((fpr_F.size, score_MxN.shape[1]), np.nan)
    for chunk in _chunks(score_MxN.shape) if len(score_MxN) else ():
        # Rows are sorted faster than columns.
        sorted_CxM = np.where(member_MxN[:, chunk], np.nan, score_MxN[:, chunk]).T.copy()
        sorted_CxM.sort(axis=1)  # NaN is sorted to the end
        count_C = np.count_nonzero(~np.isnan(sorted_CxM), axis=1)
        count_Cx1 = np.maximum(count_C, 1)[:, None]
        if rule == "linear":
            position_CxF = (count_Cx1 - 1) * (1 - fpr_F)
            lower_CxF = np.floor(position_CxF).astype(np.int64)
            upper_CxF = np.minimum(lower_CxF + 1, count_Cx1 - 1)
            lower_CxF, upper_CxF = (
                np.take_along_axis(sorted_CxM, rank_CxF, axis=1).astype(np.float64)
                for rank_CxF in (lower_CxF, upper_CxF)
            )
            value_CxF = _interpolate(lower_CxF, upper_CxF, position_CxF)
            threshold_CxF = _smallest_above(value_CxF, score_MxN.dtype)
            threshold_CxF[threshold_CxF == np.inf] = np.nan
        else:
            k_CxF = ranking.min_true_negatives(count_Cx1, fpr_F)
            value_CxF = np.take_along_axis(sorted_CxM, np.maximum(k_CxF, 1) - 1, axis=1)
            threshold_CxF = _next_in_rows(sorted_CxM, count_C, value_CxF)
            has_none_CxF = (count_C == 0)[:, None] | ((k_CxF > 0) & (value_CxF == np.inf))
            value_CxF[has_none_CxF | (k_CxF == count_Cx1)] = np.nan
            threshold_CxF = ranking.threshold_above(k_CxF, value_CxF, threshold_CxF)
            threshold_CxF[np.isnan(value_CxF)] = np.nan
        threshold_FxN[:, chunk] = threshold_CxF.T
    return threshold_FxN


def predictive_threshold(count_out: ArrayLike, fprs: ArrayLike) -> FloatArray:
    """Computes the threshold of `standardized_scores` that has a given FPR although the moments are estimated.

    The mean of n normal OUT losses has the variance sd^2 / n, and the estimated variance has n - 1 degrees of freedom.
    So the standardized loss of a non-member that is not among its references is distributed as sqrt(1 + 1/n) t_{n-1},
    where t_{n-1} is Student's t variable with n - 1 degrees of freedom, and

        threshold = sqrt(1 + 1/n) x the 1 - fpr quantile of t_{n-1}

    has exactly this FPR on every sample with normal losses, with nothing fitted. Reliability's normal threshold does
    not: for 1%, its FPR is 3.22% with 8 OUT references, 1.97% with 16, 1.21% with 64 and 1.05% with 256.

    Args:
      count_out: number of OUT references, of any shape.
      fprs: one false positive rate in [0, 1], or several.

    Returns:
      Thresholds of shape (F, *shape of count_out); decide "member" where score >= threshold. NaN below 2 references.

    Raises:
      ValueError: if a count is negative or not a whole number, or if a rate is outside [0, 1].

    Source: the predictive distribution of a normal variable; not in Reliability.

    Example:
      >>> from lm_mia.stats import predictive_threshold
      >>> predictive_threshold([1, 3, 1000], 0.1).round(3)
      array([[  nan, 2.177, 1.283]])
    """
    count, fpr_F = as_counts(count_out, "numbers of OUT references"), ranking.as_fprs(fprs)
    # There are few different counts, even if there is one for each model and sample.
    distinct_K = np.unique(count)
    enough_K = np.where(distinct_K >= 2, distinct_K, np.nan)
    t_FxK = -scipy.special.stdtrit(enough_K - 1, fpr_F[:, None])
    # SciPy's quantiles of orders 0 and 1 are both +inf.
    t_FxK[fpr_F == 0] = np.where(np.isnan(enough_K), np.nan, np.inf)
    threshold_FxK = np.sqrt(1 + 1 / enough_K) * t_FxK
    return np.take(threshold_FxK, np.searchsorted(distinct_K, count), axis=1)


def fit_student_t(score_MxN: ArrayLike, member_MxN: ArrayLike | None = None) -> float:
    """Fits the degrees of freedom of Student's t distribution with location 0 and scale 1, by maximum likelihood.

    Reliability fits it to the pooled standardized scores of non-members. The threshold at a false positive rate is then
    ``scipy.stats.t.isf(fpr, freedom)``. It is not exact, because scores that are standardized with n references are
    distributed as sqrt(1 + 1/n) t_{n-1}, whose scale is not 1; `predictive_threshold` is.

    The likelihood of a score z depends on u = log(1 + z^2) only. One pass counts the scores in bins of u with a width
    of 2^-10, and the likelihood is evaluated at the mean u of each bin.

    Args:
      score_MxN: standardized scores; NaN is left out. A one-dimensional array is treated as one model.
      member_MxN: booleans, whether each sample was in each model's training subset; the scores of members are left out.
        By default, all scores are used.

    Returns:
      The degrees of freedom; inf if the normal distribution has a higher likelihood than every t distribution with up
      to a million degrees of freedom; NaN without a score.

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, or if a score is infinite.

    Source: Reliability, section 6.1, "Concatenated TPR (PP, Student's t)".
    """
    if member_MxN is None:
        member_MxN = np.broadcast_to(np.False_, np.shape(np.atleast_1d(score_MxN)))
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    count_B, sum_B = np.zeros(0), np.zeros(0)
    for score_K in _nonmember_blocks(score_MxN, member_MxN):
        if np.isinf(score_K).any():
            raise ValueError("standardized scores must be finite, or NaN if they are missing")
        u_K = 2 * np.log(np.hypot(1, score_K))  # z^2 might overflow
        bin_K = (u_K * _BINS_PER_UNIT).astype(np.int64)
        bins = max(count_B.size, int(bin_K.max(initial=-1)) + 1)
        count_B = np.pad(count_B, (0, bins - count_B.size)) + np.bincount(bin_K, minlength=bins)
        sum_B = np.pad(sum_B, (0, bins - sum_B.size)) + np.bincount(bin_K, u_K, minlength=bins)
    used_B = count_B > 0
    return _most_likely_freedom(count_B[used_B], sum_B[used_B] / count_B[used_B])


def pooled_rates(score_MxN: ArrayLike, member_MxN: ArrayLike, threshold: ArrayLike) -> PooledRates:
    """Counts decisions over all models and samples, and computes their TPR and FPR.

    The TPR is the share of the scores of members that are at or above the threshold. Reliability's Eq. 26 divides the
    calls of members and of non-members by their total number; if every sample is in half of the subsets, the result is
    (TPR + FPR) / 2. By Proposition 4.1, pooled rates are the means of the rates of the samples. For measured rates,
    this holds if each sample is weighted by its number of scores of the class.

    The scores are not independent: a model's losses of many samples vary together, and samples share their references.
    Binomial intervals of these counts are much too narrow; `model_groups` describes how to compute intervals.

    Args:
      score_MxN: membership scores, larger for members; NaN scores are left out.
      member_MxN: booleans, whether each sample was in each model's training subset.
      threshold: threshold_F of all samples, threshold_FxN of each sample or threshold_FxMxN of each score, such as
        those of `pooled_threshold`, `per_sample_threshold` and `predictive_threshold`. A NaN threshold calls no sample
        a member.

    Returns:
      Counts and rates.

    Raises:
      ValueError: if the shapes do not match or member_MxN is not boolean.

    Source: Reliability, Eqs. 18, 19 and 26, and Proposition 4.1.

    Example:
      >>> from lm_mia.stats import pooled_rates
      >>> score_2x3 = [[1.0, 5.0, 2.0], [3.0, 4.0, 9.0]]
      >>> member_2x3 = [[False, True, False], [False, False, True]]
      >>> rates = pooled_rates(score_2x3, member_2x3, [4.0, 8.0])
      >>> rates.tpr_F, rates.realized_fpr_F
      (array([1. , 0.5]), array([0.25, 0.  ]))
    """
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    threshold = _as_threshold(threshold, score_MxN.shape)
    called_in_F, called_out_F = np.zeros((2, len(threshold)), np.int64)
    in_cells = out_cells = 0
    for chunk in _chunks(score_MxN.shape):
        score_MxC, in_MxC = score_MxN[:, chunk], member_MxN[:, chunk]
        present_MxC = ~np.isnan(score_MxC)
        present_in = int(np.count_nonzero(present_MxC & in_MxC))
        in_cells += present_in
        out_cells += int(np.count_nonzero(present_MxC)) - present_in
        for f, threshold_MxC in enumerate(_of_chunk(threshold, chunk)):
            called_MxC = score_MxC >= threshold_MxC
            called_in = np.count_nonzero(called_MxC & in_MxC)
            called_in_F[f] += called_in
            called_out_F[f] += np.count_nonzero(called_MxC) - called_in
    left_out = score_MxN.size - in_cells - out_cells
    return PooledRates(called_in_F, called_out_F, in_cells, out_cells, left_out)


def pooled_tprs_of_parts(
    score_MxN: ArrayLike, member_MxN: ArrayLike, used_PxN: ArrayLike, fprs: ArrayLike
) -> FloatArray:
    """Computes the TPR on several parts of the samples, each at its own `pooled_threshold`.

    The scores are sorted once, since a part of a sorted array is sorted.

    Args:
      score_MxN: membership scores, larger for members; NaN scores are left out.
      member_MxN: booleans, whether each sample was in each model's training subset.
      used_PxN: booleans, which samples are in each part.
      fprs: one false positive rate in [0, 1], or several.

    Returns:
      tpr_PxF; NaN where a class has no score, and at rates above 0 for which a part has too few scores of non-members.

    Raises:
      ValueError: as `pooled_threshold`, or if used_PxN is not boolean or has another number of samples.

    Source: Reliability, section 6.1, "Concatenated TPR".
    """
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    used_PxN, fpr_F = as_members(used_PxN, "parts"), ranking.as_fprs(fprs)
    if used_PxN.ndim != 2 or used_PxN.shape[1] != score_MxN.shape[1]:
        raise ValueError(
            f"parts of shape {used_PxN.shape} do not match scores of shape {score_MxN.shape}"
        )
    present_MxN = ~np.isnan(score_MxN)
    classes = []
    for class_MxN in (present_MxN & ~member_MxN, present_MxN & member_MxN):
        score_K, (_, sample_K) = score_MxN[class_MxN], np.nonzero(class_MxN)
        order_K = np.argsort(score_K)
        classes.append((score_K[order_K], sample_K[order_K]))
    tpr_PxF = np.full((len(used_PxN), fpr_F.size), np.nan)
    for tpr_F, used_N in zip(tpr_PxF, used_PxN, strict=True):
        # np.compress is several times as fast as boolean indexing.
        out_K, in_K = (np.compress(used_N.take(sample_K), score_K) for score_K, sample_K in classes)
        if out_K.size and in_K.size:
            threshold_F = ranking.thresholds_at_fprs(out_K, fpr_F)
            called_F = ranking.count_at_or_above(in_K, threshold_F)
            is_low_F = ranking.too_low(out_K.size, fpr_F)
            tpr_F[:] = np.where(is_low_F, np.nan, called_F / in_K.size)
    return tpr_PxF


def rates_by_sample(
    score_MxN: ArrayLike, member_MxN: ArrayLike, threshold: ArrayLike
) -> SampleRates:
    """Counts the decisions on each sample over the models.

    ``called_in_FxN / in_N`` are the TPRs of the samples, and their mean is Reliability's "Average TPR/Sample".

    Args:
      score_MxN: as for `pooled_rates`.
      member_MxN: as for `pooled_rates`.
      threshold: as for `pooled_rates`.

    Returns:
      Counts for each sample.

    Raises:
      ValueError: as for `pooled_rates`.

    Source: Reliability, Eqs. 16 and 17.
    """
    score_MxN, member_MxN = _check_cells(score_MxN, member_MxN)
    threshold = _as_threshold(threshold, score_MxN.shape)
    samples, count_type = score_MxN.shape[1], np.min_scalar_type(score_MxN.shape[0])

    def count(cell_MxC: BoolArray) -> IntArray:
        # Small types are several times as fast as the integers of np.count_nonzero.
        return cell_MxC.view(np.uint8).sum(axis=0, dtype=count_type).astype(np.int64)

    called_in_FxN, called_out_FxN = np.zeros((2, len(threshold), samples), np.int64)
    in_N, out_N = np.zeros((2, samples), np.int64)
    for chunk in _chunks(score_MxN.shape):
        score_MxC, in_MxC = score_MxN[:, chunk], member_MxN[:, chunk]
        present_MxC = ~np.isnan(score_MxC)
        in_N[chunk] = count(present_MxC & in_MxC)
        out_N[chunk] = count(present_MxC) - in_N[chunk]
        for f, threshold_MxC in enumerate(_of_chunk(threshold, chunk)):
            called_MxC = score_MxC >= threshold_MxC
            called_in_FxN[f, chunk] = count(called_MxC & in_MxC)
            called_out_FxN[f, chunk] = count(called_MxC) - called_in_FxN[f, chunk]
    left_out = score_MxN.size - int(in_N.sum() + out_N.sum())
    return SampleRates(called_in_FxN, called_out_FxN, in_N, out_N, left_out)


def rate_spread(called_N: ArrayLike, trials_N: ArrayLike) -> RateSpread:
    """Estimates the variance over samples of their true rates, such as false positive rates, from counts.

    The variance of the measured rates k / n includes binomial noise. Instead, the mean square of the true rates is
    estimated from pairs of trials of one sample, and the square of their mean from pairs of trials of two samples:

        variance = sum of k_i (k_i - 1) / sum of n_i (n_i - 1) - sum of k_i k_j / sum of n_i n_j, over i != j

    If trials are independent, its expectation is the variance (with ddof 1) of the true rates, if all samples have
    equally many trials; with different numbers, samples with more trials have more weight. It is 0 if all rates are
    equal, so an estimate may be negative, and it is not clipped, which would bias means of estimates.

    Trials must be independent given the sample. The scores of `standardized_leave_one_out` are not: the losses of
    non-members are centered on each other, so a sample's false positives vary less than binomial counts. For noise, 32
    models and an FPR of 10%, the estimated variance is about -0.0038, beside a binomial variance of 0.0056. To measure
    how much the FPR varies, use targets that are not among the references.

    Args:
      called_N: number of positive decisions on each sample.
      trials_N: number of decisions on each sample.

    Returns:
      Mean and variance of the rates; the mean is NaN without a trial, and the variance is NaN unless a sample has two
      trials and two samples have one.

    Raises:
      ValueError: if the shapes differ, if a count is not a whole number, or if called_N is not between 0 and trials_N.

    Source: the unbiased estimate of a variance of binomial rates; Reliability shows the measured rates in Figure A2.
    """
    called_N, trials_N = (
        as_counts(count_N, name).astype(np.float64)
        for count_N, name in ((called_N, "positive decisions"), (trials_N, "decisions"))
    )
    if called_N.ndim != 1 or called_N.shape != trials_N.shape or np.any(called_N > trials_N):
        raise ValueError(
            f"positive decisions of shape {called_N.shape} and decisions of shape {trials_N.shape}: there must be one "
            "number per sample, and no more positive decisions than decisions"
        )
    called, trials = float(called_N.sum()), float(trials_N.sum())
    pairs_within = trials_N @ (trials_N - 1)
    pairs_between = trials**2 - trials_N @ trials_N
    variance = math.nan
    if pairs_within > 0 and pairs_between > 0:
        mean_square = called_N @ (called_N - 1) / pairs_within
        variance = float(mean_square - (called**2 - called_N @ called_N) / pairs_between)
    return RateSpread(called / trials if trials else math.nan, variance)


def _shares(called_FxN: IntArray, total_N: IntArray) -> FloatArray:
    return divide_or_nan(called_FxN, np.broadcast_to(total_N, called_FxN.shape))


def _check_cells(score: ArrayLike, member: ArrayLike) -> tuple[np.ndarray, BoolArray]:
    """Converts scores and members to two dimensions, without a copy; raises ValueError if their shapes differ."""
    score_MxN, member_MxN = (
        np.atleast_2d(as_real(score, "scores")),
        np.atleast_2d(as_members(member)),
    )
    if score_MxN.ndim != 2 or score_MxN.shape != member_MxN.shape:
        raise ValueError(
            f"scores of shape {score_MxN.shape} do not match members of shape {member_MxN.shape}"
        )
    return score_MxN, member_MxN


def _check_rule(rule: str) -> None:
    if rule not in ("conservative", "linear"):
        raise ValueError(f"rule={rule!r}: must be 'conservative' or 'linear'")


def _chunks(shape: tuple[int, ...]) -> list[slice]:
    """Divides the samples into chunks of about a million scores."""
    return chunks_of_samples(shape[1], max(1, _CELLS // max(1, shape[0])))


def _nonmember_blocks(score_MxN: np.ndarray, member_MxN: BoolArray) -> Iterator[FloatArray]:
    """Yields the scores of non-members of each chunk, without NaN."""
    for chunk in _chunks(score_MxN.shape):
        score_MxC = score_MxN[:, chunk]
        used_MxC = ~(member_MxN[:, chunk] | np.isnan(score_MxC))
        # np.compress is ten times as fast as boolean indexing.
        yield np.compress(used_MxC.ravel(), score_MxC.ravel()).astype(np.float64, copy=False)


def _interpolate(lower: FloatArray, upper: FloatArray, position: FloatArray) -> FloatArray:
    """Interpolates between adjacent order statistics, with the same rounding as `numpy.quantile`."""
    weight = position - np.floor(position)
    with np.errstate(invalid="ignore"):
        step = upper - lower
        value = np.where(weight < 0.5, lower + step * weight, upper - step * (1 - weight))
    # Infinite scores: between -inf and a number is -inf, between a number and inf is inf.
    is_infinite = np.isinf(lower) | np.isinf(upper)
    infinite = np.where((weight == 0) | np.isinf(lower), lower, upper)
    return np.where(is_infinite, infinite, value)


def _next_in_rows(sorted_CxM: np.ndarray, count_C: IntArray, value_CxF: np.ndarray) -> FloatArray:
    """Returns the smallest score of each row above each value of the row; +inf if there is none."""
    position_CxF = np.empty(value_CxF.shape, np.int64)
    for position_C, value_C in zip(position_CxF.T, value_CxF.T, strict=True):
        position_C[:] = np.count_nonzero(sorted_CxM <= value_C[:, None], axis=1)
    last_CxF = np.minimum(position_CxF, sorted_CxM.shape[1] - 1)
    next_CxF = np.take_along_axis(sorted_CxM, last_CxF, axis=1).astype(np.float64)
    return np.where(position_CxF < count_C[:, None], next_CxF, np.inf)


def _smallest_above(value: FloatArray, dtype: np.dtype) -> FloatArray:
    """Returns the smallest number of the type of the scores that is larger than each value, as float64."""
    rounded = value.astype(dtype)
    return np.where(rounded > value, rounded.astype(np.float64), ranking.next_larger(rounded))


def _as_threshold(threshold: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Converts thresholds to float64, of shape F x 1 x 1, F x 1 x N or F x M x N."""
    threshold = np.atleast_1d(as_float64(threshold, "thresholds"))
    allowed = threshold.shape[:1], threshold.shape[:1] + shape[1:], threshold.shape[:1] + shape
    if threshold.shape not in allowed:
        raise ValueError(
            f"thresholds of shape {threshold.shape} do not match scores of shape {shape}: they must have one number, "
            "one per sample, or one per score, for each false positive rate"
        )
    if threshold.ndim == 1:
        return threshold[:, None, None]
    return threshold if threshold.ndim == 3 else threshold[:, None]


def _of_chunk(threshold: FloatArray, chunk: slice) -> FloatArray:
    return threshold if threshold.shape[2] == 1 else threshold[:, :, chunk]


def _most_likely_freedom(count_B: FloatArray, u_B: FloatArray) -> float:
    """Returns the degrees of freedom that maximize the likelihood of counts of u = log(1 + z^2)."""
    if count_B.size == 0:
        return math.nan
    with np.errstate(divide="ignore", over="ignore"):
        log_square_B = u_B + np.log(-np.expm1(-u_B))  # log z^2
        mean_square = float(count_B @ np.expm1(u_B)) / count_B.sum()

    def mean_log_density(log_freedom: float) -> float:
        freedom = math.exp(log_freedom)
        mean_log = count_B @ np.logaddexp(0, log_square_B - log_freedom) / count_B.sum()
        constant = math.log(scipy.special.poch(freedom / 2, 0.5)) - 0.5 * math.log(
            math.pi * freedom
        )
        return float(constant - 0.5 * (freedom + 1) * mean_log)

    # There may be several maxima, so a grid comes first.
    grid_K = np.linspace(math.log(1e-3), math.log(_MAX_FREEDOM), 84)
    best = int(np.argmax([mean_log_density(log_freedom) for log_freedom in grid_K]))
    maximum = scipy.optimize.minimize_scalar(
        lambda log_freedom: -mean_log_density(log_freedom),
        bounds=(grid_K[max(best - 1, 0)], grid_K[min(best + 1, grid_K.size - 1)]),
        method="bounded",
        options={"xatol": 1e-7},
    )
    normal = -0.5 * (math.log(2 * math.pi) + mean_square)
    return math.inf if normal >= -maximum.fun else math.exp(maximum.x)
