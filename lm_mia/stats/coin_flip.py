"""Exact binomial test of whether the decisions of B replicas about a sample differ from fair coin flips.

The tails are summed in integer arithmetic, so the boundary of the acceptance region is exact. Legend: N samples.
StrongMIA, Appendix E.2.4.
"""

from __future__ import annotations

import operator
from itertools import accumulate
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64


def coin_flip_cutoff(replicas: int, alpha: float = 0.05) -> tuple[int, float]:
    """Returns the acceptance region of the coin-flip test, in votes and as a flip rate.

    The decisions about a sample are indistinguishable from coin flips at level alpha if its number of member votes lies
    in ``[k_low, replicas - k_low]``. This is equivalent to a flip rate of at least ``cutoff``. Compare votes rather
    than flip rates, because votes are integers.

    With few replicas no number of votes rejects a fair coin: with up to 5 replicas at alpha = 0.05, ``k_low`` is 0,
    ``cutoff`` is 0.0, and every sample counts as a coin flip, even with unanimous votes.

    Args:
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the two-sided test, in (0, 1).

    Returns:
      ``(k_low, cutoff)``: k_low is the smallest k with F(k) >= alpha / 2 under Binomial(B, 1/2), and
      cutoff = 2 k_low (B - k_low) / (B (B - 1)).

    Raises:
      ValueError: if replicas is below 2 or alpha is outside (0, 1).

    Source: StrongMIA, Eqs. 17, 19 and 23.

    Example:
      The cutoff of the paper's 127 replicas:

      >>> from lm_mia.stats import coin_flip_cutoff
      >>> k_low, cutoff = coin_flip_cutoff(127)
      >>> k_low, round(cutoff, 4)
      (52, 0.4874)
    """
    replicas = as_num_replicas(replicas)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: must be between 0 and 1, both excluded")
    numerator, denominator = float(alpha).as_integer_ratio()
    # F(k) >= alpha / 2 is the same as 2^B F(k) * 2 * denominator >= numerator * 2^B, in integers.
    required = numerator << replicas
    k_low = next(
        k
        for k, tail in enumerate(_scaled_lower_tails(replicas))
        if tail * 2 * denominator >= required
    )
    return k_low, 2 * k_low * (replicas - k_low) / (replicas * (replicas - 1))


def p_value(k: ArrayLike, replicas: int) -> FloatArray:
    """Computes the p-value of k member votes among B replicas under the hypothesis of fair coin flips.

    The test is two-sided with equal tails: p = min(1, 2 min(F(k), F(B - k))) under Binomial(B, 1/2).

    Args:
      k: numbers of member votes, of any shape; NaN marks a missing number.
      replicas: number of votes per sample, B; at least 2.

    Returns:
      p-values of the shape of k; NaN where k is NaN. ``p >= alpha`` holds exactly in the acceptance region of
      `coin_flip_cutoff`.

    Raises:
      ValueError: if replicas is below 2, or if an element of k is not an integer from 0 to replicas.

    Source: StrongMIA, Eq. 22.

    Example:
      >>> from lm_mia.stats import p_value
      >>> p_value([0, 1, 3], replicas=6)
      array([0.03125, 0.21875, 1.     ])
    """
    replicas = as_num_replicas(replicas)
    votes, missing = as_vote_counts(k, replicas)
    num_outcomes = 1 << replicas
    # Twice the tail at the center exceeds 1 for an even B.
    p_of_tail = np.array(
        [min(1.0, 2 * tail / num_outcomes) for tail in _scaled_lower_tails(replicas)]
    )
    return np.where(missing, np.nan, p_of_tail[np.minimum(votes, replicas - votes)])


def as_vote_counts(votes: ArrayLike, replicas: int) -> tuple[IntArray, BoolArray]:
    """Converts vote counts to integers.

    Args:
      votes: counts from 0 to replicas, of any shape; NaN marks a missing count.
      replicas: number of votes per sample, B; at least 2.

    Returns:
      ``(votes, missing)``, both of the shape of votes; a missing count is set to 0.

    Raises:
      ValueError: if replicas is below 2, or if a count is not an integer from 0 to replicas.
    """
    replicas = as_num_replicas(replicas)
    count = as_float64(votes, "votes")
    missing = np.isnan(count)
    filled = np.where(missing, 0.0, count)
    if np.any((filled < 0) | (filled > replicas) | (filled != np.floor(filled))):
        raise ValueError(f"votes must be integers from 0 to replicas={replicas}, or NaN")
    return filled.astype(np.int64), missing


def as_num_replicas(replicas: SupportsIndex) -> int:
    """Returns the number of replicas as a Python integer, which cannot overflow.

    Raises:
      ValueError: if it is below 2 or not an integer.
    """
    try:
        num_replicas = operator.index(replicas)
    except TypeError:
        raise ValueError(f"replicas={replicas!r}: must be an integer") from None
    if num_replicas < 2:
        raise ValueError(f"replicas={num_replicas}: must be at least 2 to compare decisions")
    return num_replicas


def _scaled_lower_tails(replicas: int) -> list[int]:
    """Returns 2^B F(k) for k = 0 .. floor(B / 2), exactly."""
    coefficients = [1]
    for i in range(replicas // 2):
        coefficients.append(coefficients[-1] * (replicas - i) // (i + 1))
    return list(accumulate(coefficients))
