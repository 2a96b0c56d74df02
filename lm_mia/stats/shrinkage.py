"""LiRA with few references: what all samples have in common is learned from all of them (empirical Bayes).

LiRA estimates two means and two variances for each sample from that sample's losses alone. Here, each sample's
estimates are shrunk towards what is typical of similar samples, and differences between models that affect all samples
are removed.

Legend: T targets, M references, N samples, S samples on which the common parameters are estimated, C samples of a
chunk, K covariates of a sample, P columns of the design matrix (P = 2 + K: a constant, the mean loss, the covariates),
or in `_pair_correlation` pairs of references.
Losses are means in nats per token; NaN marks a missing loss.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.design import complements, design_of
from lm_mia.stats.inputs import MAX_LOSS, as_float64, as_real, check_magnitude, check_scale
from lm_mia.stats.lira import check_references, chunks_of_samples
from lm_mia.stats.model_effects import (
    RANK_TOLERANCE,
    attenuation,
    effect_weights,
    is_unusual,
    model_effects,
    target_effects,
    target_z,
)
from lm_mia.stats.moments import Moments, as_finite_float64, class_moments

MAX_FIT_SAMPLES = 2**15
"""The common parameters are estimated on at most this many samples."""
_MIN_FREEDOM = 0.05  # degrees of freedom of a prior that is nearly flat
_MAX_FREEDOM = 1e6  # degrees of freedom of a prior that is nearly a point
_ROUNDING = 1e-14  # smaller differences, relative to the losses, are rounding errors
_NEWTON_STEPS = 50
_SPREAD_STEPS = 8
_MAX_CORRELATION = 0.95
_MAX_DISTANCE = 1e150
_UNDERFLOW = 1e-290  # a smaller tail probability is computed from a series


_VariancePrior: TypeAlias = tuple[FloatArray, tuple[float, float], float]
"""The fields log_variance_P, log_variance_range and freedom of `LossModel`."""


@dataclasses.dataclass(frozen=True)
class LossModel:
    """The parameters that all samples have in common, estimated by `fit_loss_model`."""

    reference_effect_MxP: FloatArray
    """Coefficients of the difference between each reference's loss and the mean loss, in nats per token."""
    target_effect_TxP: FloatArray
    """The same for the targets, without what membership may explain if it depends on the columns."""
    target_z_TxP: FloatArray
    """Distance of each target's estimated coefficients from the mean of the references', in standard deviations; a
    Student t variable with ``z_freedom`` degrees of freedom if the target is like the references. NaN for the constant,
    if there is no gap, and where it is not known."""
    z_freedom: int
    mean_gap: float
    """Mean difference between OUT and IN losses in nats per token; 0 offline."""
    center_P: FloatArray
    """Subtracted from the columns of the design matrix before they are divided by ``scale_P``."""
    scale_P: FloatArray
    log_variance_P: FloatArray
    """Coefficients of the logarithm of the prior variance."""
    log_variance_range: tuple[float, float]
    """Smallest and largest logarithm among the samples that determine it; those of other samples are clipped."""
    freedom: float
    """Degrees of freedom of the prior of the variance, d0."""
    gap_P: FloatArray
    """Coefficients of the prior mean of the gap, in nats per token; zeros offline."""
    gap_spread: float
    """Variance of the gap about its prior mean, divided by the variance of a loss (kappa); NaN without gaps."""
    pairs: int
    """Number of pairs of references that are trained on complementary subsets, as in a balanced design; 0 offline."""
    pair_correlation: float
    """Correlation of the losses of such a pair, given which of the two was trained on the sample (rho)."""
    offline: bool

    @property
    def is_unusual_TxP(self) -> BoolArray:
        """Whether the losses of a target depend on a column as those of no reference.

        The target's membership may then depend on it. By chance, this holds for one of a thousand targets in each
        column.
        """
        return is_unusual(self.target_z_TxP, self.z_freedom)


@dataclasses.dataclass(frozen=True)
class SamplePosterior:
    """What the references show about samples: one element per sample, or per (left-out model, sample)."""

    count_in: FloatArray
    count_out: FloatArray
    center: FloatArray
    """Mean of all losses in nats per token; NaN without a loss."""
    center_spread: FloatArray
    """Variance of the center about its expected value, divided by the variance of a loss."""
    gap: FloatArray
    """Posterior mean of the OUT mean minus the IN mean."""
    gap_spread: FloatArray
    """Posterior variance of the gap, divided by the variance of a loss."""
    variance: FloatArray
    """Posterior scale of the variance of a loss, in squared nats per token."""
    freedom: FloatArray
    """Degrees of freedom of the variance."""

    @property
    def middle(self) -> FloatArray:
        """The middle between the expected losses of an IN and an OUT model, in nats per token."""
        count = self.count_in + self.count_out
        with np.errstate(invalid="ignore"):
            return self.center + self.gap * (self.count_in - self.count_out) / (2 * count)

    def log_ratio(self, loss: FloatArray) -> FloatArray:
        """Computes log p(loss | IN) - log p(loss | OUT) under the predictive Student-t distributions."""
        mean_in, sd_in = self._predictive(is_in=True)
        mean_out, sd_out = self._predictive(is_in=False)
        # Larger distances would overflow when they are squared.
        z_in = np.clip((loss - mean_in) / sd_in, -_MAX_DISTANCE, _MAX_DISTANCE)
        z_out = np.clip((loss - mean_out) / sd_out, -_MAX_DISTANCE, _MAX_DISTANCE)
        # The logarithm of a ratio near 1 is computed from the difference of the squares, as a product. The larger
        # square is in the numerator, so that a ratio near 0 does not lose its digits either.
        difference = (z_out - z_in) * (z_out + z_in)
        smaller = np.minimum(np.square(z_in), np.square(z_out))
        log_change = np.sign(difference) * np.log1p(np.abs(difference) / (self.freedom + smaller))
        return (self.freedom + 1) / 2 * log_change + np.log(sd_out / sd_in)

    def log_p_value(self, loss: FloatArray) -> FloatArray:
        """Computes log P(loss of an OUT model <= loss) under the predictive Student-t distribution."""
        mean_out, sd_out = self._predictive(is_in=False)
        return _log_student_cdf((loss - mean_out) / sd_out, self.freedom)

    def _predictive(self, *, is_in: bool) -> tuple[FloatArray, FloatArray]:
        """Returns location and scale of the loss under a further model that was or was not trained on the sample."""
        count = self.count_in + self.count_out
        with np.errstate(invalid="ignore", divide="ignore"):
            share = (-self.count_out if is_in else self.count_in) / count
        scale = 1 + self.center_spread + np.square(share) * self.gap_spread
        return self.center + share * self.gap, np.sqrt(self.variance * scale)


def shrunk_lira(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    covariate_NxK: ArrayLike | None = None,
    offline: bool = False,
) -> FloatArray:
    """Computes LiRA scores with empirical-Bayes estimates, from as few as 2 references.

    The loss of sample i under model m, which was (z = 1) or was not (z = 0) trained on it, is modeled as

        loss_mi = mu_i + x_i' b_m - z_mi g_i + e_mi,    e_mi ~ N(0, v_i)

    with these parts:

    - x_i holds a constant, the mean reference loss of the sample and its covariates, such as the logarithm of its
      length.
    - b_m is the effect of the model: some models have a smaller loss on all samples, or on all short samples. It is
      estimated on all samples by weighted least squares and subtracted. The effect of each target is estimated in the
      same way, from the target's losses and without its membership. The share of members among the samples should
      therefore be about the same for the target as for the references; otherwise, scores are shifted, which does not
      change their order. If membership in the target depends on a column of x, such as the length, a part of the
      estimated effect is the signal of membership. What membership may explain is therefore not subtracted, as far as
      the effects of the references make it plausible (below).
    - mu_i has a flat prior.
    - v_i, the variance between models, has the prior d0 s_i^2 / chi2(d0), where log s_i^2 is linear in x_i.
    - g_i, the gap between OUT and IN losses, has the prior N(x_i' c, kappa v_i).

    d0, kappa, c and the coefficients of log s_i^2 are estimated from all samples: d0 and the prior variances from the
    mean and the spread of the log variances (limma's method), c and kappa from the mean and the spread of the
    differences between OUT and IN means.

    The prior is conjugate, so the rest is exact. Let n1 and n0 be the numbers of IN and OUT losses of a sample, n
    their sum, d the difference between the means of OUT and IN losses, h = 1 / n1 + 1 / n0 the variance of d in units
    of v, f the degrees of freedom within the classes and SS the sum of squares. Then d ~ N(g, h v), and the posterior
    is

        gap:       g | v ~ N(c + w (d - c), w h v),          w = kappa / (kappa + h), c short for x_i' c
        variance:  v ~ (d0 s^2 + SS + (d - c)^2 / (kappa + h)) / chi2(d0 + f + 1)

    Given g and v, the mean of all losses is distributed as N(mu - g n1 / n, v / n), independently of d. A further loss
    is therefore distributed as Student's t with d0 + f + 1 degrees of freedom, and the score is the log likelihood
    ratio of

        IN:   location mean - m n0 / n,   scale^2 = V (1 + 1 / n + (n0 / n)^2 w h)
        OUT:  location mean + m n1 / n,   scale^2 = V (1 + 1 / n + (n1 / n)^2 w h)

    where mean is the mean of all losses of the sample, m = c + w (d - c) is the posterior mean of the gap, and
    V = (d0 s^2 + SS + (d - c)^2 / (kappa + h)) / (d0 + f + 1).

    If a sample has no IN or no OUT loss, w h is replaced by kappa, d - c by 0, and there is 1 degree of freedom fewer.

    In a balanced design, references are pairs that are trained on complementary subsets, and the losses of a pair are
    correlated: what one of them learned from similar samples, the other did not. With P pairs and the correlation
    rho, which is estimated from all samples, h is smaller by 2 rho P / (n1 n0), and 1 / n, the variance of the mean of
    all losses, is larger by 2 rho P / n^2. (The mean of all losses is then independent of d only if n1 = n0, as it is
    unless losses are missing.) Pairs are recognized if there are 64 samples or more.

    What membership may explain of a target's effect is found for each column of x but the constant, which are scaled to
    the standard deviation 1. Let d be the estimated effect of the target minus the mean effect of the references (and
    minus what errors of the mean reference loss add to it on average), s^2 the variance of the references' effects
    times 1 + 1 / M with M references, and G the gap of a sample with typical x. Then w d is left in the losses, at most
    0.4 |G| in magnitude, with w = (0.2 G)^2 / ((0.2 G)^2 + s^2): the slope of the probability of membership in a column
    is taken to have the standard deviation 0.2 and to be at most 0.4, as it is if the probability is 1 above the mean
    of a normal column and 0 below. If membership depends on a column and effects of references hardly vary, this
    preserves the AUC (0.76 instead of 0.63 in a simulation); if it does not, it costs up to 0.006. Whether it may
    depend on a column is shown by `LossModel.is_unusual_TxP`.

    Limits: if all samples have the same prior gap c > 0 and the same prior variance, without spread (kappa = 0, d0
    infinite), samples with equal numbers of IN and OUT losses are ranked as by the mean reference loss minus the target
    loss (`reference_calibrated_loss`), except for the model effects. With flat priors (kappa infinite, d0 = 0) and many
    references, the score is that of LiRA with one variance for both classes of each sample.

    If no sample has two losses of the same class, as with 2 references in a balanced design, variances are estimated
    from the differences d under the assumption kappa = 0.

    Offline, only OUT references are used: IN losses are ignored, there is no gap, and the score is -log P(t <= loss)
    under the OUT distribution. Without a gap, nothing shows what membership may explain, so the whole effect of a
    target is subtracted, also where membership depends on a column of x. The effect of a target includes the smaller
    losses of its members, so P is a valid p-value only for a target that was trained on almost none of the samples.

    Args:
      target_loss_TxN: losses under the targets, in nats per token; a NaN loss gives a NaN score. A one-dimensional
        array is treated as one target. Neither the target nor a model that was trained on its subset, or on the
        complement of it, may be among the references.
      reference_loss_MxN: losses under the references; NaN marks a missing loss.
      reference_member_MxN: booleans, whether each sample was in each reference's training subset.
      covariate_NxK: properties of each sample on which its loss, gap and variance may depend; finite. The most useful
        one is the logarithm of the number of tokens. Copies of a column change the scores.
      offline: whether to use the OUT references only.

    Returns:
      score_TxN: log likelihood ratios (offline: negated logarithms of p-values). The score is NaN for a sample without
      a reference loss (offline: without an OUT loss). All scores are NaN if the common parameters cannot be estimated.
      Variances are estimated from samples with two different losses of the same class or, if no sample has two losses
      of the same class, from samples with an IN and an OUT loss. There must be more of these samples than columns of x,
      and there should be at least 20 times as many. Gaps are estimated from samples with an IN and an OUT loss; there
      must be at least one.

    Raises:
      ValueError: if the shapes do not match, if reference_member_MxN is not boolean, if a loss is infinite, if a
        covariate is not finite, or if some values are masked.

    Source: the likelihood ratio is that of Carlini et al. 2022; the variances are shrunk as by Smyth 2004 (Linear
    models and empirical Bayes methods, Section 6.2). docs/results/attacks.md compares the attack with others.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import auc, shrunk_lira
      >>> rng = np.random.default_rng(0)
      >>> member_5xN = rng.random((5, 2000)) < 0.5
      >>> loss_5xN = 3 + rng.normal(0, 0.5, 2000) - 0.2 * member_5xN + rng.normal(0, 0.2, (5, 2000))
      >>> score_1xN = shrunk_lira(loss_5xN[4], loss_5xN[:4], member_5xN[:4])  # 4 references
      >>> auc(score_1xN, member_5xN[4]).auc_T.round(2)
      array([0.74])
    """
    target_TxN, loss_MxN, member_MxN, covariate_NxK = check_losses(
        target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK
    )
    fit_S = fit_samples(loss_MxN.shape[1])
    model = fit_loss_model(
        target_TxN[:, fit_S],
        loss_MxN[:, fit_S],
        member_MxN[:, fit_S],
        covariate_NxK=covariate_NxK[fit_S],
        offline=offline,
    )
    return shrunk_from_model(target_TxN, loss_MxN, member_MxN, model, covariate_NxK=covariate_NxK)


def fit_loss_model(
    target_loss_TxS: ArrayLike,
    reference_loss_MxS: ArrayLike,
    reference_member_MxS: ArrayLike,
    *,
    covariate_NxK: ArrayLike | None = None,
    offline: bool = False,
) -> LossModel:
    """Estimates the parameters that all samples have in common, on some or all of the samples.

    Args:
      target_loss_TxS, reference_loss_MxS, reference_member_MxS, offline: as for `shrunk_lira`, for the samples on
        which the parameters are estimated.
      covariate_NxK: covariates of these samples.

    Returns:
      The parameters; they are NaN if they cannot be estimated.

    Raises:
      ValueError: as for `shrunk_lira`.
    """
    target_TxS, loss_MxS, member_MxS, covariate_SxK = check_losses(
        target_loss_TxS, reference_loss_MxS, reference_member_MxS, covariate_NxK
    )
    check_magnitude(target_TxS, "losses")
    check_scale(loss_MxS, "losses of references")
    loss_MxS = _used_losses(as_finite_float64(loss_MxS), member_MxS, offline)
    mean_gap = _mean_gap(loss_MxS, member_MxS)
    raw_SxP = _raw_design(loss_MxS, member_MxS, covariate_SxK, mean_gap)
    is_used_S = np.isfinite(raw_SxP[:, 1])
    center_P, scale_P = np.zeros(raw_SxP.shape[1]), np.ones(raw_SxP.shape[1])
    if is_used_S.any():
        center_P[1:] = raw_SxP[is_used_S, 1:].mean(axis=0)
        scale_P[1:] = raw_SxP[is_used_S, 1:].std(axis=0)
        scale_P[~(scale_P > 1e-9 * np.abs(center_P))] = np.inf  # a constant column has no effect
    design_SxP = np.where(is_used_S[:, None], (raw_SxP - center_P) / scale_P, 0.0)
    mean_S = np.where(is_used_S, raw_SxP[:, 1], 0.0)
    weight_S = np.where(is_used_S, effect_weights(loss_MxS), 0.0)
    reference_effect_MxP, _ = model_effects(loss_MxS - mean_S, design_SxP, weight_S)
    aligned_MxS = loss_MxS - reference_effect_MxP @ design_SxP.T
    in_moments, out_moments, deviation_MxS = _moments_by_chunk(aligned_MxS, member_MxS)
    no_complement_M = np.full(len(member_MxS), -1)
    complement_M = no_complement_M if offline else complements(design_of(member_MxS))
    pairs = int((complement_M >= 0).sum()) // 2
    pair_correlation = _pair_correlation(deviation_MxS, ~np.isnan(aligned_MxS), complement_M)
    (log_variance_P, log_variance_range, freedom), gap_P, gap_spread = _priors(
        in_moments, out_moments, design_SxP, pairs, pair_correlation
    )
    estimate_TxP, inverse_TxPxP = model_effects(target_TxS - mean_S, design_SxP, weight_S)
    model = LossModel(
        reference_effect_MxP,
        estimate_TxP,
        np.full(estimate_TxP.shape, np.nan),
        0,
        mean_gap,
        center_P,
        scale_P,
        log_variance_P,
        log_variance_range,
        freedom,
        gap_P,
        gap_spread,
        pairs,
        pair_correlation,
        offline,
    )
    if offline or not ((in_moments.count > 0) & (out_moments.count > 0)).any():
        # No gap is known. Members have smaller losses than OUT references, which looks like an effect if their gap
        # depends on the columns, so the effects of targets cannot be compared with those of references.
        return model
    posterior = sample_posterior(in_moments, out_moments, design_SxP, model)
    is_present_TxS, is_present_MxS = (
        is_used_S & ~np.isnan(loss) for loss in (target_TxS, loss_MxS)
    )
    mean_variance_S = _mean_variance(posterior, mean_gap)
    rounding = _ROUNDING * float(np.abs(mean_S).max(initial=0.0))
    has_effect_T = is_present_TxS.sum(axis=1) > len(center_P)
    has_effect_M = is_present_MxS.sum(axis=1) > len(center_P)

    def bias(weight_S: FloatArray, inverse_TxPxP: FloatArray) -> FloatArray:
        scale = float(scale_P[1])
        return attenuation(is_present_TxS, mean_variance_S, weight_S, scale, inverse_TxPxP)

    bias_TxP = bias(weight_S, inverse_TxPxP)
    known_effect_RxP = reference_effect_MxP[has_effect_M]
    effect_TxP = target_effects(estimate_TxP, bias_TxP, known_effect_RxP, float(gap_P[0]), rounding)
    equal_S = is_used_S.astype(np.float64)
    equal_TxP, inverse_TxPxP = model_effects(target_TxS - mean_S, design_SxP, equal_S)
    equal_MxP, _ = model_effects(loss_MxS - mean_S, design_SxP, equal_S)
    z_TxP = target_z(equal_TxP, bias(equal_S, inverse_TxPxP), equal_MxP[has_effect_M], rounding)
    return dataclasses.replace(
        model,
        target_effect_TxP=np.where(has_effect_T[:, None], effect_TxP, estimate_TxP),
        target_z_TxP=np.where(has_effect_T[:, None], z_TxP, np.nan),
        z_freedom=max(int(has_effect_M.sum()) - 1, 0),
    )


def shrunk_from_model(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    model: LossModel,
    *,
    covariate_NxK: ArrayLike | None = None,
) -> FloatArray:
    """Computes the scores of `shrunk_lira` with parameters that are already estimated.

    Args:
      target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK: as for `shrunk_lira`; the models must be
        those of ``model``, in the same order, but the samples may be others.
      model: result of `fit_loss_model`.

    Returns:
      score_TxN, as for `shrunk_lira`.

    Raises:
      ValueError: as for `shrunk_lira`.
    """
    arrays = check_losses(target_loss_TxN, reference_loss_MxN, reference_member_MxN, covariate_NxK)
    score_TxN = np.empty(arrays[0].shape)
    for chunk, posterior, aligned in posteriors_of_chunks(*arrays, model):
        score_TxN[:, chunk] = shrunk_score(posterior, aligned.target_TxC, model)
    return score_TxN


def posteriors_of_chunks(
    target_TxN: np.ndarray,
    loss_MxN: np.ndarray,
    member_MxN: BoolArray,
    covariate_NxK: FloatArray,
    model: LossModel,
) -> Iterator[tuple[slice, SamplePosterior, AlignedLosses]]:
    """Yields consecutive chunks of samples, with their posteriors and aligned losses.

    The arguments are the result of `check_losses` and a loss model of the same targets and references.
    """
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        member_MxC = member_MxN[:, chunk]
        aligned = align_losses(
            target_TxN[:, chunk], loss_MxN[:, chunk], member_MxC, covariate_NxK[chunk], model
        )
        in_moments, out_moments, _ = class_moments(aligned.loss_MxC, member_MxC)
        yield (
            chunk,
            sample_posterior(in_moments, out_moments, aligned.design_CxP, model),
            aligned,
        )


def shrunk_score(
    posterior: SamplePosterior, target_TxC: FloatArray, model: LossModel
) -> FloatArray:
    """Computes the scores of aligned target losses: log likelihood ratios, or offline negated log p-values."""
    if model.offline:
        return -posterior.log_p_value(target_TxC)
    return posterior.log_ratio(target_TxC)


@dataclasses.dataclass(frozen=True)
class AlignedLosses:
    """Losses without the effects of the models, and the design matrix of the samples."""

    target_TxC: FloatArray
    loss_MxC: FloatArray
    design_CxP: FloatArray


def align_losses(
    target_TxC: np.ndarray,
    loss_MxC: np.ndarray,
    member_MxC: BoolArray,
    covariate_CxK: FloatArray,
    model: LossModel,
) -> AlignedLosses:
    """Subtracts the effects of the models from losses; samples without a reference loss become NaN.

    The arguments are as for `shrunk_from_model`, already checked. Offline, IN losses become NaN, too.

    Raises:
      ValueError: if the numbers of models differ from those of the model, or if a loss is infinite.
    """
    if (len(target_TxC), len(loss_MxC)) != (
        len(model.target_effect_TxP),
        len(model.reference_effect_MxP),
    ):
        raise ValueError(
            f"{len(target_TxC)} targets and {len(loss_MxC)} references do not match the loss model, which has "
            f"{len(model.target_effect_TxP)} and {len(model.reference_effect_MxP)}"
        )
    loss_MxC = _used_losses(as_finite_float64(loss_MxC), member_MxC, model.offline)
    raw_CxP = _raw_design(loss_MxC, member_MxC, covariate_CxK, model.mean_gap)
    design_CxP = (raw_CxP - model.center_P) / model.scale_P
    return AlignedLosses(
        as_finite_float64(target_TxC) - model.target_effect_TxP @ design_CxP.T,
        loss_MxC - model.reference_effect_MxP @ design_CxP.T,
        design_CxP,
    )


def sample_posterior(
    in_moments: Moments, out_moments: Moments, design_CxP: FloatArray, model: LossModel
) -> SamplePosterior:
    """Computes the posterior of samples from the moments of their aligned losses.

    Args:
      in_moments, out_moments: moments with one element per sample, or per (left-out model, sample).
      design_CxP: the design matrix.
      model: result of `fit_loss_model`.
    """
    n1, n0 = in_moments.count, out_moments.count
    prior_variance_C = np.exp(np.clip(design_CxP @ model.log_variance_P, *model.log_variance_range))
    prior_gap_C = design_CxP @ model.gap_P
    has_both, difference, noise, freedom, squares = _summaries(
        in_moments, out_moments, model.pairs, model.pair_correlation
    )
    spread = 0.0 if model.offline else model.gap_spread
    deviation = np.where(has_both, difference - prior_gap_C, 0.0)
    weight = np.where(has_both, spread / (spread + noise), 0.0)
    total_freedom = model.freedom + freedom + has_both
    variance = (
        model.freedom * prior_variance_C + squares + np.square(deviation) / (spread + noise)
    ) / total_freedom
    count = n1 + n0
    center = (n1 * in_moments.mean + n0 * out_moments.mean) / np.maximum(count, 1)
    shared = _shared_noise(n1, n0, model.pairs, model.pair_correlation)
    return SamplePosterior(
        n1,
        n0,
        np.where(count > 0, center, np.nan),
        (1 + 2 * shared / np.maximum(count, 1)) / np.maximum(count, 1),
        prior_gap_C + weight * deviation,
        np.where(has_both, weight * noise, spread),
        variance,
        total_freedom,
    )


def fit_samples(samples: int, most: int = MAX_FIT_SAMPLES) -> np.ndarray:
    """Returns index_S, at most ``most`` evenly spaced samples."""
    return np.unique(np.linspace(0, max(samples - 1, 0), min(samples, most)).astype(np.int64))[
        :samples
    ]


def check_losses(
    target_loss: ArrayLike,
    reference_loss: ArrayLike,
    member: ArrayLike,
    covariate: ArrayLike | None,
) -> tuple[np.ndarray, np.ndarray, BoolArray, FloatArray]:
    """Returns the arguments of `shrunk_lira` as arrays; raises ValueError as it does."""
    loss_MxN, member_MxN = check_references(reference_loss, member, "per_sample")
    target_TxN, samples = np.atleast_2d(as_real(target_loss, "target losses")), loss_MxN.shape[1]
    if target_TxN.ndim != 2 or target_TxN.shape[1] != samples:
        raise ValueError(
            f"target losses of shape {target_TxN.shape} do not match references of {samples} samples"
        )
    return target_TxN, loss_MxN, member_MxN, check_covariates(covariate, samples)


def check_covariates(covariate: ArrayLike | None, samples: int) -> FloatArray:
    """Returns covariate_NxK, with K = 0 for None; raises ValueError as `shrunk_lira`."""
    if covariate is None:
        return np.zeros((samples, 0))
    covariate_NxK = as_float64(covariate, "covariates")
    if covariate_NxK.ndim != 2 or len(covariate_NxK) != samples:
        raise ValueError(
            f"covariates of shape {covariate_NxK.shape} must have shape ({samples}, number of covariates)"
        )
    if not np.all(np.abs(covariate_NxK) < MAX_LOSS):
        raise ValueError(
            f"covariates must be finite (below {MAX_LOSS:g} in magnitude); replace missing ones by a typical value"
        )
    return covariate_NxK


def _used_losses(loss_MxC: np.ndarray, member_MxC: BoolArray, offline: bool) -> np.ndarray:
    return np.where(member_MxC, np.nan, loss_MxC) if offline else loss_MxC


def _class_sums(
    loss_MxC: np.ndarray, member_MxC: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Returns count and sum of the IN losses, and of the OUT losses, of each sample."""
    is_present_MxC = ~np.isnan(loss_MxC)
    loss_MxC = np.where(is_present_MxC, loss_MxC, 0.0).astype(np.float64, copy=False)
    is_in_MxC = (member_MxC & is_present_MxC).astype(np.float64)
    is_out_MxC = (~member_MxC & is_present_MxC).astype(np.float64)
    return (
        is_in_MxC.sum(axis=0),
        np.einsum("mc,mc->c", loss_MxC, is_in_MxC),
        is_out_MxC.sum(axis=0),
        np.einsum("mc,mc->c", loss_MxC, is_out_MxC),
    )


def _mean_gap(loss_MxS: np.ndarray, member_MxS: BoolArray) -> float:
    """Returns the mean difference between OUT and IN losses over the samples that have both; 0 if none has."""
    n1_S, sum_in_S, n0_S, sum_out_S = _class_sums(loss_MxS, member_MxS)
    has_both_S = (n1_S > 0) & (n0_S > 0)
    if not has_both_S.any():
        return 0.0
    return float(
        (sum_out_S[has_both_S] / n0_S[has_both_S] - sum_in_S[has_both_S] / n1_S[has_both_S]).mean()
    )


def _raw_design(
    loss_MxC: np.ndarray, member_MxC: BoolArray, covariate_CxK: FloatArray, mean_gap: float
) -> FloatArray:
    """Returns raw_CxP: 1, the mean loss and the covariates.

    The mean loss is what it would be with as many IN as OUT losses, if the sample had the mean gap.
    """
    n1_C, sum_in_C, n0_C, sum_out_C = _class_sums(loss_MxC, member_MxC)
    with np.errstate(invalid="ignore"):
        mean_C = (sum_in_C + sum_out_C + mean_gap * (n1_C - n0_C) / 2) / (n1_C + n0_C)
    return np.column_stack([np.ones(len(mean_C)), mean_C, covariate_CxK])


def _mean_variance(posterior: SamplePosterior, mean_gap: float) -> FloatArray:
    """Returns the variance of the mean loss of `_raw_design` about the value that it would have with many references.

    The losses vary, and the mean of n1 IN and n0 OUT losses is corrected with the mean gap instead of the sample's.
    """
    count = np.maximum(posterior.count_in + posterior.count_out, 1)
    excess = (posterior.count_in - posterior.count_out) / (2 * count)
    variance = posterior.variance * posterior.freedom / np.maximum(posterior.freedom - 2, 0.5)
    squared_gap = np.square(posterior.gap - mean_gap) + posterior.gap_spread * variance
    return posterior.center_spread * variance + squared_gap * np.square(excess)


def _moments_by_chunk(
    loss_MxS: FloatArray, member_MxS: BoolArray
) -> tuple[Moments, Moments, FloatArray]:
    """Returns the result of `class_moments`, computed on chunks that fit into the caches of the processor."""
    deviation_MxS = np.empty(loss_MxS.shape)
    moments_6xS = np.empty((6, loss_MxS.shape[1]))
    for chunk in chunks_of_samples(loss_MxS.shape[1]):
        i, o, deviation_MxS[:, chunk] = class_moments(loss_MxS[:, chunk], member_MxS[:, chunk])
        moments_6xS[:, chunk] = i.count, i.mean, i.squares, o.count, o.mean, o.squares
    return Moments(*moments_6xS[:3]), Moments(*moments_6xS[3:]), deviation_MxS


def _pair_correlation(
    deviation_MxS: FloatArray, is_present_MxS: BoolArray, complement_M: IntArray
) -> float:
    """Returns the correlation between the losses of references and their complements, from deviations from class means.

    With q losses in each class, both the covariance and the variance of the deviations are 1 - 1 / q times those of the
    losses, so their ratio is not biased. The correlation is 0 without complements, or if all deviations are 0.
    """
    first_M = np.flatnonzero(complement_M > np.arange(len(complement_M)))
    first_PxS, second_PxS = deviation_MxS[first_M], deviation_MxS[complement_M[first_M]]
    has_both_PxS = is_present_MxS[first_M] & is_present_MxS[complement_M[first_M]]
    products = float((first_PxS * second_PxS).sum())
    squares_PxS = np.where(has_both_PxS, np.square(first_PxS) + np.square(second_PxS), 0.0)
    squares = float(squares_PxS.sum()) / 2
    if not squares:
        return 0.0
    return float(np.clip(products / squares, -_MAX_CORRELATION, _MAX_CORRELATION))


def _shared_noise(
    n1: FloatArray, n0: FloatArray, pairs: int, pair_correlation: float
) -> FloatArray:
    """Returns the covariance between the sums of IN and of OUT losses, in units of the variance of a loss."""
    return pair_correlation * np.minimum(pairs, np.minimum(n1, n0))


def _summaries(
    in_moments: Moments, out_moments: Moments, pairs: int, pair_correlation: float
) -> tuple[BoolArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Computes what the posterior depends on.

    Returns:
      Whether a sample has both classes, the difference d between the means of OUT and IN losses (0 without both
      classes), its variance h in units of the variance of a loss (1 without both), the degrees of freedom within the
      classes, and the sum of squares.
    """
    n1, n0 = in_moments.count, out_moments.count
    has_both = (n1 > 0) & (n0 > 0)
    difference = np.where(has_both, out_moments.mean - in_moments.mean, 0.0)
    shared = _shared_noise(n1, n0, pairs, pair_correlation)
    count_in, count_out = np.maximum(n1, 1), np.maximum(n0, 1)
    noise = 1 / count_in + 1 / count_out - 2 * shared / (count_in * count_out)
    noise = np.where(has_both, noise, 1.0)
    freedom = np.maximum(n1 - 1, 0) + np.maximum(n0 - 1, 0)
    squares = np.where(n1 > 1, in_moments.squares, 0.0) + np.where(n0 > 1, out_moments.squares, 0.0)
    return has_both, difference, noise, freedom, squares


def _priors(
    in_moments: Moments,
    out_moments: Moments,
    design_SxP: FloatArray,
    pairs: int,
    pair_correlation: float,
) -> tuple[_VariancePrior, FloatArray, float]:
    """Returns the prior of variances, and the fields gap_P and gap_spread of `LossModel`."""
    has_both_S, difference_S, noise_S, freedom_S, squares_S = _summaries(
        in_moments, out_moments, pairs, pair_correlation
    )
    P = design_SxP.shape[1]
    gap_P, gap_spread = np.zeros(P), math.nan
    rounding_S = _ROUNDING * np.maximum(np.abs(in_moments.mean), np.abs(out_moments.mean))
    if has_both_S.any() and not freedom_S.any():
        # Without two losses of the same class, the differences are assumed to vary only because the losses do.
        gap_P, gap_spread = _least_squares(design_SxP, difference_S, has_both_S / noise_S), 0.0
        squares_S = np.square(difference_S - design_SxP @ gap_P) / noise_S
        variance_prior = _variance_prior(
            squares_S * has_both_S, has_both_S.astype(np.float64), design_SxP, rounding_S
        )
        return variance_prior, gap_P, gap_spread
    variance_prior = _variance_prior(squares_S, freedom_S, design_SxP, rounding_S)
    log_variance_P, log_variance_range, freedom = variance_prior
    if not has_both_S.any() or math.isnan(freedom):
        return variance_prior, gap_P, gap_spread
    # Given the squares, the deviation of d from its mean is Student-t with variance v (kappa + h) nu / (nu - 2).
    nu_S = freedom + freedom_S
    prior_variance_S = np.exp(np.clip(design_SxP @ log_variance_P, *log_variance_range))
    variance_S = np.maximum((freedom * prior_variance_S + squares_S) / nu_S, _UNDERFLOW)
    gap_spread = 0.0
    for _ in range(_SPREAD_STEPS):
        precision_S = has_both_S / (gap_spread + noise_S)
        gap_P = _least_squares(design_SxP, difference_S, precision_S / variance_S)
        deviation_S = np.square(difference_S - design_SxP @ gap_P) / variance_S
        excess_S = deviation_S * np.maximum(nu_S - 2, 0.5) / nu_S - noise_S
        gap_spread = max(float(precision_S @ excess_S / precision_S.sum()), 0.0)
    return variance_prior, gap_P, gap_spread


def _variance_prior(
    squares_S: FloatArray, freedom_S: FloatArray, design_SxP: FloatArray, rounding_S: FloatArray
) -> _VariancePrior:
    """Estimates the prior of variances from mean and spread of their logarithms (Smyth 2004, Section 6.2).

    The variance of a sample divided by its prior is distributed as F(f, d0), so the logarithm has the mean
    psi(f / 2) - log(f / 2) - psi(d0 / 2) + log(d0 / 2) and the variance psi'(f / 2) + psi'(d0 / 2).

    Args:
      squares_S: sums of squares.
      freedom_S: their degrees of freedom f.
      design_SxP: the design matrix.
      rounding_S: samples with smaller standard deviations are left out.

    Returns:
      log_variance_P, log_variance_range and d0; NaN if there are not more samples with squares than coefficients.
    """
    is_used_S = (freedom_S > 0) & (squares_S > freedom_S * np.square(rounding_S))
    P = design_SxP.shape[1]
    half_S, design_SxP = freedom_S[is_used_S] / 2, design_SxP[is_used_S]
    rank = int(
        np.linalg.matrix_rank(design_SxP.T @ design_SxP, rtol=RANK_TOLERANCE, hermitian=True)
    )
    if len(half_S) <= rank:
        return np.full(P, np.nan), (math.nan, math.nan), math.nan
    log_variance_S = (
        np.log(squares_S[is_used_S] / (2 * half_S)) - scipy.special.psi(half_S) + np.log(half_S)
    )
    sampling_S = scipy.special.polygamma(1, half_S)
    coefficient_P = _least_squares(design_SxP, log_variance_S, 1 / sampling_S)
    residual_S = log_variance_S - design_SxP @ coefficient_P
    # The coefficients are estimated, which makes residuals smaller.
    excess_S = np.square(residual_S) * len(half_S) / (len(half_S) - rank) - sampling_S
    excess = float(np.average(excess_S, weights=1 / sampling_S))
    freedom = 2 * _inverse_trigamma(excess) if excess > 0 else _MAX_FREEDOM
    freedom = min(max(freedom, _MIN_FREEDOM), _MAX_FREEDOM)
    coefficient_P[0] += float(scipy.special.psi(freedom / 2)) - math.log(freedom / 2)
    fitted_S = design_SxP @ coefficient_P
    return coefficient_P, (float(fitted_S.min()), float(fitted_S.max())), freedom


def _inverse_trigamma(value: float) -> float:
    """Solves psi'(x) = value for x by Newton's method on 1 / psi', which is convex (Smyth 2004, Appendix)."""
    x = 0.5 + 1 / value
    for _ in range(_NEWTON_STEPS):
        trigamma = float(scipy.special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(scipy.special.polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


def _least_squares(design_SxP: FloatArray, value_S: FloatArray, weight_S: FloatArray) -> FloatArray:
    """Returns the weighted least-squares coefficients; constant columns have the coefficient 0."""
    weighted_SxP = design_SxP * weight_S[:, None]
    return np.linalg.pinv(design_SxP.T @ weighted_SxP, rtol=RANK_TOLERANCE, hermitian=True) @ (
        weighted_SxP.T @ value_S
    )


def _log_student_cdf(z: FloatArray, freedom: FloatArray) -> FloatArray:
    """Computes log P(t <= z). Where the probability underflows, a series with a relative error below 1e-8 is used."""
    freedom = np.broadcast_to(freedom, np.shape(z))
    tail = scipy.special.stdtr(freedom, -np.abs(z))
    is_small = (z < 0) & (tail < _UNDERFLOW)
    log_cdf = np.where(z < 0, np.log(np.maximum(tail, _UNDERFLOW)), np.log1p(-tail))
    if is_small.any():
        # P(t <= -u) = f(u) (nu + u^2) / (nu u) F(1, 1/2; nu / 2 + 1; -nu / u^2) with the density f and the
        # hypergeometric series F, which is nearly 1: u is above 36, and much larger if the degrees of freedom nu are
        # few.
        u, nu = -z[is_small], freedom[is_small]
        log_density = (
            scipy.special.gammaln((nu + 1) / 2)
            - scipy.special.gammaln(nu / 2)
            - np.log(nu * np.pi) / 2
            - (nu + 1) / 2 * np.log1p(np.square(u) / nu)
        )
        ratio = nu / np.square(u)
        series = np.log1p(-ratio / (nu + 2) * (1 - 3 * ratio / (nu + 4)))
        log_cdf[is_small] = log_density + np.log1p(ratio) + np.log(u / nu) + series
    return log_cdf
