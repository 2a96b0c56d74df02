"""Log ratios of the densities of members and non-members, with intervals for each sample.

All numbers are estimated from fitted samples, whose membership is known, and evaluated at others. They apply to every
prior probability of membership: `privacy_loss` of a log ratio gives MACE's f. A query is whatever an adversary observes
of a sample: its loss, the score of an attack, or a vector of several numbers.

Legend: K fitted samples, N samples at which the ratio is evaluated, D numbers per query, J bins, C samples of one class
(the centers of its kernels), G points of a grid.

Source: MACE (Liu et al., "MACE: A flexible framework for membership privacy estimation in generative models"),
Section 5.1.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_magnitude
from lm_mia.stats.intervals import check_confidence, clopper_pearson
from lm_mia.stats.per_sample import equal_count_edges

_MAX_PAIRS = 2**24
"""Up to this many pairs of a fitted and an evaluated sample, kernels are summed exactly."""
_MAX_CENTERS = 2**13
"""Beyond it, vectors are compared with at most this many samples of each class."""
_MAX_GRID = 2**24
_STEPS_PER_BANDWIDTH = 64
_REACH = 10
"""Kernels on the grid end after this many bandwidths, where they have fallen to 2e-22 of their maximum."""
_PAIRS = 2**18  # pairs whose kernels are computed at once
_MAX_BINS = 100


@dataclasses.dataclass(frozen=True)
class LogRatio:
    """log P/Q at N samples, where P is the density of members and Q that of non-members."""

    value_N: FloatArray
    """+inf where only members are seen, -inf where only other samples are; NaN for a query that is NaN. Where neither
    is seen it is 0, which means that the sample tells nothing beyond the prior."""
    low_N: FloatArray
    high_N: FloatArray
    """Ends of the confidence interval of each sample on its own, possibly infinite."""
    unseen: int
    """Number of evaluated samples at which neither members nor other samples are seen."""
    left_out: int
    """Number of evaluated samples whose query is NaN."""
    unused: int
    """Number of fitted samples that were not used: their query is NaN, or they are beyond the largest number of
    kernels (`log_ratio_kde`)."""


def num_bins(samples_per_class: int) -> int:
    """Returns a number of equal-count bins that grows with the number of fitted samples: round(2 n^(1/3)), at most 100.

    Without leakage, the plug-in estimate of the advantage is about sqrt(bins / (pi n)) instead of 0
    (`plug_in_advantage`): 0.25 for 100 bins and 512 samples of each class, but 0.10 for these 16 bins.

    Args:
      samples_per_class: the number of fitted members or of fitted non-members, whichever is smaller.

    Returns:
      The number of bins, from 1 to 100.

    Raises:
      ValueError: if the number of samples is negative or not a whole number.
    """
    samples_per_class = int(as_counts(samples_per_class, "samples_per_class"))
    return int(np.clip(round(2 * float(samples_per_class) ** (1 / 3)), 1, _MAX_BINS))


def quantile_bins(query_N: ArrayLike, by_K: ArrayLike, bins: int) -> FloatArray:
    """Assigns each query to one of the equal-count bins of the fitted queries, for `log_ratio_bins`.

    Bins of equal width fail for queries with heavy tails, where most samples share one bin. Equal-count bins do not
    change if an increasing function is applied to the queries, and neither does the density ratio.

    Args:
      query_N: the queries, one number per sample; NaN marks a missing one.
      by_K: the fitted queries; NaN is left out.
      bins: the number of bins, at least 1. Equal values are never separated, so with ties there can be fewer.

    Returns:
      The bin of each query, from 0 to bins - 1; NaN for a missing query. Queries below all fitted ones are in bin 0.

    Raises:
      ValueError: if an array is not one-dimensional, if no fitted query is present, or if bins is not a whole number
        of at least 1.
    """
    query_N, by_K = as_float64(query_N, "queries"), as_float64(by_K, "fitted queries")
    if query_N.ndim != 1 or by_K.ndim != 1:
        raise ValueError(
            f"queries of shape {query_N.shape} and {by_K.shape}: must be one number per sample"
        )
    by_K = by_K[~np.isnan(by_K)]
    if by_K.size == 0:
        raise ValueError("fitted queries: all are NaN; at least one is needed")
    edge_J = equal_count_edges(np.sort(by_K), _as_bins(bins))
    bin_N = np.maximum(np.searchsorted(edge_J, query_N, side="right") - 1, 0).astype(np.float64)
    bin_N[np.isnan(query_N)] = np.nan
    return bin_N


def log_ratio_of_counts(
    member_J: ArrayLike, nonmember_J: ArrayLike, *, confidence: float = 0.95
) -> LogRatio:
    """Computes the log ratio of each bin from the numbers of fitted samples in it.

    The share of each class in a bin has the Clopper-Pearson interval at confidence 1 - delta/2, each of its tails
    delta/4, so that both shares are inside with a probability of at least confidence = 1 - delta. MACE writes "a
    delta/2 Clopper-Pearson lower bound" and likewise for the upper one, which would be 1 - 2 delta for the ratio; the
    tails of its Lemma 7 are these.

    Args:
      member_J: the number of members in each bin.
      nonmember_J: the number of non-members in each bin.
      confidence: in (0, 1), for each bin on its own. What MACE calls a "0.05-confidence interval" has confidence 0.95.

    Returns:
      The log ratio of each bin. A bin without fitted samples has 0, between -inf and +inf, and is counted as unseen.

    Raises:
      ValueError: if confidence is out of range, if the counts are not whole numbers of one shape, or if a class has no
        samples.

    Source: MACE, Lemma 6.
    """
    check_confidence(confidence)
    member_J, nonmember_J = as_counts(member_J, "members"), as_counts(nonmember_J, "non-members")
    if member_J.shape != nonmember_J.shape:
        raise ValueError(
            f"counts of shapes {member_J.shape} and {nonmember_J.shape}: must be of the same bins"
        )
    members, nonmembers = int(member_J.sum()), int(nonmember_J.sum())
    _check_classes(members, nonmembers)
    both = 1 - (1 - confidence) / 2
    p_low_J, p_high_J = clopper_pearson(member_J, members, confidence=both)
    q_low_J, q_high_J = clopper_pearson(nonmember_J, nonmembers, confidence=both)
    unseen_J = (member_J == 0) & (nonmember_J == 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value_J = np.log(member_J / members) - np.log(nonmember_J / nonmembers)
        low_J, high_J = np.log(p_low_J) - np.log(q_high_J), np.log(p_high_J) - np.log(q_low_J)
    value_J[unseen_J] = 0.0
    return LogRatio(value_J, low_J, high_J, int(unseen_J.sum()), 0, 0)


def log_ratio_bins(
    bin_K: ArrayLike, member_K: ArrayLike, at_N: ArrayLike, bins: int, *, confidence: float = 0.95
) -> LogRatio:
    """Estimates the log ratio of a query that takes whole numbers, such as the bin of a score, by counting.

    Evaluate the ratio on samples that were not fitted (MACE's Section 7.1 uses the same ones): a fitted sample makes
    its own bin look more like its class. If bins are chosen by the fitted samples, as those of `quantile_bins` are, the
    intervals hold approximately; where their edges are known beforehand, they cover at least as promised.

    Args:
      bin_K: the bin of each fitted sample, from 0 to bins - 1; NaN is left out.
      member_K: booleans, whether each fitted sample is a member.
      at_N: the bins of the samples at which the ratio is evaluated; NaN gives NaN.
      bins: the number of bins.
      confidence: as in `log_ratio_of_counts`.

    Returns:
      The log ratio at each of the N samples.

    Raises:
      ValueError: as for `log_ratio_of_counts`; or if shapes do not match, member_K is not boolean, or a bin is not a
        whole number below bins.

    Source: MACE, Lemma 6.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import log_ratio_bins
      >>> member_K = np.repeat([True, False], 10)
      >>> bin_K = np.repeat([0, 1, 0, 1], [3, 7, 1, 9])  # 3 of 10 members and 1 of 10 others are in bin 0
      >>> ratio = log_ratio_bins(bin_K, member_K, at_N=[0, 1], bins=2)
      >>> np.exp(ratio.value_N).round(3)
      array([3.   , 0.778])
    """
    bins = _as_bins(bins)
    bin_K, member_K, unused = _fitted(_as_bin(bin_K, bins, "bin_K"), member_K)
    at_N = _as_bin(at_N, bins, "at_N")
    count_2xJ = [
        np.bincount(bin_K[class_K].astype(np.int64), minlength=bins)
        for class_K in (member_K, ~member_K)
    ]
    ratio = log_ratio_of_counts(*count_2xJ, confidence=confidence)
    missing_N = np.isnan(at_N)
    index_N = np.where(missing_N, 0, at_N).astype(np.int64)
    value_N, low_N, high_N = (
        np.where(missing_N, np.nan, end_J[index_N])
        for end_J in (ratio.value_N, ratio.low_N, ratio.high_N)
    )
    is_unseen_J = (count_2xJ[0] == 0) & (count_2xJ[1] == 0)
    unseen = int(np.sum(is_unseen_J[index_N] & ~missing_N))
    return LogRatio(value_N, low_N, high_N, unseen, int(missing_N.sum()), unused)


def log_ratio_kde(
    query_KxD: ArrayLike,
    member_K: ArrayLike,
    at_NxD: ArrayLike,
    *,
    bandwidth: float,
    confidence: float = 0.95,
) -> LogRatio:
    """Estimates the log ratio of a continuous query, by kernel density estimates with Gaussian kernels.

    Evaluate the ratio on samples that were not fitted, since the kernel of a fitted sample makes its own query look
    more like its class.

    The intervals are for the ratio of the densities *smoothed by the kernel*, not of the densities themselves: of N(1,
    1) and N(0, 1) with a bandwidth of 1 and 500 samples of each class they contain the smoothed ratio, but hardly ever
    the ratio itself away from the crossing. That they are shorter than those of bins, as in MACE's Figure 2, therefore
    does not show that they are more accurate. They rest on a normal approximation, which fails where fewer than
    one kernel of a class is expected (n h^D p < 1): there they contain the smoothed ratio in as few as 79% of cases.
    Lower ends below 0 are set to 0.

    Up to 2^24 pairs of a fitted and an evaluated sample, kernels are summed exactly. Beyond it, single numbers are
    binned linearly on a grid of 64 points per bandwidth, which changes the density by less than 1e-4 where ten kernels
    or more are expected and ends kernels after 10 bandwidths; and vectors are compared with the first 2^13 samples of
    each class, so they should be in random order.

    Args:
      query_KxD: the queries of the fitted samples; query_K if they are single numbers. NaN is left out.
      member_K: booleans, whether each fitted sample is a member.
      at_NxD: the queries at which the ratio is evaluated; NaN gives NaN.
      bandwidth: standard deviation of the kernel in units of the queries, the same in each of the D dimensions: bring
        them to one scale first, as `normal_scores` does, for which `silverman_bandwidth` is made.
      confidence: in (0, 1), for each sample on its own: both densities are inside their intervals, each with tails of
        delta/4. In Lemma 7, z_(1 - delta/4) is the quantile of that order, not of order 1 - delta/2 as the text says.

    Returns:
      The log ratio at each of the N samples.

    Raises:
      ValueError: if bandwidth is not positive, confidence is out of range, shapes do not match, member_K is not
        boolean, a query is infinite, a class has no samples, or the grid would need more than 2^24 points.

    Source: MACE, Eqs. 19-20 and Lemmas 7-8; Chen 2017 for Lemma 7.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import log_ratio_kde
      >>> member_K = np.arange(2000) < 1000
      >>> query_K = np.random.default_rng(0).normal(size=2000) + member_K  # N(1, 1) and N(0, 1)
      >>> ratio = log_ratio_kde(query_K, member_K, at_NxD=[0.5], bandwidth=0.3)
      >>> bool(ratio.low_N[0] < 0 < ratio.high_N[0])  # both densities are equal in the middle
      True
    """
    check_confidence(confidence)
    if not 0 < bandwidth < np.inf:
        raise ValueError(f"bandwidth={bandwidth}: must be a positive number")
    query_KxD, member_K, unused = _fitted(_as_points(query_KxD, bandwidth, "query_KxD"), member_K)
    at_NxD = _as_points(at_NxD, bandwidth, "at_NxD")
    dimensions = query_KxD.shape[1]
    if at_NxD.shape[1] != dimensions:
        raise ValueError(
            f"query_KxD has {dimensions} numbers per sample and at_NxD {at_NxD.shape[1]}: they must be equal"
        )
    classes = [query_KxD[member_K], query_KxD[~member_K]]
    _check_classes(*map(len, classes))
    missing_N = np.isnan(at_NxD).any(axis=1)
    present_SxD = at_NxD[~missing_N]
    if len(query_KxD) * len(present_SxD) <= _MAX_PAIRS:
        log_kernels = [_log_mean_kernel(center_CxD, present_SxD) for center_CxD in classes]
    elif dimensions == 1:
        log_kernels = _log_mean_kernels_on_grid(classes, present_SxD[:, 0])
    else:
        classes = [center_CxD[:_MAX_CENTERS] for center_CxD in classes]
        log_kernels = [_log_mean_kernel(center_CxD, present_SxD) for center_CxD in classes]
    unused += len(query_KxD) - sum(map(len, classes))
    z = float(scipy.special.ndtri(1 - (1 - confidence) / 4))
    (p_S, p_low_S, p_high_S), (q_S, q_low_S, q_high_S) = (
        _with_ends(log_kernel_S, len(center_CxD), dimensions, z)
        for log_kernel_S, center_CxD in zip(log_kernels, classes, strict=True)
    )
    unseen_S = np.isneginf(p_S) & np.isneginf(q_S)
    value_N, low_N, high_N = np.full((3, len(at_NxD)), np.nan)
    with np.errstate(invalid="ignore"):  # -inf - -inf is replaced
        value_N[~missing_N] = np.where(unseen_S, 0.0, p_S - q_S)
        low_N[~missing_N] = np.where(np.isneginf(p_low_S), -np.inf, p_low_S - q_high_S)
        high_N[~missing_N] = np.where(np.isneginf(q_low_S), np.inf, p_high_S - q_low_S)
    return LogRatio(value_N, low_N, high_N, int(unseen_S.sum()), int(missing_N.sum()), unused)


def normal_scores(query_NxD: ArrayLike, by_KxD: ArrayLike) -> FloatArray:
    """Transforms queries so that the fitted ones are normally distributed, in each dimension on its own.

    The density ratio does not change under an increasing transformation. Kernels of one width fit normal scores, but
    not queries with heavy tails, such as losses.

    Args:
      query_NxD: the queries; query_N if they are single numbers.
      by_KxD: the fitted queries, by whose ranks they are transformed; NaN is left out.

    Returns:
      Phi^-1((r + 1/2) / (K + 1)), of the shape of query_NxD, where r fitted queries are smaller, and equal ones count
      one half; NaN for NaN.

    Raises:
      ValueError: if the shapes do not match, or if a dimension has no fitted query.
    """
    query_NxD, by_KxD = as_float64(query_NxD, "queries"), as_float64(by_KxD, "fitted queries")
    if query_NxD.ndim not in (1, 2) or query_NxD.shape[1:] != by_KxD.shape[1:]:
        raise ValueError(
            f"queries of shape {query_NxD.shape} and fitted queries of shape {by_KxD.shape}: must have equal dimensions"
        )
    score_NxD = np.full(query_NxD.shape, np.nan)
    columns = zip(*(np.atleast_2d(a.T) for a in (query_NxD, by_KxD, score_NxD)), strict=True)
    for query_N, by_K, score_N in columns:  # score_N is a view
        sorted_K = np.sort(by_K[~np.isnan(by_K)])
        if sorted_K.size == 0:
            raise ValueError("fitted queries: all are NaN; at least one is needed")
        below_N = np.searchsorted(sorted_K, query_N, side="left")
        twice_N = below_N + np.searchsorted(sorted_K, query_N, side="right")
        present_N = ~np.isnan(query_N)
        score_N[present_N] = scipy.special.ndtri((twice_N[present_N] + 1) / (2 * sorted_K.size + 2))
    return score_NxD


def silverman_bandwidth(samples: int, dimensions: int = 1) -> float:
    """Returns the bandwidth that suits normally distributed queries of standard deviation 1.

    Args:
      samples: the number of fitted samples of a class.
      dimensions: numbers per query.

    Returns:
      (4 / (n (D + 2)))^(1 / (D + 4)).

    Raises:
      ValueError: if a number is below 1, or not a whole number.

    Source: Silverman 1986, Eq. 4.14.
    """
    n, d = as_counts([samples, dimensions], "samples and dimensions").tolist()
    if not (n and d):
        raise ValueError(f"samples={samples}, dimensions={dimensions}: must be 1 or larger")
    return float((4 / (n * (d + 2))) ** (1 / (d + 4)))


def _with_ends(
    log_kernel_S: FloatArray, samples: int, dimensions: int, z: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns the log of the density at each query and of the ends of its interval, in units of the bandwidth.

    With the mean kernel m, the ends of Lemma 7 are m -+ z sqrt(mu m / n). All are logs, since densities far from all
    samples are below the smallest number.

    Args:
      log_kernel_S: log of the mean of the kernels.
      samples: number of kernels, n.
      dimensions: numbers per query.
      z: the quantile of the standard normal distribution.
    """
    log_mu = -dimensions / 2 * np.log(4 * np.pi)
    with np.errstate(divide="ignore", over="ignore"):
        log_margin_S = np.log(z) + (log_mu - np.log(samples) + log_kernel_S) / 2
        high_S = np.logaddexp(log_kernel_S, log_margin_S)
        share_S = np.exp(
            np.minimum(log_margin_S - np.where(np.isneginf(log_kernel_S), 0, log_kernel_S), 1)
        )
        positive_S = (share_S < 1) & ~np.isneginf(log_kernel_S)
        low_S = np.where(positive_S, log_kernel_S + np.log1p(-np.minimum(share_S, 1)), -np.inf)
    return log_kernel_S, low_S, high_S


def _log_mean_kernel(center_CxD: FloatArray, at_SxD: FloatArray) -> FloatArray:
    """Returns the log of the mean of the kernels at each query, summed exactly; all in units of the bandwidth."""
    log_mean_S = np.empty(len(at_SxD))
    step = max(1, _PAIRS // len(center_CxD))
    for start in range(0, len(at_SxD), step):
        block = slice(start, start + step)
        exponent = np.zeros((len(at_SxD[block]), len(center_CxD)))
        for at_S, center_C in zip(at_SxD[block].T, center_CxD.T, strict=True):
            difference = at_S[:, None] - center_C
            difference *= difference
            exponent -= difference
        exponent *= 0.5
        largest_S = exponent.max(axis=1)
        exponent -= largest_S[:, None]
        log_mean_S[block] = largest_S + np.log(np.exp(exponent, out=exponent).mean(axis=1))
    return log_mean_S - center_CxD.shape[1] / 2 * np.log(2 * np.pi)


def _log_mean_kernels_on_grid(classes: list[FloatArray], at_S: FloatArray) -> list[FloatArray]:
    """Returns the result of `_log_mean_kernel` for single numbers, by linear binning of the centers on a grid."""
    pad = _REACH * _STEPS_PER_BANDWIDTH
    lowest = min(center_Cx1.min() for center_Cx1 in classes) * _STEPS_PER_BANDWIDTH
    span = max(center_Cx1.max() for center_Cx1 in classes) * _STEPS_PER_BANDWIDTH - lowest
    if not span + 2 * pad < _MAX_GRID:
        raise ValueError(
            f"bandwidth: the queries range over {span / _STEPS_PER_BANDWIDTH:.3g} bandwidths, too many for a grid of "
            f"{_MAX_GRID} points; use normal_scores or a larger bandwidth"
        )
    points = int(span) + 2 * pad + 2
    kernel = np.exp(-0.5 * (np.arange(-pad, pad + 1) / _STEPS_PER_BANDWIDTH) ** 2)
    position_S = at_S * _STEPS_PER_BANDWIDTH - lowest + pad
    inside_S = (position_S >= 0) & (position_S < points - 1)
    left_S, fraction_S = _grid_position(np.where(inside_S, position_S, 0))
    results: list[FloatArray] = []
    for center_Cx1 in classes:
        left_C, fraction_C = _grid_position(center_Cx1[:, 0] * _STEPS_PER_BANDWIDTH - lowest + pad)
        mass_G = np.bincount(left_C, 1 - fraction_C, minlength=points)
        mass_G += np.bincount(left_C + 1, fraction_C, minlength=points)
        # Not by a Fourier transform, whose rounding errors would hide low densities.
        density_G = np.convolve(mass_G, kernel, mode="same") / len(center_Cx1)
        seen_S = inside_S & (density_G[left_S] > 0) & (density_G[left_S + 1] > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_G = np.log(density_G)
            # Interpolating logs is more accurate in the tails, where the density falls exponentially.
            between_S = (1 - fraction_S) * log_G[left_S] + fraction_S * log_G[left_S + 1]
        results.append(np.where(seen_S, between_S - 0.5 * np.log(2 * np.pi), -np.inf))
    return results


def _grid_position(position_S: FloatArray) -> tuple[IntArray, FloatArray]:
    left_S = np.floor(position_S).astype(np.int64)
    return left_S, position_S - left_S


def _fitted(query: FloatArray, member_K: ArrayLike) -> tuple[FloatArray, BoolArray, int]:
    """Returns the fitted samples without those that are NaN, their membership, and the number of samples left out."""
    member_K = as_members(member_K, "member_K")
    if member_K.shape != query.shape[:1]:
        raise ValueError(
            f"queries of shape {query.shape} do not match members of shape {member_K.shape}"
        )
    present_K = ~np.isnan(query if query.ndim == 1 else query.sum(axis=1))
    return query[present_K], member_K[present_K], int((~present_K).sum())


def _as_points(query_NxD: ArrayLike, bandwidth: float, name: str) -> FloatArray:
    """Returns queries in units of the bandwidth, as point_NxD."""
    query_NxD = as_float64(query_NxD, name)
    if query_NxD.ndim not in (1, 2) or (query_NxD.ndim == 2 and query_NxD.shape[1] == 0):
        raise ValueError(
            f"{name} of shape {query_NxD.shape}: must be one row of numbers per sample"
        )
    with np.errstate(over="ignore"):
        point_NxD = (query_NxD if query_NxD.ndim == 2 else query_NxD[:, None]) / bandwidth
    check_magnitude(point_NxD, f"{name} in units of the bandwidth")
    return point_NxD


def _as_bins(bins: int) -> int:
    if not 1 <= bins < np.inf or bins != int(bins):
        raise ValueError(f"bins={bins}: must be a whole number of at least 1")
    return int(bins)


def _as_bin(bin_N: ArrayLike, bins: int, name: str) -> FloatArray:
    bin_N = as_float64(bin_N, name)
    if bin_N.ndim != 1:
        raise ValueError(f"{name} of shape {bin_N.shape}: must be one bin per sample")
    present_N = bin_N[~np.isnan(bin_N)]
    if not np.all((present_N >= 0) & (present_N < bins) & (present_N == np.floor(present_N))):
        raise ValueError(f"{name}: must be whole numbers from 0 to bins - 1 = {bins - 1}, or NaN")
    return bin_N


def _check_classes(members: int, nonmembers: int) -> None:
    for count, name in ((members, "member"), (nonmembers, "non-member")):
        if count == 0:
            raise ValueError(f"no fitted sample is a {name}; both classes are needed")
