"""LiRA scores combined with properties of samples by a regression that is fitted on the references' own membership.

Legend: T targets, M references, N samples, S samples on which parameters are estimated, C samples of a chunk, K
covariates of a sample, P columns of the design matrix, F = P + 2 features: the shrunk LiRA score, the standardized
distance of the loss multiplied by each column of the design matrix, and a constant, D (reference, sample) pairs. Losses
are means in nats per token; NaN marks a missing loss.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.design import design_of
from lm_mia.stats.leave_one_out import LeftOut, leave_one_out_moments
from lm_mia.stats.lira import check_references, chunks_of_samples
from lm_mia.stats.shrinkage import (
    LossModel,
    SamplePosterior,
    align_losses,
    check_covariates,
    check_losses,
    fit_loss_model,
    fit_samples,
    posteriors_of_chunks,
    sample_posterior,
)

_MAX_PAIRS = 2**19  # (reference, sample) pairs on which the regression is fitted
_MAX_FOLDS = 4
_PENALTIES = (1e-1, 1e-2, 1e-3, 1e-4)
_NEWTON_STEPS = 25
_NEWTON_TOLERANCE = 1e-8


@dataclasses.dataclass(frozen=True)
class StackedRegression:
    """The regression of `stacked_lira`; a score is the sum of the features times these weights."""

    weight_F: FloatArray
    """NaN if it cannot be fitted."""
    penalty: float
    """The chosen penalty on the squared weights of standardized features."""


def stacked_lira(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    covariate_NxK: ArrayLike | None = None,
) -> FloatArray:
    """Computes membership scores by logistic regression on the shrunk LiRA score and on properties of the sample.

    The membership of the references is known. Each reference in turn is treated as a target that is attacked with the
    others, and a logistic regression predicts its membership from

    - the score of `shrunk_lira`,
    - the standardized distance u = (middle between the expected IN and OUT losses - loss) / standard deviation,
    - u times the mean loss and u times each covariate; the mean loss and the covariates are centered and scaled.

    The regression learns what the model behind `shrunk_lira` misses, such as tails of another shape or a gap that
    depends on the length in another way. The membership of the targets is not used. Each
    reference is attacked without those that were trained on the same subset or on its complement, as in a balanced
    design, since they would reveal its members; `design_of` recognizes them.

    The weights are penalized by the sum of their squares. The penalty is chosen by cross-validation: the regression is
    fitted on three quarters of the references and evaluated on the others (with fewer than 4 references or groups of
    them, on all but one).

    Args:
      target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK: as for `shrunk_lira`.

    Returns:
      score_TxN: log odds of membership, if the share of members is that of the references and does not depend on the
      mean loss or the covariates. The score is NaN for a
      sample without a reference loss. All scores are NaN if the regression cannot be fitted, because no reference
      remains when one and its group are left out, or because the parameters of `shrunk_lira` cannot be estimated.

    Raises:
      ValueError: as for `shrunk_lira`.

    Source: classifiers that are trained on shadow models are due to Shokri et al. 2017; here, the features are made of
    the sufficient statistics of LiRA. docs/results/attacks.md compares the attack with others.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import auc, stacked_lira
      >>> rng = np.random.default_rng(0)
      >>> member_9xN = rng.random((9, 2000)) < 0.5
      >>> loss_9xN = 3 + rng.normal(0, 0.5, 2000) - 0.2 * member_9xN + rng.normal(0, 0.2, (9, 2000))
      >>> score_1xN = stacked_lira(loss_9xN[8], loss_9xN[:8], member_9xN[:8])  # 8 references
      >>> auc(score_1xN, member_9xN[8]).auc_T.round(2)
      array([0.75])
    """
    target_TxN, loss_MxN, member_MxN, covariate_NxK = check_losses(
        target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK
    )
    fit_S = fit_samples(loss_MxN.shape[1])
    fit = target_TxN[:, fit_S], loss_MxN[:, fit_S], member_MxN[:, fit_S]
    model = fit_loss_model(*fit, covariate_NxK=covariate_NxK[fit_S])
    regression = fit_stacked_regression(*fit[1:], model, covariate_NxK=covariate_NxK[fit_S])
    return stacked_from_regression(
        target_TxN, loss_MxN, member_MxN, model, regression, covariate_NxK=covariate_NxK
    )


def fit_stacked_regression(
    reference_loss_MxS: ArrayLike,
    reference_member_MxS: ArrayLike,
    model: LossModel,
    *,
    covariate_NxK: ArrayLike | None = None,
) -> StackedRegression:
    """Fits the regression of `stacked_lira` on some or all of the samples.

    Args:
      reference_loss_MxS, reference_member_MxS, covariate_NxK: as for `fit_loss_model`. At most 2^19 / M of the
        samples are used.
      model: result of `fit_loss_model` for these models.

    Returns:
      The weights and the penalty; they are NaN if the regression cannot be fitted.

    Raises:
      ValueError: as for `shrunk_lira`.
    """
    loss_MxS, member_MxS = check_references(reference_loss_MxS, reference_member_MxS, "per_sample")
    covariate_SxK = check_covariates(covariate_NxK, loss_MxS.shape[1])
    group_M = design_of(member_MxS).group_M
    used_S = fit_samples(loss_MxS.shape[1], max(_MAX_PAIRS // max(len(loss_MxS), 1), 1))
    feature_FxMxS = _reference_features(
        loss_MxS[:, used_S],
        member_MxS[:, used_S],
        covariate_SxK[used_S],
        model,
        group_M,
    )
    is_used_MxS = np.isfinite(feature_FxMxS).all(axis=0)
    feature_FxD, member_D = feature_FxMxS[:, is_used_MxS], member_MxS[:, used_S][is_used_MxS]
    if member_D.all() or not member_D.any():  # also if there are none
        return StackedRegression(np.full(len(feature_FxD), np.nan), np.nan)
    scale_F = feature_FxD.std(axis=1)
    scale_F = np.where(scale_F > 0, scale_F, np.inf)
    scale_F[-1] = 1.0
    feature_FxD /= scale_F[:, None]
    fold_D = np.broadcast_to(_folds(group_M)[:, None], is_used_MxS.shape)[is_used_MxS]
    penalty, start_F = _choose_penalty(feature_FxD, member_D, fold_D)
    weight_F = _logistic_regression(feature_FxD, member_D, penalty, start_F)
    return StackedRegression(weight_F / scale_F, penalty)


def stacked_from_regression(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    model: LossModel,
    regression: StackedRegression,
    *,
    covariate_NxK: ArrayLike | None = None,
) -> FloatArray:
    """Computes the scores of `stacked_lira` with a regression that is already fitted.

    Args:
      target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK: as for `shrunk_lira`; the models must be
        those of ``model``, in the same order, but the samples may be others.
      model: result of `fit_loss_model`.
      regression: result of `fit_stacked_regression`.

    Returns:
      score_TxN, as for `stacked_lira`.

    Raises:
      ValueError: as for `shrunk_lira`.
    """
    arrays = check_losses(target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK)
    score_TxN = np.empty(arrays[0].shape)
    for chunk, posterior, aligned in posteriors_of_chunks(*arrays, model):
        feature_TxCxF = stacked_features(posterior, aligned.target_TxC, aligned.design_CxP)
        score_TxN[:, chunk] = feature_TxCxF @ regression.weight_F
    return score_TxN


def stacked_features(
    posterior: SamplePosterior, loss: FloatArray, design_CxP: FloatArray
) -> FloatArray:
    """Returns the features of aligned losses, of shape loss.shape + (F,)."""
    distance = (posterior.middle - loss) / np.sqrt(posterior.variance)
    score = posterior.log_ratio(loss)
    feature = np.empty((*loss.shape, design_CxP.shape[1] + 2))
    feature[..., 0] = score
    feature[..., 1:-1] = distance[..., None] * design_CxP
    feature[..., -1] = 1.0
    return feature


def _reference_features(
    loss_MxS: np.ndarray,
    member_MxS: BoolArray,
    covariate_SxK: FloatArray,
    model: LossModel,
    group_M: IntArray,
) -> FloatArray:
    """Returns feature_FxMxS of each reference as a target of all others."""
    model = dataclasses.replace(model, target_effect_TxP=model.target_effect_TxP[:0])
    feature_FxMxS = np.empty((len(model.center_P) + 2, *loss_MxS.shape))
    for chunk in chunks_of_samples(loss_MxS.shape[1]):
        member_MxC = member_MxS[:, chunk]
        no_target_0xC = np.empty((0, member_MxC.shape[1]))
        aligned = align_losses(
            no_target_0xC, loss_MxS[:, chunk], member_MxC, covariate_SxK[chunk], model
        )
        in_moments, out_moments = leave_one_out_moments(
            aligned.loss_MxC, member_MxC, LeftOut(group_M, None)
        )
        posterior = sample_posterior(in_moments, out_moments, aligned.design_CxP, model)
        feature_MxCxF = stacked_features(posterior, aligned.loss_MxC, aligned.design_CxP)
        feature_FxMxS[:, :, chunk] = np.moveaxis(feature_MxCxF, -1, 0)
    return feature_FxMxS


def _folds(group_M: IntArray) -> IntArray:
    """Returns the fold of each reference; references with equal or complementary subsets are in the same fold."""
    return group_M % min(_MAX_FOLDS, int(group_M.max()) + 1)


def _choose_penalty(
    feature_FxD: FloatArray, member_D: BoolArray, fold_D: IntArray
) -> tuple[float, FloatArray]:
    """Returns the penalty with the smallest log loss on held-out references, and weights close to its solution.

    With a single fold, it is the largest penalty.
    """
    folds, start_F = np.unique(fold_D), np.zeros(len(feature_FxD))
    if len(folds) < 2:
        return _PENALTIES[0], start_F
    log_loss = dict.fromkeys(_PENALTIES, 0.0)
    solutions: dict[float, FloatArray] = {}
    for fold in folds:
        is_held_out_D = fold_D == fold
        # np.compress is several times as fast as boolean indexing. The features of a pair are neighbors in memory.
        held_out, fitted = (
            (np.compress(part_D, feature_FxD.T, axis=0).T, np.compress(part_D, member_D))
            for part_D in (is_held_out_D, ~is_held_out_D)
        )
        for penalty in _PENALTIES:
            # The solution of another fold is close; in the first fold, that of the previous penalty is.
            start_F = solutions.get(penalty, start_F)
            start_F = solutions[penalty] = _logistic_regression(*fitted, penalty, start_F)
            log_loss[penalty] += _log_loss(start_F @ held_out[0], held_out[1])
    penalty = min(_PENALTIES, key=lambda penalty: log_loss[penalty])
    return penalty, solutions[penalty]


def _log_loss(margin_D: FloatArray, member_D: BoolArray | FloatArray) -> float:
    """Returns the sum of log(1 + exp(margin)) - margin * member; faster than np.logaddexp."""
    loss_D = np.maximum(margin_D, 0.0)
    loss_D += np.log1p(np.exp(-np.abs(margin_D)))
    return float(loss_D.sum() - margin_D @ member_D)


def _logistic_regression(
    feature_FxD: FloatArray, member_D: BoolArray, penalty: float, start_F: FloatArray
) -> FloatArray:
    """Minimizes the mean log loss + penalty / 2 * the sum of squared weights, except the last, by Newton's method."""
    ridge_F = np.full(len(start_F), penalty)
    ridge_F[-1] = 0.0
    D, is_member_D = len(member_D), member_D.astype(np.float64)

    def objective(weight_F: FloatArray, margin_D: FloatArray) -> float:
        return _log_loss(margin_D, is_member_D) / D + float(ridge_F @ np.square(weight_F)) / 2

    weight_F, margin_D = start_F, start_F @ feature_FxD
    value = objective(weight_F, margin_D)
    for _ in range(_NEWTON_STEPS):
        probability_D = scipy.special.expit(margin_D)
        gradient_F = feature_FxD @ (probability_D - is_member_D) / D + ridge_F * weight_F
        curvature_D = probability_D * (1 - probability_D)
        hessian_FxF = (feature_FxD * curvature_D) @ feature_FxD.T / D + np.diag(ridge_F)
        step_F = np.linalg.lstsq(hessian_FxF, gradient_F, rcond=None)[0]
        if gradient_F @ step_F / 2 < _NEWTON_TOLERANCE * value:  # the expected improvement
            return weight_F - step_F
        for _ in range(_NEWTON_STEPS):  # the objective is convex: a short enough step improves it
            next_F = weight_F - step_F
            margin_D = next_F @ feature_FxD
            next_value = objective(next_F, margin_D)
            if next_value <= value:
                break
            step_F = step_F / 2
        else:
            break
        weight_F, value = next_F, next_value
    return weight_F
