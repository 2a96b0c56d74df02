"""Losses of each sample in units of the mean and standard deviation (SD) of its OUT losses, and their distribution.

Standardized losses are comparable between samples, so that one threshold has the same false positive rate on each.

Legend: T targets, M models (each in turn the target), N samples, C samples of a chunk, F false positive rates.
Losses are means in nats per token; NaN marks a missing loss. Scores are larger for members. Reliability is Jälkö,
Pradhan, Räisä and Honkela 2026, On Reliability of Efficient Membership Inference Vulnerability Evaluation.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.design import Design
from lm_mia.stats.inputs import as_real
from lm_mia.stats.leave_one_out import (
    has_both_classes,
    leave_one_out_moments,
    left_out_by_design,
)
from lm_mia.stats.lira import (
    LiraGaussians,
    as_variance_factor,
    check_references,
    chunks_of_samples,
    sd_or_nan,
)
from lm_mia.stats.moments import as_finite_float64, mean_or_nan, variance_or_nan
from lm_mia.stats.ranking import as_fprs

Direction = Literal["lower", "estimated"]


@dataclasses.dataclass(frozen=True)
class StandardizedScores:
    """Standardized losses with each model in turn as the target."""

    score_MxN: FloatArray
    """Larger for members; NaN where undefined."""
    count_out_MxN: NDArray[np.int32]
    """Number of OUT references that the mean and the SD were estimated from, for `predictive_threshold`."""


def standardized_scores(
    target_loss_TxN: ArrayLike, gaussians: LiraGaussians, *, direction: Direction = "lower"
) -> FloatArray:
    """Computes how many OUT standard deviations the loss of each target is below the OUT mean of the sample.

        "lower":     score = (mean_out - loss) / sd_out
        "estimated": score = sign(mean_in - mean_out) (loss - mean_out) / sd_out

    With the true mean and SD, the scores of non-members are standard normal for every sample if losses are normal, so
    one threshold has the same false positive rate on every sample. If the IN and OUT variances of a sample are equal,
    the score increases with the likelihood ratio and is equally powerful; otherwise, it has the same FPR but a smaller
    TPR. With estimated moments, scores have heavier tails: see `predictive_threshold`.

    Reliability's Eq. 22 needs the true sign of mean_in - mean_out. The estimated sign depends on the OUT mean, which is
    also subtracted from the loss. If membership has no effect on a sample, n IN and n OUT references have the same
    variance, and the variance is known, then the score of a non-member is sqrt(1 + 1/n) times a skew-normal variable
    with the shape parameter 1 / sqrt(2n + 1): with 16 references, its FPR at the normal threshold of 1% is 1.62%, and
    1.20% with the true sign. Losses of members are lower, so "lower" is the default. Eq. 24 of Reliability prints the
    same SD for IN and OUT losses in one of its trade-off functions, although they differ, and takes the IN distribution
    as the null hypothesis, which should be that the sample is OUT.

    Args:
      target_loss_TxN: losses under the targets, in nats per token; a NaN loss gives a NaN score. A one-dimensional
        array is treated as one target.
      gaussians: result of `fit_gaussians` with variance="per_sample". A target must not be among its references.
      direction: "lower" if members have lower losses, as all losses do; "estimated" to take the direction of each
        sample from its references.

    Returns:
      score_TxN in units of the OUT SD; NaN for a sample with fewer than 2 OUT references or an OUT variance of zero,
      and, with direction="estimated", without an IN reference or with equal means.

    Raises:
      ValueError: if the direction is unknown, if the numbers of samples differ, or if a loss is infinite.

    Source: Reliability, Eq. 21.

    Example:
      >>> from lm_mia.stats import fit_gaussians, standardized_scores
      >>> member_5x1 = [[True], [True], [False], [False], [False]]
      >>> gaussians = fit_gaussians([[0.0], [1.0], [1.0], [2.0], [3.0]], member_5x1)
      >>> standardized_scores([[0.5], [2.0]], gaussians)
      array([[1.5],
             [0. ]])
    """
    _check_direction(direction)
    target_TxN = np.atleast_2d(as_real(target_loss_TxN, "losses"))
    samples = gaussians.mean_out_N.shape[0]
    if target_TxN.ndim != 2 or target_TxN.shape[1] != samples:
        raise ValueError(
            f"target losses of shape {target_TxN.shape} do not match Gaussians of {samples} samples"
        )
    score_TxN = np.empty(target_TxN.shape)
    for chunk in chunks_of_samples(samples):
        score_TxN[:, chunk] = _standardize(
            as_finite_float64(target_TxN[:, chunk]),
            gaussians.mean_in_N[chunk],
            gaussians.mean_out_N[chunk],
            gaussians.var_out_N[chunk],
            direction,
        )
    return score_TxN


def standardized_leave_one_out(
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    *,
    direction: Direction = "lower",
    design: Design | None = None,
    id_N: ArrayLike | None = None,
) -> StandardizedScores:
    """Computes the `standardized_scores` of each model as the target, with all other models as its references.

    Time is linear in the number of models. What is left out with each target, and which cells have a score, is as for
    `lira_leave_one_out`. If only the target were left out, the TPR on noise at an FPR of 1% would be 0.3% for 8 models
    in pairs of complements, and 3.4% for 4 subsets with 2 seeds each. If samples had a score that no model was trained
    on, it would be 1.7% for 8 models and a quarter of such samples.

    Args:
      loss_MxN: losses under all models, in nats per token; a NaN loss is left out, and its score is NaN.
      member_MxN: booleans, whether each sample was in each model's training subset.
      direction: as for `standardized_scores`.
      design, id_N: as for `lira_leave_one_out`.

    Returns:
      The scores, and how many OUT references each is based on. They need 12 bytes per loss; arrays that do not fit into
      memory can be processed in blocks of samples.

    Raises:
      ValueError: as for `standardized_scores`; if subsets overlap; or if the design or the ids do not match the losses.

    Source: Reliability, Eq. 21 and section 5.

    Example:
      >>> from lm_mia.stats import standardized_leave_one_out
      >>> loss_5x1 = [[0.5], [1.0], [1.0], [2.0], [3.0]]
      >>> member_5x1 = [[True], [True], [False], [False], [False]]
      >>> result = standardized_leave_one_out(loss_5x1, member_5x1)
      >>> result.score_MxN.round(2).T
      array([[ 1.5 ,  1.  ,  2.12,  0.  , -2.12]])
      >>> result.count_out_MxN.T
      array([[3, 3, 2, 2, 2]], dtype=int32)
    """
    _check_direction(direction)
    loss_MxN, member_MxN = check_references(loss_MxN, member_MxN, "per_sample")
    left_out = left_out_by_design(member_MxN, design, id_N)
    score_MxN = np.empty(loss_MxN.shape)
    count_out_MxN = np.empty(loss_MxN.shape, np.int32)
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        in_moments, out_moments = leave_one_out_moments(
            loss_MxN[:, chunk], member_MxN[:, chunk], left_out.select(chunk)
        )
        count_out_MxN[:, chunk] = out_moments.count
        score_MxN[:, chunk] = _standardize(
            np.where(has_both_classes(in_moments, out_moments), loss_MxN[:, chunk], np.nan),
            mean_or_nan(in_moments),
            mean_or_nan(out_moments),
            variance_or_nan(out_moments, 1),
            direction,
        )
    return StandardizedScores(score_MxN, count_out_MxN)


def gaussian_tpr(
    gaussians: LiraGaussians,
    fprs: ArrayLike,
    *,
    sampled_share: float = 0.0,
    order_share: float = 0.0,
) -> FloatArray:
    """Computes the TPR that each sample has if its losses have the given Gaussian distributions.

    The attack calls a sample a member if its loss is at least t SDs below the OUT mean, where t is the 1 - fpr quantile
    of the standard normal distribution, so that the share fpr of the OUT losses is. The IN loss is below mean_out - t
    sd_out with the probability

        TPR = Phi((mean_out - mean_in - t sd_out) / sd_in)

    This is the vulnerability of a sample to an adversary who knows its distributions; it does not account for the
    errors of estimated means and variances.

    By default, the models are those of the experiment, whose training subsets are drawn from one population.
    Reliability's finite-population correction answers another question: how vulnerable the sample is to an adversary
    who only knows the distribution from which the population was drawn. Without it, variances are calibrated for the
    targets of the experiment: with it, at f = 1/2, thresholds for 1% and 10% would have FPRs of 0.05% and 3.5%. So
    measured rates never use it.

    Subsets of the share f of a population vary less than new draws: their variance is smaller by the factor 1 - f. The
    batch order and other noise of training, which account for the share q of the variance over models, vary equally in
    both cases. So the variance for new draws is

        variance = measured variance x (q + (1 - q) / (1 - f))

    Args:
      gaussians: result of `fit_gaussians` with variance="per_sample".
      fprs: one false positive rate in [0, 1], or several.
      sampled_share: share f of the population in a training subset, in [0, 1); 0 leaves the variances unchanged.
      order_share: share q of the variance that is not due to the training subset, in [0, 1], such as the variance over
        replicas divided by that over references.

    Returns:
      tpr_FxN; NaN without two IN or two OUT references, or for a variance of zero.

    Raises:
      ValueError: if a rate or a share is out of range.

    Source: Reliability, Eqs. 21 to 23, 27 and 28. It applies the factor to the whole variance, as does q = 0.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import LiraGaussians, gaussian_tpr
      >>> one = np.ones(1)
      >>> gaussians = LiraGaussians(one, one, 8 * one, 2 * one, one, 8 * one)
      >>> gaussian_tpr(gaussians, 0.01).round(3)
      array([[0.092]])
      >>> gaussian_tpr(gaussians, 0.01, sampled_share=0.5).round(3)
      array([[0.053]])
    """
    fpr_F = as_fprs(fprs)
    if not 0 <= order_share <= 1:
        raise ValueError(f"order_share={order_share}: must be in [0, 1]")
    factor = order_share + (1 - order_share) * as_variance_factor(sampled_share)
    sd_in_N = sd_or_nan(gaussians.var_in_N * factor)
    sd_out_N = sd_or_nan(gaussians.var_out_N * factor)
    gap_N = gaussians.mean_out_N - gaussians.mean_in_N
    return scipy.special.ndtr((gap_N + scipy.special.ndtri(fpr_F)[:, None] * sd_out_N) / sd_in_N)


def _standardize(
    loss: FloatArray,
    mean_in: FloatArray,
    mean_out: FloatArray,
    var_out: FloatArray,
    direction: Direction,
) -> FloatArray:
    score = (mean_out - loss) / sd_or_nan(var_out)
    if direction == "estimated":
        sign = np.sign(mean_out - mean_in)
        score *= np.where(sign == 0, np.nan, sign)
    return score


def _check_direction(direction: str) -> None:
    if direction not in ("lower", "estimated"):
        raise ValueError(f"direction={direction!r}: must be 'lower' or 'estimated'")
