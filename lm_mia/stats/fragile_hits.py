"""Whether the score of a hit under one target tells how stable the decision is under other replicas of the target.

A hit is a true positive of one replica: a member whose score is at or above the threshold. Its margin is the score
minus the threshold, which an attacker with this replica as the only target knows. How stable the decision is follows
from the other replicas alone, so that a hit does not vote on itself.

Legend: B replicas, N members, S hits of one replica, K bins of hits by their margin, V numbers of votes, U hits with
tied margins.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.coin_flip import coin_flip_cutoff
from lm_mia.stats.flips import flip_rate
from lm_mia.stats.inputs import as_float64


@dataclasses.dataclass(frozen=True)
class HitStability:
    """The hits of each replica, and what their margins tell; NaN where a replica has too few hits."""

    hits_B: IntArray
    flip_correlation_B: FloatArray
    """Rank correlation of the margin with the flip rate over the other replicas."""
    stable_B: FloatArray
    """Share of the hits that are stable: of the other replicas, significantly more than half also decide "member"."""
    stable_auc_B: FloatArray
    """Probability that a stable hit has a larger margin than one that is not stable; ties count 1/2."""
    margin_BxK: FloatArray
    """Mean margin in each of K bins with about equally many hits, ascending."""
    stable_BxK: FloatArray
    """Share of the hits in each bin that are stable."""
    agreement_BxK: FloatArray
    """Share of the other replicas that also decide "member", mean over the hits in each bin."""
    flip_rate_BxK: FloatArray
    """Flip rate over the other replicas, mean over the hits in each bin."""


def hit_stability(
    score_BxN: ArrayLike, threshold_B: ArrayLike, alpha: float = 0.05, bins: int = 4
) -> HitStability:
    """Compares the margins of the hits of each replica with the decisions of the other replicas.

    A hit is stable if the exact binomial test of the coin-flip cutoff rejects that the other replicas decide "member"
    with probability 1/2, and more than half of them do. With fewer than 7 replicas at alpha = 0.05, no hit is stable.

    Args:
      score_BxN: membership scores of members under replicas, larger for members; without NaN.
      threshold_B: threshold of each replica.
      alpha: level of the test.
      bins: K, the number of bins of margins; a replica with fewer hits than that has NaN in all of them.

    Returns:
      Numbers for each replica.

    Raises:
      ValueError: if the shapes do not match, a score is NaN, or there are fewer than 3 replicas.

    Source: derived here. StrongMIA, Appendix E.2.6, has the true positives that are like coin flips, and Appendix E.2.4
    the test.

    Example:
      >>> from lm_mia.stats import hit_stability
      >>> score_BxN = [[3, 1, 0]] * 7 + [[2, -1, 0]] * 2
      >>> found = hit_stability(score_BxN, [0.5] * 9, bins=2)
      >>> found.hits_B[0], found.stable_B[0], found.flip_correlation_B[0].round(3)
      (np.int64(2), np.float64(0.5), np.float64(-1.0))
    """
    score_BxN = as_float64(score_BxN, "scores")
    threshold_B = as_float64(threshold_B, "thresholds")
    if score_BxN.ndim != 2 or threshold_B.shape != score_BxN.shape[:1] or len(threshold_B) < 3:
        raise ValueError(
            f"scores of shape {score_BxN.shape} and thresholds of shape {threshold_B.shape}: each of at least 3 "
            "replicas must have scores and a threshold"
        )
    if np.isnan(score_BxN).any():
        raise ValueError("scores: must not be NaN; leave out these samples")
    others = len(score_BxN) - 1
    low, _ = coin_flip_cutoff(others, alpha)
    decision_BxN = score_BxN >= threshold_B[:, None]
    votes_N = decision_BxN.sum(axis=0)
    replicas = len(score_BxN)
    # Each number of votes has one flip rate, so that a table of counts is enough.
    flip_V = flip_rate(np.arange(others + 1), others)
    scalar = {name: np.full(replicas, np.nan) for name in ("correlation", "stable", "auc")}
    binned = {
        name: np.full((replicas, bins), np.nan) for name in ("margin", "stable", "agree", "flip")
    }
    for b, (score_N, decision_N) in enumerate(zip(score_BxN, decision_BxN, strict=True)):
        hit_S = np.flatnonzero(decision_N)
        if not hit_S.size:
            continue
        margin_S, votes_S = score_N[hit_S] - threshold_B[b], votes_N[hit_S] - 1
        flip_S, is_stable_S = flip_V[votes_S], votes_S > others - low
        rank_S = _ranks(margin_S)
        # The flip rate rises with the number of votes of the minority.
        scalar["correlation"][b] = _correlation(
            rank_S, _ranks(np.minimum(votes_S, others - votes_S))
        )
        scalar["stable"][b] = is_stable_S.mean()
        scalar["auc"][b] = _auc(rank_S, is_stable_S)
        if hit_S.size >= bins:
            parts = np.array_split(np.argsort(margin_S, kind="stable"), bins)
            values = {"margin": margin_S, "stable": is_stable_S}
            values |= {"agree": votes_S / others, "flip": flip_S}
            for name, value_S in values.items():
                binned[name][b] = [value_S[part].mean() for part in parts]
    return HitStability(
        decision_BxN.sum(axis=1),
        scalar["correlation"],
        scalar["stable"],
        scalar["auc"],
        binned["margin"],
        binned["stable"],
        binned["agree"],
        binned["flip"],
    )


def _ranks(x_S: np.ndarray) -> FloatArray:
    """Returns ranks from 1; equal values share the mean of their ranks."""
    _, index_S, ties_U = np.unique(x_S, return_inverse=True, return_counts=True)
    return (np.cumsum(ties_U) - (ties_U - 1) / 2)[index_S]


def _correlation(x_S: FloatArray, y_S: FloatArray) -> float:
    """Returns the correlation of ranks; NaN if one of the two is constant."""
    x_S, y_S = x_S - x_S.mean(), y_S - y_S.mean()
    scale = np.sqrt((x_S @ x_S) * (y_S @ y_S))
    return float(x_S @ y_S / scale) if scale > 0 else np.nan


def _auc(rank_S: FloatArray, is_positive_S: np.ndarray) -> float:
    """Returns the AUC from the ranks of all samples; NaN without a sample of each class."""
    positives, size = int(is_positive_S.sum()), rank_S.size
    if not 0 < positives < size:
        return np.nan
    above = rank_S[is_positive_S].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (size - positives)))
