"""Gaussian differential privacy: the (epsilon, delta) pairs that a mechanism with a given mu satisfies.

A mechanism is mu-GDP if telling two neighboring data sets apart by its output is at least as hard as telling N(0, 1)
from N(mu, 1). Adding Gaussian noise of standard deviation s to a query that changes by at most 1 is (1/s)-GDP.

Source: Dong, Roth and Su 2022, Gaussian Differential Privacy, Corollary 2.13; Balle and Wang 2018, Theorem 8.
"""

from __future__ import annotations

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike
from scipy import special

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
    mu_R, epsilon_R = mu[regular], epsilon[regular]
    with np.errstate(over="ignore"):
        low_R = epsilon_R / mu_R - mu_R / 2
        high_R = epsilon_R / mu_R + mu_R / 2
        # exp(epsilon) times the density at `high` is the density at `low`, so both terms have it as a factor, and the
        # scaled complementary error function gives the rest without overflow or cancellation.
        half_density_R = np.exp(-(low_R**2) / 2) / 2
    second_R = special.erfcx(high_R / np.sqrt(2))
    far_R = half_density_R * (special.erfcx(np.maximum(low_R, 0) / np.sqrt(2)) - second_R)
    near_R = special.ndtr(-low_R) - half_density_R * second_R
    delta = np.where(mu == np.inf, 1.0, 0.0)
    delta[regular] = np.where(low_R > 0, far_R, near_R)
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


def _epsilon(mu: float, delta: float) -> float:
    if delta >= float(gaussian_dp_delta(mu, 0.0)):
        return 0.0
    if delta == 0 or mu == np.inf:
        return float("inf")
    # At this epsilon the first term alone equals delta, so the root is below it.
    above = mu * (mu / 2 - float(special.ndtri(delta)))

    def excess(epsilon: float) -> float:
        return float(gaussian_dp_delta(mu, epsilon)) - delta

    return scipy.optimize.root_scalar(excess, bracket=(0.0, above), xtol=1e-12).root


def _not_negative(values: ArrayLike, name: str) -> FloatArray:
    array = as_float64(values, name)
    if not np.all(array >= 0):
        raise ValueError(f"{name}: must be 0 or larger")
    return array
