"""Mixtures of binomial distributions: the most likely mixture, and bounds on a mean over all likely mixtures.

The number of successes in B trials has the distribution f_K = A_KxP w_P if the probability of success is drawn from a
grid of P probabilities with the weights w_P; column p of A is Binomial(B, p). Few trials do not determine w, but they
bound means over it. Both problems are convex; interior-point methods solve them.

Legend: K numbers of successes, P probabilities on the grid.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray

_MAX_ITERATIONS = 200
# The gap of the fit is in nats per observation, those of a bound in units of the mean.
_FIT_GAP, _BOUND_GAP, _INNER_GAP = 1e-9, 2e-4, 1e-5
_RESIDUAL = 1e-7  # above rounding errors
_MAX_MULTIPLIERS = 60
_LOWEST_MULTIPLIER = 1e-4
# Smaller slacks would be lost in rounding errors; with up to 2^22 observations they are larger.
_SMALLEST_SLACK = 1e-6


def binomial_probabilities(trials: int, probability_P: ArrayLike) -> FloatArray:
    """Returns A_KxP, the probability of k = 0 .. trials successes for each probability of success."""
    k_Kx1 = np.arange(trials + 1.0)[:, None]
    probability_P = np.asarray(probability_P, dtype=np.float64)
    log_binomial_Kx1 = (
        scipy.special.gammaln(trials + 1.0)
        - scipy.special.gammaln(k_Kx1 + 1)
        - scipy.special.gammaln(trials - k_Kx1 + 1)
    )
    return np.exp(
        log_binomial_Kx1
        + scipy.special.xlogy(k_Kx1, probability_P)
        + scipy.special.xlog1py(trials - k_Kx1, -probability_P)
    )


def most_likely_mixture(probability_KxP: FloatArray, share_K: FloatArray) -> FloatArray:
    """Returns the weights with the largest log-likelihood.

    Args:
      probability_KxP: distribution of the number of successes for each probability on the grid.
      share_K: share of the observations with each number of successes; they sum to 1.

    Returns:
      weight_P, positive, of sum 1.

    Source: Laird 1978, Nonparametric maximum likelihood estimation of a mixing distribution.
    """
    observed_K = share_K > 0
    return _fit(probability_KxP[observed_K], share_K[observed_K], _FIT_GAP)


def largest_mean(
    probability_KxP: FloatArray,
    share_K: FloatArray,
    value_P: FloatArray,
    fit_P: FloatArray,
    slack: float,
) -> FloatArray:
    """Returns the mixture with the largest mean of a value among those whose log-likelihood is close to the maximum.

    For a multiplier kappa > 0, let w maximize value . w + kappa log-likelihood. The log-likelihood of w increases with
    kappa. Bisection finds two multipliers whose solutions have log-likelihoods above and below the limit; the result is
    the combination of the two solutions that meets it. The objective at either multiplier bounds the mean from above.

    Args:
      probability_KxP: as in `most_likely_mixture`.
      share_K: as in `most_likely_mixture`.
      value_P: the value at each probability on the grid, between -1 and 1.
      fit_P: result of `most_likely_mixture`.
      slack: by how much the log-likelihood per observation may be below that of fit_P, in nats; smaller slacks than
        1e-6 are rounded up.

    Returns:
      weight_P, positive, of sum 1.

    Raises:
      RuntimeError: if the iterations do not converge.

    Source: Boyd and Vandenberghe, Convex Optimization, Section 5.5.
    """
    observed_K = share_K > 0
    seen_KxP, seen_K = probability_KxP[observed_K], share_K[observed_K]
    slack = max(slack, _SMALLEST_SLACK)
    level = float(seen_K @ np.log(seen_KxP @ fit_P)) - slack
    value_P = np.asarray(value_P, dtype=np.float64)

    def excess(w_P: FloatArray) -> float:
        return float(seen_K @ np.log(seen_KxP @ w_P)) - level

    def solve(kappa: float) -> FloatArray:
        return _fit(seen_KxP, seen_K, max(_FIT_GAP, _INNER_GAP / kappa), value_P / kappa)

    # The likelihood falls by at most (max(value) - min(value)) / kappa.
    low, high = _LOWEST_MULTIPLIER, 2 / slack
    likely_P, unlikely_P = fit_P, solve(low)
    if excess(unlikely_P) >= 0:
        return unlikely_P
    for _ in range(_MAX_MULTIPLIERS):
        kappa = np.sqrt(low * high)
        w_P = solve(kappa)
        above = excess(w_P)
        if above >= 0:
            high, likely_P = kappa, w_P
        else:
            low, unlikely_P = kappa, w_P
        mixed_P = _mix(likely_P, unlikely_P, excess)
        if value_P @ (w_P - mixed_P) + kappa * above < _BOUND_GAP or high < 1.000001 * low:
            return mixed_P
    raise RuntimeError(f"the bound did not converge with {_MAX_MULTIPLIERS} multipliers")


def _mix(
    inside_P: FloatArray, outside_P: FloatArray, excess: Callable[[FloatArray], float]
) -> FloatArray:
    """Returns the point with an excess of 0 between weights with a positive and weights with a negative excess."""

    def excess_between(part: float) -> float:
        return excess(inside_P + part * (outside_P - inside_P))

    part = scipy.optimize.root_scalar(excess_between, bracket=(0, 1), xtol=1e-9).root
    return inside_P + part * (outside_P - inside_P)


def _fit(
    probability_KxP: FloatArray,
    share_K: FloatArray,
    max_gap: float,
    gain_P: FloatArray | float = 0.0,
) -> FloatArray:
    """Returns weights whose gain . w + log-likelihood per observation is within twice max_gap of the maximum.

    Each iteration is a predictor-corrector step towards the point where gradient + z = nu, sum(w) = 1 and w z = mu,
    with mu going to 0. The rows of probability_KxP are those of observed numbers only.

    Source: Mehrotra 1992.
    """
    w_P = np.full(probability_KxP.shape[1], 1 / probability_KxP.shape[1])
    gradient_P = gain_P + probability_KxP.T @ (share_K / (probability_KxP @ w_P))
    nu = float(gradient_P.max()) + 0.1
    z_P = nu - gradient_P
    for _ in range(_MAX_ITERATIONS):
        f_K = probability_KxP @ w_P
        dual_P = gain_P + probability_KxP.T @ (share_K / f_K) + z_P - nu
        gap = float(w_P @ z_P)
        if gap < max_gap and np.abs(dual_P).max() < max(max_gap, _RESIDUAL):
            return w_P
        newton = _NewtonSystem(w_P / z_P, probability_KxP * (np.sqrt(share_K) / f_K)[:, None])
        missing, step_P, step_z_P = 1 - w_P.sum(), np.zeros(w_P.size), np.zeros(w_P.size)
        mu, size, step_nu = 0.0, 0.0, 0.0
        for _ in ("predictor", "corrector"):
            centered_P = (mu - step_P * step_z_P) / w_P - z_P
            step_P, step_nu = newton.solve_with_sum(dual_P + centered_P, missing)
            step_z_P = centered_P - z_P / w_P * step_P
            size = min(_longest(w_P, step_P), _longest(z_P, step_z_P))
            ahead = float((w_P + min(size, 1) * step_P) @ (z_P + min(size, 1) * step_z_P))
            mu = min(1.0, ahead / gap) ** 3 * gap / w_P.size
        size = min(1.0, 0.99 * size)
        w_P, z_P, nu = w_P + size * step_P, z_P + size * step_z_P, nu + size * step_nu
    raise RuntimeError(f"the mixture did not converge in {_MAX_ITERATIONS} iterations")


class _NewtonSystem:
    """Linear systems with the matrix H = diag(1 / inverse) + U^T U and a sum constraint, for Newton steps.

    U has few rows, so that solving takes small systems only (Woodbury).
    """

    def __init__(self, inverse_P: FloatArray, u_KxP: FloatArray) -> None:
        self._inverse_P, self._u_KxP = inverse_P, u_KxP
        self._factor = _cholesky_factor(u_KxP * np.sqrt(inverse_P))
        self._ones_P = self._solve(np.ones(inverse_P.size))
        self._sum_of_ones = self._ones_P.sum()

    def solve_with_sum(self, right_P: FloatArray, total: float) -> tuple[FloatArray, float]:
        """Returns (x_P, nu) with H x + nu = right and sum(x) = total."""
        x_P = self._solve(right_P)
        nu = float((x_P.sum() - total) / self._sum_of_ones)
        return x_P - nu * self._ones_P, nu

    def _solve(self, right_P: FloatArray) -> FloatArray:
        scaled_P = self._inverse_P * right_P
        _, potrs = _cholesky_routines()
        inner_K, _ = potrs(self._factor, self._u_KxP @ scaled_P)
        return scaled_P - self._inverse_P * (self._u_KxP.T @ inner_K)


def _longest(x_P: FloatArray, step_P: FloatArray) -> float:
    """Returns the largest multiple of a step after which no element is negative; inf if no element decreases."""
    falls_P = step_P < 0
    return -float((x_P[falls_P] / step_P[falls_P]).max(initial=-np.inf))


@functools.cache
def _cholesky_routines() -> tuple[Any, Any]:
    """Returns LAPACK's Cholesky factorization and solution; the checks of `scipy.linalg.cho_solve` take longer."""
    potrf, potrs = scipy.linalg.get_lapack_funcs(("potrf", "potrs"), dtype=np.float64)
    return potrf, potrs


def _cholesky_factor(v_KxP: FloatArray) -> FloatArray:
    """Returns a Cholesky factor of I + V V^T in the upper triangle of a matrix."""
    identity_KxK = np.eye(len(v_KxP))
    potrf, _ = _cholesky_routines()
    factor_KxK, failed = potrf(identity_KxK + v_KxP @ v_KxP.T, clean=False)
    if failed:
        # Near the solution the product is singular up to rounding errors; a QR factorization does not form it.
        stacked = np.concatenate([v_KxP.T, identity_KxK])
        triangular_PxK: Any  # the types of SciPy's functions depend on the version of NumPy
        triangular_PxK = scipy.linalg.qr(stacked, mode="r", check_finite=False)[0]
        factor_KxK = triangular_PxK[: len(v_KxP)]
    return factor_KxK
