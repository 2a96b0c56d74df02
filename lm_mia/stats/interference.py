"""How much one-run estimates would vary between models if the scores of different samples were independent.

A one-run evaluation compares the members and the non-members of a single model. Its samples share that model: whether
one sample is in the training subset, and everything else that is random in training, changes the scores of the others
(interference, CausalMIA Section 5). This module computes standard deviations without this dependence, so estimates
that vary more between models show interference.

All models share the same n samples, from which each model draws n1 members; n0 are not drawn. Let Y_i(1) be the score
of sample i under a model trained on it and Y_i(0) under a model not trained on it, with means m_i(1) and m_i(0) over
models, and let S^2 be variances over the n samples, with n - 1 as the divisor. If the members are a simple random
sample, and scores are independent given the memberships, the difference in means has the variance

    (S^2[m(1)] + mean of var Y_i(1)) / n1 + (S^2[m(0)] + mean of var Y_i(0)) / n0 - S^2[m(1) - m(0)] / n

(Neyman 1923, with random outcomes). The variances s1^2 and s0^2 of the scores of members and of non-members under one
model estimate the sums in brackets, so this is s1^2 / n1 + s0^2 / n0 - S^2[m(1) - m(0)] / n. The last term is there
because models do not draw new samples. It needs the effect of training on each sample, which only many models show.

The AUC is treated in the same way: up to terms of order 1 / n, it differs from its mean as the difference in means of
`placements` does (DeLong et al. 1988).

N: samples, n of them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_float64, as_members, check_magnitude


def placements(score_N: ArrayLike, member_N: ArrayLike) -> FloatArray:
    """Computes where each score stands among the scores of the other class, in 0 to 1 for members, -1 to 0 for others.

    The difference of the mean placements of members and of non-members is twice the AUC.

    Args:
      score_N: membership scores; NaN marks a missing one.
      member_N: membership, booleans.

    Returns:
      placement_N: of a member, the share of non-members with a lower score; of a non-member, minus the share of members
      with a higher score. Ties count 1/2. NaN for missing scores, and if the other class has no scores.

    Source: DeLong et al. 1988.

    Example:
      >>> from lm_mia.stats import placements
      >>> placements([1.0, 2.0, 2.0, 3.0], [False, False, True, True])
      array([-1.  , -0.75,  0.75,  1.  ])
    """
    score_N, member_N = as_float64(score_N, "scores"), as_members(member_N)
    _check_same_samples(score_N, member_N, "scores and members")
    known_N = ~np.isnan(score_N)
    placement_N = np.full(score_N.shape, np.nan)
    for class_N in (member_N, ~member_N):
        other_S = np.sort(score_N[known_N & ~class_N])
        value_S = score_N[known_N & class_N]
        if other_S.size:
            below_S = np.searchsorted(other_S, value_S) + np.searchsorted(other_S, value_S, "right")
            placement_N[known_N & class_N] = below_S / (2 * other_S.size)
    placement_N[~member_N] -= 1
    return placement_N


def effect_variance(effect_N: ArrayLike, effect_se_N: ArrayLike) -> float:
    """Computes the variance over samples of the true effect of training on a sample, S^2[m(1) - m(0)].

    The variance of estimated effects also contains their estimation error, which is subtracted.

    Args:
      effect_N: estimated effect on each sample; samples with NaN are left out.
      effect_se_N: its standard error.

    Returns:
      The variance, at least 0; 0 with fewer than two samples.

    Raises:
      ValueError: if the arrays do not have the same single dimension, or a value is infinite or too large.
    """
    effect_N, se_N = as_float64(effect_N, "effects"), as_float64(effect_se_N, "standard errors")
    _check_same_samples(effect_N, se_N, "effects and standard errors")
    check_magnitude(effect_N, "effects")
    check_magnitude(se_N, "standard errors")
    known_N = ~(np.isnan(effect_N) | np.isnan(se_N))
    if known_N.sum() < 2:
        return 0.0
    return max(float(effect_N[known_N].var(ddof=1) - np.mean(se_N[known_N] ** 2)), 0.0)


def independent_sd(
    score_N: ArrayLike, member_N: ArrayLike, variance_of_effects: float = 0.0
) -> float:
    """Computes the standard deviation over models of the difference in means, if scores of samples were independent.

    Args:
      score_N: scores under one model, or their `placements` for the standard deviation of the AUC; NaN is left out.
      member_N: membership, booleans.
      variance_of_effects: `effect_variance` of these scores or placements, if models share the samples; 0: every model
        has samples of its own.

    Returns:
      The standard deviation; NaN if a class has fewer than two scores.

    Raises:
      ValueError: if scores and membership do not have the same single dimension, or a score is infinite or too large.

    Source: Neyman 1923; the docstring of this module has the formula.

    Example:
      >>> from lm_mia.stats import independent_sd
      >>> round(independent_sd([1.0, 2.0, 3.0, 5.0], [False, False, True, True]), 4)
      1.118
    """
    score_N, member_N = as_float64(score_N, "scores"), as_members(member_N)
    _check_same_samples(score_N, member_N, "scores and members")
    check_magnitude(score_N, "scores")
    known_N = ~np.isnan(score_N)
    classes = [score_N[known_N & class_N] for class_N in (member_N, ~member_N)]
    if min(map(len, classes)) < 2:
        return math.nan
    variance = sum(score_S.var(ddof=1) / len(score_S) for score_S in classes)
    return math.sqrt(max(variance - variance_of_effects / int(known_N.sum()), 0.0))


def _check_same_samples(first_N: np.ndarray, second_N: np.ndarray, names: str) -> None:
    if first_N.ndim != 1 or first_N.shape != second_N.shape:
        raise ValueError(
            f"{names} of shapes {first_N.shape} and {second_N.shape}: must have one value per sample"
        )
