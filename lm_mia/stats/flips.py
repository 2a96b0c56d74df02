"""Decisions of many replicas about each sample: votes, flip rates and flip bins, and the attack's average beside them.

Shapes: T targets, N samples, F false positive rates, 5 flip bins between 6 edges. Replicas share their training subset,
so membership is member_N. NaN votes are missing samples: left out and counted. Votes and counts of blocks of samples
add up to those of all samples. StrongMIA Section 5, Appendix E.2.1 and E.2.4.
"""

import dataclasses
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.coin_flip import coin_flip_cutoff, whole_replicas, whole_votes
from lm_mia.stats.per_sample import check_posterior
from lm_mia.stats.roc import MeanStd, OperatingPoints, mean_std

BIN_NAMES = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
"""Of the five flip bins, in order."""

# Inner edges as fractions: a flip rate on an edge falls on its right side whatever the rounding.
_EDGES = (Fraction(1, 10), Fraction(1, 4), Fraction(2, 5))
COIN_FLIP = 4
"""Index of the last bin; the one before it is `VERY_UNSTABLE`."""
VERY_UNSTABLE = 3
# Numbers of one target worked on at once: votes in bytes, distances in float64, which then fit the cache.
_VOTE_CELLS, _DISTANCE_CELLS = 2**21, 2**17


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
    step = max(1, _VOTE_CELLS // max(1, rates))
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


def mean_abs_distance(
    posterior_TxN: ArrayLike, threshold_posterior_TxF: ArrayLike
) -> NDArray[np.float64]:
    """Mean over replicas of how far a sample's posterior is from the target's threshold.

    Both are on the scale of the posterior, in [0, 1], where `lm_mia.stats.likelihood_ratio.posterior` takes a
    threshold of +inf to 1 and -inf to 0. As with votes, a target with NaN thresholds (a lost run)
    is no replica, and a sample that misses a posterior of any replica gets NaN.

    Args:
      posterior_TxN: posteriors of membership.
      threshold_posterior_TxF: thresholds of each target.

    Returns:
      distance_FxN, in [0, 1]; NaN without replicas.

    Raises:
      ValueError: as of `live_targets`, or a number outside [0, 1].

    Source: StrongMIA Appendix E.2.5, Figures 26 and 27.
    """
    posterior_TxN = np.asarray(posterior_TxN)
    threshold_TxF = np.asarray(threshold_posterior_TxF, dtype=np.float64)
    live_R = live_targets(posterior_TxN, threshold_TxF)
    rates, samples = threshold_TxF.shape[1], posterior_TxN.shape[1]
    check_posterior(threshold_TxF)
    distance_FxN = np.full((rates, samples), 0.0 if live_R.size else np.nan)
    step = max(1, _DISTANCE_CELLS // max(1, rates))
    for start in range(0, samples, step):
        sum_FxC = distance_FxN[:, start : start + step]
        apart_FxC = np.empty(sum_FxC.shape)
        for t in live_R:
            posterior_C = posterior_TxN[t, start : start + step].astype(np.float64, copy=False)
            check_posterior(posterior_C)
            np.subtract(posterior_C, threshold_TxF[t][:, None], out=apart_FxC)
            np.abs(apart_FxC, out=apart_FxC)
            sum_FxC += apart_FxC
    return distance_FxN / max(1, live_R.size)


@dataclasses.dataclass(frozen=True)
class FlipCounts:
    """Samples of a class in each flip bin, one row a rate; counts of blocks of samples add."""

    member_Fx5: NDArray[np.int64]
    nonmember_Fx5: NDArray[np.int64]
    left_out_F: NDArray[np.int64]
    """Samples with NaN votes."""

    def __add__(self, other: "FlipCounts") -> "FlipCounts":
        """Counts of both blocks; ValueError if they are of different rates."""
        if self.left_out_F.shape != other.left_out_F.shape:
            raise ValueError("only counts at the same false positive rates add")
        return FlipCounts(
            self.member_Fx5 + other.member_Fx5,
            self.nonmember_Fx5 + other.nonmember_Fx5,
            self.left_out_F + other.left_out_F,
        )


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


@dataclasses.dataclass(frozen=True)
class ErrorRates:
    """Error rates at fixed FPRs, mean and STD over targets (StrongMIA Tables 1 and 2)."""

    nominal_fpr_F: NDArray[np.float64]
    """As asked for; ``fpr`` holds what was realised, at most this."""
    acc: MeanStd
    """(TP + TN) / samples, by counts."""
    balanced_acc: MeanStd
    """(TPR + TNR) / 2: the same as ``acc`` if the classes are of one size."""
    fnr: MeanStd
    fpr: MeanStd
    tnr: MeanStd
    tpr: MeanStd
    left_out_T: NDArray[np.int64]
    """NaN scores of every target."""
    targets_left_out: int
    """Targets without a score in one of the classes."""


def flip_counts(
    votes_FxN: ArrayLike, member_N: ArrayLike, replicas: int, alpha: float = 0.05
) -> FlipCounts:
    """Members and non-members in each flip bin, at one or more false positive rates.

    Args:
      votes_FxN: member votes, one row a rate; NaN is missing. A one-dimensional array counts as one
        rate.
      member_N: booleans.
      replicas: B, 2 or more.
      alpha: level of the coin-flip test.

    Raises:
      ValueError: as of `flip_rate` and `coin_flip_cutoff`, or shapes that do not fit.
    """
    bin_FxN, member_N = np.atleast_2d(flip_bins(votes_FxN, replicas, alpha)), np.asarray(member_N)
    if bin_FxN.ndim != 2 or member_N.shape != bin_FxN.shape[1:]:
        raise ValueError(f"votes of shape {bin_FxN.shape}, members of {member_N.shape}")
    if member_N.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_N.dtype}")
    bins = len(BIN_NAMES)
    missing_FxN = np.isnan(bin_FxN)
    # Non-members' bins, members' bins, and one for what is missing, counted in one go.
    index_FxN = np.where(missing_FxN, 2 * bins, bin_FxN + bins * member_N).astype(np.int64)
    count_Fx11 = np.array([np.bincount(row_N, minlength=2 * bins + 1) for row_N in index_FxN])
    count_Fx11 = count_Fx11.reshape(len(bin_FxN), 2 * bins + 1).astype(np.int64, copy=False)
    return FlipCounts(
        member_Fx5=count_Fx11[:, bins : 2 * bins],
        nonmember_Fx5=count_Fx11[:, :bins],
        left_out_F=count_Fx11[:, 2 * bins],
    )


def flip_shares(counts: FlipCounts, replicas: int, alpha: float = 0.05) -> FlipShares:
    """Shares of members and of non-members in each flip bin.

    Args:
      counts: of `flip_counts`, of all samples.
      replicas: B, and alpha, as the counts were made with; they give the edges.

    Raises:
      ValueError: as of `coin_flip_cutoff`.

    Source: StrongMIA Tables 3 and 4, Figures 28 and 29.
    """
    return FlipShares(
        edges_6=flip_edges(replicas, alpha),
        member_Fx5=_shares(counts.member_Fx5),
        nonmember_Fx5=_shares(counts.nonmember_Fx5),
        members_F=counts.member_Fx5.sum(axis=1),
        nonmembers_F=counts.nonmember_Fx5.sum(axis=1),
        left_out_F=counts.left_out_F,
    )


def error_rates(points: OperatingPoints) -> ErrorRates:
    """Rates by class and accuracy at thresholds of each target's own, averaged over targets.

    Targets without a score in one of the classes are left out and counted. Source: StrongMIA Tables
    1 and 2. The paper prints no STD for FPR and TNR, which it takes as given; here they are
    realised rates, and ties may make them vary.
    """
    whole_T = (points.members_T > 0) & (points.nonmembers_T > 0)
    tpr_TxF, fpr_TxF = points.tpr_TxF[whole_T], points.realised_fpr_TxF[whole_T]
    return ErrorRates(
        nominal_fpr_F=points.fpr_F,
        acc=mean_std(points.accuracy_TxF[whole_T]),
        balanced_acc=mean_std(points.balanced_accuracy_TxF[whole_T]),
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
