"""Differential privacy: (epsilon, delta) of Gaussian mechanisms and of SGD, and the ROC curves that a pair allows.

A mechanism is mu-GDP if telling two neighboring data sets apart by its output is at least as hard as telling N(0, 1)
from N(mu, 1). Adding Gaussian noise of standard deviation s to a query that changes by at most 1 is (1/s)-GDP.

Legend: R pairs (mu, epsilon) that need no special case.

Source: Dong, Roth and Su 2022, Gaussian Differential Privacy, Corollary 2.13; Balle and Wang 2018, Theorem 8.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64


def gaussian_dp_delta(mu: ArrayLike, epsilon: ArrayLike) -> FloatArray:
    """Computes the smallest delta for which every mu-GDP mechanism is (epsilon, delta)-differentially private.

    Args:
      mu: 0 or larger, of any shape; may be +inf.
      epsilon: 0 or larger, broadcast with mu; may be +inf.

    Returns:
      delta = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu), in [0, 1].

    Raises:
      ValueError: if a mu or an epsilon is negative or NaN.

    Source: Balle and Wang 2018, Theorem 8.

    Example:
      >>> from lm_mia.stats import gaussian_dp_delta
      >>> gaussian_dp_delta(1.0, [0.0, 1.0]).round(4)
      array([0.3829, 0.1269])
    """
    mu = _not_negative(mu, "mu")
    epsilon = _not_negative(epsilon, "epsilon")
    mu, epsilon = np.broadcast_arrays(mu, epsilon)
    regular = (mu > 0) & (mu < np.inf) & (epsilon < np.inf)
    delta = np.where(mu == np.inf, 1.0, 0.0)
    delta[regular] = _regular_delta(mu[regular], epsilon[regular])
    return delta


def gaussian_dp_epsilon(mu: ArrayLike, delta: ArrayLike) -> FloatArray:
    """Computes the smallest epsilon for which every mu-GDP mechanism is (epsilon, delta)-differentially private.

    Args:
      mu: 0 or larger, of any shape; may be +inf.
      delta: in [0, 1], broadcast with mu.

    Returns:
      The inverse of `gaussian_dp_delta`: 0 where delta is at least 2 Phi(mu/2) - 1, such as for mu = 0, and +inf for
      delta = 0 otherwise.

    Raises:
      ValueError: if a mu is negative or NaN, or a delta is outside [0, 1].

    Example:
      >>> from lm_mia.stats import gaussian_dp_epsilon
      >>> gaussian_dp_epsilon([0.5, 1.0, 2.0], 1e-5).round(4)
      array([1.9931, 4.3772, 9.9973])
    """
    mu = _not_negative(mu, "mu")
    delta = as_float64(delta, "delta")
    if not np.all((delta >= 0) & (delta <= 1)):
        raise ValueError("delta: must be between 0 and 1")
    mu, delta = np.broadcast_arrays(mu, delta)
    epsilon = [
        _epsilon(m, d) for m, d in zip(mu.ravel().tolist(), delta.ravel().tolist(), strict=True)
    ]
    return np.array(epsilon).reshape(mu.shape)


def dp_sgd_mu(sampling_rate: float, noise_multiplier: float, steps: int) -> float:
    """Computes mu such that SGD with clipped gradients and Gaussian noise is approximately mu-GDP.

    This is the limit of many steps with a small sampling rate, an approximation and not a bound. For the DP-SGD of
    CausalMIA (0.064, a multiplier of 3, 1,172 steps) epsilon at delta = 0.01 is 1.581; numerical accounting with the
    privacy loss distribution gives 1.590 (dp-accounting 0.6), and with Rényi divergences a bound of 1.922.

    Args:
      sampling_rate: the probability that a sample is in a batch, independently of others (Poisson sampling), in (0, 1].
      noise_multiplier: standard deviation of the noise in a sum of gradients, divided by their largest norm; above 0.
      steps: number of steps.

    Returns:
      mu = sampling_rate sqrt(steps (exp(1 / noise_multiplier^2) - 1)), where neighboring data sets differ by adding or
      removing a sample; +inf where this overflows.

    Raises:
      ValueError: if the rate is outside (0, 1], the multiplier is not above 0, or the number of steps is negative or
        not a whole number.

    Source: Bu, Dong, Long and Su 2020, Deep Learning with Gaussian Differential Privacy, Section 3.

    Example:
      >>> from lm_mia.stats import dp_sgd_mu, gaussian_dp_epsilon
      >>> float(gaussian_dp_epsilon(dp_sgd_mu(0.064, 3.0, 1_172), 0.01).round(3))
      1.581
    """
    problems = []
    if not 0 < sampling_rate <= 1:
        problems.append(f"sampling_rate={sampling_rate:g}: must be above 0 and at most 1")
    if not noise_multiplier > 0:
        problems.append(f"noise_multiplier={noise_multiplier:g}: must be above 0")
    if steps < 0 or steps % 1:
        problems.append(f"steps={steps}: must be a whole number, 0 or larger")
    if problems:
        raise ValueError("\n".join(problems))
    with np.errstate(over="ignore", divide="ignore"):
        variance = np.expm1(1 / np.float64(noise_multiplier) ** 2) if steps else np.float64(0)
    return float(sampling_rate * np.sqrt(steps * variance))


def dp_tpr_bound(fpr: ArrayLike, epsilon: float, delta: float) -> FloatArray:
    """Computes the largest TPR that any attack on an (epsilon, delta)-differentially private mechanism can have.

    Args:
      fpr: false positive rates, of any shape.
      epsilon: 0 or larger; may be +inf.
      delta: in [0, 1].

    Returns:
      min(1, exp(epsilon) fpr + delta, 1 - exp(-epsilon) (1 - delta - fpr)), of the shape of fpr. It holds for the true
      rates of an attack on two neighboring data sets; rates that are estimated from samples may be above it by chance.

    Raises:
      ValueError: if a rate or delta is outside [0, 1], or epsilon is negative or NaN.

    Source: Dong, Roth and Su 2022, Gaussian Differential Privacy, Proposition 2.5; CausalMIA, Appendix G.1.

    Example:
      >>> from lm_mia.stats import dp_tpr_bound
      >>> dp_tpr_bound([0.0, 0.1, 1.0], epsilon=1.0, delta=0.01).round(3)
      array([0.01 , 0.282, 1.   ])
    """
    fpr = as_float64(fpr, "fpr")
    if not np.all((fpr >= 0) & (fpr <= 1)):
        raise ValueError("fpr: must be between 0 and 1")
    if not 0 <= delta <= 1:
        raise ValueError(f"delta={delta:g}: must be between 0 and 1")
    if not epsilon >= 0:
        raise ValueError(f"epsilon={epsilon:g}: must be 0 or larger")
    with np.errstate(over="ignore", invalid="ignore"):
        # No false positives allow a TPR of delta, also where the factor is infinite.
        low = np.where(fpr > 0, np.exp(epsilon) * fpr, 0.0) + delta
    high = 1 - np.exp(-epsilon) * (1 - delta - fpr)
    return np.minimum(1.0, np.minimum(low, high))


def _regular_delta(mu_R: FloatArray, epsilon_R: FloatArray) -> FloatArray:
    """Computes `gaussian_dp_delta` for finite epsilon, and for mu above 0 and finite."""
    with np.errstate(over="ignore"):
        low_R = epsilon_R / mu_R - mu_R / 2
        high_R = epsilon_R / mu_R + mu_R / 2
        # exp(epsilon) times the density at `high` is the density at `low`, so both terms have it as a factor, and the
        # scaled complementary error function gives the rest without overflow or cancellation.
        half_density_R = np.exp(-(low_R**2) / 2) / 2
    second_R = scipy.special.erfcx(high_R / np.sqrt(2))
    far_R = half_density_R * (scipy.special.erfcx(np.maximum(low_R, 0) / np.sqrt(2)) - second_R)
    near_R = scipy.special.ndtr(-low_R) - half_density_R * second_R
    return np.where(low_R > 0, far_R, near_R)


def _epsilon(mu: float, delta: float) -> float:
    if delta >= float(gaussian_dp_delta(mu, 0.0)):
        return 0.0
    if delta == 0 or mu == np.inf:
        return float("inf")
    # At this epsilon the first term alone equals delta, so the root is below it.
    above = mu * (mu / 2 - float(scipy.special.ndtri(delta)))
    mu_1 = np.array([mu])

    def excess(epsilon: float) -> float:
        return float(_regular_delta(mu_1, np.array([epsilon]))[0]) - delta

    return scipy.optimize.root_scalar(excess, bracket=(0.0, above), xtol=1e-12).root


def _not_negative(values: ArrayLike, name: str) -> FloatArray:
    array = as_float64(values, name)
    if not np.all(array >= 0):
        raise ValueError(f"{name}: must be 0 or larger")
    return array
