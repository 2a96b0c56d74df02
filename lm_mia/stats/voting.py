"""Decisions of many replicas about each sample: votes, flip rates, flip bins.

Shapes: T targets, N samples, F false positive rates, 5 flip bins between 6 edges. Replicas share
their training subset. NaN votes are missing samples. Votes of blocks of samples are those of all.
StrongMIA Section 5, Appendix E.2.1 and E.2.4.
"""

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.binomial import coin_flip_cutoff, whole_replicas, whole_votes

BIN_NAMES = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
"""Of the five flip bins, in order."""

# Inner edges as fractions: a flip rate on an edge falls on its right side whatever the rounding.
_EDGES = (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5))
COIN_FLIP = 4
"""Index of the last bin; the one before it is `VERY_UNSTABLE`."""
VERY_UNSTABLE = 3
_CELLS = 2**21  # decisions of one target held at once, in bytes: more costs cache, less costs calls


@dataclasses.dataclass(frozen=True)
class Votes:
    """Member decisions of each sample at each rate, counted over replicas."""

    votes_FxN: NDArray[np.float64]
    """Whole numbers from 0 to replicas; NaN for a sample without a score from every replica."""
    replicas: int
    """B: targets that have thresholds."""
    left_out: int
    """Samples whose votes are NaN."""


def votes(score_TxN: ArrayLike, threshold_TxF: ArrayLike) -> Votes:
    """How many replicas call each sample a member, that is, score >= threshold, at each rate.

    A target whose thresholds are NaN (a lost run) is not a replica. A sample that misses a score of
    any replica gets NaN rather than fewer votes, so that all votes are out of one B and comparable
    with one cutoff.

    Args:
      score_TxN: scores.
      threshold_TxF: thresholds of each target, such as of `lm_mia.stats.roc.tpr_at_fpr`; in any
        order, infinite ones too.

    Raises:
      ValueError: as of `live_targets`.

    Source: StrongMIA Eqs. 7 and 10 (B1).
    """
    score_TxN, threshold_TxF = np.asarray(score_TxN), np.asarray(threshold_TxF, dtype=np.float64)
    live_R = live_targets(score_TxN, threshold_TxF)
    rates, samples = threshold_TxF.shape[1], score_TxN.shape[1]
    votes_FxN = np.empty((rates, samples))
    left_out = 0
    step = max(1, _CELLS // max(1, rates))
    for start in range(0, samples, step):
        score_TxC = score_TxN[:, start : start + step]
        missing_C = np.zeros(score_TxC.shape[1], dtype=np.bool_)
        # Bytes that hold B are the fastest to add, and comparing all rates at once is faster than
        # sorting each score into its thresholds, even at a hundred of them.
        count_FxC = np.zeros((rates, missing_C.size), dtype=np.min_scalar_type(live_R.size))
        decision_FxC = np.empty(count_FxC.shape, dtype=np.bool_)
        for t in live_R:
            score_C = score_TxC[t].astype(np.float64, copy=False)
            np.greater_equal(score_C, threshold_TxF[t][:, None], out=decision_FxC)
            np.add(count_FxC, decision_FxC, out=count_FxC)
            missing_C |= np.isnan(score_C)
        votes_FxN[:, start : start + step] = count_FxC
        votes_FxN[:, start : start + step][:, missing_C] = np.nan
        left_out += int(missing_C.sum())
    return Votes(votes_FxN, live_R.size, left_out)


def live_targets(
    score_TxN: NDArray[np.number], threshold_TxF: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Rows of the targets that have thresholds, the replicas; the others are lost runs.

    Raises:
      ValueError: shapes that do not fit, or a target with thresholds at some rates only.
    """
    if score_TxN.ndim != 2 or threshold_TxF.ndim != 2 or len(score_TxN) != len(threshold_TxF):
        raise ValueError(f"scores of shape {score_TxN.shape}, thresholds of {threshold_TxF.shape}")
    lost_TxF = np.isnan(threshold_TxF)
    if np.any(lost_TxF.any(axis=1) & ~lost_TxF.all(axis=1)):
        raise ValueError("a target has thresholds at all rates or, if its run is lost, NaN at all")
    return np.flatnonzero(~lost_TxF.any(axis=1))


def flip_rate(votes_N: ArrayLike, replicas: int) -> NDArray[np.float64]:
    """Share of the pairs of replicas that disagree about a sample: 2 B0 B1 / (B (B - 1)).

    Args:
      votes_N: member votes B1, any shape; NaN is missing.
      replicas: B, 2 or more.

    Returns:
      Flip rates, shaped as the votes, from 0 to `max_flip_rate`; NaN where the votes are.

    Raises:
      ValueError: replicas below 2, or votes that are not whole numbers from 0 to replicas.

    Source: StrongMIA Eq. 10.
    """
    replicas = whole_replicas(replicas)
    whole, missing = whole_votes(votes_N, replicas)
    rate = 2 * whole * (replicas - whole) / (replicas * (replicas - 1))
    return np.where(missing, np.nan, rate)


def max_flip_rate(replicas: int) -> float:
    """The largest flip rate of B replicas, above 1/2: 2 floor(B/2) ceil(B/2) / (B (B - 1)).

    Raises ValueError below 2 replicas. Source: StrongMIA Appendix E.2.1.
    """
    replicas = whole_replicas(replicas)
    return 2 * (replicas // 2) * ((replicas + 1) // 2) / (replicas * (replicas - 1))


def flip_edges(replicas: int, alpha: float = 0.05) -> NDArray[np.float64]:
    """Edges of the flip bins: [0, .1) [.1, .25) [.25, .4) [.4, t) [t, max], t the coin-flip cutoff.

    With few replicas t falls below 0.4. Coin flips come first then: edges above t move down to t,
    and bins between two equal edges stay empty. Up to 5 replicas (alpha = 0.05) t = 0 and all
    samples are in the last bin.

    Returns:
      edges_6, ascending. Errors as of `coin_flip_cutoff`.
    """
    _, cutoff = coin_flip_cutoff(replicas, alpha)
    inner = [min(float(edge), cutoff) for edge in _EDGES]
    return np.array([0.0, *inner, cutoff, max_flip_rate(replicas)])


def flip_bins(votes_N: ArrayLike, replicas: int, alpha: float = 0.05) -> NDArray[np.float64]:
    """Index of each sample's flip bin, 0 to 4; NaN where votes are. Whole numbers decide.

    Bin 4, coin flip, is k_low <= votes <= replicas - k_low; see `flip_edges` for the bins,
    `flip_rate` for arguments and errors.
    """
    replicas = whole_replicas(replicas)
    whole, missing = whole_votes(votes_N, replicas)
    k_low, _ = coin_flip_cutoff(replicas, alpha)
    # There are few votes and many samples: a bin is looked up.
    k = np.arange(replicas + 1)
    disagreeing, pairs = 2 * k * (replicas - k), replicas * (replicas - 1)
    index = np.zeros(k.size)
    for edge in _EDGES:
        index += disagreeing * edge.denominator >= pairs * edge.numerator
    index[k_low : replicas - k_low + 1] = COIN_FLIP
    return np.where(missing, np.nan, index[whole])
