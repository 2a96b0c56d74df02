"""What a single sample looks like over many targets: margins, and how surely it is found.

Shapes: T targets, M rows (models, each in turn the target), N samples, F false positive rates, K
bins. StrongMIA Appendices E.1 and E.2.5.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike, NDArray

_CELLS = 2**17  # float64 numbers worked on at once: they fit the cache


@dataclasses.dataclass(frozen=True)
class Bins:
    """Means in bins of x that hold equally many samples, as far as ties allow; K bins, none empty."""

    x_mean_K: NDArray[np.float64]
    """Rising."""
    y_mean_K: NDArray[np.float64]
    count_K: NDArray[np.int64]
    left_out: int
    """Samples whose x or y is NaN."""


@dataclasses.dataclass(frozen=True)
class TruePositives:
    """How surely each sample is found in the models that were trained on it (StrongMIA Figure 21)."""

    mean_N: NDArray[np.float64]
    """Posterior of membership, mean over the rows that have the sample; NaN if there is none."""
    std_N: NDArray[np.float64]
    """With ddof 0."""
    share_above_half_N: NDArray[np.float64]
    """Of these rows, those whose posterior is above 1/2, which call the sample a member."""
    targets_N: NDArray[np.int64]
    """Rows that have the sample as a member and a posterior for it."""


def equal_count_bins(x_N: ArrayLike, y_N: ArrayLike, bins: int) -> Bins:
    """Means of x and y in quantile bins of x.

    Equal x stay together, in the bin of the first of them, so bins may differ in size and be fewer
    than asked; without ties sizes differ by one at most.

    Args:
      x_N: what is binned, such as `mean_abs_distance` at one rate.
      y_N: what is averaged, such as flip rates.
      bins: how many, 1 or more.

    Raises:
      ValueError: bins below 1, shapes that do not fit, or an infinite number.

    Source: StrongMIA Figures 26 and 27, middle and right columns.
    """
    x_N, y_N = (
        v if v.dtype == np.float32 else v.astype(np.float64, copy=False)
        for v in map(np.asarray, (x_N, y_N))
    )
    if x_N.ndim != 1 or x_N.shape != y_N.shape:
        raise ValueError(f"x of shape {x_N.shape}, y of {y_N.shape}: must be one number a sample")
    if bins < 1:
        raise ValueError(f"bins={bins}: must be 1 or more")
    if np.isinf(x_N).any() or np.isinf(y_N).any():
        raise ValueError("x and y must be finite, or NaN")
    there_N = ~(np.isnan(x_N) | np.isnan(y_N))
    x_S, y_S = (x_N, y_N) if there_N.all() else (x_N[there_N], y_N[there_N])
    edge_K = _edges(np.sort(x_S), bins)
    count_K, sum_2xK = np.zeros(edge_K.size, np.int64), np.zeros((2, edge_K.size))
    # Samples find their bins a chunk at a time: only the sorted x is as long as the samples.
    for start in range(0, x_S.size, _CELLS):
        at = slice(start, start + _CELLS)
        bin_C = np.searchsorted(edge_K, x_S[at], side="right") - 1
        count_K += np.bincount(bin_C, minlength=edge_K.size)
        for of, v_S in enumerate((x_S, y_S)):
            sum_2xK[of] += np.bincount(bin_C, v_S[at], minlength=edge_K.size)
    x_mean_K, y_mean_K = sum_2xK / count_K
    return Bins(x_mean_K, y_mean_K, count_K, left_out=int(x_N.size - x_S.size))


def _edges(sorted_S: NDArray, bins: int) -> NDArray:
    """The lowest x of each bin: sample r, counted from 0, is of bin r bins // S, with all its equals."""
    if sorted_S.size == 0:
        return sorted_S
    first_K = -(-np.arange(bins) * sorted_S.size // bins)  # whole numbers: no quantile is rounded
    first_K = first_K[first_K < sorted_S.size]
    x_K = sorted_S[first_K]
    # Where equals of an earlier bin reach into a bin, it starts at the next x.
    begins_K = np.searchsorted(sorted_S, x_K, side="left") == first_K
    start_K = np.where(begins_K, first_K, np.searchsorted(sorted_S, x_K, side="right"))
    return sorted_S[np.unique(start_K[start_K < sorted_S.size])]


def true_positive_probability(posterior_MxN: ArrayLike, member_MxN: ArrayLike) -> TruePositives:
    """Mean and STD, over the models trained on a sample, of how surely it is called a member.

    Args:
      posterior_MxN: p_in / (p_in + p_out) of every row as the target, such as the
        `lm_mia.stats.likelihood_ratio.posterior` of `lira_leave_one_out`; NaN is missing and left out.
      member_MxN: booleans.

    Returns:
      One number a sample; NaN for a sample without a row that counts.

    Raises:
      ValueError: shapes that do not fit, non-boolean members, or a posterior outside [0, 1].

    Source: StrongMIA Appendix E.1, Figure 21.
    """
    posterior_MxN, member_MxN = np.asarray(posterior_MxN), np.asarray(member_MxN)
    if posterior_MxN.ndim != 2 or member_MxN.shape != posterior_MxN.shape:
        raise ValueError(f"posteriors of {posterior_MxN.shape}, members of {member_MxN.shape}")
    if member_MxN.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_MxN.dtype}")
    rows, samples = posterior_MxN.shape
    mean_N, std_N, above_N = np.full((3, samples), np.nan)
    targets_N = np.zeros(samples, dtype=np.int64)
    step = max(1, _CELLS // max(1, rows))
    for start in range(0, samples, step):
        part = slice(start, start + step)
        given_MxC = posterior_MxN[:, part].astype(np.float64, copy=False)
        counts_MxC = member_MxN[:, part] & ~np.isnan(given_MxC)
        posterior_MxC = np.where(counts_MxC, given_MxC, 0.0)
        check_posterior(posterior_MxC)
        targets_N[part] = counts_MxC.sum(axis=0)
        mean_N[part] = _over(posterior_MxC.sum(axis=0), targets_N[part])
        above_N[part] = _over((posterior_MxC > 0.5).sum(axis=0), targets_N[part])
        # By deviations, so that what is nearly equal keeps its small spread.
        apart_MxC = np.where(counts_MxC, posterior_MxC - mean_N[part], 0.0)
        std_N[part] = np.sqrt(_over((apart_MxC**2).sum(axis=0), targets_N[part]))
    return TruePositives(mean_N, std_N, above_N, targets_N)


def _over(total_C: NDArray, targets_C: NDArray[np.int64]) -> NDArray[np.float64]:
    nan_C = np.full(total_C.shape, np.nan)
    return np.divide(total_C, targets_C, out=nan_C, where=targets_C > 0)


def check_posterior(posterior: NDArray[np.float64]) -> None:
    """Raises ValueError where a posterior is not NaN and lies outside [0, 1]."""
    if np.any((posterior < 0) | (posterior > 1)):
        raise ValueError(
            "posteriors must lie in [0, 1]: scores are turned into them by posterior()"
        )
