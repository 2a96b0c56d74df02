"""Numbers of samples by their number of member votes, and the variance over replicas of means over samples.

The votes about different samples come from the same replicas, and are therefore dependent: in a replica whose threshold
happens to be low, all samples get more member votes. So the variance of a mean over samples does not vanish as their
number grows. A jackknife over replicas estimates it from counts that can be added over blocks of samples.

Legend: T targets, R replicas (the targets that have thresholds), N samples, F false positive rates, K numbers of votes
(0 to B, where B is the number of replicas).
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.flips import count_votes, targets_with_thresholds
from lm_mia.stats.inputs import as_float64, as_real

_MAX_VALUE = 1e100
"""Values and counts must be smaller in magnitude, so that no square overflows."""


@dataclasses.dataclass(frozen=True)
class VoteHistograms:
    """Numbers of samples with each number of member votes, at each rate. Those of blocks of samples can be added."""

    samples_FxK: IntArray
    """Samples with 0 to B votes; samples without a score from every replica are left out."""
    called_FxRxK: IntArray
    """How many of them each replica calls members."""

    @property
    def replicas(self) -> int:
        """Number of votes on each sample, B."""
        return self.samples_FxK.shape[1] - 1

    def __add__(self, other: VoteHistograms) -> VoteHistograms:
        """Adds the counts of another block of samples.

        Raises:
          ValueError: if the numbers of rates or of replicas differ.
        """
        if self.samples_FxK.shape != other.samples_FxK.shape:
            raise ValueError("histograms can only be added at the same rates and replicas")
        return VoteHistograms(
            self.samples_FxK + other.samples_FxK, self.called_FxRxK + other.called_FxRxK
        )


def count_vote_histograms(score_TxN: ArrayLike, threshold_TxF: ArrayLike) -> VoteHistograms:
    """Counts samples by their number of member votes, in total and among those that each replica calls members.

    Args:
      score_TxN: membership scores; samples with a NaN score of any replica are left out.
      threshold_TxF: thresholds of each target; a target whose thresholds are NaN (a lost run) is not a replica.

    Returns:
      The counts. They take memory of F B^2, whatever the number of samples.

    Raises:
      ValueError: as `count_votes`.

    Example:
      Two replicas agree about the first sample and disagree about the second:

      >>> from lm_mia.stats import count_vote_histograms
      >>> histograms = count_vote_histograms([[0.9, 0.1], [0.8, 0.7]], [[0.5], [0.5]])
      >>> histograms.samples_FxK
      array([[0, 1, 1]])
      >>> histograms.called_FxRxK
      array([[[0, 0, 1],
              [0, 1, 1]]])
    """
    score_TxN, threshold_TxF = as_real(score_TxN, "scores"), as_float64(threshold_TxF, "thresholds")
    votes = count_votes(score_TxN, threshold_TxF)
    replica_R = targets_with_thresholds(score_TxN, threshold_TxF)
    rates, sizes = len(votes.votes_FxN), votes.replicas + 1
    scored_N = ~np.isnan(votes.votes_FxN).any(axis=0)
    # The index of a sample counts all rates at once.
    index_FxN = np.where(scored_N, votes.votes_FxN, 0).astype(np.intp)
    index_FxN += sizes * np.arange(rates)[:, None]

    def count(selected_FxN: np.ndarray) -> IntArray:
        counts = np.bincount(index_FxN[selected_FxN], minlength=rates * sizes)
        return counts.reshape(rates, sizes).astype(np.int64, copy=False)

    called_FxRxK = np.zeros((rates, replica_R.size, sizes), dtype=np.int64)
    for r, t in enumerate(replica_R):
        decision_FxN = score_TxN[t] >= threshold_TxF[t][:, None]
        called_FxRxK[:, r] = count(decision_FxN & scored_N)
    return VoteHistograms(count(np.broadcast_to(scored_N, index_FxN.shape)), called_FxRxK)


def variance_over_replicas(
    samples_K: ArrayLike, called_RxK: ArrayLike, value_K: ArrayLike
) -> float:
    """Estimates the variance of the mean of value(votes) that all samples share, because they share the replicas.

    Each replica is left out in turn, and its vote on a sample with m member votes of the B - 1 others is replaced by
    its expectation: "member" with probability m / (B - 1). The change of a sample's value is then proportional to

        slope(k) = ((B - k) (value(k) - value(k - 1)) + k (value(k + 1) - value(k))) / (B - 1),

    and the effect of replica r is the mean over samples of (vote - k / B) slope(k). The sum of squared effects would be
    the jackknife variance. Its diagonal part, the sum over samples of their own squares, is subtracted, because it is
    not shared between samples: it vanishes as 1 / N and is part of the variance that independent samples have.
    For a value that is linear in the votes, the result is the usual delete-one jackknife, without that part.

    Args:
      samples_K: number of samples with 0 to B votes.
      called_RxK: number of them that each replica calls members.
      value_K: value of each number of votes; for example 1 for coin flips and 0 otherwise.

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
    samples_K, called_RxK = as_vote_histogram(samples_K, called_RxK)
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


def as_vote_histogram(samples_K: ArrayLike, called_RxK: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Converts the numbers of samples by their number of votes to float64; they may be fractional (expected numbers).

    Returns:
      ``(samples_K, called_RxK)``.

    Raises:
      ValueError: as `variance_over_replicas`.
    """
    samples_K, called_RxK = as_float64(samples_K, "samples_K"), as_float64(called_RxK, "called_RxK")
    replicas = samples_K.size - 1
    if samples_K.ndim != 1 or called_RxK.shape != (replicas, replicas + 1):
        raise ValueError(
            f"samples_K of shape {samples_K.shape} and called_RxK of shape {called_RxK.shape}: with B replicas, the "
            "shapes must be (B + 1,) and (B, B + 1)"
        )
    if replicas < 2:
        raise ValueError(f"replicas={replicas}: must be at least 2 to leave one out")
    if not np.all((samples_K >= 0) & (samples_K < _MAX_VALUE)):
        raise ValueError("samples_K must hold finite numbers, 0 or larger")
    k_K = np.arange(replicas + 1)
    if not (
        np.all((called_RxK >= 0) & (called_RxK <= samples_K))
        and np.allclose(called_RxK.sum(axis=0), k_K * samples_K)
    ):
        raise ValueError(
            "called_RxK must be from 0 to samples_K, and its sum over replicas must be k samples_K for k votes"
        )
    return samples_K, called_RxK


def mean_std_error(samples_K: ArrayLike, called_RxK: ArrayLike, value_K: ArrayLike) -> float:
    """Estimates the standard error of the mean of value(votes) over samples and replicas.

    It combines the variance of independent samples, var(value) / N, with `variance_over_replicas`.

    Args:
      samples_K: as in `variance_over_replicas`.
      called_RxK: as in `variance_over_replicas`.
      value_K: as in `variance_over_replicas`.

    Returns:
      A standard error; NaN without samples.

    Raises:
      ValueError: as `variance_over_replicas`.
    """
    shared = variance_over_replicas(samples_K, called_RxK, value_K)
    samples_K, value_K = as_float64(samples_K, "samples_K"), as_float64(value_K, "values")
    total = samples_K.sum()
    if not total:
        return float("nan")
    return float(np.sqrt(variance_over_samples(samples_K, value_K) + shared))


def variance_over_samples(samples_K: FloatArray, value_K: FloatArray) -> float:
    """Returns var(value) / N, the variance of the mean value of independent samples."""
    total = samples_K.sum()
    mean = samples_K @ value_K / total
    return float(samples_K @ (value_K - mean) ** 2 / total**2)
