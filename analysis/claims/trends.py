"""How one property of samples depends on another: rank correlations, gaps, and means in bins, with intervals.

Samples that are pieces of one document are alike, so intervals are over documents: what a sample contributes to a
number is summed over the samples of each document, and the variance follows from these sums. Intervals that treat
pieces as independent are too narrow (benchmarks/pieces.py). If documents are not split, each sample is a document.

N: samples, S: samples without missing values, D: documents, K: bins.
"""

import dataclasses
import math
from typing import Self

import numpy as np
import scipy  # its parts are loaded when they are first used

from analysis.claims.compare import ALPHA, Estimate, VarianceTerm
from lm_mia import stats

_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class RankCorrelation:
    """Spearman's rank correlation of two quantities, with its 95% interval over the choice of documents."""

    r: float
    standard_error: float
    samples: int
    documents: int
    """The number of documents to which the samples belong."""

    def __str__(self) -> str:
        return f"{_two_digits(self.r)} [{_two_digits(self.low)}, {_two_digits(self.high)}]"

    @classmethod
    def from_samples(cls, x_N: np.ndarray, y_N: np.ndarray, document_N: np.ndarray) -> Self | None:
        """Returns the rank correlation of x and y; None if one is constant or there are at most three documents.

        Infinite values are ranked; samples with a NaN are left out.

        Args:
          x_N, y_N: the quantities.
          document_N: the document of each sample, integers.
        """
        present_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S, document_S = (v[present_N] for v in (x_N, y_N, document_N))
        documents = len(np.unique(document_S))
        r = rank_correlation(x_S, y_S)
        if math.isnan(r) or documents <= 3:
            return None
        influence_S = _influence_on_correlation(x_S, y_S)
        one_bin_S = np.zeros(len(x_S), np.int64)
        variance = _variance_of_sum(influence_S / len(x_S), document_S, one_bin_S)
        return cls(r, float(np.sqrt(variance[0])), len(x_S), documents)

    @property
    def low(self) -> float:
        """The lower end of the interval, which is symmetric on Fisher's scale, arctanh(r)."""
        return self._end(-1)

    @property
    def high(self) -> float:
        """The upper end of the interval, which is symmetric on Fisher's scale, arctanh(r)."""
        return self._end(1)

    def _end(self, sign: int) -> float:
        if abs(self.r) == 1:  # The scale ends here.
            return self.r
        margin = _quantile(self.documents - 1) * self.standard_error / (1 - self.r**2)
        return math.tanh(math.atanh(self.r) + sign * margin)

    def estimate(self, not_covered: tuple[str, ...]) -> Estimate:
        """Returns the correlation with a symmetric interval, for claims; ``not_covered`` as in `Estimate`."""
        over = f"{self.samples:,} samples"
        if self.documents < self.samples:
            over += f" of {self.documents:,} documents"
        # A correlation of 1 or -1 is a coincidence among few samples. Its standard error is 0, up to rounding.
        standard_error = self.standard_error if self.standard_error > _ROUNDING else math.nan
        return Estimate(self.r, standard_error, self.documents - 1, over, not_covered)


def rank_correlation(x_N: np.ndarray, y_N: np.ndarray) -> float:
    """Returns Spearman's rank correlation; NaN if one quantity is constant or there are at most three samples.

    Infinite values are ranked; samples with a NaN are left out.
    """
    present_N = ~(np.isnan(x_N) | np.isnan(y_N))
    u_S, v_S = _centered_ranks(x_N[present_N]), _centered_ranks(y_N[present_N])
    scale = math.sqrt((u_S @ u_S) * (v_S @ v_S))
    if len(u_S) <= 3 or scale == 0:
        return math.nan
    return min(max(float(u_S @ v_S) / scale, -1.0), 1.0)


def _centered_ranks(x_S: np.ndarray) -> np.ndarray:
    """Returns the ranks divided by their number, with a mean of 0; equal values share the mean of their ranks."""
    return (scipy.stats.rankdata(x_S) - (len(x_S) + 1) / 2) / max(len(x_S), 1)


def _influence_on_correlation(x_S: np.ndarray, y_S: np.ndarray) -> np.ndarray:
    """Returns the influence of each sample on Spearman's rank correlation.

    With the centered ranks u and v, the correlation is mean(u v) / sqrt(mean(u^2) mean(v^2)). A sample changes each of
    the means by its own product, and because it shifts the ranks of the samples above it. The mean of the influences is
    0, and their variance divided by the number of samples is that of the correlation.

    Source: Hampel et al. (1986), Robust Statistics, Chapter 2, for the influence of a sample on a function of means.
    """
    u_S, v_S = _centered_ranks(x_S), _centered_ranks(y_S)
    uv, uu, vv = (float(np.mean(z_S)) for z_S in (u_S * v_S, u_S**2, v_S**2))
    on_uv_S = u_S * v_S + _mean_above(x_S, v_S) + _mean_above(y_S, u_S)
    on_uu_S = u_S**2 + 2 * _mean_above(x_S, u_S)
    on_vv_S = v_S**2 + 2 * _mean_above(y_S, v_S)
    influence_S = (on_uv_S - uv / 2 * (on_uu_S / uu + on_vv_S / vv)) / math.sqrt(uu * vv)
    return influence_S - influence_S.mean()


def _mean_above(x_S: np.ndarray, value_S: np.ndarray) -> np.ndarray:
    """Returns, for each sample, the sum of the values of the samples with a larger x, and of half of those with an
    equal x, divided by the number of all samples."""
    order_S = np.argsort(x_S, kind="stable")
    sorted_S, below_S1 = x_S[order_S], np.append(0.0, np.cumsum(value_S[order_S]))
    first_S, after_S = (np.searchsorted(sorted_S, x_S, side) for side in ("left", "right"))
    return (below_S1[-1] - (below_S1[first_S] + below_S1[after_S]) / 2) / len(x_S)


_BIN_SAMPLES, _MOST_BINS = 20, 1000


def gap_at_equal(
    x_N: np.ndarray,
    y_N: np.ndarray,
    is_first_N: np.ndarray,
    document_N: np.ndarray,
    not_covered: tuple[str, ...] = (),
) -> Estimate:
    """Returns the mean of y in a first group of samples minus that in the others, at equal x, over documents.

    Samples of both groups are divided by x into bins of about equally many, at least 20. Within each bin, y and
    membership in the first group are predicted from x by straight lines, and the gap is the slope of the errors of y
    over those of membership: the coefficient of membership in a least-squares regression with an intercept and a slope
    for each bin. So x counts as far as both groups have it. If y depends on x alone, the gap is 0 up to the curvature
    of y and of membership within bins; bins become narrower with more samples, up to 1,000 bins.

    Args:
      x_N, y_N: the quantities; samples with a NaN are left out.
      is_first_N: whether each sample belongs to the first group.
      document_N: the document of each sample, integers.
      not_covered: as in `Estimate`.

    Returns:
      The gap; NaN if groups do not overlap, and without an interval if there are too few documents.

    Source: Frisch and Waugh (1933) for the slope of errors; Liang and Zeger (1986) for the variance over documents.
    """
    present_N = ~(np.isnan(x_N) | np.isnan(y_N))
    x_S, y_S, first_S = (v[present_N].astype(float) for v in (x_N, y_N, is_first_N))
    document_S, count = document_N[present_N], int(present_N.sum())
    documents = len(np.unique(document_S))
    over = f"{count:,} samples" + (f" of {documents:,} documents" if documents < count else "")
    bins = min(max(count // _BIN_SAMPLES, 1), _MOST_BINS)
    bin_S = _bins(x_S, stats.equal_count_bins(x_S, y_S, bins).count_K)
    first_error_S, y_error_S = (_errors_of_lines(x_S, v_S, bin_S) for v_S in (first_S, y_S))
    total = float(first_error_S @ first_error_S)
    if not total > _ROUNDING * count:
        return Estimate(math.nan, math.nan, math.nan, over, not_covered)
    gap = float(first_error_S @ y_error_S) / total
    influence_S = first_error_S * (y_error_S - gap * first_error_S) / total
    variance = _variance_of_sum(influence_S, document_S, np.zeros(count, np.int64))[0]
    free = count - 2 * (int(bin_S.max(initial=0)) + 1) - 1
    if free < 1 or documents < 2:
        return Estimate(gap, math.nan, math.nan, over, not_covered)
    if math.sqrt(variance) < _ROUNDING:  # y is a straight line in each bin, up to rounding.
        gap, variance = round(gap, 9), 0.0
    # The errors are smaller than they would be on other samples, since the lines are fitted to these.
    term = VarianceTerm(float(variance) * count / free, min(free, documents - 1))
    return Estimate.from_variance(gap, [term], over, not_covered)


def _errors_of_lines(x_S: np.ndarray, value_S: np.ndarray, bin_S: np.ndarray) -> np.ndarray:
    """Returns values minus those of the straight line in x that fits those of their bin best."""
    x_S, value_S = (v_S - _bin_means(v_S, bin_S)[bin_S] for v_S in (x_S, value_S))
    with np.errstate(invalid="ignore"):
        slope_K = np.nan_to_num(_bin_means(x_S * value_S, bin_S) / _bin_means(x_S**2, bin_S))
    return value_S - slope_K[bin_S] * x_S


def _bin_means(value_S: np.ndarray, bin_S: np.ndarray) -> np.ndarray:
    return np.bincount(bin_S, value_S) / np.bincount(bin_S)


def _bins(x_S: np.ndarray, count_K: np.ndarray) -> np.ndarray:
    """Returns the bin of each sample, where bins with these numbers of samples are consecutive in the order of x."""
    bin_S = np.empty(len(x_S), np.int64)
    bin_S[np.argsort(x_S, kind="stable")] = np.repeat(np.arange(len(count_K)), count_K)
    return bin_S


@dataclasses.dataclass(frozen=True)
class BinnedMeans:
    """Means of y in K bins of x with about equally many samples, with 95% bands over the choice of documents."""

    x_K: np.ndarray
    y_K: np.ndarray
    low_K: np.ndarray
    high_K: np.ndarray
    count_K: np.ndarray
    """Numbers of samples."""

    @classmethod
    def from_samples(
        cls, x_N: np.ndarray, y_N: np.ndarray, document_N: np.ndarray, bins: int
    ) -> Self:
        """Returns the means of y, fractions in [0, 1], in up to ``bins`` bins of x.

        Bands are t intervals, or Clopper-Pearson's if every y is 0 or 1. Clopper-Pearson's are those of the number of
        independent samples that would have the same variance; in a bin where all y are equal, it is the number of
        documents. Samples with a NaN are left out. Equal values of x stay in one bin, so there may be fewer bins
        (`equal_count_bins`).

        Args:
          x_N, y_N: the quantities.
          document_N: the document of each sample, integers.
          bins: the largest number of bins.

        Source: Korn and Graubard (1998), Confidence intervals for proportions with small expected number of positive
        counts, for Clopper-Pearson intervals of dependent samples.
        """
        binned = stats.equal_count_bins(x_N, y_N, bins)
        y_K, count_K = binned.y_mean_K, binned.count_K
        present_N = ~(np.isnan(x_N) | np.isnan(y_N))
        x_S, y_S, document_S = (v[present_N] for v in (x_N, y_N, document_N))
        bin_S = _bins(x_S, count_K)
        contribution_S = (y_S - y_K[bin_S]) / count_K[bin_S]
        variance_K = _variance_of_sum(contribution_S, document_S, bin_S)
        documents_K = np.bincount(_pairs(document_S, bin_S)[0], minlength=len(count_K))
        if np.isin(y_S, (0, 1)).all():
            low_K, high_K = _proportion_interval(y_K, count_K, documents_K, variance_K)
        else:
            margin_K = _quantile(documents_K - 1) * np.sqrt(variance_K)
            low_K, high_K = np.clip(y_K - margin_K, 0, 1), np.clip(y_K + margin_K, 0, 1)
        return cls(binned.x_mean_K, y_K, low_K, high_K, count_K)


def _proportion_interval(
    y_K: np.ndarray, count_K: np.ndarray, documents_K: np.ndarray, variance_K: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns Clopper-Pearson's interval of each proportion, as in `BinnedMeans.from_samples`."""
    independent_K = y_K * (1 - y_K)
    with np.errstate(divide="ignore", invalid="ignore"):
        size_K = 1 + independent_K / variance_K
        # Few documents determine the variance less well than samples would.
        size_K *= (_quantile(count_K - 1) / _quantile(documents_K - 1)) ** 2
    size_K = np.where(variance_K > 0, np.minimum(size_K, count_K), documents_K)
    positives_K = y_K * size_K
    low_K, high_K = np.zeros(len(y_K)), np.ones(len(y_K))
    some_K, not_all_K = y_K > 0, y_K < 1
    negatives_K = size_K - positives_K
    low_K[some_K] = scipy.stats.beta.ppf(ALPHA / 2, positives_K[some_K], negatives_K[some_K] + 1)
    high_K[not_all_K] = scipy.stats.beta.ppf(
        1 - ALPHA / 2, positives_K[not_all_K] + 1, negatives_K[not_all_K]
    )
    return low_K, high_K


def _pairs(document_S: np.ndarray, bin_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bin of each pair of a document and a bin that occurs, and the pair of each sample."""
    _, index_S = np.unique(document_S, return_inverse=True)
    bins = int(bin_S.max(initial=0)) + 1
    pair, pair_S = np.unique(index_S * bins + bin_S, return_inverse=True)
    return pair % bins, pair_S


def _variance_of_sum(
    contribution_S: np.ndarray, document_S: np.ndarray, bin_S: np.ndarray
) -> np.ndarray:
    """Returns variance_K, the variance of the sum of the contributions to each bin, whose expectations are 0.

    The contributions of one document are summed first, since they depend on each other; NaN for a single document.
    """
    bin_of_pair, pair_S = _pairs(document_S, bin_S)
    total = np.bincount(pair_S, contribution_S)
    documents_K = np.bincount(bin_of_pair)
    with np.errstate(divide="ignore", invalid="ignore"):
        return documents_K / (documents_K - 1) * np.bincount(bin_of_pair, total**2)


def _quantile(degrees_of_freedom: np.ndarray | int) -> np.ndarray:
    """Returns the 97.5% quantile of the t distribution; NaN without degrees of freedom."""
    return scipy.stats.t.ppf(1 - ALPHA / 2, degrees_of_freedom)


def _two_digits(number: float) -> str:
    """Formats a number with two decimals, without a sign before zero."""
    return f"{round(number, 2) + 0:.2f}".replace("-", "−")
