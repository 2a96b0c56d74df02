"""Means and sums of squares of IN and OUT references, of all of them and with each one left out.

Exact on two edges that matter: equal losses have a variance of exactly zero, and a small spread on
a large offset keeps its digits. Sums run over deviations from one of the summed losses, never over
raw squares. Shapes: M references, C samples of a chunk.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray

# glibc hands freed memory back beyond twice the largest block that was ever freed, so that without a
# large one, freed here, the temporaries of every chunk are faulted in anew: twice the time of a fit.
_large = np.empty(2**21)
del _large

_HEAD = 16  # references among which the first of a class is sought at first
_CANCELLED = 1e-6  # share of the sum of squares below which what is left of it is computed anew


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
