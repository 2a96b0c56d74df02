"""Statistics of single samples over many targets: binned means, and how reliably members are detected.

Legend: T targets, M models (each in turn the target), N samples, S samples with both values, C samples of a chunk, K
bins. StrongMIA, Appendices E.1 and E.2.5.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray, IntArray
from lm_mia.stats.inputs import as_members, as_real

_CELLS = 2**17  # float64 numbers that are processed at once: they fit the cache


@dataclasses.dataclass(frozen=True)
class BinnedMeans:
    """Means of x and y in K non-empty bins of x, which have equal sizes as far as ties allow."""

    x_mean_K: FloatArray
    """In ascending order."""
    y_mean_K: FloatArray
    count_K: IntArray
    """Number of samples in each bin."""
    left_out: int
    """Number of samples whose x or y is NaN."""


@dataclasses.dataclass(frozen=True)
class TruePositiveProbabilities:
    """How reliably each sample is detected in the models that were trained on it (StrongMIA, Figure 21)."""

    mean_N: FloatArray
    """Mean posterior of membership over the models trained on the sample; NaN if there is none."""
    std_N: FloatArray
    """Standard deviation of these posteriors (ddof=0)."""
    share_above_half_N: FloatArray
    """Share of these posteriors that are above 1/2, which means the decision "member"."""
    models_N: IntArray
    """Number of models that were trained on the sample and have a posterior for it."""


def equal_count_bins(x_N: ArrayLike, y_N: ArrayLike, bins: int) -> BinnedMeans:
    """Computes means of x and y in quantile bins of x.

    Equal values of x are never separated: they belong to the bin of the first of them. With ties there can therefore be
    fewer bins than requested, of different sizes; without ties the sizes differ by at most one.

    Args:
      x_N: the values that define the bins, for example `mean_distance_to_threshold` at one rate; NaN is left out.
      y_N: the values that are averaged, for example flip rates; NaN is left out.
      bins: number of bins, at least 1.

    Returns:
      Means and counts of each bin.

    Raises:
      ValueError: if bins is below 1, if the shapes do not match, if a value is infinite, or if a sum overflows.

    Source: StrongMIA, Figures 26 and 27, middle and right columns.

    Example:
      >>> from lm_mia.stats import equal_count_bins
      >>> result = equal_count_bins([4.0, 1.0, 3.0, 2.0], [40.0, 10.0, 30.0, 20.0], bins=2)
      >>> result.x_mean_K, result.y_mean_K
      (array([1.5, 3.5]), array([15., 35.]))
    """
    x_N, y_N = (
        v if v.dtype == np.float32 else v.astype(np.float64, copy=False)
        for v in (as_real(x_N, "x"), as_real(y_N, "y"))
    )
    if x_N.ndim != 1 or x_N.shape != y_N.shape:
        raise ValueError(
            f"x of shape {x_N.shape} and y of shape {y_N.shape}: must hold one number per sample"
        )
    if bins < 1 or bins != int(bins):
        raise ValueError(f"bins={bins}: must be a whole number of at least 1")
    if np.isinf(x_N).any() or np.isinf(y_N).any():
        raise ValueError("x and y must be finite or NaN")
    present_N = ~(np.isnan(x_N) | np.isnan(y_N))
    x_S, y_S = (x_N, y_N) if present_N.all() else (x_N[present_N], y_N[present_N])
    edge_K = equal_count_edges(np.sort(x_S), int(bins))
    count_K, sum_2xK = np.zeros(edge_K.size, np.int64), np.zeros((2, edge_K.size))
    # Samples are assigned to bins in chunks, so only the sorted x needs memory for all samples.
    for start in range(0, x_S.size, _CELLS):
        chunk = slice(start, start + _CELLS)
        bin_C = np.searchsorted(edge_K, x_S[chunk], side="right") - 1
        count_K += np.bincount(bin_C, minlength=edge_K.size)
        for i, value_S in enumerate((x_S, y_S)):
            sum_2xK[i] += np.bincount(bin_C, value_S[chunk], minlength=edge_K.size)
    if not np.isfinite(sum_2xK).all():
        raise ValueError("x and y are too large: the sums over a bin overflow; rescale them")
    x_mean_K, y_mean_K = sum_2xK / count_K
    return BinnedMeans(x_mean_K, y_mean_K, count_K, left_out=int(x_N.size - x_S.size))


def equal_count_edges(sorted_S: ArrayLike, bins: int) -> FloatArray:
    """Returns the lowest value of each of the equal-count bins of sorted values.

    Sample r, counted from 0 in ascending order, belongs to bin floor(r bins / S), as do all samples that equal it.

    Args:
      sorted_S: values in ascending order, without NaN.
      bins: number of bins, at least 1.

    Returns:
      edge_K, ascending, of the type of the values; fewer than bins if values are tied or there are fewer values. The
      bin of a value is the number of edges up to it, minus 1.

    Raises:
      ValueError: if there is more than one dimension, or none, or if the values are not real numbers.
    """
    as_real(sorted_S, "values")
    sorted_S = np.asarray(sorted_S)  # of its own type, also if the values are integers
    if sorted_S.ndim != 1:
        raise ValueError(f"values of shape {sorted_S.shape}: must have one dimension")
    if sorted_S.size == 0:
        return sorted_S
    first_K = -(-np.arange(bins) * sorted_S.size // bins)  # integers, so quantiles are not rounded
    first_K = first_K[first_K < sorted_S.size]
    x_K = sorted_S[first_K]
    # If values equal to the last of the previous bin extend into a bin, it starts at the next distinct x.
    starts_here_K = np.searchsorted(sorted_S, x_K, side="left") == first_K
    start_K = np.where(starts_here_K, first_K, np.searchsorted(sorted_S, x_K, side="right"))
    return sorted_S[np.unique(start_K[start_K < sorted_S.size])]


def true_positive_probability(
    posterior_MxN: ArrayLike, member_MxN: ArrayLike
) -> TruePositiveProbabilities:
    """Computes, for each sample, the mean and STD of the posterior over the models that were trained on it.

    Args:
      posterior_MxN: p_in / (p_in + p_out) with each model as the target, for example the `posterior` of
        `lira_leave_one_out`; NaN marks a missing posterior, which is left out.
      member_MxN: booleans, whether each sample was in each model's training subset.

    Returns:
      One number per sample; NaN for a sample that has no posterior under a model that was trained on it.

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, or if a posterior is outside [0, 1].

    Source: StrongMIA, Appendix E.1, Figure 21.
    """
    posterior_MxN, member_MxN = as_real(posterior_MxN, "posteriors"), as_members(member_MxN)
    if posterior_MxN.ndim != 2 or member_MxN.shape != posterior_MxN.shape:
        raise ValueError(
            f"posteriors of shape {posterior_MxN.shape} do not match members of shape "
            f"{member_MxN.shape}"
        )
    models, samples = posterior_MxN.shape
    mean_N, std_N, share_above_half_N = np.full((3, samples), np.nan)
    models_N = np.zeros(samples, dtype=np.int64)
    step = max(1, _CELLS // max(1, models))
    for start in range(0, samples, step):
        chunk = slice(start, start + step)
        chunk_MxC = posterior_MxN[:, chunk].astype(np.float64, copy=False)
        counted_MxC = member_MxN[:, chunk] & ~np.isnan(chunk_MxC)
        posterior_MxC = np.where(counted_MxC, chunk_MxC, 0.0)
        check_posterior(posterior_MxC)
        models_C = models_N[chunk] = counted_MxC.sum(axis=0)
        mean_N[chunk] = _divide_or_nan(posterior_MxC.sum(axis=0), models_C)
        share_above_half_N[chunk] = _divide_or_nan((posterior_MxC > 0.5).sum(axis=0), models_C)
        # The variance is computed from deviations, so that a small spread keeps its precision.
        deviation_MxC = np.where(counted_MxC, posterior_MxC - mean_N[chunk], 0.0)
        std_N[chunk] = np.sqrt(_divide_or_nan((deviation_MxC**2).sum(axis=0), models_C))
    return TruePositiveProbabilities(mean_N, std_N, share_above_half_N, models_N)


def _divide_or_nan(total_C: np.ndarray, count_C: IntArray) -> FloatArray:
    nan_C = np.full(total_C.shape, np.nan)
    return np.divide(total_C, count_C, out=nan_C, where=count_C > 0)


def check_posterior(posterior: FloatArray) -> None:
    """Raises ValueError if a posterior is outside [0, 1]; NaN is allowed."""
    if np.any((posterior < 0) | (posterior > 1)):
        raise ValueError("posteriors must be in [0, 1]; posterior() converts LiRA scores to them")
