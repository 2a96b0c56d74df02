"""Tells whether members and non-members can be told apart by features that no model has seen, such as their words.

Legend: N samples, K features, F folds, G groups.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia import seeds
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_members
from lm_mia.stats.intervals import check_confidence

FOLDS = 5
MIN_GROUPS = 25
"""Each class needs as many groups: five in each fold."""
_SHARED_TRAINING = math.sqrt(2)
"""Standard errors are larger by this factor than if the classifiers of the folds were independent of the other folds.

A classifier that learns noise from pairs of folds, the one by the other, counts each pair twice."""


@dataclasses.dataclass(frozen=True)
class TwoSampleAuc:
    """How well a classifier tells members from non-members that it was not fitted to."""

    auc: float
    """Probability that a member has a larger score than a non-member of the same fold; 0.5 by chance."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""

    @property
    def is_above_chance(self) -> bool:
        """Whether the interval lies above 0.5."""
        return self.low > 0.5


def two_sample_auc(
    feature_NxK: scipy.sparse.csr_array,
    member_N: ArrayLike,
    group_N: ArrayLike | None = None,
    *,
    confidence: float = 0.95,
    penalty: float = 1.0,
    seed: int = 0,
) -> TwoSampleAuc | None:
    """Returns the AUC of a logistic regression that is fitted to some samples and tried on the others.

    The samples are divided into five folds, and those of each fold are scored by the classifier that was fitted to the
    other folds. The AUC is that of pairs of the same fold, so that it is 0.5 on average if membership does not depend
    on the features. If so, the interval includes 0.5 with at least the given confidence, approximately.

    Args:
      feature_NxK: sparse and finite, scaled so that a usual row has length 1, as TF-IDF vectors have.
      member_N: membership, booleans.
      group_N: integers; samples with the same number are in the same fold, and count as one in the interval.
      confidence: the level of the interval.
      penalty: of half the squared coefficients, to which the log loss of all samples is added.
      seed: determines the folds.

    Returns:
      The AUC; None if members or non-members have fewer than `MIN_GROUPS` groups.

    Raises:
      ValueError: if the lengths differ, or a feature is not finite.

    Source:
      Lopez-Paz and Oquab 2017, "Revisiting classifier two-sample tests"; DeLong et al. 1988 and Obuchowski 1997 for
      the variance of an AUC of groups.

    Example:
      >>> import numpy as np
      >>> from scipy import sparse
      >>> member_N = np.arange(200) % 2 == 0
      >>> word_NxK = sparse.csr_array(np.column_stack([member_N, np.ones(200)]))
      >>> two_sample_auc(word_NxK, member_N).auc
      1.0
    """
    check_confidence(confidence)
    member_N = as_members(member_N)
    group_N = np.arange(member_N.size) if group_N is None else np.asarray(group_N)
    rows, _ = _shape(feature_NxK)
    if member_N.shape != group_N.shape or (rows,) != member_N.shape:
        raise ValueError(
            f"feature_NxK of {rows} rows, member_N of {member_N.shape}, group_N of {group_N.shape}: must "
            "have one row or value for each sample; check their lengths"
        )
    if not np.isfinite(feature_NxK.data).all():
        raise ValueError("feature_NxK: has NaN or infinite values; leave such samples out")
    group_N = np.unique(group_N, return_inverse=True)[1]
    if min(np.unique(group_N[member_N]).size, np.unique(group_N[~member_N]).size) < MIN_GROUPS:
        return None
    fold_N = _folds(member_N, group_N, seed)
    pairs, won = 0.0, 0.0
    error_N = np.zeros(member_N.size)
    for fold in range(FOLDS):
        at_S = np.flatnonzero(fold_N == fold)
        coefficient_K = _fit(feature_NxK[fold_N != fold], member_N[fold_N != fold], penalty)
        score_S, member_S = feature_NxK[at_S] @ coefficient_K, member_N[at_S]
        pairs_S = np.where(member_S, np.sum(~member_S), np.sum(member_S))
        won_S = _pairs_won(score_S, member_S)
        groups = min(np.unique(group_N[at_S[member_S == is_member]]).size for is_member in (0, 1))
        if groups < 2:  # a few groups have most of the samples
            continue
        fold_pairs, fold_won = float(pairs_S[member_S].sum()), float(won_S[member_S].sum())
        pairs, won = pairs + fold_pairs, won + fold_won
        # The variance of the groups around the mean of the fold has as many degrees of freedom as groups, less one.
        error_N[at_S] = (won_S - fold_won / fold_pairs * pairs_S) * math.sqrt(groups / (groups - 1))
    if not pairs:
        return None
    auc = won / pairs
    error_G = np.bincount(group_N, weights=error_N) / pairs
    standard_error = _SHARED_TRAINING * math.sqrt(float(error_G @ error_G))
    radius = float(scipy.special.ndtri((1 + confidence) / 2)) * standard_error
    return TwoSampleAuc(auc, max(auc - radius, 0.0), min(auc + radius, 1.0))


def _shape(feature_NxK: Any) -> tuple[int, int]:
    """Returns the shape of a sparse array, which SciPy's types do not tell."""
    return feature_NxK.shape


def _folds(member_N: BoolArray, group_N: IntArray, seed: int) -> IntArray:
    """Returns fold_N: groups are dealt to the folds in random order, first those of members only, then mixed ones."""
    size_G = np.bincount(group_N)
    members_G = np.bincount(group_N, weights=member_N)
    kind_G = np.select([members_G == size_G, members_G > 0], [0, 1], 2)
    random_G = seeds.permutation(seed, "two-sample classifier", size_G.size)
    fold_G = np.empty(size_G.size, np.intp)
    fold_G[np.lexsort((random_G, -size_G, kind_G))] = np.arange(size_G.size) % FOLDS
    return fold_G[group_N]


def _fit(feature_NxK: scipy.sparse.csr_array, member_N: BoolArray, penalty: float) -> FloatArray:
    """Returns coefficient_K of a logistic regression whose intercept has no penalty."""
    from scipy import optimize  # here: it takes a part of a second to load

    sign_N = np.where(member_N, 1.0, -1.0)
    transposed = feature_NxK.T.tocsr()

    def loss(value_K1: FloatArray) -> tuple[float, FloatArray]:
        margin_N = sign_N * (feature_NxK @ value_K1[:-1] + value_K1[-1])
        slope_N = -sign_N * scipy.special.expit(-margin_N)
        gradient_K1 = np.append(transposed @ slope_N + penalty * value_K1[:-1], slope_N.sum())
        value = np.logaddexp(0, -margin_N).sum() + penalty / 2 * value_K1[:-1] @ value_K1[:-1]
        return float(value), gradient_K1

    start_K1 = np.zeros(_shape(feature_NxK)[1] + 1)
    start_K1[-1] = scipy.special.logit(np.clip(member_N.mean(), 1e-9, 1 - 1e-9))
    options = {"maxiter": 100, "ftol": 1e-7}
    return optimize.minimize(loss, start_K1, jac=True, method="L-BFGS-B", options=options).x[:-1]


def _pairs_won(score_N: FloatArray, member_N: BoolArray) -> FloatArray:
    """Returns the number of pairs of each sample with the other class in which the member has the larger score."""
    won_N = np.empty(score_N.size)
    for is_member in (True, False):
        others = np.sort(score_N[member_N != is_member])
        mine = score_N[member_N == is_member]
        below = np.searchsorted(others, mine, "left") + np.searchsorted(others, mine, "right")
        won_N[member_N == is_member] = below / 2 if is_member else others.size - below / 2
    return won_N
