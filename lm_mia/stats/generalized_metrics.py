"""Metrics that are ratios of linear functions of the confusion matrix, their best thresholds and their intervals.

An attack decides "member" where the probability of membership, eta, is at least a threshold t. MACE labels members +1
and non-members -1, and averages a metric over samples (Eq. 18, and lines 3 and 5 of Algorithm 2, where y stands for
m). A ratio of averages is not an average of ratios: here, every metric is computed from the counts of all samples.

Legend: N samples, K distinct values of eta, one more for the threshold +inf, U a corner of a rectangle of rates.

Source: MACE, Sections 4.2, 4.3 and 5.2; Koyejo et al. 2014.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_prior
from lm_mia.stats.intervals import check_confidence, clopper_pearson

_TIE = 1e-12


@dataclasses.dataclass(frozen=True)
class GeneralizedMetric:
    """(a0 + a11 TP + a10 FP + a01 FN + a00 TN) / (b0 + b11 TP + b10 FP + b01 FN + b00 TN), MACE Eq. 12.

    TP, FP, FN and TN are shares of all samples, so they sum to 1. The first digit of a coefficient is the decision, the
    second one the truth.

    MACE's coefficients of the balanced accuracy are 1 / (2 prior) and 1 / (2 (1 - prior)). Here, no coefficient depends
    on the prior, which is an argument of the functions, so that a metric cannot be used with two different ones.
    """

    a0: float = 0.0
    a11: float = 0.0
    a10: float = 0.0
    a01: float = 0.0
    a00: float = 0.0
    b0: float = 0.0
    b11: float = 0.0
    b10: float = 0.0
    b01: float = 0.0
    b00: float = 0.0
    equal_classes: bool = False
    """Whether members and non-members have equal weights whatever the prior: TP and FN are then halves of the shares of
    the members, and FP and TN of those of the other samples."""


@dataclasses.dataclass(frozen=True)
class FittedThreshold:
    """The threshold with the largest value of a metric on the fitted samples, and the decisions that it makes there."""

    threshold: float
    """Decide "member" where eta >= threshold; +inf: nowhere."""
    value: float
    """The metric of these decisions; too high, since the threshold was chosen for it."""
    tp: int
    fp: int
    fn: int
    tn: int
    left_out: int
    """Number of samples whose eta is NaN."""


METRICS: Mapping[str, GeneralizedMetric] = {
    "accuracy": GeneralizedMetric(a11=1, a00=1, b0=1),
    "balanced_accuracy": GeneralizedMetric(a11=1, a00=1, b0=1, equal_classes=True),
    "ppv": GeneralizedMetric(a11=1, b11=1, b10=1),
    "tpr": GeneralizedMetric(a11=1, b11=1, b01=1),
    "tnr": GeneralizedMetric(a00=1, b10=1, b00=1),
    "f1": GeneralizedMetric(a11=2, b11=2, b10=1, b01=1),
    "jaccard": GeneralizedMetric(a11=1, b11=1, b10=1, b01=1),
    "weighted_accuracy": GeneralizedMetric(a11=2, a00=2, b11=2, b10=1, b01=1, b00=2),
}
"""Metrics by their names.

balanced_accuracy is AM, (TPR + TNR) / 2. It does not depend on the prior, so its best value says nothing about it: it
is (1 + advantage at prior 1/2) / 2. ppv is best where hardly any sample is called a member: report the number of calls
with it."""


def metric_value(
    metric: GeneralizedMetric,
    tp: ArrayLike,
    fp: ArrayLike,
    fn: ArrayLike,
    tn: ArrayLike,
    prior: float | None = None,
) -> FloatArray:
    """Computes a metric from the numbers of decisions.

    Args:
      metric: the metric, such as ``METRICS["f1"]``.
      tp, fp, fn, tn: counts of true and false positives, false and true negatives; arrays are broadcast.
      prior: probability of membership by which the two classes are weighted; None: the share of members among the
        samples. A metric with equal classes has the same value for every prior.

    Returns:
      The metric; NaN where it is 0/0, and with a prior where a class has no samples.

    Raises:
      ValueError: if a count is not a whole number, or if the prior is outside (0, 1).

    Source: MACE, Eqs. 12-17, from the counts of all samples instead of Eq. 18.

    Example:
      >>> from lm_mia.stats import METRICS, metric_value
      >>> float(metric_value(METRICS["ppv"], tp=8, fp=2, fn=2, tn=8))
      0.8
      >>> round(float(metric_value(METRICS["ppv"], tp=8, fp=2, fn=2, tn=8, prior=0.1)), 3)
      0.308
    """
    tp, fp, fn, tn = (
        as_counts(count, name) for count, name in ((tp, "tp"), (fp, "fp"), (fn, "fn"), (tn, "tn"))
    )
    in_weight, out_weight, total = 1.0, 1.0, tp + fp + fn + tn
    if prior is not None:
        check_prior(prior)
    if metric.equal_classes:
        prior = 0.5
    if prior is not None:
        # Both classes are scaled by the number of the other one, so that the weights of a prior of 1/2 are exact.
        # Their product may be too large for an integer.
        members, nonmembers = (tp + fn).astype(np.float64), (fp + tn).astype(np.float64)
        in_weight, out_weight = prior * nonmembers, (1 - prior) * members
        total = members * nonmembers
    shares = tp * in_weight, fp * out_weight, fn * in_weight, tn * out_weight
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(*_fraction(metric, *shares, total))


def optimal_threshold(metric: GeneralizedMetric, prior: float) -> float:
    """Returns the threshold of eta, the probability of membership, above which a sample should be called a member.

    If b11 = b01 and b10 = b00, the denominator does not depend on the decisions. Calling a sample a member adds
    eta a11 + (1 - eta) a10 to the numerator, and not calling it one eta a01 + (1 - eta) a00. The first is at least as
    large where eta (a11 - a10 - a01 + a00) >= a00 - a10; the proof of MACE's Theorem 1 has this inequality reversed. So
    the theorem also needs a11 - a10 - a01 + a00 > 0, and a positive denominator.

    PPV, F1, the Jaccard index and weighted accuracy (b11 = 2, b01 = 1) are outside the theorem, although MACE's text
    names the last: its threshold of 1/2 is right because the metric is 2 A / (1 + A), which increases with the accuracy
    A. Use `fitted_threshold` for the others.

    Args:
      metric: the metric. The threshold is 1/2 for the accuracy, the prior for the balanced accuracy, 0 for the TPR and
        1 for the TNR.
      prior: probability of membership that eta was computed with, in (0, 1).

    Returns:
      t = (a00 - a10) / (a11 - a10 - a01 + a00); decide "member" where eta >= t. It can be outside (0, 1), which means
      that all samples, or none, are called members.

    Raises:
      ValueError: if the prior is outside (0, 1), or if the theorem does not apply.

    Source: MACE, Theorem 1.
    """
    check_prior(prior)
    m = _at_prior(metric, prior)
    _check_theorem_1(m)
    return (m.a00 - m.a10) / (m.a11 - m.a10 - m.a01 + m.a00)


def fitted_threshold(
    eta_N: ArrayLike,
    member_N: ArrayLike,
    metric: GeneralizedMetric,
    prior: float | None = None,
) -> FittedThreshold:
    """Finds the threshold of eta with the largest value of a metric on samples whose membership is known.

    The candidates are each distinct value of eta, and +inf, which calls no sample a member. Use samples that eta was
    not estimated from, and evaluate the threshold on a third set of samples.

    Args:
      eta_N: the probability of membership, or any score that increases with it; NaN is left out.
      member_N: booleans, whether each sample is a member.
      metric: the metric.
      prior: probability of membership; None: the share of members among the samples.

    Returns:
      The threshold, the lowest one if several are equally good, and the decisions that it makes. PPV often chooses a
      threshold that calls only a few samples members: look at tp + fp.

    Raises:
      ValueError: if shapes do not match, member_N is not boolean, the prior is outside (0, 1), a class has no samples,
        or the metric is 0/0 at every threshold.

    Source: MACE, Algorithm 2, line 3, from the counts of all samples.
    """
    eta_N, member_N = as_float64(eta_N, "eta_N"), as_members(member_N, "member_N")
    if eta_N.ndim != 1 or eta_N.shape != member_N.shape:
        raise ValueError(f"eta of shape {eta_N.shape} does not match members of {member_N.shape}")
    present_N = ~np.isnan(eta_N)
    eta_S, member_S = eta_N[present_N], member_N[present_N]
    eta_K, index_S = np.unique(eta_S, return_inverse=True)
    member_K, nonmember_K = (
        np.bincount(index_S[class_S], minlength=eta_K.size) for class_S in (member_S, ~member_S)
    )
    if not (member_K.sum() and nonmember_K.sum()):
        raise ValueError("eta_N: there must be a member and a non-member with a value")
    # The last threshold is +inf.
    tp_K1, fp_K1 = (
        np.append(np.cumsum(count_K[::-1])[::-1], 0) for count_K in (member_K, nonmember_K)
    )
    fn_K1, tn_K1 = tp_K1[0] - tp_K1, fp_K1[0] - fp_K1
    value_K1 = metric_value(metric, tp_K1, fp_K1, fn_K1, tn_K1, prior)
    if np.isnan(value_K1).all():
        raise ValueError("metric: it is 0/0 at every threshold")
    # Equal up to rounding.
    highest = np.nanmax(value_K1)
    best = int(np.flatnonzero(value_K1 >= highest - _TIE * abs(highest))[0])
    return FittedThreshold(
        threshold=float(np.append(eta_K, np.inf)[best]),
        value=float(value_K1[best]),
        tp=int(tp_K1[best]),
        fp=int(fp_K1[best]),
        fn=int(fn_K1[best]),
        tn=int(tn_K1[best]),
        left_out=int((~present_N).sum()),
    )


def metric_interval(
    metric: GeneralizedMetric,
    tp: ArrayLike,
    fp: ArrayLike,
    fn: ArrayLike,
    tn: ArrayLike,
    prior: float,
    confidence: float = 0.95,
) -> tuple[FloatArray, FloatArray]:
    """Computes a confidence interval of a metric of decisions whose threshold was fixed beforehand.

    TPR and TNR are inside their Clopper-Pearson intervals at confidence 1 - delta/2 each, so both are with a
    probability of at least 1 - delta. A ratio of two linear functions has its extremes over this rectangle at its
    corners.

    Args:
      metric: the metric.
      tp, fp, fn, tn: counts of decisions; arrays are broadcast.
      prior: probability of membership, in (0, 1).
      confidence: 1 - delta, in (0, 1).

    Returns:
      ``(low, high)``, which contain the metric with a probability of at least confidence.

    Raises:
      ValueError: if the prior or the confidence is out of range, a count is not a whole number, or the denominator of
        the metric is not positive everywhere in the rectangle, as for PPV if no sample is called a member.
    """
    check_prior(prior)
    check_confidence(confidence)
    tp, fp, fn, tn = (
        as_counts(count, name) for count, name in ((tp, "tp"), (fp, "fp"), (fn, "fn"), (tn, "tn"))
    )
    if metric.equal_classes:
        prior = 0.5
    both = 1 - (1 - confidence) / 2
    tpr_ends = clopper_pearson(tp, tp + fn, confidence=both)
    tnr_ends = clopper_pearson(tn, fp + tn, confidence=both)
    corner_U = []
    for tpr in tpr_ends:
        for tnr in tnr_ends:
            rates = tpr * prior, (1 - tnr) * (1 - prior), (1 - tpr) * prior, tnr * (1 - prior)
            numerator, denominator = _fraction(metric, *rates)
            if not np.all(denominator > 0):
                raise ValueError(
                    "metric: its denominator can be 0 or negative inside the intervals of TPR and TNR; more samples or "
                    "more calls are needed"
                )
            corner_U.append(numerator / denominator)
    corners = np.stack(corner_U).astype(np.float64)
    return corners.min(axis=0), corners.max(axis=0)


def pointwise_metric_interval(
    metric: GeneralizedMetric,
    log_ratio_low_N: ArrayLike,
    log_ratio_high_N: ArrayLike,
    threshold: float,
    prior: float,
) -> tuple[FloatArray, FloatArray]:
    """Computes what each sample contributes to a metric, over an interval of its log ratio.

    The contribution depends on the densities of members and non-members only through their ratio, that is, through eta,
    the probability of membership. It is linear in eta on each side of the threshold, where it jumps. So its extremes
    are at the two ends of the interval or on the two sides of the jump. (MACE's Lemma 9 writes arg min and arg max over
    both densities; the values are meant.)

    The mean of the contributions is the metric only if the denominator does not depend on the decisions, so the metrics
    are those of `optimal_threshold`. The mean of the ends over samples is not a confidence interval of the metric.

    Args:
      metric: the metric.
      log_ratio_low_N, log_ratio_high_N: ends of the intervals of log P/Q, such as those of a `LogRatio`; may be
        infinite; NaN gives NaN.
      threshold: decide "member" where eta >= threshold; may be infinite.
      prior: probability of membership, in (0, 1).

    Returns:
      ``(low_N, high_N)``.

    Raises:
      ValueError: if the prior is outside (0, 1), the threshold is NaN, Theorem 1 does not apply to the metric, or an
        interval has its ends in the wrong order.

    Source: MACE, Lemma 9, with the denominator of all samples.
    """
    check_prior(prior)
    m = _at_prior(metric, prior)
    _check_theorem_1(m)
    if math.isnan(threshold):
        raise ValueError("threshold=nan: must be a number, such as that of optimal_threshold")
    low_N, high_N = np.broadcast_arrays(
        as_float64(log_ratio_low_N, "low ends"), as_float64(log_ratio_high_N, "high ends")
    )
    if np.any(low_N > high_N):
        raise ValueError("log ratios: low ends must not be above the high ends")
    denominator = m.b0 + m.b11 * prior + m.b10 * (1 - prior)

    def called(eta: FloatArray | float) -> FloatArray:
        return (m.a0 + m.a11 * eta + m.a10 * (1 - np.asarray(eta))) / denominator

    def not_called(eta: FloatArray | float) -> FloatArray:
        return (m.a0 + m.a01 * eta + m.a00 * (1 - np.asarray(eta))) / denominator

    eta_low_N, eta_high_N = (
        scipy.special.expit(low_N + scipy.special.logit(prior)),
        scipy.special.expit(high_N + scipy.special.logit(prior)),
    )
    at_ends = [
        np.where(eta_N >= threshold, called(eta_N), not_called(eta_N))
        for eta_N in (eta_low_N, eta_high_N)
    ]
    jumps_N = (eta_low_N < threshold) & (threshold <= eta_high_N)
    jump = min(max(threshold, 0.0), 1.0)  # beyond, eta is on one side of the threshold
    at_jump = [np.where(jumps_N, side, at_ends[0]) for side in (called(jump), not_called(jump))]
    return np.min([*at_ends, *at_jump], axis=0), np.max([*at_ends, *at_jump], axis=0)


def _at_prior(metric: GeneralizedMetric, prior: float) -> GeneralizedMetric:
    """Returns the metric with coefficients of shares of all samples, of which the share ``prior`` are members."""
    if not metric.equal_classes:
        return metric
    m, members, nonmembers = metric, 0.5 / prior, 0.5 / (1 - prior)
    return GeneralizedMetric(
        a0=m.a0,
        a11=members * m.a11,
        a10=nonmembers * m.a10,
        a01=members * m.a01,
        a00=nonmembers * m.a00,
        b0=m.b0,
        b11=members * m.b11,
        b10=nonmembers * m.b10,
        b01=members * m.b01,
        b00=nonmembers * m.b00,
    )


def _check_theorem_1(metric: GeneralizedMetric) -> None:
    """Raises ValueError unless the denominator is constant and positive, and calling members pays for large eta."""
    m = metric
    if (m.b11, m.b10) != (m.b01, m.b00):
        raise ValueError(
            "metric: its denominator depends on the decisions (b11 != b01 or b10 != b00), so no formula gives the best "
            "threshold; use fitted_threshold"
        )
    ends = m.b0 + m.b11, m.b0 + m.b10
    if min(ends) < 0 or max(ends) <= 0:
        raise ValueError("metric: its denominator must be positive for every prior in (0, 1)")
    if m.a11 - m.a10 - m.a01 + m.a00 <= 0:
        raise ValueError(
            "metric: a11 - a10 - a01 + a00 must be positive, or no threshold of eta is best from above"
        )


def _fraction(
    metric: GeneralizedMetric,
    tp: ArrayLike,
    fp: ArrayLike,
    fn: ArrayLike,
    tn: ArrayLike,
    total: ArrayLike = 1,
) -> tuple[FloatArray, FloatArray]:
    """Returns numerator and denominator of a metric, both times the total of the four numbers."""
    m = metric
    tp, fp, fn, tn, total = (np.asarray(value, np.float64) for value in (tp, fp, fn, tn, total))
    return (
        m.a0 * total + m.a11 * tp + m.a10 * fp + m.a01 * fn + m.a00 * tn,
        m.b0 * total + m.b11 * tp + m.b10 * fp + m.b01 * fn + m.b00 * tn,
    )
