"""Effects of models: how the losses of a model depend on properties of the samples, other than on membership.

The effect of a model is the vector of coefficients of its loss minus the mean loss of the references, on the columns of
a design matrix. It is removed from the losses before they are compared. If membership in the target depends on a
property of the samples, a part of the target's estimated effect is the signal of membership.

Legend: T targets, M references, S samples, P columns of the design matrix: a constant, the mean loss of the references,
and covariates.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are first used

from lm_mia.stats.array_types import BoolArray, FloatArray

RANK_TOLERANCE = 1e-12  # smaller eigenvalues, relative to the largest, are rounding errors
_SLOPE_SD = 0.2  # prior standard deviation of the slope of P(member) on a standardized column
_MAX_SLOPE = 0.4  # that of P(member) = 1 above the mean and 0 below it, if the column is normal
_FALSE_ALARMS = 1e-3  # share of targets that are unusual in a column by chance


def effect_weights(loss_MxS: np.ndarray) -> FloatArray:
    """Returns weight_S of samples in the estimation of effects; it is smaller where losses vary more.

    It is proportional to 1 / (variance + median variance), so that a few samples with nearly equal losses do not
    outweigh all others.
    """
    is_present_MxS = ~np.isnan(loss_MxS)
    count_M = np.maximum(is_present_MxS.sum(axis=1, keepdims=True), 1)
    filled_MxS = np.where(is_present_MxS, loss_MxS, 0.0)
    centered_MxS = filled_MxS - filled_MxS.sum(axis=1, keepdims=True) / count_M
    count_S = is_present_MxS.sum(axis=0)
    mean_S = np.where(is_present_MxS, centered_MxS, 0.0).sum(axis=0) / np.maximum(count_S, 1)
    deviation_MxS = np.where(is_present_MxS, centered_MxS - mean_S, 0.0)
    variance_S = np.square(deviation_MxS).sum(axis=0) / np.maximum(count_S - 1, 1)
    is_varying_S = (count_S > 1) & (variance_S > 0)
    if not is_varying_S.any():
        return np.ones(len(count_S))
    typical = float(np.median(variance_S[is_varying_S]))
    return 1 / (1 + np.where(count_S > 1, variance_S, typical) / typical)


def model_effects(
    deviation_MxS: np.ndarray, design_SxP: FloatArray, weight_S: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Estimates the effects of models by weighted least squares; a NaN deviation is left out.

    Args:
      deviation_MxS: losses minus the mean loss of the references, in nats per token.
      design_SxP: the design matrix; rows of samples without a mean loss are 0.
      weight_S: weights of the samples.

    Returns:
      effect_MxP, and inverse_MxPxP, the inverse of the weighted sums of products of columns.
    """
    P = design_SxP.shape[1]
    is_present_MxS = ~np.isnan(deviation_MxS)
    weight_MxS = is_present_MxS * weight_S
    products_SxPP = (design_SxP[:, :, None] * design_SxP[:, None, :]).reshape(-1, P * P)
    gram_MxPxP = (weight_MxS @ products_SxPP).reshape(-1, P, P)
    right_MxP = (weight_MxS * np.where(is_present_MxS, deviation_MxS, 0.0)) @ design_SxP
    inverse_MxPxP = np.linalg.pinv(gram_MxPxP, rtol=RANK_TOLERANCE, hermitian=True)
    inverse_MxPxP = inverse_MxPxP.astype(np.float64, copy=False)
    return np.einsum("mpq,mq->mp", inverse_MxPxP, right_MxP), inverse_MxPxP


def attenuation(
    is_present_TxS: BoolArray,
    mean_variance_S: FloatArray,
    weight_S: FloatArray,
    scale: float,
    inverse_TxPxP: FloatArray,
) -> FloatArray:
    """Returns what errors of the mean loss add to the estimated effects of targets, on average.

    The mean of the references' losses is subtracted from the target's loss and is a column of the design matrix, so its
    error e occurs as -e in the one and as e in the other. Effects of references have no such bias, since their own loss
    is a part of the mean: the covariance of a loss and the mean of losses is the variance of the mean.

    Args:
      is_present_TxS: whether the target has a loss of the sample.
      mean_variance_S: variance of the mean loss of each sample, in squared nats per token.
      weight_S: as for `model_effects`.
      scale: standard deviation of the mean loss over the samples, by which its column is divided.
      inverse_TxPxP: result of `model_effects` for the targets.
    """
    covariance_T = -(is_present_TxS @ (weight_S * mean_variance_S)) / scale
    return inverse_TxPxP[:, :, 1] * covariance_T[:, None]


def target_effects(
    estimate_TxP: FloatArray,
    attenuation_TxP: FloatArray,
    reference_effect_MxP: FloatArray,
    gap: float,
    rounding: float,
) -> FloatArray:
    """Returns effect_TxP, the effects of targets in nats per token without what membership may explain.

    Let the probability P(x) of membership in a target depend on the columns x. Then the loss of the target minus the
    mean loss of the references is x' b - (P(x) - 1 / 2) g on average, where g is the gap between OUT and IN losses and
    b the effect of the target. The estimated effect is therefore b + a, where a is -g times the slope of P on x.
    Removing a would remove what distinguishes members: samples with large x from those with small x.

    One target does not show b and a separately. But the effects of references, whose membership is known, show how
    large b can be. In each column but the constant, let d be the estimate minus the mean of the references' effects,
    and s^2 the variance of these effects times 1 + 1 / M, where M is the number of references. With the priors
    b ~ N(mean, s^2) and a ~ N(0, (0.2 g)^2), the expected a given d is

        w d,    w = (0.2 g)^2 / ((0.2 g)^2 + s^2)

    and it is limited to -0.4 |g| to 0.4 |g|: a probability that is 1 above the mean of a standard normal column, and 0
    below it, has the slope 0.4. What remains of the estimate is removed. Without a gap, this is all of it.

    The constant is removed as it is: it does not change the order of samples.

    Args:
      estimate_TxP: estimated effects of the targets.
      attenuation_TxP: bias of these estimates, which is removed from the losses but is not evidence of membership.
      reference_effect_MxP: effects of the references.
      gap: the gap between OUT and IN losses of a typical sample, in nats per token; 0 if it is not known.
      rounding: differences between effects that are smaller are rounding errors.
    """
    distance_TxP, sd_P = _distances(estimate_TxP, attenuation_TxP, reference_effect_MxP, rounding)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A ratio, since squares of the gap might underflow; NaN where there is neither a gap nor a variance.
        weight_P = np.nan_to_num(1 / (1 + np.square(sd_P / (_SLOPE_SD * abs(gap)))))
    largest = _MAX_SLOPE * abs(gap)
    explained_TxP = np.clip(weight_P * distance_TxP, -largest, largest)
    explained_TxP[:, 0] = 0.0
    return estimate_TxP - np.nan_to_num(explained_TxP, nan=0.0)


def target_z(
    estimate_TxP: FloatArray,
    attenuation_TxP: FloatArray,
    reference_effect_MxP: FloatArray,
    rounding: float,
) -> FloatArray:
    """Returns z_TxP, how many standard deviations the effects of targets are away from the mean of the references'.

    For a target that is like the references, it has the distribution of Student's t with M - 1 degrees of freedom. The
    arguments are those of `target_effects`, but estimated with weights that do not depend on the losses: a reference
    with unusual losses has smaller weights where these are, so that its effect varies less than that of a target.

    It is NaN for the constant, and with fewer than two references.
    """
    distance_TxP, sd_P = _distances(estimate_TxP, attenuation_TxP, reference_effect_MxP, rounding)
    z_TxP = np.divide(distance_TxP, sd_P, out=np.zeros(distance_TxP.shape), where=sd_P != 0)
    z_TxP[:, 0] = np.nan
    return z_TxP


def _distances(
    estimate_TxP: FloatArray,
    attenuation_TxP: FloatArray,
    reference_effect_MxP: FloatArray,
    rounding: float,
) -> tuple[FloatArray, FloatArray]:
    """Returns distance_TxP from the mean effect of the references, and its standard deviations sd_P."""
    references, P = reference_effect_MxP.shape
    if references < 2:  # they show no variance
        return np.full(estimate_TxP.shape, np.nan), np.full(P, np.nan)
    sd_P = reference_effect_MxP.std(axis=0, ddof=1) * np.sqrt(1 + 1 / references)
    return (
        estimate_TxP - attenuation_TxP - reference_effect_MxP.mean(axis=0),
        np.maximum(sd_P, rounding),
    )


def is_unusual(z_TxP: FloatArray, freedom: int) -> BoolArray:
    """Returns whether |z| exceeds its 99.9 % quantile for a target that is like the references; False for NaN.

    By chance, this is so for one of a thousand targets in each column.
    """
    if freedom < 1:
        return np.zeros(z_TxP.shape, np.bool_)
    return np.abs(z_TxP) > scipy.special.stdtrit(freedom, 1 - _FALSE_ALARMS / 2)
