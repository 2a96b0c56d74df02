"""LiRA: how likely a target's loss is under Gaussians of the losses of IN and OUT references.

Shapes: T targets, M references, N samples. Losses are mean nats a token; NaN in a reference loss is
a missing model. Scores are in log space and larger for members. StrongMIA Appendix A; Carlini et
al. 2022.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr

Variance = Literal["per_sample", "pooled"]

_CHUNK = 2**12  # samples; M x C states are small beside the losses


@dataclasses.dataclass(frozen=True)
class Gaussians:
    """One IN and one OUT Gaussian a sample, with unbiased variances (ddof = 1)."""

    mean_in_N: NDArray[np.float64]
    """Nats a token; NaN without an IN reference."""
    var_in_N: NDArray[np.float64]
    """Squared nats; per_sample: NaN below 2 IN references; pooled: one number for all samples."""
    count_in_N: NDArray[np.int64]
    """IN references with a loss for the sample."""
    mean_out_N: NDArray[np.float64]
    var_out_N: NDArray[np.float64]
    count_out_N: NDArray[np.int64]


def lira(
    target_loss_TxN: ArrayLike,
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    offline: bool = False,
) -> NDArray[np.float64]:
    """LiRA scores of every target, all of them against one set of references.

    A target must not be among its references. On the edges:

    - per_sample: NaN for a sample with fewer than 2 IN or 2 OUT references, or with a zero
      variance.
    - pooled: one within-sample variance a class, sum of squares about each sample's own mean over
      the sum of (count - 1). NaN for a sample without an IN or without an OUT reference; all NaN if
      a pooled variance is zero or no sample has two references of the class.
    - offline: only the OUT side is asked for, so IN references may be missing altogether.

    Args:
      target_loss_TxN: losses under the targets; NaN gives NaN. A one-dimensional array counts as
        one target.
      reference_loss_MxN: losses under the references; NaN is a missing model.
      reference_member_MxN: booleans, whether the sample was in the reference's training subset.
      variance: of each sample, or one of each class for all samples (better with few references).
      offline: False: log N(t; mean_in, var_in) - log N(t; mean_out, var_out). True: -log Phi((t -
        mean_out) / sd_out), so a loss far below the OUT mean scores high.

    Returns:
      score_TxN, a log likelihood ratio (offline: minus the log of a p-value).

    Raises:
      ValueError: shapes that do not fit, members that are not booleans, or infinite losses.

    Source: StrongMIA Appendix A, Eq. 2; the offline tail as in Carlini et al. 2022, Section V-C.
    """
    gaussians = fit(reference_loss_MxN, reference_member_MxN, variance=variance)
    return score(target_loss_TxN, gaussians, offline=offline)


def fit(
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
) -> Gaussians:
    """IN and OUT Gaussians of every sample; arguments and errors as of `lira`.

    Variances of zero are returned as such; `score` is what refuses them.
    """
    loss_MxN, member_MxN = _references(reference_loss_MxN, reference_member_MxN, variance)
    inside, outside = _Moments(loss_MxN.shape[1]), _Moments(loss_MxN.shape[1])
    for loss_N, in_N in zip(loss_MxN, member_MxN, strict=True):
        _add(inside, outside, loss_N, in_N)
    if variance == "per_sample":
        return _gaussians(inside, outside, inside.variance(), outside.variance())
    pooled = [_ratio(np.sum(m.squares), np.sum(m.freedom())) for m in (inside, outside)]
    return _gaussians(inside, outside, *pooled)


def score(
    target_loss_TxN: ArrayLike, gaussians: Gaussians, *, offline: bool = False
) -> NDArray[np.float64]:
    """LiRA scores under Gaussians that are fitted already; the rest as of `lira`."""
    target_TxN = np.atleast_2d(np.asarray(target_loss_TxN))
    samples = gaussians.mean_out_N.shape[0]
    if target_TxN.ndim != 2 or target_TxN.shape[1] != samples:
        raise ValueError(f"target losses of shape {target_TxN.shape} for {samples} samples")
    score_TxN = np.empty(target_TxN.shape)
    sd_in_N, sd_out_N = _sd(gaussians.var_in_N), _sd(gaussians.var_out_N)
    log_ratio_N = np.log(sd_out_N) - np.log(sd_in_N)
    for t, row_N in enumerate(target_TxN):
        loss_N = _finite(row_N)
        z_out_N = (loss_N - gaussians.mean_out_N) / sd_out_N
        if offline:
            score_TxN[t] = -log_ndtr(z_out_N)
        else:
            z_in_N = (loss_N - gaussians.mean_in_N) / sd_in_N
            # (z_out^2 - z_in^2) / 2 as a product, which keeps its digits where both are large.
            score_TxN[t] = log_ratio_N + 0.5 * (z_out_N - z_in_N) * (z_out_N + z_in_N)
    return score_TxN


def posterior(score: ArrayLike) -> NDArray[np.float64]:
    """p_in / (p_in + p_out) of an online score: the chance of membership at prior 1/2.

    Any shape; NaN stays NaN. An offline score is no likelihood ratio and has no such reading.
    """
    return expit(np.asarray(score, dtype=np.float64))


def lira_leave_one_out(
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    offline: bool = False,
) -> NDArray[np.float64]:
    """LiRA scores of every row as the target, with all other rows as its references; O(M N).

    Only for rows whose subsets are drawn independently. In a balanced block (every sample in just
    half of the rows) the count of IN references gives the left-out row's membership away, and noise
    would score above chance.

    Args:
      loss_MxN: losses of all rows; NaN is a missing model, and its score is NaN.
      member_MxN: booleans, who trained on what.
      variance: as of `lira`; the pooled variances of a row leave out that row too.
      offline: as of `lira`.

    Returns:
      score_MxN, each row equal to `lira` of the row against the others.

    Raises:
      ValueError: as of `lira`.
    """
    loss_MxN, member_MxN = _references(loss_MxN, member_MxN, variance)
    rows = loss_MxN.shape[0]
    pooled_Mx2 = np.full((rows, 2), np.nan)
    if variance == "pooled":
        sums_Mx2x2 = np.zeros((rows, 2, 2))
        for m, _, *classes in _others(loss_MxN, member_MxN):
            for c, moments in enumerate(classes):
                sums_Mx2x2[m, c] += np.sum(moments.squares), np.sum(moments.freedom())
        pooled_Mx2 = _ratio(sums_Mx2x2[..., 0], sums_Mx2x2[..., 1])
    score_MxN = np.empty(loss_MxN.shape)
    for m, at, inside, outside in _others(loss_MxN, member_MxN):
        if variance == "per_sample":
            gaussians = _gaussians(inside, outside, inside.variance(), outside.variance())
        else:
            gaussians = _gaussians(inside, outside, pooled_Mx2[m, 0], pooled_Mx2[m, 1])
        score_MxN[m, at] = score(loss_MxN[m, at], gaussians, offline=offline)[0]
    return score_MxN


class _Moments:
    """Count, mean and sum of squares about the mean, updated one row at a time (Welford).

    Exact for equal losses, so that a zero variance is zero, and stable for a small spread on a
    large offset.
    """

    def __init__(self, samples: int) -> None:
        self.count = np.zeros(samples)
        self.mean = np.zeros(samples)
        self.squares = np.zeros(samples)

    def add(self, loss_N: NDArray[np.float64], there_N: NDArray[np.bool_]) -> None:
        self.count += there_N
        delta_N = np.where(there_N, loss_N - self.mean, 0.0)
        step_N = delta_N / np.maximum(self.count, 1)
        self.mean += step_N
        self.squares += delta_N * (delta_N - step_N)

    def copy(self) -> "_Moments":
        new = _Moments(0)
        new.count, new.mean, new.squares = self.count.copy(), self.mean.copy(), self.squares.copy()
        return new

    def merged(self, other: "_Moments") -> "_Moments":
        new = _Moments(0)
        new.count = self.count + other.count
        share_N = other.count / np.maximum(new.count, 1)
        delta_N = np.where((self.count > 0) & (other.count > 0), other.mean - self.mean, 0.0)
        new.mean = np.where(self.count > 0, self.mean + share_N * delta_N, other.mean)
        new.squares = self.squares + other.squares + delta_N**2 * self.count * share_N
        return new

    def freedom(self) -> NDArray[np.float64]:
        return np.maximum(self.count - 1, 0)

    def variance(self) -> NDArray[np.float64]:
        return _ratio(self.squares, self.freedom())


def _others(
    loss_MxN: NDArray, member_MxN: NDArray[np.bool_]
) -> Iterator[tuple[int, slice, _Moments, _Moments]]:
    """(m, samples, IN and OUT moments without row m): rows before m merged with those after it.

    Taking row m out of the moments of all rows would be shorter, but it cancels where row m is an
    outlier.
    """
    rows, samples = loss_MxN.shape
    for start in range(0, samples, _CHUNK):
        at = slice(start, min(start + _CHUNK, samples))
        size = at.stop - at.start
        inside, outside = _Moments(size), _Moments(size)
        before = []
        for m in range(rows):
            before.append((inside.copy(), outside.copy()))
            _add(inside, outside, loss_MxN[m, at], member_MxN[m, at])
        inside, outside = _Moments(size), _Moments(size)
        for m in reversed(range(rows)):
            in_before, out_before = before.pop()
            yield m, at, in_before.merged(inside), out_before.merged(outside)
            _add(inside, outside, loss_MxN[m, at], member_MxN[m, at])


def _add(inside: _Moments, outside: _Moments, row_N: NDArray, in_N: NDArray[np.bool_]) -> None:
    loss_N = _finite(row_N)
    there_N = ~np.isnan(loss_N)
    inside.add(loss_N, there_N & in_N)
    outside.add(loss_N, there_N & ~in_N)


def _gaussians(
    inside: _Moments, outside: _Moments, var_in: ArrayLike, var_out: ArrayLike
) -> Gaussians:
    def side(moments: _Moments, var: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
        mean_N = np.where(moments.count > 0, moments.mean, np.nan)
        return mean_N, np.broadcast_to(var, mean_N.shape), moments.count.astype(np.int64)

    return Gaussians(*side(inside, var_in), *side(outside, var_out))


def _references(
    loss: ArrayLike, member: ArrayLike, variance: str
) -> tuple[NDArray, NDArray[np.bool_]]:
    if variance not in ("per_sample", "pooled"):
        raise ValueError(f"variance={variance!r}: must be 'per_sample' or 'pooled'")
    loss_MxN, member_MxN = np.atleast_2d(np.asarray(loss)), np.atleast_2d(np.asarray(member))
    if loss_MxN.ndim != 2 or loss_MxN.shape != member_MxN.shape:
        raise ValueError(f"losses of shape {loss_MxN.shape}, members of {member_MxN.shape}")
    if member_MxN.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_MxN.dtype}")
    return loss_MxN, member_MxN


def _finite(row_N: NDArray) -> NDArray[np.float64]:
    """A row in float64: one row at a time, so that float32 stores need no second copy."""
    loss_N = row_N.astype(np.float64)
    if np.isinf(loss_N).any():
        raise ValueError("losses must be finite, or NaN for a missing one")
    return loss_N


def _ratio(top: ArrayLike, bottom: ArrayLike) -> NDArray[np.float64]:
    """top / bottom, NaN where the bottom is 0."""
    top, bottom = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    return np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom > 0)


def _sd(var_N: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(np.where(var_N > 0, var_N, np.nan))
