"""LiRA: the likelihood ratio of a target's loss under Gaussians fitted to the losses of IN and OUT references.

Legend: T targets, M references, N samples, C samples of a chunk. Losses are means in nats per token; NaN marks a
missing reference loss. Scores are in log space and larger for members. StrongMIA, Appendix A; Carlini et al. 2022,
Membership Inference Attacks From First Principles.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64, as_members, as_real
from lm_mia.stats.moments import (
    as_finite_float64,
    class_moments,
    divide_or_nan,
    mean_variance_count,
)

_CHUNK = 2**10  # samples that are processed at once: M x C float64 numbers fit the cache of a core

Variance = Literal["per_sample", "pooled"]


@dataclasses.dataclass(frozen=True)
class LiraGaussians:
    """One IN and one OUT Gaussian per sample, with unbiased variances (ddof=1)."""

    mean_in_N: FloatArray
    """Mean loss in nats per token; NaN without an IN reference."""
    var_in_N: FloatArray
    """Variance in squared nats per token. With variance="per_sample" it is NaN for fewer than 2 IN references; with
    variance="pooled" all samples have the same variance."""
    count_in_N: IntArray
    """Number of IN references that have a loss for the sample."""
    mean_out_N: FloatArray
    """The same for the OUT references."""
    var_out_N: FloatArray
    count_out_N: IntArray


def lira(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    offline: bool = False,
    sampled_share: float = 0.0,
) -> FloatArray:
    """Computes the LiRA scores of each target against one set of references.

        online:  score = log N(loss; mean_in, var_in) - log N(loss; mean_out, var_out)
        offline: score = -log Phi((loss - mean_out) / sd_out)

    Offline, a loss far below the OUT mean scores high. A target must not be among its references. The variance is one
    of:

    - "per_sample": the variance of each sample's losses in each class. The score is NaN for a sample with fewer than 2
      IN or 2 OUT references, or with a variance of zero.
    - "pooled": one variance per class for all samples, which is better with few references: the sum of squared
      deviations from each sample's own mean, divided by the sum of (count - 1). The score is NaN for a sample without
      an IN or without an OUT reference. All scores are NaN if a pooled variance is zero, or if no sample has two
      references of a class.

    Offline, only OUT references are required, and IN references may be missing altogether.

    Args:
      target_loss_TxN: losses under the targets, in nats per token; a NaN loss gives a NaN score. A one-dimensional
        array is treated as one target.
      reference_loss_MxN: losses under the references; NaN marks a missing loss.
      reference_member_MxN: booleans, whether each sample was in each reference's training subset.
      variance: "per_sample" or "pooled".
      offline: whether to use the OUT references only.
      sampled_share: share f of the population in a training subset, in [0, 1); 1/2 for N of 2N samples. Variances are
        divided by 1 - f, because subsets of one finite population overlap and vary less than independent draws. 0
        leaves the variances unchanged.

    Returns:
      score_TxN: log likelihood ratios (offline: negated logarithms of p-values).

    Raises:
      ValueError: if the shapes do not match, if reference_member_MxN is not boolean, if a loss is infinite, or if
        sampled_share is out of range.

    Source: StrongMIA, Appendix A, Eq. 2; offline as in Carlini et al. 2022, Section V-C; the finite-population factor
    of Reliability, Eqs. 27 and 28.

    Example:
      One sample, with losses 1 and 3 under IN references and 4, 6 and 8 under OUT references:

      >>> from lm_mia.stats import lira
      >>> reference_loss_5x1 = [[1.0], [3.0], [4.0], [6.0], [8.0]]
      >>> member_5x1 = [[True], [True], [False], [False], [False]]
      >>> lira([[2.0], [6.0]], reference_loss_5x1, member_5x1).round(3)
      array([[ 2.347],
             [-3.653]])
    """
    gaussians = fit_gaussians(
        reference_loss_MxN, reference_member_MxN, variance=variance, sampled_share=sampled_share
    )
    return lira_from_gaussians(target_loss_TxN, gaussians, offline=offline)


def fit_gaussians(
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    sampled_share: float = 0.0,
) -> LiraGaussians:
    """Fits the IN and OUT Gaussians of each sample.

    Variances of zero are returned unchanged; `lira_from_gaussians` turns them into NaN scores.

    Args:
      reference_loss_MxN: losses under the references, in nats per token; NaN marks a missing loss.
      reference_member_MxN: booleans, whether each sample was in each reference's training subset.
      variance: "per_sample" or "pooled", as for `lira`.
      sampled_share: share of the population in a training subset, as for `lira`.

    Returns:
      Means, variances and counts of each sample.

    Raises:
      ValueError: as for `lira`.
    """
    loss_MxN, member_MxN = check_references(reference_loss_MxN, reference_member_MxN, variance)
    variance_factor = as_variance_factor(sampled_share)
    chunks: list[tuple[np.ndarray, ...]] = []
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        in_moments, out_moments, _ = class_moments(loss_MxN[:, chunk], member_MxN[:, chunk])
        chunks.append(
            (
                *mean_variance_count(in_moments, variance_factor),
                *mean_variance_count(out_moments, variance_factor),
            )
        )
    if not chunks:
        chunks.append(tuple(np.empty(0, kind) for kind in (float, float, int) * 2))
    gaussians = LiraGaussians(*(np.concatenate(field) for field in zip(*chunks, strict=True)))
    if variance == "pooled":
        return with_pooled_variance(gaussians, within_sample_scatter(gaussians))
    return gaussians


def within_sample_scatter(gaussians: LiraGaussians) -> FloatArray:
    """Computes, for each class, the sum of squares about each sample's own mean, and its degrees of freedom.

    The results for blocks of samples can be added. `with_pooled_variance` divides their sum.

    Args:
      gaussians: result of `fit_gaussians` with variance="per_sample".

    Returns:
      scatter_2x2: one row per class, IN first, with columns (sum of squares, degrees of freedom).
    """
    rows: list[tuple[float, float]] = []
    for var_N, count_N in (
        (gaussians.var_in_N, gaussians.count_in_N),
        (gaussians.var_out_N, gaussians.count_out_N),
    ):
        freedom_N = np.maximum(count_N - 1, 0)
        squares = np.sum(np.where(freedom_N > 0, var_N * freedom_N, 0.0))
        rows.append((float(squares), float(freedom_N.sum())))
    return np.array(rows)


def with_pooled_variance(gaussians: LiraGaussians, scatter_2x2: FloatArray) -> LiraGaussians:
    """Replaces the variances by pooled ones.

    Args:
      gaussians: result of `fit_gaussians`.
      scatter_2x2: result of `within_sample_scatter`, possibly summed over more samples than these.

    Returns:
      Gaussians with the same means and one variance per class.
    """
    var_in, var_out = divide_or_nan(scatter_2x2[:, 0], scatter_2x2[:, 1])
    shape = gaussians.mean_in_N.shape
    return dataclasses.replace(
        gaussians,
        var_in_N=np.broadcast_to(var_in, shape),
        var_out_N=np.broadcast_to(var_out, shape),
    )


def lira_from_gaussians(
    target_loss_TxN: ArrayLike, gaussians: LiraGaussians, *, offline: bool = False
) -> FloatArray:
    """Computes LiRA scores under Gaussians that are already fitted.

    Args:
      target_loss_TxN: losses under the targets, in nats per token. A one-dimensional array is treated as one target.
      gaussians: result of `fit_gaussians`.
      offline: whether to use the OUT Gaussians only.

    Returns:
      score_TxN, as for `lira`.

    Raises:
      ValueError: if the numbers of samples differ or a loss is infinite.
    """
    target_TxN = np.atleast_2d(as_real(target_loss_TxN, "losses"))
    samples = gaussians.mean_out_N.shape[0]
    if target_TxN.ndim != 2 or target_TxN.shape[1] != samples:
        raise ValueError(
            f"target losses of shape {target_TxN.shape} do not match Gaussians of {samples} samples"
        )
    score_TxN = np.empty(target_TxN.shape)
    sd_in_N, sd_out_N = sd_or_nan(gaussians.var_in_N), sd_or_nan(gaussians.var_out_N)
    for chunk in chunks_of_samples(samples):
        loss_TxC = as_finite_float64(target_TxN[:, chunk])
        mean_out_C, sd_out_C = gaussians.mean_out_N[chunk], sd_out_N[chunk]
        if offline:
            score_TxN[:, chunk] = -scipy.special.log_ndtr((loss_TxC - mean_out_C) / sd_out_C)
        else:
            score_TxN[:, chunk] = log_ratio(
                loss_TxC, gaussians.mean_in_N[chunk], sd_in_N[chunk], mean_out_C, sd_out_C
            )
    return score_TxN


def posterior(score: ArrayLike) -> FloatArray:
    """Computes the posterior probability of membership p_in / (p_in + p_out), at a prior of 1/2.

    Args:
      score: online LiRA scores, which are log likelihood ratios, of any shape. Offline scores are not likelihood ratios
        and have no such posterior.

    Returns:
      Probabilities of the shape of score; NaN where the score is NaN.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import posterior
      >>> posterior([0.0, np.log(3)])
      array([0.5 , 0.75])
    """
    return scipy.special.expit(as_float64(score, "scores"))


def log_ratio(
    loss: FloatArray,
    mean_in: FloatArray,
    sd_in: FloatArray,
    mean_out: FloatArray,
    sd_out: FloatArray,
) -> FloatArray:
    """Computes log N(loss; mean_in, sd_in^2) - log N(loss; mean_out, sd_out^2)."""
    z_in, z_out = (loss - mean_in) / sd_in, (loss - mean_out) / sd_out
    # (z_out^2 - z_in^2) / 2 is computed as a product, which is accurate if both are large.
    log_ratio = z_out - z_in
    z_out += z_in
    with np.errstate(over="ignore"):  # infinite for a loss extremely far from both means
        log_ratio *= z_out
    log_ratio *= 0.5
    log_ratio += np.log(sd_out) - np.log(sd_in)
    return log_ratio


def as_variance_factor(sampled_share: float) -> float:
    """Returns what unbiased variances are multiplied by, 1 / (1 - sampled_share), as for `lira`."""
    if not 0 <= sampled_share < 1:
        raise ValueError(f"sampled_share={sampled_share}: must be in [0, 1)")
    return 1 / (1 - sampled_share)


def chunks_of_samples(samples: int, size: int | None = None) -> list[slice]:
    """Divides all samples into chunks of the given size; by default, of that which the moments are computed for."""
    size = size or _CHUNK
    return [slice(low, min(low + size, samples)) for low in range(0, samples, size)]


def check_references(
    loss: ArrayLike, member: ArrayLike, variance: str
) -> tuple[np.ndarray, BoolArray]:
    """Returns the losses and the membership of references as arrays; raises ValueError as `lira`."""
    if variance not in ("per_sample", "pooled"):
        raise ValueError(f"variance={variance!r}: must be 'per_sample' or 'pooled'")
    loss_MxN, member_MxN = np.atleast_2d(as_real(loss, "losses")), np.atleast_2d(as_members(member))
    if loss_MxN.ndim != 2 or loss_MxN.shape != member_MxN.shape:
        raise ValueError(
            f"losses of shape {loss_MxN.shape} do not match members of shape {member_MxN.shape}"
        )
    return loss_MxN, member_MxN


def sd_or_nan(var_N: FloatArray) -> FloatArray:
    """Computes standard deviations; NaN where the variance is 0 or NaN."""
    return np.sqrt(np.where(var_N > 0, var_N, np.nan))
