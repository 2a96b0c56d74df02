"""Resamples of a bootstrap: how often each sample, or each cluster of samples, is drawn.

A resample is stored as a count per sample, in the order of the sorted scores of its class, so that the scores are
sorted only once.

Legend: N samples (of one class, where N1 is N + 1), F false positive rates, Q replicates that are drawn at once, G
clusters.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import IntArray
from lm_mia.stats.inputs import check_not_masked

_BLOCK = 2**16
"""Number of samples that are drawn at once, over replicates or within one. Requesting new memory from the system for
each replicate would take longer than the draws."""


@dataclasses.dataclass(frozen=True)
class Clusters:
    """The cluster of each sample with a score, as a number below ``count``, in the order of the sorted scores."""

    count: int
    nonmember_N: IntArray
    member_N: IntArray

    @property
    def smallest_count(self) -> int:
        """The number of clusters with non-members, or of those with members, whichever is smaller."""
        return min(np.unique(self.nonmember_N).size, np.unique(self.member_N).size)

    def fewest(self, allowed_F: IntArray, tp_F: IntArray) -> IntArray:
        """Counts the clusters of the false positives that are allowed, and of the members that are detected or not.

        Returns:
          The smallest of the three counts, at each rate.
        """
        n, m = self.nonmember_N.size, self.member_N.size
        return np.array(
            [
                min(
                    np.unique(group).size
                    for group in (
                        self.nonmember_N[n - allowed :],
                        self.member_N[m - tp :],
                        self.member_N[: m - tp],
                    )
                )
                for allowed, tp in zip(allowed_F.tolist(), tp_F.tolist(), strict=True)
            ],
            dtype=np.int64,
        )


def sorted_clusters(
    score_TxN: ArrayLike, member: ArrayLike, cluster_N: ArrayLike | None
) -> Iterator[Clusters | None]:
    """Yields the clusters of each target in the order of `ranking.sorted_classes`; None for independent samples."""
    if cluster_N is None:
        yield from itertools.repeat(None)
        return
    check_not_masked(cluster_N, "cluster_N", "leave out their samples")
    score_TxN, cluster_N = np.atleast_2d(np.asarray(score_TxN)), np.asarray(cluster_N)
    if cluster_N.shape != score_TxN.shape[1:] or cluster_N.dtype.kind not in "iu":
        raise ValueError(
            f"cluster_N: must be one integer per sample, not {cluster_N.dtype} of shape {cluster_N.shape} for "
            f"{score_TxN.shape[1]} samples"
        )
    for score_N, member_N in zip(
        score_TxN, np.broadcast_to(np.asarray(member), score_TxN.shape), strict=True
    ):
        present_N = ~np.isnan(score_N)
        labels, code_S = np.unique(cluster_N[present_N], return_inverse=True)
        score_S, member_S = score_N[present_N], member_N[present_N]
        nonmember_N, sorted_member_N = (
            code_S[class_S][np.argsort(score_S[class_S])] for class_S in (~member_S, member_S)
        )
        yield Clusters(labels.size, nonmember_N, sorted_member_N)


def drawn_blocks(
    nonmembers: ranking.Scores,
    members: ranking.Scores,
    clusters: Clusters | None,
    replicates: int,
    seed: int,
) -> Iterator[tuple[Resamples, Resamples]]:
    """Yields the resamples of non-members and of members, for a block of replicates at a time.

    Args:
      nonmembers: sorted scores.
      members: sorted scores.
      clusters: their clusters, which are drawn as a whole; None: samples are drawn, as many of each class as it has.
      replicates: number of replicates in all blocks.
      seed: seed of the draws, which do not depend on the scores or on the size of the blocks.

    Yields:
      The same two objects in each block, with other draws.
    """
    block = min(replicates, max(1, _BLOCK // max(nonmembers.size, members.size)))
    drawn_nonmembers, drawn_members = (Resamples(c.size, block) for c in (nonmembers, members))
    # Each class has its own random stream, so the draws do not depend on the size of the block.
    nonmember_rng, member_rng = (
        np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(2)
    )
    cluster_rng = np.random.default_rng(seed)
    for start in range(0, replicates, block):
        size = min(block, replicates - start)
        if clusters is None:
            drawn_nonmembers.draw(size, nonmember_rng)
            drawn_members.draw(size, member_rng)
        else:
            count_QxG = draw_clusters(clusters.count, size, cluster_rng)
            drawn_nonmembers.take(count_QxG, clusters.nonmember_N)
            drawn_members.take(count_QxG, clusters.member_N)
        yield drawn_nonmembers, drawn_members


def draw_clusters(clusters: int, size: int, rng: np.random.Generator) -> IntArray:
    """Draws as many clusters as there are, with replacement; returns how often each is drawn in each replicate."""
    drawn = rng.integers(clusters, size=(size, clusters)) + clusters * np.arange(size)[:, None]
    return np.bincount(drawn.reshape(-1), minlength=size * clusters).reshape(size, clusters)


class Resamples:
    """How often each of n sorted samples is drawn, for up to ``block`` replicates at once."""

    count_QxN1: IntArray
    """Element i + 1 is the number of times that sample i was drawn; element 0 is 0."""
    up_to_QxN1: IntArray
    """Element i is the number of draws in earlier replicates and of the first i samples, so the flattened array is
    sorted."""

    def __init__(self, n: int, block: int):
        self.n = n
        self._arrays = np.empty((2, block, n + 1), dtype=np.int64)

    @property
    def total_Q(self) -> IntArray:
        """The number of draws of each replicate."""
        return self.up_to_QxN1[:, -1] - self.up_to_QxN1[:, 0]

    def drawn_before(self, position_QxF: IntArray) -> IntArray:
        """Counts the draws of the samples before each position, 0 .. n."""
        first_Qx1 = (self.n + 1) * np.arange(len(position_QxF))[:, None]
        return self.up_to_QxN1.reshape(-1).take(first_Qx1 + position_QxF) - self.up_to_QxN1[:, :1]

    def kth_smallest(self, k_QxF: IntArray) -> IntArray:
        """Finds the position of the k-th smallest draw, k >= 1: samples that were not drawn are skipped.

        In a replicate without draws, which is left out, it is the last position.
        """
        flat = self.up_to_QxN1.reshape(-1)
        first_Qx1 = (self.n + 1) * np.arange(len(k_QxF))[:, None] + 1
        position_QxF = np.searchsorted(flat, self.up_to_QxN1[:, :1] + k_QxF) - first_Qx1
        return np.minimum(position_QxF, self.n - 1)

    def take(self, count_QxG: IntArray, cluster_N: IntArray) -> None:
        """Draws each sample as often as its cluster."""
        self.count_QxN1, self.up_to_QxN1 = self._arrays[:, : len(count_QxG)]
        self.count_QxN1[:, 0] = 0
        self.count_QxN1[:, 1:] = count_QxG[:, cluster_N]
        np.cumsum(self.count_QxN1, out=self.up_to_QxN1.reshape(-1))

    def draw(self, size: int, rng: np.random.Generator) -> None:
        """Draws n samples with replacement in each of the next ``size`` replicates, which replace the previous ones."""
        self.count_QxN1, self.up_to_QxN1 = self._arrays[:, :size]
        self.count_QxN1.fill(0)
        offset_Qx1 = (self.n + 1) * np.arange(size)[:, None] + 1
        for start in range(0, self.n, _BLOCK):
            drawn = rng.integers(self.n, size=(size, min(_BLOCK, self.n - start)))
            drawn += offset_Qx1
            np.add.at(self.count_QxN1.reshape(-1), drawn.reshape(-1), 1)
        np.cumsum(self.count_QxN1, out=self.up_to_QxN1.reshape(-1))
