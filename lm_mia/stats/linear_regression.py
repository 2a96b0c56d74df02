"""Membership inference on linear regression: simulated data, ridge regression, and SGD with differential privacy.

The labels are y = x . w + N(0, 1). Members have features x from N(0, I). Non-members have the same distribution, or a
shifted one, N(mu, I), which is known: the density ratio of both is exp(|mu|^2 / 2 - x . mu). It is not bounded, so
weights are unstable.

Both algorithms return residuals, from which the caller computes losses. In each trial (the multi-run regime), one
sample is added to the training data, or not, and a separate model is trained.

N: samples of a set, D: features, M: trials, B: samples of a batch, J: samples that join a batch.

Source: CausalMIA, section 7 and Appendix G.1.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import scipy  # its parts are loaded when they are first used

from lm_mia import seeds
from lm_mia.stats.array_types import FloatArray


@dataclasses.dataclass(frozen=True)
class RegressionSamples:
    """Samples of a linear regression."""

    feature_NxD: FloatArray
    label_N: FloatArray


@dataclasses.dataclass(frozen=True)
class RegressionData:
    """The sets of samples of one experiment, all independent."""

    shift_D: FloatArray
    """The mean mu of the features of shifted non-members, a unit vector."""
    weight_D: FloatArray
    """The true weights w."""
    training: RegressionSamples
    held_out: RegressionSamples
    """Non-members with the distribution of the training samples, as many as these."""
    shifted: RegressionSamples
    """Non-members whose features have the mean mu, as many as the training samples."""
    trials: RegressionSamples
    """One sample for each trial, with the distribution of the training samples; the first half are members."""

    @property
    def trial_member_M(self) -> np.ndarray:
        """Whether the sample of each trial is added to the training data."""
        count = len(self.trials.label_N)
        return np.arange(count) < count // 2

    def log_density_ratio(self, feature_NxD: np.ndarray) -> FloatArray:
        """Returns the log density of features under N(0, I) minus that under N(mu, I)."""
        return self.shift_D @ self.shift_D / 2 - feature_NxD @ self.shift_D


@dataclasses.dataclass(frozen=True)
class RegressionResiduals:
    """Residuals y - x . theta of the sets of `RegressionData`.

    Those of trials are under the model of the trial; all others are under one model of the training samples.
    """

    training_N: FloatArray
    held_out_N: FloatArray
    shifted_N: FloatArray
    trial_M: FloatArray


@dataclasses.dataclass(frozen=True)
class DpSgd:
    """Settings of SGD with per-example clipping and Gaussian noise; the defaults are those of CausalMIA."""

    learning_rate: float = 0.01
    epochs: int = 75
    batch_size: int = 128
    """Expected number of training samples in a batch, since each is drawn independently (Poisson sampling)."""
    clipping_norm: float = 1.0
    """The largest norm of the gradient of a sample."""
    noise_multiplier: float = 3.0
    """Standard deviation of the noise in the sum of gradients, divided by the clipping norm."""
    penalty: float = 10.0
    """Factor of |theta|^2 / 2, which is added to the mean loss r^2 / 2 of a batch."""

    def steps(self, samples: int) -> int:
        """Returns the number of steps with this many training samples."""
        return round(self.epochs * samples / self.batch_size)

    def sampling_rate(self, samples: int) -> float:
        """Returns the probability that a sample is in a batch."""
        return self.batch_size / samples


def simulate_regression(
    dimensions: int,
    *,
    samples: int = 2_000,
    trials: int = 400,
    correlation: float = 0.9,
    seed: int = 0,
) -> RegressionData:
    """Draws the samples of an experiment.

    The true weights w have the norm of a standard Gaussian vector, about sqrt(dimensions), and this correlation with
    the shift. The paper writes w . mu / |mu| = 0.90. Read literally, this would be a hundredth of the norm of w, and
    the shift would not be visible in the losses; the table of the paper is reproduced with w . mu = 0.9 |w| |mu|.

    Args:
      dimensions: number of features.
      samples: number of training samples, of held-out and of shifted samples.
      trials: number of trials, at least 2; in the first half the sample is a member.
      correlation: w . mu / (|w| |mu|), in [-1, 1].
      seed: the seed of everything that is drawn.

    Returns:
      The samples of all sets, with labels whose noise has a variance of 1.

    Raises:
      ValueError: if a number is too small, or the correlation is outside its range.

    Source: CausalMIA, Appendix G.1.

    Example:
      >>> from lm_mia.stats import simulate_regression
      >>> data = simulate_regression(60, samples=50, trials=10)
      >>> float((data.weight_D @ data.shift_D / np.linalg.norm(data.weight_D)).round(3))
      0.9
    """
    for name, number, least in (
        ("dimensions", dimensions, 2),
        ("samples", samples, 1),
        ("trials", trials, 2),
    ):
        if number < least:
            raise ValueError(f"{name}={number}: must be at least {least}")
    if not -1 <= correlation <= 1:
        raise ValueError(f"correlation={correlation:g}: must be from -1 to 1")
    generator = seeds.rng(seed, "linear_regression/weights")
    shift_D = generator.standard_normal(dimensions)
    shift_D /= np.linalg.norm(shift_D)
    gaussian_D = generator.standard_normal(dimensions)
    orthogonal_D = gaussian_D - (gaussian_D @ shift_D) * shift_D
    orthogonal_D /= np.linalg.norm(orthogonal_D)
    direction_D = correlation * shift_D + np.sqrt(1 - correlation**2) * orthogonal_D
    weight_D = np.linalg.norm(gaussian_D) * direction_D

    def draw(purpose: str, count: int, mean_D: FloatArray | None = None) -> RegressionSamples:
        generator = seeds.rng(seed, f"linear_regression/{purpose}")
        feature_NxD = generator.standard_normal((count, dimensions))
        if mean_D is not None:
            feature_NxD += mean_D
        label_N = feature_NxD @ weight_D + generator.standard_normal(count)
        return RegressionSamples(feature_NxD, label_N)

    return RegressionData(
        shift_D,
        weight_D,
        training=draw("training", samples),
        held_out=draw("held_out", samples),
        shifted=draw("shifted", samples, shift_D),
        trials=draw("trials", trials),
    )


def ridge_residuals(data: RegressionData, penalty: float) -> RegressionResiduals:
    """Computes residuals of ridge regression, which minimizes sum of r^2 + penalty |theta|^2.

    The models of the trials are not trained one by one. Adding a sample x to the training data is a rank-one update of
    X^T X, so the residual of x under the new model is its residual under the old one divided by 1 + x^T (X^T X +
    penalty I)^-1 x. This is exact.

    Args:
      data: the samples.
      penalty: above 0. The paper states 1e3, but its table is reproduced with 1e4.

    Returns:
      The residuals of all sets.

    Raises:
      ValueError: if the penalty is not above 0, or infinite.

    Source: CausalMIA, Appendix G.1; the Sherman-Morrison formula.
    """
    if not 0 < penalty < math.inf:
        raise ValueError(f"penalty={penalty:g}: must be above 0, and finite")
    x_NxD, trials = data.training.feature_NxD, data.trials
    # The dual problem has one variable for each training sample.
    kernel_NxN = x_NxD @ x_NxD.T
    kernel_NxN[np.diag_indices_from(kernel_NxN)] += penalty
    factor = scipy.linalg.cho_factor(kernel_NxN, lower=True, overwrite_a=True, check_finite=False)
    dual_N = scipy.linalg.cho_solve(factor, data.training.label_N)
    theta_D = x_NxD.T @ dual_N
    trial_M = _residuals(trials, theta_D)
    member_M = data.trial_member_M
    added_MxD = trials.feature_NxD[member_M]
    half_NxM = scipy.linalg.solve_triangular(
        factor[0], x_NxD @ added_MxD.T, lower=True, overwrite_b=True, check_finite=False
    )
    # It is infinite if the penalty is tiny and the training samples do not determine the prediction.
    with np.errstate(over="ignore"):
        leverage_M = ((added_MxD**2).sum(axis=1) - (half_NxM**2).sum(axis=0)) / penalty
    trial_M[member_M] /= 1 + leverage_M
    return RegressionResiduals(
        training_N=penalty * dual_N,
        held_out_N=_residuals(data.held_out, theta_D),
        shifted_N=_residuals(data.shifted, theta_D),
        trial_M=trial_M,
    )


def dp_sgd_residuals(
    data: RegressionData, settings: DpSgd, *, seed: int = 0
) -> RegressionResiduals:
    """Computes residuals of linear regression that is trained by SGD with differential privacy (DP-SGD).

    The models of all trials are trained together, and with them the model without a trial's sample. The gradient of a
    sample is r x, so its norm is |r| |x|, and clipping needs no gradient of single samples. All models share the
    batches of the training samples, but each has its own noise, and its own choice of the batches that include the
    added sample. Each model therefore has the same distribution as if it were trained separately.

    Args:
      data: the samples.
      settings: the settings of the optimizer.
      seed: the seed of batches and noise.

    Returns:
      The residuals of all sets.

    Raises:
      ValueError: if a batch is larger than the training data, the sampling rate, the clipping norm or the number of
        steps is not above 0, or the models diverge.

    Source: CausalMIA, Appendix G.1; Abadi et al. 2016, Deep Learning with Differential Privacy, Algorithm 1.
    """
    samples, dimensions = data.training.feature_NxD.shape
    rate = settings.sampling_rate(samples)
    steps = settings.steps(samples) if settings.batch_size else 0
    problems = [
        message
        for is_wrong, message in (
            (not 0 < rate <= 1, f"batch_size={settings.batch_size}: must be from 1 to {samples}"),
            (
                not settings.clipping_norm > 0,
                f"clipping_norm={settings.clipping_norm:g}: must be above 0",
            ),
            (
                rate > 0 and steps < 1,
                f"epochs={settings.epochs}: must be enough for at least one step",
            ),
        )
        if is_wrong
    ]
    if problems:
        raise ValueError("\n".join(problems))
    batches, noise, joins = (
        seeds.rng(seed, f"linear_regression/dp_sgd/{purpose}")
        for purpose in ("batches", "noise", "joins")
    )
    x_NxD, label_N = data.training.feature_NxD, data.training.label_N
    norm_N = np.linalg.norm(x_NxD, axis=1)
    added = data.trial_member_M
    added_MxD, added_label_M = data.trials.feature_NxD[added], data.trials.label_N[added]
    added_norm_M = np.linalg.norm(added_MxD, axis=1)
    count = len(added_label_M)
    # One column for each model: those with an added sample, those of the other trials, and the model of all others.
    theta_DxM = np.zeros((dimensions, len(added) + 1))
    noise_sd = settings.noise_multiplier * settings.clipping_norm
    with np.errstate(over="ignore", invalid="ignore"):  # if the models diverge
        for _ in range(steps):
            batch_B = np.flatnonzero(batches.random(samples) < rate)
            x_BxD = x_NxD[batch_B]
            residual_BxM = label_N[batch_B, None] - x_BxD @ theta_DxM
            descent_DxM = x_BxD.T @ _clip(
                residual_BxM, norm_N[batch_B, None], settings.clipping_norm
            )
            joined_J = np.flatnonzero(joins.random(count) < rate)
            x_JxD = added_MxD[joined_J]
            residual_J = added_label_M[joined_J] - np.einsum(
                "jd,dj->j", x_JxD, theta_DxM[:, joined_J]
            )
            clipped_J = _clip(residual_J, added_norm_M[joined_J], settings.clipping_norm)
            descent_DxM[:, joined_J] += x_JxD.T * clipped_J
            descent_DxM += noise_sd * noise.standard_normal(theta_DxM.shape)
            theta_DxM *= 1 - settings.learning_rate * settings.penalty
            theta_DxM += settings.learning_rate / settings.batch_size * descent_DxM
    if not np.isfinite(theta_DxM).all():
        raise ValueError(
            f"learning_rate={settings.learning_rate:g}: the models diverged; use a smaller learning_rate, penalty or "
            "noise_multiplier"
        )
    theta_D, theta_MxD = theta_DxM[:, -1], theta_DxM[:, :-1].T
    fitted_M = np.einsum("md,md->m", data.trials.feature_NxD, theta_MxD)
    return RegressionResiduals(
        training_N=_residuals(data.training, theta_D),
        held_out_N=_residuals(data.held_out, theta_D),
        shifted_N=_residuals(data.shifted, theta_D),
        trial_M=data.trials.label_N - fitted_M,
    )


def _clip(residual: FloatArray, norm: FloatArray, clipping_norm: float) -> FloatArray:
    """Returns residuals r, scaled down so that |r| |x| is at most the clipping norm."""
    largest = clipping_norm / norm
    return np.clip(residual, -largest, largest)


def _residuals(samples: RegressionSamples, theta_D: FloatArray) -> FloatArray:
    return samples.label_N - samples.feature_NxD @ theta_D
