"""LiRA: how likely a target's loss is under Gaussians of the losses of IN and OUT references.

Moments are computed from deviations from one of the losses, never from raw squares. Equal losses therefore have a
variance of exactly zero, and a small spread around a large mean keeps its digits.

Shapes: T targets, M references, N samples, C samples per chunk. Losses are mean nats a token; NaN in a reference loss
is a missing model. Scores are in log space and larger for members. StrongMIA Appendix A; Carlini et al. 2022.
"""

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_ndtr

# glibc hands freed memory back beyond twice the largest block that was ever freed, so that without a
# large one, freed here, the temporaries of every chunk are faulted in anew: twice the time of a fit.
_large = np.empty(2**21)
del _large

_HEAD = 16  # references among which the first of a class is sought at first
_CANCELLED = 1e-6  # share of the sum of squares below which what is left of it is computed anew

Variance = Literal["per_sample", "pooled"]

_CHUNK = 2**10  # samples worked on at once: M x C float64 stays in a core's cache


@dataclasses.dataclass(frozen=True)
class Moments:
    """Of one class; each array is per sample, or per (left-out row, sample)."""

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    """Anything finite where count is 0."""
    squares: NDArray[np.float64]
    """Sum of squared deviations from the mean."""


def moments(
    loss_MxC: NDArray, member_MxC: NDArray[np.bool_]
) -> tuple[Moments, Moments, NDArray[np.float64]]:
    """(IN, OUT, deviation_MxC): moments of both classes, and every loss less its class mean.

    NaN losses are left out, and deviate by 0. Raises ValueError for an infinite loss.
    """
    loss_MxC = finite(loss_MxC)
    missing_MxC = np.isnan(loss_MxC)
    some_missing = missing_MxC.any()
    if some_missing:
        loss_MxC[missing_MxC] = 0.0
        in_MxC, out_MxC = member_MxC & ~missing_MxC, ~member_MxC & ~missing_MxC
    else:
        in_MxC, out_MxC = member_MxC, ~member_MxC
    is_in_MxC, is_out_MxC = in_MxC.astype(np.float64), out_MxC.astype(np.float64)
    count_in_C, count_out_C = is_in_MxC.sum(axis=0), is_out_MxC.sum(axis=0)
    origin_in_C, origin_out_C = _first(loss_MxC, in_MxC), _first(loss_MxC, out_MxC)
    bits_MxC = bits(member_MxC)
    deviation_MxC = loss_MxC - pick(bits_MxC, origin_in_C, origin_out_C)
    shift_in_C = _sum(deviation_MxC, is_in_MxC) / np.maximum(count_in_C, 1)
    shift_out_C = _sum(deviation_MxC, is_out_MxC) / np.maximum(count_out_C, 1)
    deviation_MxC -= pick(bits_MxC, shift_in_C, shift_out_C)
    if some_missing:
        deviation_MxC[missing_MxC] = 0.0
    squares_MxC = np.square(deviation_MxC, out=loss_MxC)
    return (
        Moments(count_in_C, origin_in_C + shift_in_C, _sum(squares_MxC, is_in_MxC)),
        Moments(count_out_C, origin_out_C + shift_out_C, _sum(squares_MxC, is_out_MxC)),
        deviation_MxC,
    )


def leave_one_out(
    loss_MxC: NDArray, member_MxC: NDArray[np.bool_]
) -> tuple[Moments, Moments, Moments]:
    """(own_MxC, IN_C, OUT_C): moments of each row's own class without that row, and of both classes whole.

    The other class of a row is not touched by leaving it out. Where nearly all of a sum of squares
    was the left-out row's, subtracting it would leave rounding errors: those few are summed anew.
    """
    inside, outside, deviation_MxC = moments(loss_MxC, member_MxC)
    there_MxC = ~np.isnan(loss_MxC)
    bits_MxC = bits(member_MxC)
    count_MxC = pick(bits_MxC, inside.count, outside.count) - there_MxC
    left_MxC = np.maximum(count_MxC, 1)
    mean_MxC = pick(bits_MxC, inside.mean, outside.mean) - deviation_MxC / left_MxC
    whole_MxC = pick(bits_MxC, inside.squares, outside.squares)
    squares_MxC = whole_MxC - np.square(deviation_MxC) * ((left_MxC + 1) / left_MxC)
    cancelled_MxC = there_MxC & (squares_MxC <= _CANCELLED * whole_MxC) & (whole_MxC > 0)
    if cancelled_MxC.any():
        m_J, c_J = np.nonzero(cancelled_MxC)
        loss_MxJ = np.asarray(loss_MxC, dtype=np.float64)[:, c_J]
        loss_MxJ[m_J, np.arange(len(m_J))] = np.nan
        again_in, again_out, _ = moments(loss_MxJ, member_MxC[:, c_J])
        own_J = member_MxC[m_J, c_J]
        mean_MxC[m_J, c_J] = np.where(own_J, again_in.mean, again_out.mean)
        squares_MxC[m_J, c_J] = np.where(own_J, again_in.squares, again_out.squares)
    return Moments(count_MxC, mean_MxC, squares_MxC), inside, outside


def bits(member_MxC: NDArray[np.bool_]) -> NDArray[np.int64]:
    """All bits set where True, none where False: what `pick` chooses by."""
    return -member_MxC.astype(np.int64)


def pick(
    bits_MxC: NDArray[np.int64], inside: NDArray[np.float64], outside: NDArray[np.float64]
) -> NDArray[np.float64]:
    """np.where(member, inside, outside), bit for bit, without its branches.

    np.where takes five times as long on membership that no processor can predict.
    """
    first, second = inside.view(np.int64), outside.view(np.int64)
    return (((first ^ second) & bits_MxC) ^ second).view(np.float64)


def finite(loss: NDArray) -> NDArray[np.float64]:
    """A copy in float64; ValueError if a loss is infinite."""
    if np.isinf(loss).any():
        raise ValueError("losses must be finite, or NaN for a missing one")
    return loss.astype(np.float64)


def _first(loss_MxC: NDArray[np.float64], mask_MxC: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The first masked loss of each sample: an origin that equal losses deviate from by exactly 0."""
    if loss_MxC.shape[0] == 0:
        return np.zeros(loss_MxC.shape[1])
    head_HxC = mask_MxC[:_HEAD]  # nearly always enough, and a fraction of the work
    if not head_HxC.any(axis=0).all():
        head_HxC = mask_MxC
    return np.take_along_axis(loss_MxC, head_HxC.argmax(axis=0)[None], axis=0)[0]


def _sum(value_MxC: NDArray[np.float64], mask_MxC: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.einsum("mc,mc->c", value_MxC, mask_MxC)


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
    sampled_share: float = 0.0,
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
      sampled_share: f in [0, 1), the share of the population that a subset holds (1/2 for N of 2N).
        Variances are divided by 1 - f: subsets drawn from one finite population overlap, and vary
        less than independent draws would. 0 leaves them as they are.

    Returns:
      score_TxN, a log likelihood ratio (offline: minus the log of a p-value).

    Raises:
      ValueError: shapes that do not fit, members that are not booleans, infinite losses, or a
        sampled_share out of range.

    Source: StrongMIA Appendix A, Eq. 2; the offline tail as in Carlini et al. 2022, Section V-C;
    the finite-population factor of Reliability, Eqs. 27 and 28.
    """
    gaussians = fit(
        reference_loss_MxN, reference_member_MxN, variance=variance, sampled_share=sampled_share
    )
    return score(target_loss_TxN, gaussians, offline=offline)


def fit(
    reference_loss_MxN: ArrayLike,
    reference_member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    sampled_share: float = 0.0,
) -> Gaussians:
    """IN and OUT Gaussians of every sample; arguments and errors as of `lira`.

    Variances of zero are returned as such; `score` is what refuses them.
    """
    loss_MxN, member_MxN = _references(reference_loss_MxN, reference_member_MxN, variance)
    enlarge = _enlargement(sampled_share)
    parts: list[tuple[NDArray, ...]] = []
    for at in _chunks(loss_MxN.shape[1]):
        inside, outside, _ = moments(loss_MxN[:, at], member_MxN[:, at])
        parts.append((*_side(inside, enlarge), *_side(outside, enlarge)))
    if not parts:
        parts.append(tuple(np.empty(0, kind) for kind in (float, float, int) * 2))
    gaussians = Gaussians(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return pooled(gaussians, scatter(gaussians)) if variance == "pooled" else gaussians


def scatter(gaussians: Gaussians) -> NDArray[np.float64]:
    """scatter_2x2 of per-sample Gaussians: a row a class, IN first; (sum of squares, degrees of freedom).

    Blocks of samples add up; `pooled` makes one variance a class of the total.
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


def pooled(gaussians: Gaussians, scatter_2x2: NDArray[np.float64]) -> Gaussians:
    """The same means with the pooled variances of a `scatter`, which may be of more samples than these."""
    var_in, var_out = _ratio(scatter_2x2[:, 0], scatter_2x2[:, 1])
    shape = gaussians.mean_in_N.shape
    return dataclasses.replace(
        gaussians,
        var_in_N=np.broadcast_to(var_in, shape),
        var_out_N=np.broadcast_to(var_out, shape),
    )


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
    for at in _chunks(samples):
        loss_TxC = finite(target_TxN[:, at])
        outside = gaussians.mean_out_N[at], sd_out_N[at]
        if offline:
            score_TxN[:, at] = -log_ndtr((loss_TxC - outside[0]) / outside[1])
        else:
            score_TxN[:, at] = _log_ratio(loss_TxC, gaussians.mean_in_N[at], sd_in_N[at], *outside)
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
    sampled_share: float = 0.0,
    scatter_Mx2x2: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """LiRA scores of every row as the target, with all other rows as its references; O(M N).

    Only for rows whose subsets are drawn independently. In a balanced block (every sample in just
    half of the rows) the count of IN references gives the left-out row's membership away, and noise
    would score above chance.

    Args:
      loss_MxN: losses of all rows; NaN is a missing model, and its score is NaN.
      member_MxN: booleans, who trained on what.
      variance: as of `lira`; the pooled variances of a row leave out that row too.
      offline, sampled_share: as of `lira`.
      scatter_Mx2x2: of `leave_one_out_scatter`, summed over all blocks of samples, where these
        samples are one block and the variance is pooled over all; by default of these samples.

    Returns:
      score_MxN, each row equal to `lira` of the row against the others.

    Raises:
      ValueError: as of `lira`.
    """
    loss_MxN, member_MxN = _references(loss_MxN, member_MxN, variance)
    enlarge = _enlargement(sampled_share)
    if variance == "pooled" and scatter_Mx2x2 is None:
        scatter_Mx2x2 = leave_one_out_scatter(loss_MxN, member_MxN)
    score_MxN = np.empty(loss_MxN.shape)
    for at in _chunks(loss_MxN.shape[1]):
        own, inside, outside = leave_one_out(loss_MxN[:, at], member_MxN[:, at])
        bits_MxC = bits(member_MxN[:, at])
        mean_own_MxC, var_own_MxC, _ = _side(own, enlarge)
        (mean_in_C, var_in_C, _), (mean_out_C, var_out_C, _) = (
            _side(whole, enlarge) for whole in (inside, outside)
        )
        if variance == "pooled":
            assert scatter_Mx2x2 is not None
            var_Mx2 = _ratio(scatter_Mx2x2[..., 0], scatter_Mx2x2[..., 1]) * enlarge
            var_in_MxC, var_out_MxC = var_Mx2[:, :1], var_Mx2[:, 1:]
        else:
            var_in_MxC = pick(bits_MxC, var_own_MxC, var_in_C)
            var_out_MxC = pick(bits_MxC, var_out_C, var_own_MxC)
        loss_MxC = loss_MxN[:, at].astype(np.float64)
        mean_out_MxC = pick(bits_MxC, mean_out_C, mean_own_MxC)
        sd_out_MxC = _sd(var_out_MxC)
        if offline:
            score_MxN[:, at] = -log_ndtr((loss_MxC - mean_out_MxC) / sd_out_MxC)
        else:
            mean_in_MxC = pick(bits_MxC, mean_own_MxC, mean_in_C)
            score_MxN[:, at] = _log_ratio(
                loss_MxC, mean_in_MxC, _sd(var_in_MxC), mean_out_MxC, sd_out_MxC
            )
    return score_MxN


def leave_one_out_scatter(loss_MxN: ArrayLike, member_MxN: ArrayLike) -> NDArray[np.float64]:
    """scatter_Mx2x2: the `scatter` of all rows but each one; blocks of samples add up."""
    loss_MxN, member_MxN = _references(loss_MxN, member_MxN, "pooled")
    total_Mx2x2 = np.zeros((loss_MxN.shape[0], 2, 2))
    for at in _chunks(loss_MxN.shape[1]):
        own, *whole = leave_one_out(loss_MxN[:, at], member_MxN[:, at])
        for c, (of_MxC, all_C) in enumerate(
            zip((member_MxN[:, at], ~member_MxN[:, at]), whole, strict=True)
        ):
            squares_MxC = np.where(of_MxC, own.squares, all_C.squares)
            freedom_MxC = np.maximum(np.where(of_MxC, own.count, all_C.count) - 1, 0)
            total_Mx2x2[:, c, 0] += squares_MxC.sum(axis=1)
            total_Mx2x2[:, c, 1] += freedom_MxC.sum(axis=1)
    return total_Mx2x2


def _log_ratio(
    loss: NDArray[np.float64],
    mean_in: NDArray[np.float64],
    sd_in: NDArray[np.float64],
    mean_out: NDArray[np.float64],
    sd_out: NDArray[np.float64],
) -> NDArray[np.float64]:
    z_in, z_out = (loss - mean_in) / sd_in, (loss - mean_out) / sd_out
    # (z_out^2 - z_in^2) / 2 as a product, which keeps its digits where both are large.
    product = z_out - z_in
    z_out += z_in
    product *= z_out
    product *= 0.5
    product += np.log(sd_out) - np.log(sd_in)
    return product


def _side(moments: Moments, enlarge: float) -> tuple[NDArray, NDArray, NDArray]:
    """(mean, unbiased variance times enlarge, count) of one class; NaN where undefined."""
    mean = np.where(moments.count > 0, moments.mean, np.nan)
    var = _ratio(moments.squares, np.maximum(moments.count - 1, 0)) * enlarge
    return mean, var, moments.count.astype(np.int64)


def _enlargement(sampled_share: float) -> float:
    if not 0 <= sampled_share < 1:
        raise ValueError(f"sampled_share={sampled_share}: must lie in [0, 1)")
    return 1 / (1 - sampled_share)


def _chunks(samples: int) -> list[slice]:
    return [slice(low, min(low + _CHUNK, samples)) for low in range(0, samples, _CHUNK)]


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


def _ratio(top: ArrayLike, bottom: ArrayLike) -> NDArray[np.float64]:
    """top / bottom, NaN where the bottom is 0."""
    top, bottom = np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64)
    return np.divide(top, bottom, out=np.full(bottom.shape, np.nan), where=bottom > 0)


def _sd(var_N: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.sqrt(np.where(var_N > 0, var_N, np.nan))
