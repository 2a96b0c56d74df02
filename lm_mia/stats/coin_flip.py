"""The exact binomial test of the votes of replicas: can they be told from the flips of a fair coin?

StrongMIA, Appendix E.2.4. The tails of the test are summed in whole numbers, so the boundary of the
acceptance region is exact. Shapes: N samples.
"""

import operator
from itertools import accumulate
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray


def coin_flip_cutoff(replicas: int, alpha: float = 0.05) -> tuple[int, float]:
    """Votes that a fair coin explains at level alpha, and the flip rate at their edge.

    A sample is like a coin flip at level alpha if its member votes lie in ``[k_low, replicas -
    k_low]``, which is the same as a flip rate of at least ``cutoff``. Compare votes rather than
    flip rates: they are whole numbers.

    With few replicas no vote can reject a fair coin: up to 5 replicas at alpha = 0.05, ``k_low`` is
    0, ``cutoff`` is 0.0 and every sample, unanimous ones too, counts as a coin flip. This is what
    the test says (it has no power there), so nothing else is made up for it.

    Args:
      replicas: B, the number of votes; 2 or more, as a flip rate needs a pair.
      alpha: level of the two-sided test, in (0, 1).

    Returns:
      ``(k_low, cutoff)``: the smallest k with F(k) >= alpha/2 under Binomial(B, 1/2), and
      2 k_low (B - k_low) / (B (B - 1)). 127 replicas give (52, 0.4874), 125 give (52, 0.4898).

    Raises:
      ValueError: replicas below 2, or alpha outside (0, 1).

    Source: StrongMIA Eqs. 17, 19 and 23.
    """
    replicas = whole_replicas(replicas)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: must lie between 0 and 1, both excluded")
    top, bottom = float(alpha).as_integer_ratio()
    # F(k) >= alpha/2  <=>  tail(k) / 2^B >= top / (2 bottom), without a division.
    needed = top << replicas
    k_low = next(k for k, tail in enumerate(_tails(replicas)) if tail * 2 * bottom >= needed)
    return k_low, 2 * k_low * (replicas - k_low) / (replicas * (replicas - 1))


def p_value(k: ArrayLike, replicas: int) -> NDArray[np.float64]:
    """Two-sided equal-tail p-value of k member votes among replicas fair coins, capped at 1.

    Args:
      k: vote counts, any shape; NaN is missing.
      replicas: B, 2 or more.

    Returns:
      p-values, shaped as k; NaN where k is. ``p >= alpha`` holds just where k lies in the
      acceptance region of `coin_flip_cutoff`.

    Raises:
      ValueError: replicas below 2, or a k that is not a whole number from 0 to replicas.

    Source: StrongMIA Eq. 22.
    """
    replicas = whole_replicas(replicas)
    votes, missing = whole_votes(k, replicas)
    whole = 1 << replicas
    # Tails end at the centre, where twice the tail exceeds 1 for an even B.
    p_of_tail = np.array([min(1.0, 2 * tail / whole) for tail in _tails(replicas)])
    return np.where(missing, np.nan, p_of_tail[np.minimum(votes, replicas - votes)])


def whole_votes(votes: ArrayLike, replicas: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Vote counts as whole numbers, for exact comparisons, and where they are missing.

    Args:
      votes: counts from 0 to replicas, any shape; NaN is missing.
      replicas: B, 2 or more.

    Returns:
      ``(votes, missing)``, shaped as votes; what stands at a missing place means nothing.

    Raises:
      ValueError: replicas below 2, or a count that is not a whole number from 0 to replicas.
    """
    replicas = whole_replicas(replicas)
    given = np.asarray(votes, dtype=np.float64)
    missing = np.isnan(given)
    filled = np.where(missing, 0.0, given)
    if np.any((filled < 0) | (filled > replicas) | (filled != np.floor(filled))):
        raise ValueError(f"votes must be whole numbers from 0 to replicas={replicas}, or NaN")
    return filled.astype(np.int64), missing


def whole_replicas(replicas: SupportsIndex) -> int:
    """The number of replicas as a Python integer, which never overflows; ValueError below two."""
    whole = operator.index(replicas)
    if whole < 2:
        raise ValueError(f"replicas={whole}: must be 2 or more, a flip rate compares pairs")
    return whole


def _tails(replicas: int) -> list[int]:
    """2^B F(k) for k = 0 .. floor(B/2), exactly."""

    def binomial_row() -> list[int]:
        row = [1]
        for i in range(replicas // 2):
            row.append(row[-1] * (replicas - i) // (i + 1))
        return row

    return list(accumulate(binomial_row()))
