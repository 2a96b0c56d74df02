"""Mixtures of binomial distributions: the most likely one, and how large or small a mean may be among likely ones.

The number of successes in B trials has the distribution f_K = A_KxP w_P if the probability of success is drawn from a
grid of P probabilities with the weights w_P; column p of A is Binomial(B, p). Few trials do not determine w, but they
bound means over it. Both problems are convex, and a primal-dual interior-point method solves them.

Legend: K numbers of successes, P probabilities on the grid.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, special

from lm_mia.stats.array_types import FloatArray

_MAX_ITERATIONS = 200
# The gap of the fit is in nats per observation, that of a bound in units of the mean.
_FIT_GAP = 1e-9
_BOUND_GAP, _BOUND_RESIDUAL = 1e-6, 1e-4
# Smaller slacks than this are lost in rounding errors; 2^22 observations give larger ones.
_SMALLEST_SLACK = 1e-6


def binomial_probabilities(trials: int, probability_P: ArrayLike) -> FloatArray:
    """Returns A_KxP, the probability of k = 0 .. trials successes for each probability of success."""
    k_Kx1 = np.arange(trials + 1.0)[:, None]
    probability_P = np.asarray(probability_P, dtype=np.float64)
    log_binomial_Kx1 = (
        special.gammaln(trials + 1.0)
        - special.gammaln(k_Kx1 + 1)
        - special.gammaln(trials - k_Kx1 + 1)
    )
    return np.exp(
        log_binomial_Kx1
        + special.xlogy(k_Kx1, probability_P)
        + special.xlog1py(trials - k_Kx1, -probability_P)
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
    return _fit(probability_KxP[observed_K], share_K[observed_K], _FIT_GAP).w_P


def largest_mean(
    probability_KxP: FloatArray,
    share_K: FloatArray,
    value_P: FloatArray,
    fit_P: FloatArray,
    slack: float,
) -> FloatArray:
    """Returns the weights with the largest mean of a value among all whose log-likelihood is close to the largest one.

    Args:
      probability_KxP: as in `most_likely_mixture`.
      share_K: as in `most_likely_mixture`.
      value_P: the value at each probability on the grid, between -1 and 1.
      fit_P: result of `most_likely_mixture`.
      slack: by how much the log-likelihood per observation may be below that of fit_P, in nats; smaller slacks than
        1e-6 are rounded up.

    Returns:
      weight_P, positive, of sum 1.
    """
    observed_K = share_K > 0
    seen_KxP, seen_K = probability_KxP[observed_K], share_K[observed_K]
    slack = max(slack, _SMALLEST_SLACK)
    level = float(seen_K @ np.log(seen_KxP @ fit_P)) - slack
    problem = _Problem(seen_KxP, seen_K, np.asarray(value_P, np.float64), level)
    # A rough fit has a positive excess and is centered; its multipliers, scaled by kappa, nearly fit this problem.
    rough = _fit(seen_KxP, seen_K, slack / 4)
    kappa = 0.1 / problem.excess(rough.w_P)
    start = _Variables(rough.w_P, kappa * rough.z_P, kappa, kappa * rough.nu)
    return problem.solve(start, _BOUND_GAP, _BOUND_RESIDUAL).w_P


def _fit(probability_KxP: FloatArray, share_K: FloatArray, max_gap: float) -> _Variables:
    problem = _Problem(probability_KxP, share_K, np.zeros(probability_KxP.shape[1]))
    w_P = np.full(problem.gain_P.size, 1 / problem.gain_P.size)
    _, gradient_P = problem.mixture(w_P)
    nu = float(gradient_P.max()) + 0.1
    return problem.solve(_Variables(w_P, nu - gradient_P, 1.0, nu), max_gap, max(max_gap, 1e-8))


@dataclasses.dataclass(frozen=True)
class _Variables:
    """The variables of `_Problem`, or a step of them."""

    w_P: FloatArray
    z_P: FloatArray
    kappa: float
    nu: float


@dataclasses.dataclass(frozen=True)
class _Problem:
    """Maximizes gain . w over weights with a log-likelihood of at least `level`; without a level, the log-likelihood.

    The Lagrangian is gain . w + kappa (share . log(A w) - level) + z . w - nu (sum(w) - 1), with multipliers z >= 0 of
    w >= 0 and kappa >= 0 of the level. Without a level, kappa is 1. Each iteration is a predictor-corrector step
    towards the point where the gradient with respect to w vanishes, sum(w) = 1, w z = mu and kappa excess = mu, with mu
    going to 0; excess, the log-likelihood minus the level, stays positive.

    Source: Boyd and Vandenberghe, Convex Optimization, Section 11.7; Mehrotra 1992.
    """

    probability_KxP: FloatArray
    """Rows of observed numbers only."""
    share_K: FloatArray
    gain_P: FloatArray
    level: float | None = None

    def mixture(self, w_P: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns f_K, and the gradient of the log-likelihood with respect to w."""
        f_K = self.probability_KxP @ w_P
        return f_K, self.probability_KxP.T @ (self.share_K / f_K)

    def excess(self, w_P: FloatArray) -> float:
        """Returns by how much the log-likelihood is above the level; 0 without a level."""
        if self.level is None:
            return 0.0
        return float(self.share_K @ np.log(self.probability_KxP @ w_P)) - self.level

    def solve(self, at: _Variables, max_gap: float, max_residual: float) -> _Variables:
        """Returns the solution, with a positive excess.

        Args:
          at: start, with positive weights of sum 1 and a positive excess.
          max_gap: largest duality gap, which bounds by how much the objective is below its maximum.
          max_residual: largest element of the gradient of the Lagrangian.

        Raises:
          RuntimeError: if the iterations do not converge.
        """
        constraints = at.w_P.size + (self.level is not None)
        for _ in range(_MAX_ITERATIONS):
            excess = self.excess(at.w_P)
            gap = float(at.w_P @ at.z_P) + at.kappa * excess
            newton = _NewtonSystem(self, at, excess)
            if gap < max_gap and np.abs(newton.dual_P).max() < max_residual:
                return at
            predictor = newton.step(0.0, 0.0, 0.0)
            size = self._longest(at, predictor, excess)
            ahead = _move(at, predictor, size)
            ahead_gap = float(ahead.w_P @ ahead.z_P) + ahead.kappa * self.excess(ahead.w_P)
            mu = min(1.0, ahead_gap / gap) ** 3 * gap / constraints
            rise = float(newton.gradient_P @ predictor.w_P)
            step = newton.step(mu, predictor.w_P * predictor.z_P, predictor.kappa * rise)
            at = _move(at, step, 0.99 * self._longest(at, step, excess))
        raise RuntimeError(f"the mixture did not converge in {_MAX_ITERATIONS} iterations")

    def _longest(self, at: _Variables, step: _Variables, excess: float) -> float:
        """Returns a multiple of a step, near the largest one after which the variables and the excess are positive."""
        now = np.concatenate([at.w_P, at.z_P, [at.kappa]])
        change = np.concatenate([step.w_P, step.z_P, [step.kappa]])
        falls = change < 0
        size = float(np.min(-now[falls] / change[falls], initial=1 / 0.99))
        if self.level is not None:
            while self.excess(at.w_P + 0.99 * size * step.w_P) <= 0.01 * excess:
                size *= 0.8
        return size


def _move(at: _Variables, step: _Variables, size: float) -> _Variables:
    return _Variables(
        at.w_P + size * step.w_P,
        at.z_P + size * step.z_P,
        at.kappa + size * step.kappa,
        at.nu + size * step.nu,
    )


class _NewtonSystem:
    """The linear system of a Newton step, in which the step of z is eliminated.

    What remains for dw has the matrix H = diag(z / w) + U U^T with K columns in U, so that H^-1 takes K x K systems
    only (Woodbury).
    """

    def __init__(self, problem: _Problem, at: _Variables, excess: float) -> None:
        self._at, self._excess, self._has_level = at, excess, problem.level is not None
        f_K, self.gradient_P = problem.mixture(at.w_P)
        self.dual_P = problem.gain_P + at.kappa * self.gradient_P + at.z_P - at.nu
        """The gradient of the Lagrangian."""
        self._inverse_P = at.w_P / at.z_P
        scale_K = np.sqrt(at.kappa * problem.share_K) / f_K
        self._u_KxP = problem.probability_KxP * scale_K[:, None]
        self._factor = _cholesky_factor(self._u_KxP * np.sqrt(self._inverse_P))
        self._by_kappa_P = self._solve(self.gradient_P)
        self._by_nu_P = self._solve(np.ones(at.w_P.size))

    def step(self, mu: float, product_P: FloatArray | float, product: float) -> _Variables:
        """Returns the step to the point with w z = mu and kappa excess = mu.

        Args:
          mu: a target at least 0.
          product_P: second-order term dw dz of a previous step.
          product: second-order term of kappa and the excess.
        """
        at, g_P = self._at, self.gradient_P
        centered_P = (mu - product_P) / at.w_P - at.z_P
        w_P = self._solve(self.dual_P + centered_P)
        primal = 1 - at.w_P.sum()
        kappa = 0.0
        if self._has_level:
            # excess dkappa + kappa g . dw = mu - product - kappa excess, and sum(dw) = primal.
            matrix = [
                [
                    self._excess + at.kappa * (g_P @ self._by_kappa_P),
                    -at.kappa * (g_P @ self._by_nu_P),
                ],
                [self._by_kappa_P.sum(), -self._by_nu_P.sum()],
            ]
            right = mu - product - at.kappa * (self._excess + g_P @ w_P)
            kappa, nu = np.linalg.solve(matrix, [right, primal - w_P.sum()])
        else:
            nu = (w_P.sum() - primal) / self._by_nu_P.sum()
        w_P = w_P + kappa * self._by_kappa_P - nu * self._by_nu_P
        return _Variables(w_P, centered_P - at.z_P / at.w_P * w_P, float(kappa), float(nu))

    def _solve(self, right_P: FloatArray) -> FloatArray:
        scaled_P = self._inverse_P * right_P
        inner_K = linalg.cho_solve(self._factor, self._u_KxP @ scaled_P, check_finite=False)
        return scaled_P - self._inverse_P * (self._u_KxP.T @ inner_K)


def _cholesky_factor(v_KxP: FloatArray) -> tuple[FloatArray, bool]:
    """Returns a Cholesky factor of I + V V^T, as of `scipy.linalg.cho_factor`."""
    identity_KxK = np.eye(len(v_KxP))
    try:
        factor = linalg.cho_factor(identity_KxK + v_KxP @ v_KxP.T, check_finite=False)
    except linalg.LinAlgError:
        # Near the solution the product is singular up to rounding errors; a QR factorization does not form it.
        stacked = np.concatenate([v_KxP.T, identity_KxK])
        factor = linalg.qr(stacked, mode="r", check_finite=False)[0][: len(v_KxP)], False
    return factor
