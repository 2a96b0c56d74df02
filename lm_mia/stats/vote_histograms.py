"""Histograms of the number of member votes per sample, and the variance over replicas of means over samples.

The votes about different samples come from the same replicas, and are therefore dependent: in a replica whose threshold
happens to be low, all samples get more member votes. So the variance of a mean over samples does not vanish as their
number grows. A jackknife over replicas estimates it from counts that can be added over blocks of samples.

Samples that are pieces of one document depend on each other, too. So they are counted in 64 groups of documents; the
deviations between groups show how much a mean over documents varies.

Legend: T targets, R replicas (the targets that have thresholds), N samples, F false positive rates, G groups of
documents, K numbers of votes (0 to B, where B is the number of replicas).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.flips import count_votes, targets_with_thresholds
from lm_mia.stats.inputs import as_float64, as_real, check_not_masked

_MAX_VALUE = 1e100
"""Values and counts must be smaller in magnitude, so that no square overflows."""

_DOCUMENT_GROUPS = 64


@dataclasses.dataclass(frozen=True)
class VoteHistograms:
    """Numbers of samples with each number of member votes, at each rate; those of blocks of samples can be added."""

    samples_FxGxK: IntArray
    """Number of samples with 0 to B votes in each group of documents; samples without a score from every replica are
    left out. There is one group if samples are independent."""
    called_FxRxK: IntArray
    """How many of the samples of all groups each replica calls members."""

    @property
    def samples_FxK(self) -> IntArray:
        """Number of samples with 0 to B votes in all groups."""
        return self.samples_FxGxK.sum(axis=1)

    @property
    def replicas(self) -> int:
        """Number of votes on each sample, B."""
        return self.samples_FxGxK.shape[2] - 1

    def __add__(self, other: VoteHistograms) -> VoteHistograms:
        """Adds the counts of another block of samples.

        Raises:
          ValueError: if the numbers of rates, of groups or of replicas differ.
        """
        if self.samples_FxGxK.shape != other.samples_FxGxK.shape:
            raise ValueError("histograms can only be added at the same rates, groups and replicas")
        return VoteHistograms(
            self.samples_FxGxK + other.samples_FxGxK, self.called_FxRxK + other.called_FxRxK
        )


def count_vote_histograms(
    score_TxN: ArrayLike, threshold_TxF: ArrayLike, document_N: ArrayLike | None = None
) -> VoteHistograms:
    """Counts samples by their number of member votes, in total and among those that each replica calls members.

    Args:
      score_TxN: membership scores; samples with a NaN score of any replica are left out.
      threshold_TxF: thresholds of each target; a target whose thresholds are NaN (a lost run) is not a replica.
      document_N: non-negative integers, the document of each sample if samples are pieces of documents; None if they
        are independent.

    Returns:
      The counts. Their memory is of the order of F B^2 or, with documents, F B (B + 64), whatever the number of
      samples.

    Raises:
      ValueError: as `count_votes`, or if document_N does not hold a non-negative integer for each sample.

    Example:
      Two replicas agree about the first sample and disagree about the second:

      >>> from lm_mia.stats import count_vote_histograms
      >>> histograms = count_vote_histograms([[0.9, 0.1], [0.8, 0.7]], [[0.5], [0.5]])
      >>> histograms.samples_FxGxK
      array([[[0, 1, 1]]])
      >>> histograms.called_FxRxK
      array([[[0, 0, 1],
              [0, 1, 1]]])
    """
    score_TxN, threshold_TxF = as_real(score_TxN, "scores"), as_float64(threshold_TxF, "thresholds")
    votes = count_votes(score_TxN, threshold_TxF)
    replica_R = targets_with_thresholds(score_TxN, threshold_TxF)
    rates, sizes = len(votes.votes_FxN), votes.replicas + 1
    scored_N = ~np.isnan(votes.votes_FxN).any(axis=0)
    group_N, groups = _document_groups(document_N, scored_N.size)
    # The index of a sample counts all rates at once, and for samples_FxGxK all groups, too.
    votes_FxN = np.where(scored_N, votes.votes_FxN, 0).astype(np.intp)
    rate_Fx1 = np.arange(rates)[:, None]
    index_FxN = votes_FxN + sizes * rate_Fx1
    grouped_FxN = votes_FxN + sizes * (group_N + groups * rate_Fx1)

    def count(index_FxN: np.ndarray, selected_FxN: np.ndarray, length: int) -> IntArray:
        counts = np.bincount(index_FxN[selected_FxN], minlength=length)
        return counts.astype(np.int64, copy=False)

    called_FxRxK = np.zeros((rates, replica_R.size, sizes), dtype=np.int64)
    for r, t in enumerate(replica_R):
        called_FxN = (score_TxN[t] >= threshold_TxF[t][:, None]) & scored_N
        called_FxRxK[:, r] = count(index_FxN, called_FxN, rates * sizes).reshape(rates, sizes)
    all_FxN = np.broadcast_to(scored_N, votes_FxN.shape)
    samples = count(grouped_FxN, all_FxN, rates * groups * sizes)
    return VoteHistograms(samples.reshape(rates, groups, sizes), called_FxRxK)


def _document_groups(document_N: ArrayLike | None, samples: int) -> tuple[np.ndarray, int]:
    """Returns the group of each sample, and the number of groups."""
    if document_N is None:
        return np.zeros(samples, np.intp), 1
    check_not_masked(document_N, "documents", "leave out their samples")
    document_N = np.asarray(document_N)
    if (
        document_N.shape != (samples,)
        or not np.issubdtype(document_N.dtype, np.integer)
        or np.any(document_N < 0)
    ):
        raise ValueError(
            f"documents of shape {document_N.shape} and type {document_N.dtype}: must be non-negative integers, one "
            f"for each of {samples} samples"
        )
    return (document_N % _DOCUMENT_GROUPS).astype(np.intp), _DOCUMENT_GROUPS


def variance_over_replicas(
    samples_K: ArrayLike, called_RxK: ArrayLike, value_K: ArrayLike
) -> float:
    """Estimates the part of the variance of the mean of value(votes) that is due to the choice of the replicas.

    All samples share the replicas, so this part does not vanish as their number grows. Each replica is left out in
    turn, and its vote on a sample with m member votes of the B - 1 others is replaced by its expectation: "member" with
    probability m / (B - 1). The change of a sample's value is then proportional to

        slope(k) = ((B - k) (value(k) - value(k - 1)) + k (value(k + 1) - value(k))) / (B - 1),

    and the effect of replica r is the mean over samples of (vote - k / B) slope(k). The sum of squared effects would be
    the jackknife variance. Its diagonal part, the sum over samples of their own squares, is subtracted, because it is
    not shared between samples: it vanishes as 1 / N and is part of the variance that independent samples have.
    For a value that is linear in the votes, the result is the usual delete-one jackknife, without that part.

    Args:
      samples_K: number of samples with 0 to B votes.
      called_RxK: number of them that each replica calls members.
      value_K: value for each number of votes, such as 1 for coin flips and 0 otherwise.

    Returns:
      A variance, at least 0; 0 without samples.

    Raises:
      ValueError: if shapes do not match, with fewer than two replicas, if a count is negative or infinite or the counts
        contradict each other, or if a value is NaN or above 1e100 in magnitude.

    Source: Efron and Stein 1981, The jackknife estimate of variance.

    Example:
      Both replicas call one of two samples a member, or one calls none and the other both:

      >>> from lm_mia.stats import variance_over_replicas
      >>> variance_over_replicas([0, 2, 0], [[0, 1, 0], [0, 1, 0]], [0.0, 0.5, 1.0])
      0.0
      >>> variance_over_replicas([0, 2, 0], [[0, 0, 0], [0, 2, 0]], [0.0, 0.5, 1.0])
      0.125
    """
    samples_1xK, called_RxK = as_vote_histogram(samples_K, called_RxK)
    samples_K = np.asarray(samples_1xK.sum(axis=0))
    value_K, replicas = as_float64(value_K, "values"), samples_K.size - 1
    if value_K.shape != samples_K.shape:
        raise ValueError(
            f"values of shape {value_K.shape}: there must be one for each number of votes, 0 to {replicas}"
        )
    if not np.all(np.abs(value_K) < _MAX_VALUE):
        raise ValueError(f"values must be numbers below {_MAX_VALUE:g} in magnitude")
    k_K, difference, total = np.arange(replicas + 1), np.diff(value_K), samples_K.sum()
    if not total:
        return 0.0
    slope_K = (replicas - k_K) * np.append(0, difference) + k_K * np.append(difference, 0)
    slope_K /= replicas - 1
    effect_R = (called_RxK - samples_K * k_K / replicas) @ slope_K / total
    own = samples_K @ (k_K * (replicas - k_K) / replicas * slope_K**2) / total**2
    return max(0.0, float((effect_R @ effect_R - own) * (replicas - 1) / replicas))


def as_vote_histogram(samples: ArrayLike, called_RxK: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Converts the numbers of samples by their number of votes to float64; they may be fractional (expected numbers).

    Args:
      samples: samples_K, or samples_GxK with a row for each group of documents.
      called_RxK: as in `variance_over_replicas`, for all groups.

    Returns:
      ``(samples_GxK, called_RxK)``; there is one group if samples are independent.

    Raises:
      ValueError: as `variance_over_replicas`.
    """
    samples_GxK = np.atleast_2d(as_float64(samples, "samples_K"))
    called_RxK = as_float64(called_RxK, "called_RxK")
    replicas = samples_GxK.shape[-1] - 1
    if samples_GxK.ndim != 2 or called_RxK.shape != (replicas, replicas + 1):
        raise ValueError(
            f"samples_K of shape {np.shape(samples)} and called_RxK of shape {called_RxK.shape}: with B replicas, the "
            "shapes must be (B + 1,) and (B, B + 1)"
        )
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: must be at least 2 to leave one out")
    if not np.all((samples_GxK >= 0) & (samples_GxK < _MAX_VALUE)):
        raise ValueError("samples_K must hold finite numbers, 0 or larger")
    k_K, samples_K = np.arange(replicas + 1), samples_GxK.sum(axis=0)
    if not (
        np.all((called_RxK >= 0) & (called_RxK <= samples_K * (1 + 1e-9)))
        and np.allclose(called_RxK.sum(axis=0), k_K * samples_K)
    ):
        raise ValueError(
            "called_RxK must be from 0 to samples_K, and its sum over replicas must be k samples_K for k votes"
        )
    return samples_GxK, called_RxK


def mean_std_error(samples: ArrayLike, called_RxK: ArrayLike, value_K: ArrayLike) -> float:
    """Estimates the standard error of the mean of value(votes) over samples and replicas.

    It combines the variance over independent samples, var(value) / N, or that over documents with
    `variance_over_replicas`.

    Args:
      samples: number of samples with 0 to B votes, samples_K, or samples_GxK with a row for each group of documents.
      called_RxK: as in `variance_over_replicas`.
      value_K: as in `variance_over_replicas`.

    Returns:
      A standard error; NaN without samples, or if all documents are in one of several groups.

    Raises:
      ValueError: as `variance_over_replicas`.
    """
    samples_GxK, called_RxK = as_vote_histogram(samples, called_RxK)
    samples_K = samples_GxK.sum(axis=0)
    shared = variance_over_replicas(samples_K, called_RxK, value_K)
    value_K = as_float64(value_K, "values")
    if not samples_K.sum():
        return float("nan")
    own = variance_over_samples(samples_K, value_K) * document_effect(samples_GxK, value_K)
    return float(np.sqrt(own + shared))


def variance_over_samples(samples_K: FloatArray, value_K: FloatArray) -> float:
    """Returns var(value) / N, the variance of the mean value of independent samples."""
    total = samples_K.sum()
    mean = samples_K @ value_K / total
    return float(samples_K @ (value_K - mean) ** 2 / total**2)


def document_effect(samples_GxK: FloatArray, value_K: FloatArray) -> float:
    """Returns the variance of the mean value over documents, divided by `variance_over_samples`; at least 1.

    The groups are random, so the variance follows from the deviations of their sums, as if each were one document.

    Args:
      samples_GxK: number of samples with 0 to B votes in each group of documents; one group if samples are independent.
      value_K: value of each number of votes.

    Returns:
      The ratio; 1 if samples are independent or have equal values, and NaN if all documents are in one of several
      groups.

    Source: Wolter 2007, Introduction to Variance Estimation, Section 2.4, the random groups of a ratio.
    """
    samples_K = samples_GxK.sum(axis=0)
    independent = variance_over_samples(samples_K, value_K)
    if len(samples_GxK) == 1:
        return 1.0
    used = np.count_nonzero(samples_GxK.sum(axis=1))
    if used < 2:
        return float("nan")
    if independent == 0:
        return 1.0
    mean = samples_K @ value_K / samples_K.sum()
    deviation_G = samples_GxK @ (value_K - mean) / samples_K.sum()
    return max(1.0, float(deviation_G @ deviation_G * used / (used - 1) / independent))
