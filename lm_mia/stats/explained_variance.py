"""How much of the variance of a value over replicas is explained by a property that replicas give to a sample.

An example is the step at which a replica last saw the sample. Samples differ far more than replicas, so each sample is
compared with itself under other replicas: the variance is that around the mean of each sample.

Legend: B replicas, N samples, K bins of the property.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_counts, as_float64, check_magnitude


@dataclasses.dataclass(frozen=True)
class ExplainedVariance:
    """Shares of the variance within samples, adjusted so that an unrelated property explains about 0."""

    share: float
    """The share that a curve over the bins explains, which all samples have in common."""
    own_share: float
    """The share that this curve explains if each sample multiplies it by a factor of its own."""
    own_curve_share: float
    """The share that curves of any shape explain, one for each sample: the means of its own bins."""
    curve_K: FloatArray
    """The curve: mean value of each bin, apart from the differences between samples; its mean over pairs of replica and
    sample is 0. NaN for bins without such pairs."""


def explained_within_samples(
    value_BxN: ArrayLike, bin_BxN: ArrayLike, bins: int
) -> ExplainedVariance:
    """Regresses a value on bins of a property, with a constant for each sample (fixed effects).

    R^2 = 1 - SS_residual / SS_total is adjusted for the number of parameters: the sums of squares are divided by their
    degrees of freedom, which are N (B - 1) in total. The curve has one parameter less than there are bins, and factors
    of their own have one for each sample. A curve of its own has one parameter less than the sample has bins.

    Args:
      value_BxN: the value of each sample under each replica, without NaN.
      bin_BxN: the bin of the property of each sample under each replica, from 0 to ``bins`` - 1.
      bins: K.

    Returns:
      The shares and the curve. A share is NaN without a variance within samples, or where no degree of freedom remains.

    Raises:
      ValueError: if the shapes do not match, a value is NaN, infinite or too large, a bin is not among the ``bins``, or
        there are fewer than 3 replicas.

    Source: the within estimator of panel data, as in Wooldridge (2010), Econometric Analysis of Cross Section and Panel
    Data, Section 10.5; the factors of each sample are derived here.

    Example:
      >>> from lm_mia.stats import explained_within_samples
      >>> found = explained_within_samples([[0, 5], [1, 5], [1, 6]], [[0, 0], [1, 0], [1, 1]], 2)
      >>> round(found.share, 3), found.curve_K.round(3)
      (1.0, array([-0.5,  0.5]))
    """
    value_BxN, bin_BxN = as_float64(value_BxN, "values"), as_counts(bin_BxN, "bins")
    if value_BxN.ndim != 2 or bin_BxN.shape != value_BxN.shape or len(value_BxN) < 3:
        raise ValueError(
            f"values of shape {value_BxN.shape} and bins of shape {bin_BxN.shape}: both must have the same samples "
            "under at least 3 replicas"
        )
    check_magnitude(value_BxN, "values")
    if np.isnan(value_BxN).any():
        raise ValueError("values: must not be NaN; leave out these samples")
    if bin_BxN.size and bin_BxN.max() >= bins:
        raise ValueError(f"bins={bins}: there is a sample in bin {bin_BxN.max()}")
    replicas, samples = value_BxN.shape
    deviation_BxN = value_BxN - value_BxN.mean(axis=0)
    total, total_df = float((deviation_BxN**2).sum()), samples * (replicas - 1)
    # The normal equations of the regression of deviations on indicators of the bins, less their means over replicas.
    cell_BxN = np.arange(samples) * bins + bin_BxN
    count_NxK = np.bincount(cell_BxN.ravel(), minlength=samples * bins).reshape(samples, bins)
    count_K = count_NxK.sum(axis=0)
    normal_KxK = np.diag(count_K) - count_NxK.T @ count_NxK / replicas
    sum_K = np.bincount(bin_BxN.ravel(), deviation_BxN.ravel(), minlength=bins)
    curve_K, _, rank, _ = np.linalg.lstsq(normal_KxK, sum_K, rcond=1e-9)
    residual = total - float(curve_K @ sum_K)
    if samples:
        curve_K = curve_K - curve_K @ count_K / count_K.sum()
    # Each sample's factor follows from the regression of its deviations on those of the curve.
    curve_BxN = curve_K[bin_BxN]
    curve_BxN -= curve_BxN.mean(axis=0)
    square_N = np.einsum("bn,bn->n", curve_BxN, curve_BxN)
    product_N = np.einsum("bn,bn->n", curve_BxN, deviation_BxN)
    varies_N = square_N > 1e-12 * max(float(square_N.max(initial=0)), 1e-300)
    own_residual = total - float((product_N[varies_N] ** 2 / square_N[varies_N]).sum())
    sum_NxK = np.bincount(cell_BxN.ravel(), deviation_BxN.ravel(), samples * bins).reshape(
        samples, bins
    )
    own_curve_residual = total - float((sum_NxK**2 / np.maximum(count_NxK, 1)).sum())

    varies = total > 1e-24 * float((value_BxN**2).sum())  # more than rounding

    def adjusted(rest: float, parameters: int) -> float:
        df = total_df - parameters
        return 1 - (rest / df) / (total / total_df) if varies and df > 0 else np.nan

    return ExplainedVariance(
        adjusted(residual, int(rank)),
        adjusted(own_residual, int(varies_N.sum())),
        adjusted(own_curve_residual, int((count_NxK > 0).sum()) - samples),
        np.where(count_K > 0, curve_K, np.nan),
    )
