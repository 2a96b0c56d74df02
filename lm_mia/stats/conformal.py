"""Conformal p-values of membership scores: how unusual a score is among those of known non-members.

Legend: N samples, K non-members whose scores calibrate the p-values.

Source: Vovk, Gammerman and Shafer 2005, Algorithmic Learning in a Random World, Section 2.2 (smoothed p-values, with
keys in place of random numbers).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64
from lm_mia.stats.ties import as_ids, order_with_keys


def conformal_p_value(
    score_N: ArrayLike,
    nonmember_score_K: ArrayLike,
    *,
    id_N: ArrayLike | None = None,
    nonmember_id_K: ArrayLike | None = None,
    seed: int = 0,
) -> FloatArray:
    """Computes the p-value of each sample under the hypothesis that it is a non-member like the given ones.

    With n non-members that have a score, it is (1 + the number of them above the sample) / (n + 1). If the sample is
    exchangeable with them, the p-value is at most a with a probability of exactly floor(a (n + 1)) / (n + 1), also if
    scores are tied: tied scores are ordered by keys, which are functions of the seed and of the ids alone.

    Args:
      score_N: scores of samples that are not among the non-members, larger for members.
      nonmember_score_K: scores of known non-members; NaN is left out.
      id_N: ids of the samples, by which ties are broken: different whole numbers, 0 or larger. By default, the
        positions, counted from K.
      nonmember_id_K: ids of the non-members; by default, their positions.
      seed: seed of the keys.

    Returns:
      p_N, in (0, 1]; NaN where the score is NaN.

    Raises:
      ValueError: if scores are not one-dimensional, or if two ids are equal.

    Example:
      >>> from lm_mia.stats import conformal_p_value
      >>> conformal_p_value([0.5, 2.5, 9.0], [1.0, 2.0, 3.0])
      array([1.  , 0.5 , 0.25])
    """
    score_N = as_float64(score_N, "scores")
    nonmember_score_K = as_float64(nonmember_score_K, "scores of non-members")
    if score_N.ndim != 1 or nonmember_score_K.ndim != 1:
        raise ValueError(
            f"scores of shape {score_N.shape} and scores of non-members of shape {nonmember_score_K.shape}: must be "
            "one number per sample"
        )
    nonmembers = nonmember_score_K.size
    id_K = as_ids(nonmember_id_K, nonmembers, "nonmember_id_K")
    first = np.uint64(nonmembers if id_N is None else 0)
    id_KN = np.concatenate([id_K, as_ids(id_N, score_N.size) + first])
    as_ids(id_KN, id_KN.size, "nonmember_id_K and id_N")
    score_KN = np.concatenate([nonmember_score_K, score_N])
    descending_KN = order_with_keys(score_KN, id_KN, seed)[::-1]
    is_nonmember_KN = (descending_KN < nonmembers) & ~np.isnan(score_KN[descending_KN])
    above_KN = np.empty(score_KN.size, np.int64)
    above_KN[descending_KN] = np.cumsum(is_nonmember_KN)
    p_N = (1 + above_KN[nonmembers:]) / (1 + int(is_nonmember_KN.sum()))
    return np.where(np.isnan(score_N), np.nan, p_N)
