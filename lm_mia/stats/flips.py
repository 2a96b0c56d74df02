"""How often replicas disagree about a sample, and how the attack does on average beside it.

Shapes: T targets, N samples, F false positive rates, 5 flip bins between 6 edges. Replicas share
their training subset, so membership is member_N. NaN votes are missing samples: left out and
counted. StrongMIA Section 5, Appendix E.2.
"""

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.binomial import check_replicas, coin_flip_cutoff, whole_votes
from lm_mia.stats.roc import MeanStd, mean_std, tpr_at_fpr

BIN_NAMES = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
"""Of the five flip bins, in order."""

# Inner edges as fractions: a flip rate on an edge falls on its right side whatever the rounding.
_EDGES = (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5))
_COIN = 4


@dataclasses.dataclass(frozen=True)
class Votes:
    """Member decisions of each sample, counted over replicas."""

    votes_N: NDArray[np.float64]
    """Whole numbers from 0 to replicas; NaN for a sample without a score from every replica."""
    replicas: int
    """B: targets that have a threshold."""
    left_out: int
    """Samples whose votes are NaN."""


@dataclasses.dataclass(frozen=True)
class FlipShares:
    """Shares of the samples of a class in each flip bin, one row a rate (StrongMIA Tables 3, 4)."""

    edges_6: NDArray[np.float64]
    """Flip rates between the bins, from 0 to the maximum; bins are closed below."""
    member_Fx5: NDArray[np.float64]
    """In [0, 1]; NaN where no member has votes."""
    nonmember_Fx5: NDArray[np.float64]
    members_F: NDArray[np.int64]
    """Members with votes."""
    nonmembers_F: NDArray[np.int64]
    left_out_F: NDArray[np.int64]
    """Samples with NaN votes."""

    @property
    def coin_flip_member_F(self) -> NDArray[np.float64]:
        """Share of members whose decisions cannot be told from a coin's (StrongMIA Figure 5a)."""
        return self.member_Fx5[:, _COIN]

    @property
    def coin_flip_nonmember_F(self) -> NDArray[np.float64]:
        """The same of non-members."""
        return self.nonmember_Fx5[:, _COIN]


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Error rates at fixed FPRs, mean and STD over targets (StrongMIA Tables 1 and 2)."""

    nominal_fpr_F: NDArray[np.float64]
    """As asked for; ``fpr`` holds what was realised, at most this."""
    acc: MeanStd
    """(TP + TN) / samples, by counts: with equal classes (TPR + TNR) / 2."""
    fnr: MeanStd
    fpr: MeanStd
    tnr: MeanStd
    tpr: MeanStd
    left_out_T: NDArray[np.int64]
    """NaN scores of every target."""
    targets_left_out: int
    """Targets without a score in one of the classes."""


def votes(score_TxN: ArrayLike, threshold_T: ArrayLike) -> Votes:
    """How many replicas call each sample a member, that is, score >= threshold.

    A target whose threshold is NaN (a lost run) is not a replica. A sample that misses a score of
    any replica gets NaN rather than fewer votes, so that all votes are out of one B and comparable
    with one cutoff.

    Args:
      score_TxN: scores.
      threshold_T: the threshold of each target, such as a column of `tpr_at_fpr`'s threshold_TxF.

    Raises:
      ValueError: shapes that do not fit.

    Source: StrongMIA Eqs. 7 and 10 (B1).
    """
    score_TxN, threshold_T = np.asarray(score_TxN), np.asarray(threshold_T, dtype=np.float64)
    if score_TxN.ndim != 2 or threshold_T.shape != score_TxN.shape[:1]:
        raise ValueError(f"scores of shape {score_TxN.shape}, thresholds of {threshold_T.shape}")
    votes_N = np.zeros(score_TxN.shape[1])
    missing_N = np.zeros(score_TxN.shape[1], dtype=np.bool_)
    replicas = np.flatnonzero(~np.isnan(threshold_T))
    for t in replicas:
        score_N = score_TxN[t].astype(np.float64)
        votes_N += score_N >= threshold_T[t]
        missing_N |= np.isnan(score_N)
    return Votes(np.where(missing_N, np.nan, votes_N), replicas.size, int(missing_N.sum()))


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
    whole, missing = whole_votes(votes_N, replicas)
    rate = 2 * whole * (replicas - whole) / (replicas * (replicas - 1))
    return np.where(missing, np.nan, rate)


def max_flip_rate(replicas: int) -> float:
    """The largest flip rate of B replicas, above 1/2: 2 floor(B/2) ceil(B/2) / (B (B - 1)).

    Raises ValueError below 2 replicas. Source: StrongMIA Appendix E.2.1.
    """
    check_replicas(replicas)
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
    whole, missing = whole_votes(votes_N, replicas)
    k_low, _ = coin_flip_cutoff(replicas, alpha)
    disagreeing, pairs = 2 * whole * (replicas - whole), replicas * (replicas - 1)
    index = np.zeros(whole.shape, dtype=np.int64)
    for edge in _EDGES:
        index += disagreeing * edge.denominator >= pairs * edge.numerator
    index = np.where((whole >= k_low) & (whole <= replicas - k_low), _COIN, index)
    return np.where(missing, np.nan, index)


def flip_shares(
    votes_FxN: ArrayLike, member_N: ArrayLike, replicas: int, alpha: float = 0.05
) -> FlipShares:
    """Shares of members and of non-members in each flip bin, at one or more false positive rates.

    Args:
      votes_FxN: member votes, one row a rate; NaN is missing. A one-dimensional array counts as one
        rate.
      member_N: booleans.
      replicas: B, 2 or more.
      alpha: level of the coin-flip test.

    Raises:
      ValueError: as of `flip_rate` and `coin_flip_cutoff`, or shapes that do not fit.

    Source: StrongMIA Tables 3 and 4, Figures 28 and 29.
    """
    bin_FxN, member_N = np.atleast_2d(flip_bins(votes_FxN, replicas, alpha)), np.asarray(member_N)
    if bin_FxN.ndim != 2 or member_N.shape != bin_FxN.shape[1:]:
        raise ValueError(f"votes of shape {bin_FxN.shape}, members of {member_N.shape}")
    if member_N.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_N.dtype}")
    out_Fx5, in_Fx5 = (
        np.array([(bin_FxN[:, of_N] == b).sum(axis=1) for b in range(_COIN + 1)]).T
        for of_N in (~member_N, member_N)
    )
    return FlipShares(
        edges_6=flip_edges(replicas, alpha),
        member_Fx5=_shares(in_Fx5),
        nonmember_Fx5=_shares(out_Fx5),
        members_F=in_Fx5.sum(axis=1),
        nonmembers_F=out_Fx5.sum(axis=1),
        left_out_F=np.isnan(bin_FxN).sum(axis=1),
    )


def error_rates(score_TxN: ArrayLike, member: ArrayLike, fprs: ArrayLike) -> ErrorRates:
    """Rates by class and accuracy at thresholds of each target's own, averaged over targets.

    Arguments and errors as of `lm_mia.stats.roc.tpr_at_fpr`. Source: StrongMIA Tables 1 and 2. The
    paper prints no STD for FPR and TNR, which it takes as given; here they are realised rates, and
    ties may make them vary.
    """
    points = tpr_at_fpr(score_TxN, member, fprs)
    whole_T = (points.members_T > 0) & (points.nonmembers_T > 0)
    tpr_TxF, fpr_TxF = points.tpr_TxF[whole_T], points.realised_fpr_TxF[whole_T]
    return ErrorRates(
        nominal_fpr_F=points.fpr_F,
        acc=mean_std(points.accuracy_TxF[whole_T]),
        fnr=mean_std(1 - tpr_TxF),
        fpr=mean_std(fpr_TxF),
        tnr=mean_std(1 - fpr_TxF),
        tpr=mean_std(tpr_TxF),
        left_out_T=points.left_out_T,
        targets_left_out=int(np.sum(~whole_T)),
    )


def _shares(count_Fx5: NDArray[np.int64]) -> NDArray[np.float64]:
    total_Fx1 = count_Fx5.sum(axis=1, keepdims=True)
    nan_Fx5 = np.full(count_Fx5.shape, np.nan)
    return np.divide(count_Fx5, total_Fx1, out=nan_Fx5, where=total_Fx1 > 0)
