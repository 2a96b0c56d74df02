"""The share of coin-flip decisions that 127 replicas would show, as a range estimated from the votes of B replicas.

Let p be the probability that a newly trained replica calls a sample a member. The number of member votes of B replicas
is Binomial(B, p), and the decision is labeled a coin flip if the test of `coin_flip_cutoff` does not reject p = 1/2.
With few replicas the test rejects rarely: of the samples with p = 0.9, 57% are labeled coin flips with 8 replicas, and
0.1% with 32. So the observed share falls with B, and shares for different B are not comparable.

The share that 127 replicas (StrongMIA) would show is the mean of P(52 <= K <= 75), K ~ Binomial(127, p), over the
distribution G of p over samples. The votes of B replicas show the distribution of the number of votes under G, whose
B + 1 probabilities do not determine G. So the share has a range: its smallest and its largest value over all G that are
likely given the votes.

Legend: R replicas, G groups of documents, K numbers of votes (0 to B), P probabilities on a grid.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats import binomial_mixture
from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.coin_flip import as_num_replicas, coin_flip_cutoff
from lm_mia.stats.inputs import as_float64
from lm_mia.stats.vote_histograms import (
    as_vote_histogram,
    document_effect,
    variance_over_replicas,
    variance_over_samples,
)

STRONGMIA_REPLICAS = 127
"""Number of replicas for which StrongMIA reports shares of coin flips, and for which ranges are given by default."""

# Equal steps of arcsin(sqrt(p)), which are small against the standard deviation of 127 votes, 0.044 on this axis.
_GRID_STEPS = 200
# The range is widened until its design effects are consistent with it.
_MAX_ROUNDS = 6
_CONSISTENT = 1.02


@dataclasses.dataclass(frozen=True)
class CoinFlipRange:
    """The range of the share of coin flips for another number of replicas; NaN without samples."""

    low: float
    high: float


def coin_flip_probability(probability: ArrayLike, replicas: int, alpha: float = 0.05) -> FloatArray:
    """Computes the probability that a sample's decision is labeled a coin flip by the test of `coin_flip_cutoff`.

    Args:
      probability: probability that a replica calls the sample a member, in [0, 1], of any shape.
      replicas: number of votes per sample, B; at least 2.
      alpha: level of the coin-flip test, in (0, 1).

    Returns:
      P(k_low <= K <= B - k_low) with K ~ Binomial(B, probability), of the shape of probability.

    Raises:
      ValueError: if a probability is outside [0, 1], replicas is below 2 or alpha is outside (0, 1).

    Source: StrongMIA, Eqs. 17 and 19.

    Example:
      With 8 replicas, a sample that 90% of all replicas would call a member is often labeled a coin flip:

      >>> from lm_mia.stats import coin_flip_probability
      >>> [round(float(coin_flip_probability(0.9, replicas)), 3) for replicas in (8, 32, 127)]
      [0.57, 0.001, 0.0]
    """
    p = as_float64(probability, "probabilities")
    if not np.all((p >= 0) & (p <= 1)):
        raise ValueError("probabilities must be between 0 and 1")
    replicas = as_num_replicas(replicas)
    k_low, _ = coin_flip_cutoff(replicas, alpha)
    # F(k) = I_{1-p}(B - k, k + 1); both tails have the same form, so that neither is a difference of numbers near 1.
    if k_low == 0:
        return np.ones(p.shape)
    lower = scipy.special.betainc(replicas - k_low + 1, k_low, 1 - p)
    upper = scipy.special.betainc(replicas - k_low + 1, k_low, p)
    return np.clip(1 - lower - upper, 0, 1)


def coin_flip_range(
    samples: ArrayLike,
    called_RxK: ArrayLike,
    alpha: float = 0.05,
    *,
    confidence: float = 0.95,
    replicas: int = STRONGMIA_REPLICAS,
) -> CoinFlipRange:
    """Computes the range of the share of coin flips that another number of replicas would show.

    The range is over all distributions G of p on a grid of 201 probabilities, with

        2 N (L_max - L(G)) <= D q.

    L(G) is the mean log-likelihood of the votes of N samples and L_max its maximum. q = 2 F, where F is the quantile of
    the F distribution with 2 and B - 1 degrees of freedom. For many replicas, q is the quantile of chi-square with 2
    degrees of freedom: one for the share, and one because L_max also profits from a spurious spread of p if all p are
    equal.

    L treats samples as independent, but they share the replicas. D is the design effect, at least 1: the variance of
    the mean of a function of the votes, including `variance_over_replicas`, divided by that of independent samples. The
    function is the one by which the distribution of votes at an end of the range differs from the most likely one,
    (f_end - f_fit) / (f_end + f_fit), so each end has its own D, found by iteration. If samples are pieces of
    documents, D includes the variance over documents.

    With few replicas the range is wide because G is not determined. With 127 it is the observed share with its
    uncertainty. `benchmarks/coin_flip_coverage.py` simulates how often ranges cover the true share.

    Args:
      samples: number of samples with 0 to B votes, at least B = 2: samples_K, or samples_GxK with a row for each group
        of documents.
      called_RxK: number of them that each replica calls members, from `count_vote_histograms`.
      alpha: level of the coin-flip test, in (0, 1).
      confidence: probability with which the range covers the share, in (0, 1).
      replicas: number of replicas for which the share is predicted.

    Returns:
      The ends of the range; NaN if all documents are in one of several groups.

    Raises:
      ValueError: if B or replicas is below 2, if alpha or confidence is outside (0, 1), or as `variance_over_replicas`.

    Example:
      Votes of 8 replicas on 1,000 samples; 30% of them are fair coins, and the others are never called members:

      >>> import numpy as np
      >>> from lm_mia.stats import coin_flip_range, count_vote_histograms
      >>> rng = np.random.default_rng(0)
      >>> score_TxN = np.where(rng.random(1000) < 0.3, rng.random((8, 1000)), 0)
      >>> votes = count_vote_histograms(score_TxN, np.full((8, 1), 0.5))
      >>> share = coin_flip_range(votes.samples_FxK[0], votes.called_FxRxK[0])
      >>> round(share.low, 2), round(share.high, 2)
      (0.14, 0.31)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence}: must be between 0 and 1, both excluded")
    samples_GxK, called_RxK = as_vote_histogram(samples, called_RxK)
    samples_K = samples_GxK.sum(axis=0)
    observed_replicas = samples_K.size - 1
    probability_P = np.sin(np.linspace(0, np.pi / 2, _GRID_STEPS + 1)) ** 2
    label_P = coin_flip_probability(probability_P, replicas, alpha)
    total = samples_K.sum()
    if not total:
        return CoinFlipRange(np.nan, np.nan)
    votes_KxP = binomial_mixture.binomial_probabilities(observed_replicas, probability_P)
    fit_P = binomial_mixture.most_likely_mixture(votes_KxP, samples_K / total)
    fit_K = votes_KxP @ fit_P
    q = 2 * scipy.special.fdtri(2, observed_replicas - 1, confidence)

    def end(sign: int) -> float:
        design_effect, end_P = 1.0, fit_P
        for _ in range(_MAX_ROUNDS):
            end_P = binomial_mixture.largest_mean(
                votes_KxP, samples_K / total, sign * label_P, fit_P, design_effect * q / (2 * total)
            )
            end_K = votes_KxP @ end_P
            difference_K = (end_K - fit_K) / np.maximum(end_K + fit_K, np.finfo(float).tiny)
            # Under both distributions rather than the observed one, which has no samples in some of the cells.
            independent = variance_over_samples((end_K + fit_K) / 2 * total, difference_K)
            shared = variance_over_replicas(samples_K, called_RxK, difference_K)
            required = document_effect(samples_GxK, difference_K)
            required += shared / max(independent, np.finfo(float).tiny)
            if np.isnan(required):
                return np.nan
            if required <= _CONSISTENT * design_effect:
                break
            design_effect = required
        return float(label_P @ end_P)

    return CoinFlipRange(low=end(-1), high=end(1))
