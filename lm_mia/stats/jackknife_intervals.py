"""Confidence intervals of a share, and of a paired difference, over trainings and samples at once.

One form serves replicas, several targets and a single training: ``value_A1xH1``, the number with all trainings and
without each group of them, on all samples and on each half (`HALVES_HxG`). With one training, A1 is 1.

| number | trainings | its values |
|---|---|---|
| AUC, TPR | any number | `rates_without_groups` of the rates of each training |
| share of hits missed after retraining | replicas, at least 2 | `missed_share` of `decision_metrics` |
| difference of two attacks | the same trainings and samples | `difference_interval` of the values of both |

docs/results/statistics.md has the simulated coverage, and that of the alternatives.

Legend: T trainings, S statistics, H halves of the samples, H1 all samples and then each half, A1 all trainings and then
without each group.

Sources: the variance: see `jackknife_variance`. The logit scale: Brown, Cai and DasGupta (2001), Interval estimation
for a binomial proportion.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64, check_rates
from lm_mia.stats.intervals import check_confidence
from lm_mia.stats.jackknife import HALVES_HxG, jackknife_variance

_MAX_GROUPS = 8
"""Trainings are divided into this many groups, unless there are fewer, as in `decision_metrics`."""
_DF_PER_GROUP = 3
"""Largest number of degrees of freedom per degree of freedom of the trainings. Two trainings that happen to be alike do
not show that trainings are alike: with the degrees of freedom of the samples, the interval of an AUC would contain the
expectation in as few as 88 % of simulations with two trainings."""


def rates_without_groups(rate_TxS: ArrayLike, rate_TxHxS: ArrayLike) -> FloatArray:
    """Computes the means of rates over trainings, with all trainings and without each of up to 8 groups of them.

    Args:
      rate_TxS: AUCs or TPRs of each training on all samples, as of `tpr_at_fpr`.
      rate_TxHxS: the same on each half of the samples, as of `rates_of_halves`.

    Returns:
      value_A1xH1xS. Training t is in group t mod A, where A is 8 or, if smaller, T. A single training cannot be left
      out, so A1 is 1.

    Raises:
      ValueError: if there is no training, or if the shapes do not match.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import rates_without_groups
      >>> auc_T, auc_TxH = np.array([0.5, 0.6, 0.9]), np.full((3, 14), 0.7)
      >>> value_A1xH1xS = rates_without_groups(auc_T[:, None], auc_TxH[..., None])
      >>> value_A1xH1xS.shape, value_A1xH1xS[:, 0, 0].round(2)  # without the first, the mean is 0.75
      ((4, 15, 1), array([0.67, 0.75, 0.7 , 0.55]))
    """
    rate_TxS, rate_TxHxS = as_float64(rate_TxS, "rates"), as_float64(rate_TxHxS, "rates of halves")
    halves = len(HALVES_HxG)
    if (
        rate_TxS.ndim != 2
        or not len(rate_TxS)
        or rate_TxHxS.shape != (len(rate_TxS), halves, rate_TxS.shape[1])
    ):
        raise ValueError(
            f"rates of shape {rate_TxS.shape} and of halves of shape {rate_TxHxS.shape}: must be T x S and "
            f"T x {halves} x S, with at least one training"
        )
    rate_TxH1xS = np.concatenate([rate_TxS[:, None], rate_TxHxS], axis=1)
    trainings = len(rate_TxS)
    groups = min(_MAX_GROUPS, trainings)
    group_T = np.arange(trainings) % groups
    left_out = range(groups) if trainings > 1 else ()
    return np.stack(
        [rate_TxH1xS.mean(axis=0), *(rate_TxH1xS[group_T != a].mean(axis=0) for a in left_out)]
    )


def missed_share(flip_rate_A1xH1: ArrayLike, tpr_A1xH1: ArrayLike) -> FloatArray:
    """Computes the share of the found members that another training misses, from flip rates and TPRs.

    It is 1 - P(another training finds a member | one training finds it), over ordered pairs of replicas and over
    members, which is the mean flip rate of members divided by twice the mean TPR.

    One replica has no pair. Without one of two replicas, the result is the middle between the share of both and that of
    one ordered pair: of the members that the remaining replica finds, those that the other one misses. The shares of
    the two ordered pairs differ if one replica finds more members than the other. Half of their deviation is enough: in
    simulations, the 95 % interval of `share_interval` contains the expectation in 92 to 100 %.

    Args:
      flip_rate_A1xH1: mean flip rate of members, as of `decision_metrics`, of any shape whose first element along the
        first axis is that of all replicas; NaN where fewer than two replicas remain.
      tpr_A1xH1: mean TPR of the same replicas and samples. With two replicas, take it from `rates_without_groups`,
        since `decision_metrics` has none for one replica.

    Returns:
      The shares, from 0 to 1; NaN where no member is found, or where a number is missing.

    Raises:
      ValueError: if the shapes do not match, or if a number is not from 0 to 1.

    Source: StrongMIA, Eq. 10, for the flip rate.

    Example:
      Of two replicas, each finds 4 of 10 members, and 3 members are found by both. The flip rate is 2/10:

      >>> from lm_mia.stats import missed_share
      >>> missed_share([[0.2]], [[0.4]]).round(3)
      array([[0.25]])
    """
    flip_rate_A1xH1 = as_float64(flip_rate_A1xH1, "flip rates")
    tpr_A1xH1 = as_float64(tpr_A1xH1, "TPRs")
    if flip_rate_A1xH1.shape != tpr_A1xH1.shape or not flip_rate_A1xH1.ndim:
        raise ValueError(
            f"flip rates of shape {flip_rate_A1xH1.shape} and TPRs of shape {tpr_A1xH1.shape}: must have the same shape"
        )
    check_rates(flip_rate_A1xH1, "flip rates")
    check_rates(tpr_A1xH1, "TPRs")
    found_by_both_1xH1 = tpr_A1xH1[:1] - flip_rate_A1xH1[:1] / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        share_A1xH1 = flip_rate_A1xH1 / (2 * tpr_A1xH1)
        of_ordered_pair_A1xH1 = 1 - found_by_both_1xH1 / tpr_A1xH1
    share_A1xH1 = np.where(
        np.isnan(share_A1xH1), (share_A1xH1[:1] + of_ordered_pair_A1xH1) / 2, share_A1xH1
    )
    share_A1xH1[~(tpr_A1xH1 > 0)] = np.nan
    return np.clip(share_A1xH1, 0.0, 1.0)  # they can exceed the ends by rounding errors


def share_interval(
    value_A1xH1: ArrayLike, *, count: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Computes the confidence interval of a share, such as a TPR, an AUC, or the share of hits that are missed.

    It is Student's t interval on the logit scale: with the share p, its variance V and df degrees of freedom of
    `jackknife_variance`, and at most 3 df per left-out group of trainings beyond the first,

        logit(p) - m to logit(p) + m,   m = t_df sqrt(V) / (p (1 - p))

    Only the share of all trainings and samples is on the logit scale. Its parts are not, since the logit of a half
    without a hit is infinite.

    A share of 0 or 1, or one that is the same in all parts, does not show how much it varies. Then V is at least
    p' (1 - p') / count, the binomial variance, with p' = (p count + 1/2) / (count + 1) for a share of 0 or 1, and the
    degrees of freedom are those of the halves. The interval then contains the 0 or the 1.

    What is covered: the choice of the samples; with several trainings also what differs between them, such as the order
    of their batches, and of targets their subsets. What is not: anything that all trainings share, such as the
    references, the recipe and, of replicas, the training subset. With one training its own randomness is not covered.
    Samples must be independent, or have whole documents in their groups (`sample_groups`).

    In simulations the 95 % intervals contain the expectation in 90 to 100 %, and in 96 % on average
    (docs/results/statistics.md). With two trainings they may be several times as wide as with five.

    Args:
      value_A1xH1: the share with all trainings, and without each group of them; on all samples, and on each half.
      count: the number of samples of which it is a share: members for a TPR, found members for the share of them that
        is missed, and the smaller one of members and non-members for an AUC. It matters only for a share that does not
        vary.
      confidence: in (0, 1).

    Returns:
      ``(low, high)``, from 0 to 1; NaN if the share or one of its parts is NaN.

    Raises:
      ValueError: if the shape is not that of one value per group and half, if the share is not from 0 to 1, if count is
        not positive, or if confidence is out of range.

    Source: Brown, Cai and DasGupta (2001) for the logit scale; Anscombe (1956), On estimating binomial response
    relations, for the half.

    Example:
      A TPR of 0.25 of one training is 0.3 and 0.2 on complementary halves, so its standard error is 0.05. The margin is
      2.365 x 0.05 / (0.25 x 0.75) = 0.631 on the logit scale, around log(0.25 / 0.75) = -1.099:

      >>> from lm_mia.stats import share_interval
      >>> low, high = share_interval([[0.25, *[0.3, 0.2] * 7]], count=512)
      >>> round(low, 3), round(high, 3)
      (0.151, 0.385)

      All of 100 members are found:

      >>> low, high = share_interval([[1.0] * 15], count=100)
      >>> round(low, 3), round(high, 3)
      (0.874, 1.0)
    """
    check_confidence(confidence)
    value_A1xH1 = _as_values(value_A1xH1, "shares")
    share = float(value_A1xH1[0, 0])
    if not (count > 0 and math.isfinite(count)):
        raise ValueError(f"count={count}: must be the positive number of samples of the share")
    if share < 0 or share > 1:
        raise ValueError(f"shares: the first one is {share}; it must be from 0 to 1")
    variance, df = _variance(value_A1xH1)
    if math.isnan(share) or math.isnan(variance):
        return math.nan, math.nan
    center = share
    if share in (0.0, 1.0):
        center = (share * count + 0.5) / (count + 1)
    if variance == 0 or share in (0.0, 1.0):
        binomial = center * (1 - center) / count
        if binomial >= variance:
            variance, df = binomial, value_A1xH1.shape[1] // 2
    quantile = scipy.special.stdtrit(df, (1 + confidence) / 2)
    margin = quantile * math.sqrt(variance) / (center * (1 - center))
    middle = scipy.special.logit(center)
    low, high = (
        float(scipy.special.expit(middle - margin)),
        float(scipy.special.expit(middle + margin)),
    )
    return (0.0 if share == 0 else low), (1.0 if share == 1 else high)


def difference_interval(
    value_A1xH1: ArrayLike, other_A1xH1: ArrayLike, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Computes the confidence interval of the difference of two numbers of the same trainings and samples.

    It is Student's t interval with the variance and the degrees of freedom of `jackknife_variance`, limited as in
    `share_interval`, which also says what is covered. Both numbers are computed on the same parts, so that what they
    have in common cancels.

    One attack may be said to find more than another only if 0 is outside the interval. In simulations of attacks with
    the same expectation, 0 is outside the 95 % interval in 0 to 8 %.

    Args:
      value_A1xH1: the first number, as in `share_interval`, but it may be of any size.
      other_A1xH1: the number that is subtracted, with the same parts in the same order.
      confidence: in (0, 1).

    Returns:
      ``(low, high)``. Both are 0 for numbers that are equal in all parts. Both are NaN if a part is NaN, or if the
      difference is not 0 but the same in all parts, which is a coincidence among few samples.

    Raises:
      ValueError: if the shapes differ or are not those of one value per group and half, if a value is too large, or if
        confidence is out of range.

    Example:
      TPRs of 0.30 and 0.25, whose difference is 0.07 and 0.03 on complementary halves. Its standard error is 0.02:

      >>> from lm_mia.stats import difference_interval
      >>> low, high = difference_interval([[0.30, *[0.35, 0.25] * 7]], [[0.25, *[0.28, 0.22] * 7]])
      >>> round(low, 3), round(high, 3)
      (0.003, 0.097)
    """
    check_confidence(confidence)
    value_A1xH1, other_A1xH1 = _as_values(value_A1xH1, "values"), _as_values(other_A1xH1, "values")
    if value_A1xH1.shape != other_A1xH1.shape:
        raise ValueError(
            f"values of shapes {value_A1xH1.shape} and {other_A1xH1.shape}: must have the same parts"
        )
    difference_A1xH1 = value_A1xH1 - other_A1xH1
    variance, df = _variance(difference_A1xH1)
    difference = float(difference_A1xH1[0, 0])
    if math.isnan(variance) or (variance == 0 and difference != 0):
        return math.nan, math.nan
    margin = float(scipy.special.stdtrit(df, (1 + confidence) / 2)) * math.sqrt(variance)
    return difference - margin, difference + margin


def _as_values(value_A1xH1: ArrayLike, name: str) -> FloatArray:
    value_A1xH1 = as_float64(value_A1xH1, name)
    if (
        value_A1xH1.ndim != 2
        or value_A1xH1.shape[0] in (0, 2)
        or value_A1xH1.shape[1] < 3
        or value_A1xH1.shape[1] % 2 == 0
    ):
        raise ValueError(
            f"{name} of shape {value_A1xH1.shape}: must be A1 x H1, with all trainings and then without each of at "
            "least two groups (one training: A1 = 1), and with all samples and then pairs of halves"
        )
    return value_A1xH1


def _variance(value_A1xH1: FloatArray) -> tuple[float, float]:
    """Returns (variance, degrees of freedom) over trainings and samples; NaN if a value is missing."""
    variance, df = jackknife_variance(value_A1xH1[:, None])
    groups = len(value_A1xH1) - 1
    return variance, min(df, _DF_PER_GROUP * (groups - 1)) if groups else df
