"""PrivacyGuard's epsilon of a single run, from a grid of noise levels: an estimate to compare with `one_run_bound`.

Source: PrivacyGuard, Section 3.2.2 and Figure 7, and its tutorial on f-differential privacy.
"""

from __future__ import annotations

import bisect

from lm_mia.stats.gaussian_dp import gaussian_dp_epsilon
from lm_mia.stats.one_run import gaussian_rejected

_FIRST, _STEP, _NOISES = 0.001, 0.01, 1000


def noise_grid_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float, level: float = 0.05
) -> float:
    """Computes epsilon of the smallest noise level among 0.001, 0.011, ..., 9.991 that the guesses reject.

    It is below `one_run_mu` converted to epsilon by up to a step of the grid, and 0.34 instead of 0 (for delta = 1e-5)
    if the guesses reject no noise level. PrivacyGuard reports the largest one over 50 numbers of guesses without a
    correction, which is not a bound. It is for mechanisms with Gaussian noise only.

    Args:
      canaries: number of samples whose membership was drawn by independent fair coins.
      guesses: number of guesses.
      correct: number of correct guesses.
      delta: of (epsilon, delta)-differential privacy, in [0, 1].
      level: significance level for one number of guesses, in (0, 1).

    Returns:
      The epsilon of Gaussian noise at delta.

    Raises:
      ValueError: as for `gaussian_rejected` and `gaussian_dp_epsilon`.

    Example:
      >>> from lm_mia.stats import noise_grid_epsilon
      >>> round(noise_grid_epsilon(2000, 252, 249, delta=1e-5), 3)
      5.356
    """

    def rejected(i: int) -> bool:
        return gaussian_rejected(1 / (_FIRST + _STEP * i), canaries, guesses, correct, level)

    # More noise is rejected whenever less noise is, so the walk from small to large noise may be a bisection.
    first = bisect.bisect_left(range(_NOISES - 1), True, key=rejected)
    return float(gaussian_dp_epsilon(1 / (_FIRST + _STEP * first), delta))
