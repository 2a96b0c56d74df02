"""How often replicas disagree about a sample, and how the attack does on average beside it.

Shapes: T targets, N samples, F false positive rates, 5 flip bins between 6 edges. Replicas share
their training subset, so membership is member_N. NaN votes are missing samples: left out and
counted. Votes and counts of blocks of samples add up to those of all. StrongMIA Section 5,
Appendix E.2.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats.contributions import coin_free_roc as coin_free_roc
from lm_mia.stats.contributions import contributions as contributions
from lm_mia.stats.contributions import true_positives as true_positives
from lm_mia.stats.contributions import vote_counts as vote_counts
from lm_mia.stats.per_sample import mean_abs_distance as mean_abs_distance
from lm_mia.stats.roc import MeanStd, OperatingPoints, mean_std
from lm_mia.stats.voting import BIN_NAMES as BIN_NAMES
from lm_mia.stats.voting import COIN_FLIP as COIN_FLIP
from lm_mia.stats.voting import VERY_UNSTABLE as VERY_UNSTABLE
from lm_mia.stats.voting import Votes as Votes
from lm_mia.stats.voting import flip_bins as flip_bins
from lm_mia.stats.voting import flip_edges as flip_edges
from lm_mia.stats.voting import flip_rate as flip_rate
from lm_mia.stats.voting import live_targets as live_targets
from lm_mia.stats.voting import max_flip_rate as max_flip_rate
from lm_mia.stats.voting import votes as votes


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
