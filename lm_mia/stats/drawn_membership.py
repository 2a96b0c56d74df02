"""Whether the members of a run can have been drawn as an audit assumes: one by one, and by fair coins.

These checks find gross mistakes only. A coin with a probability of 0.55, or documents of which a few were drawn as a
whole, cannot be told from chance, but make bounds invalid.

Legend: N samples, G clusters.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.inputs import as_members, check_not_masked

_DEVIATIONS = 5  # standard deviations
_RARE = 3e-7
"""The probability that a normal variable is at least 5 standard deviations above its mean."""


def unlike_fair_coins(member_N: ArrayLike) -> bool:
    """Returns whether independent fair coins practically never give this number of members.

    Args:
      member_N: booleans, whether each sample is a member.

    Returns:
      Whether the number of members is more than 5 standard deviations from half of the samples.

    Raises:
      ValueError: if member_N is not boolean.
    """
    member_N = as_members(member_N, "member_N")
    deviation = abs(int(np.count_nonzero(member_N)) - member_N.size / 2)
    return deviation > _DEVIATIONS * math.sqrt(member_N.size) / 2


def drawn_by_cluster(member_N: ArrayLike, cluster_N: ArrayLike) -> bool:
    """Returns whether so many clusters have only members or only non-members that samples were not drawn one by one.

    If they were, each subset with this number of members is equally likely. The number of such clusters among those of
    two samples and more is then a sum of nearly independent coins, whose upper tail is at most that of a binomial
    variable with the same mean.

    Args:
      member_N: booleans, whether each sample is a member.
      cluster_N: the cluster of each sample, such as its document, as any integer.

    Returns:
      Whether the probability of so many of these clusters is below 3e-7, that of 5 standard deviations.

    Raises:
      ValueError: if member_N is not boolean, or if there is not one integer per sample.

    Source: Hoeffding 1956, On the Distribution of the Number of Successes in Independent Trials, for the tail.
    """
    member_N = as_members(member_N, "member_N")
    check_not_masked(cluster_N, "cluster_N", "leave out their samples")
    cluster_N = np.asarray(cluster_N)
    if cluster_N.shape != member_N.shape or cluster_N.ndim != 1 or cluster_N.dtype.kind not in "iu":
        raise ValueError(
            f"cluster_N: must be one integer per sample, not {cluster_N.dtype} of shape {cluster_N.shape} for "
            f"{member_N.size:,} samples"
        )
    _, index_N, samples_G = np.unique(cluster_N, return_inverse=True, return_counts=True)
    members_G = np.bincount(index_N, weights=member_N, minlength=samples_G.size)
    has_several_G = samples_G > 1
    size_G, members_G = samples_G[has_several_G], members_G[has_several_G]
    whole = int(np.sum((members_G == 0) | (members_G == size_G)))
    if not whole:
        return False
    total, members = member_N.size, int(np.count_nonzero(member_N))
    expected_G = _share_of_subsets_with_all(size_G, members, total)
    expected_G += _share_of_subsets_with_all(size_G, total - members, total)
    probability = float(expected_G.mean())
    tail = float(scipy.special.betainc(whole, size_G.size - whole + 1, min(probability, 1.0)))
    return tail < _RARE


def _share_of_subsets_with_all(size_G: IntArray, drawn: int, total: int) -> FloatArray:
    """Returns the probability that a random subset of this size has all samples of a cluster, for each size of one.

    Args:
      size_G: number of samples of each cluster.
      drawn: number of samples of the subset.
      total: number of samples that it is drawn from.
    """
    is_possible_G = size_G <= drawn
    size_G = np.where(is_possible_G, size_G, 0)
    log_share_G = (
        scipy.special.gammaln(drawn + 1)
        - scipy.special.gammaln(drawn - size_G + 1)
        - scipy.special.gammaln(total + 1)
        + scipy.special.gammaln(total - size_G + 1)
    )
    return np.where(is_possible_G, np.exp(log_share_G), 0.0)
