"""Moments of the losses of IN and OUT references.

They are computed from deviations from one of the losses, never from raw squares. Therefore equal losses have a variance
of exactly zero, and a small spread around a large mean keeps its precision.

Legend: M references, G groups of references, C samples of a chunk, J (model or group, sample) pairs that are computed
again. Losses are means in nats
per token; NaN marks a missing reference loss.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import check_magnitude, check_scale

_FIRST_SEARCHED = 16  # number of references that are searched first for one of a class
# A sum of squares that loses all but this share by a subtraction is computed again.
_CANCELLATION = 1e-6


@dataclasses.dataclass(frozen=True)
class Moments:
    """Moments of one class; each array has one element per sample, or per (left-out model, sample)."""

    count: FloatArray
    mean: FloatArray
    """Any finite number where count is 0."""
    squares: FloatArray
    """Sum of squared deviations from the mean."""

    def select(self, mask_MxC: IntArray, if_nonmember: Moments) -> Moments:
        """Returns these moments where a sample is a member of a model, and the others elsewhere; see `as_bit_mask`."""
        return Moments(
            select_by_mask(mask_MxC, self.count, if_nonmember.count),
            select_by_mask(mask_MxC, self.mean, if_nonmember.mean),
            select_by_mask(mask_MxC, self.squares, if_nonmember.squares),
        )

    def take(self, index_M: IntArray) -> Moments:
        """Returns the moments of the models with the given indices."""
        return Moments(self.count[index_M], self.mean[index_M], self.squares[index_M])


def class_moments(
    loss_MxC: np.ndarray, member_MxC: BoolArray
) -> tuple[Moments, Moments, FloatArray]:
    """Computes the moments of both classes, and the deviation of each loss from the mean of its class.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.

    Returns:
      ``(IN moments, OUT moments, deviation_MxC)``; the deviation of a NaN loss is 0.

    Raises:
      ValueError: if a loss is infinite, or if all are tiny (`check_scale`).
    """
    loss_MxC = as_finite_float64(loss_MxC)
    check_scale(loss_MxC, "losses")
    missing_MxC = np.isnan(loss_MxC)
    has_missing = missing_MxC.any()
    if has_missing:
        loss_MxC[missing_MxC] = 0.0
        in_MxC, out_MxC = member_MxC & ~missing_MxC, ~member_MxC & ~missing_MxC
    else:
        in_MxC, out_MxC = member_MxC, ~member_MxC
    is_in_MxC, is_out_MxC = in_MxC.astype(np.float64), out_MxC.astype(np.float64)
    count_in_C, count_out_C = is_in_MxC.sum(axis=0), is_out_MxC.sum(axis=0)
    origin_in_C, origin_out_C = (
        _first_selected(loss_MxC, in_MxC),
        _first_selected(loss_MxC, out_MxC),
    )
    mask_MxC = as_bit_mask(member_MxC)
    deviation_MxC = loss_MxC - select_by_mask(mask_MxC, origin_in_C, origin_out_C)
    shift_in_C = _masked_sum(deviation_MxC, is_in_MxC) / np.maximum(count_in_C, 1)
    shift_out_C = _masked_sum(deviation_MxC, is_out_MxC) / np.maximum(count_out_C, 1)
    deviation_MxC -= select_by_mask(mask_MxC, shift_in_C, shift_out_C)
    if has_missing:
        deviation_MxC[missing_MxC] = 0.0
    squares_MxC = np.square(deviation_MxC, out=loss_MxC)
    return (
        Moments(count_in_C, origin_in_C + shift_in_C, _masked_sum(squares_MxC, is_in_MxC)),
        Moments(count_out_C, origin_out_C + shift_out_C, _masked_sum(squares_MxC, is_out_MxC)),
        deviation_MxC,
    )


def own_class_moments(
    loss_MxC: np.ndarray, member_MxC: BoolArray
) -> tuple[Moments, Moments, Moments]:
    """Computes the moments of each model's own class without that model, and of both complete classes.

    Leaving out a model does not change the moments of its other class. If nearly all of a sum of squares is due to the
    left-out model, subtracting its square would leave rounding errors; these few sums are computed again.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.

    Returns:
      ``(own moments of shape MxC, IN moments of shape C, OUT moments of shape C)``.

    Raises:
      ValueError: if a loss is infinite.
    """
    in_moments, out_moments, deviation_MxC = class_moments(loss_MxC, member_MxC)
    present_MxC = ~np.isnan(loss_MxC)
    mask_MxC = as_bit_mask(member_MxC)
    count_MxC = select_by_mask(mask_MxC, in_moments.count, out_moments.count) - present_MxC
    divisor_MxC = np.maximum(count_MxC, 1)
    class_mean_MxC = select_by_mask(mask_MxC, in_moments.mean, out_moments.mean)
    mean_MxC = class_mean_MxC - deviation_MxC / divisor_MxC
    class_squares_MxC = select_by_mask(mask_MxC, in_moments.squares, out_moments.squares)
    own_squares_MxC = np.square(deviation_MxC) * ((divisor_MxC + 1) / divisor_MxC)
    squares_MxC = class_squares_MxC - own_squares_MxC
    is_cancelled_MxC = (
        present_MxC & (squares_MxC <= _CANCELLATION * class_squares_MxC) & (class_squares_MxC > 0)
    )
    if is_cancelled_MxC.any():
        m_J, c_J = np.nonzero(is_cancelled_MxC)
        loss_MxJ = np.asarray(loss_MxC, dtype=np.float64)[:, c_J]
        loss_MxJ[m_J, np.arange(len(m_J))] = np.nan
        in_J, out_J, _ = class_moments(loss_MxJ, member_MxC[:, c_J])
        member_J = member_MxC[m_J, c_J]
        mean_MxC[m_J, c_J] = np.where(member_J, in_J.mean, out_J.mean)
        squares_MxC[m_J, c_J] = np.where(member_J, in_J.squares, out_J.squares)
    return Moments(count_MxC, mean_MxC, squares_MxC), in_moments, out_moments


def moments_without_groups(
    loss_MxC: np.ndarray,
    member_MxC: BoolArray,
    group_M: IntArray,
    partner_GxC: IntArray | None,
) -> tuple[Moments, Moments]:
    """Computes the moments of both classes without each model's group, and without another group for each sample.

    All models of a group share the result, in time linear in the number of models. As in `own_class_moments`, sums of
    which nearly nothing would remain are computed again.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.
      group_M: the group of each model, from 0 without gaps.
      partner_GxC: the other group that is left out; -1: none. None: no other group at all.

    Returns:
      ``(IN moments of shape MxC, OUT moments of shape MxC)``.

    Raises:
      ValueError: if a loss is infinite.
    """
    *classes, deviation_MxC = class_moments(loss_MxC, member_MxC)
    order_M = np.argsort(group_M, kind="stable")
    first_G = np.flatnonzero(np.diff(group_M[order_M], prepend=-1))
    present_MxC = ~np.isnan(loss_MxC)
    kept_by_class: list[Moments] = []
    cancelled_GxC = np.zeros((len(first_G), loss_MxC.shape[1]), np.bool_)
    for moments, is_class_MxC in zip(
        classes, (member_MxC & present_MxC, ~member_MxC & present_MxC), strict=True
    ):
        is_class_MxC = is_class_MxC[order_M].astype(np.float64)
        own_MxC = deviation_MxC[order_M] * is_class_MxC
        count_GxC, sum_GxC, squares_GxC = (
            _with_partner(np.add.reduceat(value_MxC, first_G, axis=0), partner_GxC)
            for value_MxC in (is_class_MxC, own_MxC, np.square(own_MxC))
        )
        kept_GxC = moments.count - count_GxC
        divisor_GxC = np.maximum(kept_GxC, 1)
        squares_GxC = moments.squares - squares_GxC - np.square(sum_GxC) / divisor_GxC
        cancelled_GxC |= (
            (count_GxC > 0)
            & (squares_GxC <= _CANCELLATION * moments.squares)
            & (moments.squares > 0)
        )
        mean_GxC = moments.mean - sum_GxC / divisor_GxC
        kept_by_class.append(Moments(kept_GxC, mean_GxC, squares_GxC))
    g_J, c_J = np.nonzero(cancelled_GxC)
    if len(g_J):
        is_left_out_MxJ = group_M[:, None] == g_J
        if partner_GxC is not None:
            is_left_out_MxJ |= group_M[:, None] == partner_GxC[g_J, c_J]
        loss_MxJ = np.where(is_left_out_MxJ, np.nan, loss_MxC[:, c_J])
        *again, _ = class_moments(loss_MxJ, member_MxC[:, c_J])
        for kept, moments_J in zip(kept_by_class, again, strict=True):
            kept.mean[g_J, c_J] = moments_J.mean
            kept.squares[g_J, c_J] = moments_J.squares
    in_moments, out_moments = (kept.take(group_M) for kept in kept_by_class)
    return in_moments, out_moments


def _with_partner(sum_GxC: FloatArray, partner_GxC: IntArray | None) -> FloatArray:
    """Adds the sums of the partner of each group."""
    if partner_GxC is None:
        return sum_GxC
    of_partner_GxC = np.take_along_axis(sum_GxC, np.maximum(partner_GxC, 0), axis=0)
    return sum_GxC + np.where(partner_GxC >= 0, of_partner_GxC, 0.0)


def as_bit_mask(member_MxC: BoolArray) -> IntArray:
    """Returns integers with all bits set where True and no bit set where False, for `select_by_mask`."""
    return -member_MxC.astype(np.int64)


def select_by_mask(
    mask_MxC: IntArray, if_member: FloatArray, if_nonmember: FloatArray
) -> FloatArray:
    """Computes np.where(member, if_member, if_nonmember), bitwise equal but without branches.

    np.where takes five times as long, because no processor can predict membership.
    """
    member_bits, nonmember_bits = if_member.view(np.int64), if_nonmember.view(np.int64)
    return (((member_bits ^ nonmember_bits) & mask_MxC) ^ nonmember_bits).view(np.float64)


def as_finite_float64(loss: np.ndarray) -> FloatArray:
    """Copies losses to float64.

    Raises:
      ValueError: if a loss is infinite.
    """
    check_magnitude(loss, "losses")
    return loss.astype(np.float64)


def mean_variance_count(
    moments: Moments, variance_factor: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes mean, unbiased variance times variance_factor, and count of one class; NaN where undefined."""
    variance = variance_or_nan(moments, variance_factor)
    return mean_or_nan(moments), variance, moments.count.astype(np.int64)


def mean_or_nan(moments: Moments) -> FloatArray:
    """Returns the means; NaN without a loss."""
    if moments.count.all():  # almost always, and faster
        return moments.mean
    return np.where(moments.count > 0, moments.mean, np.nan)


def variance_or_nan(moments: Moments, variance_factor: float) -> FloatArray:
    """Computes the unbiased variance times variance_factor; NaN for fewer than 2 losses."""
    return divide_or_nan(moments.squares, np.maximum(moments.count - 1, 0)) * variance_factor


def divide_or_nan(numerator: ArrayLike, denominator: ArrayLike) -> FloatArray:
    """Divides; NaN where the denominator is 0."""
    numerator = np.asarray(numerator, dtype=np.float64)
    denominator = np.asarray(denominator, dtype=np.float64)
    nan = np.full(denominator.shape, np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator > 0)


def _first_selected(loss_MxC: FloatArray, mask_MxC: BoolArray) -> FloatArray:
    """Returns the first selected loss of each sample: the deviations of equal losses from it are exactly 0."""
    if loss_MxC.shape[0] == 0:
        return np.zeros(loss_MxC.shape[1])
    searched_HxC = mask_MxC[:_FIRST_SEARCHED]  # almost always enough, and much less work
    if not searched_HxC.any(axis=0).all():
        searched_HxC = mask_MxC
    return np.take_along_axis(loss_MxC, searched_HxC.argmax(axis=0)[None], axis=0)[0]


def _masked_sum(value_MxC: FloatArray, mask_MxC: FloatArray) -> FloatArray:
    return np.einsum("mc,mc->c", value_MxC, mask_MxC)
