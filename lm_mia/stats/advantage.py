"""Membership advantage: how much better than chance the best adversary decides who is a member, given one query.

The advantage of an adversary is 2 P(correct) - 1 when a sample is a member with the prior probability p. The adversary
that decides by the posterior probability, eta, has the largest one, the mean of |f| with f = 2 eta - 1 (MACE Eqs.
8-10). An adversary that ignores the query and always answers with the more frequent class has |1 - 2p|, which is 0 only
for p = 1/2 (MACE's Definition 1 says 0 for every p); compare an advantage with this baseline.

Legend: N samples.

Source: MACE, Sections 2.5, 4.1, 5.1.3 and 6.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray
from lm_mia.stats.generalized_metrics import METRICS, metric_interval, metric_value
from lm_mia.stats.inputs import as_float64, as_members, check_prior


@dataclasses.dataclass(frozen=True)
class HeldOutAdvantage:
    """The advantage of a decision rule on samples that it was not fitted to."""

    value: float
    """2 (p TPR + (1 - p) TNR) - 1. Its expectation is at most the advantage of the best adversary."""
    low: float
    """Lower end of the confidence interval of this rule's advantage. The best adversary has at least this advantage,
    with a probability of at least (1 + confidence) / 2."""
    high: float
    """Upper end. It bounds the advantage of this rule, not that of the best adversary."""
    tpr: float
    tnr: float
    left_out: int
    """Number of samples whose f is NaN."""


def privacy_loss(log_ratio: ArrayLike, prior: float) -> FloatArray:
    """Converts log ratios of densities to MACE's f, which is 2 eta - 1 for the posterior probability eta.

    f is positive where "member" is the better decision, and |f|, which MACE calls the privacy loss of a sample, is the
    advantage of the best adversary on samples with this query. In differential privacy, "privacy loss" is the log
    ratio.

    Args:
      log_ratio: log P/Q: the values or ends of a `LogRatio`, or a score that estimates it, such as that of `lira`.
      prior: probability of membership, in (0, 1).

    Returns:
      f = tanh((log P/Q + log(p / (1 - p))) / 2), from -1 to 1; NaN for NaN.

    Raises:
      ValueError: if the prior is outside (0, 1).

    Source: MACE, Eq. 10, by its Eq. 24.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import privacy_loss
      >>> privacy_loss(np.log(3), prior=0.5).round(3), privacy_loss(np.log(3), prior=0.1).round(3)
      (np.float64(0.5), np.float64(-0.5))
    """
    check_prior(prior)
    return np.tanh((as_float64(log_ratio, "log ratios") + scipy.special.logit(prior)) / 2)


def absolute_ends(low_N: ArrayLike, high_N: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Converts intervals of f to intervals of |f|.

    Args:
      low_N: lower ends of f.
      high_N: upper ends, at least low_N.

    Returns:
      ``(low_N, high_N)`` of |f|; the lower end is 0 if the interval of f contains 0.

    Raises:
      ValueError: if a lower end is above its upper end.
    """
    low_N, high_N = np.broadcast_arrays(as_float64(low_N, "low ends"), as_float64(high_N, "ends"))
    if np.any(low_N > high_N):
        raise ValueError("intervals: low ends must not be above the high ends")
    smaller_N = np.minimum(np.abs(low_N), np.abs(high_N))
    return (
        np.where((low_N <= 0) & (high_N >= 0), 0.0, smaller_N),
        np.maximum(np.abs(low_N), np.abs(high_N)),
    )


def plug_in_advantage(
    f_N: ArrayLike, member_N: ArrayLike | None = None, prior: float | None = None
) -> float:
    """Computes the mean of |f|, MACE's estimate of the largest advantage that any adversary has.

    It is biased, even if f was estimated from other samples. At a prior of 1/2, errors of f make |f| larger: without
    any leakage and with f estimated from n samples per class in J bins, it is about sqrt(J / (pi n)), which is 0.25 for
    100 bins and 512 samples. At a small prior it can be below |1 - 2p|, which every adversary can reach.
    Report `held_out_advantage` first.

    MACE's Algorithm 1, line 5, averages f without the absolute value; that is close to 2p - 1 whatever the query leaks.

    Args:
      f_N: the result of `privacy_loss`; NaN is left out. For the mean of the ends of intervals, give the ends that
        `absolute_ends` returns; such a mean is not a confidence interval of the advantage, since each interval is valid
        for one sample on its own.
      member_N: booleans, whether each sample is a member, to weight the classes by the prior; None if the samples are
        drawn with the prior already.
      prior: probability of membership, together with member_N.

    Returns:
      The mean; NaN without samples, or without samples of a class that is weighted.

    Raises:
      ValueError: if a value of f is outside [-1, 1], only one of member_N and prior is given, the prior is outside
        (0, 1), the shapes do not match, or member_N is not boolean.

    Source: MACE, Eq. 9 and Algorithm 1, with the absolute value.
    """
    f_N = as_float64(f_N, "f_N")
    if np.any(np.abs(f_N) > 1):
        raise ValueError("f_N: must be from -1 to 1; privacy_loss() converts log ratios to f")
    if (member_N is None) != (prior is None):
        raise ValueError("member_N and prior: give both, or neither")
    if member_N is None or prior is None:
        return _mean(np.abs(f_N[~np.isnan(f_N)]))
    check_prior(prior)
    f_N, member_N, _ = _present(f_N, member_N)
    absolute_N = np.abs(f_N)
    return prior * _mean(absolute_N[member_N]) + (1 - prior) * _mean(absolute_N[~member_N])


def held_out_advantage(
    f_N: ArrayLike, member_N: ArrayLike, prior: float, *, confidence: float = 0.95
) -> HeldOutAdvantage:
    """Computes the advantage of the rule "member where f >= 0", on samples that f was not estimated from.

    No adversary has a larger advantage than the best one, so this value is not biased upwards: without leakage and with
    a prior of 1/2 it is 0 on average. MACE's Algorithm 1 also splits the samples, but it ignores the labels of the
    second part, although only these remove the bias.

    TPR and TNR have Clopper-Pearson intervals at confidence 1 - delta/2 each, which hold together with a probability of
    at least 1 - delta, and each one-sided with 1 - delta/4: so the lower end exceeds the advantage of the rule, and
    that of the best adversary, with a probability of at most delta/2.

    Args:
      f_N: the result of `privacy_loss` with this prior; NaN is left out.
      member_N: booleans, whether each sample is a member.
      prior: probability of membership, in (0, 1).
      confidence: 1 - delta, in (0, 1).

    Returns:
      The advantage with its interval.

    Raises:
      ValueError: if the prior or the confidence is out of range, the shapes do not match, member_N is not boolean, or a
        class has no samples.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import held_out_advantage, log_ratio_bins, num_bins, privacy_loss, quantile_bins
      >>> member_N = np.arange(4000) % 2 == 0
      >>> score_N = np.random.default_rng(0).normal(size=4000) + member_N  # N(1, 1) and N(0, 1)
      >>> fit, held_out = slice(2000), slice(2000, None)  # f is estimated from the first half
      >>> bins = num_bins(1000)
      >>> bin_N = quantile_bins(score_N, score_N[fit], bins)
      >>> ratio = log_ratio_bins(bin_N[fit], member_N[fit], bin_N[held_out], bins)
      >>> result = held_out_advantage(privacy_loss(ratio.value_N, 0.5), member_N[held_out], 0.5)
      >>> bool(result.low < 0.383 < result.high)  # the best adversary has 2 Phi(1/2) - 1 = 0.383
      True
    """
    check_prior(prior)
    f_N, member_N, left_out = _present(as_float64(f_N, "f_N"), member_N)
    members = int(member_N.sum())
    nonmembers = member_N.size - members
    if not (members and nonmembers):
        raise ValueError("f_N: there must be a member and a non-member with a value")
    called_N = f_N >= 0
    tp, fp = int(called_N[member_N].sum()), int(called_N[~member_N].sum())
    counts = tp, fp, members - tp, nonmembers - fp
    accuracy = METRICS["accuracy"]
    low, high = metric_interval(accuracy, *counts, prior, confidence)
    return HeldOutAdvantage(
        value=2 * float(metric_value(accuracy, *counts, prior)) - 1,
        low=2 * float(low) - 1,
        high=2 * float(high) - 1,
        tpr=tp / members,
        tnr=1 - fp / nonmembers,
        left_out=left_out,
    )


def dp_advantage_bound(epsilon: ArrayLike, prior: float) -> FloatArray:
    """Computes the largest |f| of any sample if training is epsilon-differentially private.

    The training set must be random, apart from the sample in question: for a fixed one, a deterministic query that
    differs between all samples has |f| = 1 whatever epsilon is. (MACE says that the training set is fixed, and its Eq.
    23 lacks the P of the denominator.)

    The bound holds for each sample. The mean of |f|, the advantage, is at most max(|1 - 2p|, tanh(epsilon / 2)), which
    is the same for a prior of 1/2, where randomized response attains it, and smaller for any other.

    Args:
      epsilon: the privacy budget, 0 or larger, of any shape; may be +inf.
      prior: probability of membership, in (0, 1).

    Returns:
      tanh((epsilon + |log(p / (1 - p))|) / 2).

    Raises:
      ValueError: if an epsilon is negative or NaN, or the prior is outside (0, 1).

    Source: MACE, Theorem 2 (Eq. 21), where the larger of the two terms is the one with equal signs.
    """
    check_prior(prior)
    epsilon = as_float64(epsilon, "epsilon")
    if not np.all(epsilon >= 0):
        raise ValueError("epsilon: must be 0 or larger")
    return np.tanh((epsilon + abs(float(scipy.special.logit(prior)))) / 2)


def _present(f_N: FloatArray, member_N: ArrayLike) -> tuple[FloatArray, BoolArray, int]:
    member_N = as_members(member_N, "member_N")
    if f_N.ndim != 1 or member_N.shape != f_N.shape:
        raise ValueError(f"f of shape {f_N.shape} does not match members of {member_N.shape}")
    present_N = ~np.isnan(f_N)
    return f_N[present_N], member_N[present_N], int((~present_N).sum())


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else float("nan")
