"""LiRA on every model as the target, with the others as its references, in time linear in the number of models.

Legend: M models, G groups of models, P pairs of models, N samples, C samples of a chunk. Losses are means in nats per
token; NaN marks a missing loss. Scores are in log space and larger for members. Carlini et al. 2022, Membership
Inference Attacks From First Principles.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.design import Design, check_no_overlap, design_of, partners
from lm_mia.stats.inputs import as_counts
from lm_mia.stats.lira import (
    Variance,
    as_variance_factor,
    check_references,
    chunks_of_samples,
    log_ratio,
    sd_or_nan,
)
from lm_mia.stats.moments import (
    Moments,
    as_bit_mask,
    divide_or_nan,
    mean_or_nan,
    moments_without_groups,
    own_class_moments,
    variance_or_nan,
)


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """What is left out in an attack on each model, for all samples of a block."""

    group_M: IntArray
    """The group of each model, as in `Design`, which is left out as a whole."""
    partner_GxC: IntArray | None
    """The other group that is left out, as `partners`; None: no other one."""

    def select(self, chunk: slice) -> LeftOut:
        """Returns what is left out for some of the samples."""
        partner_GxC = self.partner_GxC
        return LeftOut(self.group_M, None if partner_GxC is None else partner_GxC[:, chunk])


def left_out_by_design(
    member_MxN: BoolArray, design: Design | None, id_N: ArrayLike | None
) -> LeftOut:
    """Returns what is left out, with the arguments of `lira_leave_one_out`; raises ValueError as it does."""
    models, samples = member_MxN.shape
    design = design_of(member_MxN) if design is None else design
    check_no_overlap(design)
    if len(design.group_M) != models:
        raise ValueError(f"design: is that of {len(design.group_M)} models, not of {models}")
    id_N = np.arange(samples) if id_N is None else as_counts(id_N, "id_N")
    if id_N.shape != (samples,):
        raise ValueError(
            f"id_N of shape {id_N.shape}: must have an id for each of {samples} samples"
        )
    if not design.columns:
        return LeftOut(design.group_M, None)
    chunks = chunks_of_samples(samples)  # four times as fast as all samples at once
    parts = [partners(design, member_MxN[:, chunk], id_N[chunk]) for chunk in chunks]
    return LeftOut(design.group_M, np.concatenate(parts, axis=1))


def leave_one_out_moments(
    loss_MxC: np.ndarray, member_MxC: BoolArray, left_out: LeftOut
) -> tuple[Moments, Moments]:
    """Computes the moments of both classes without each model, its group and its partner.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.
      left_out: what else is left out for each model.

    Returns:
      ``(IN moments of shape MxC, OUT moments of shape MxC)``.

    Raises:
      ValueError: if a loss is infinite.
    """
    complement_M = _complements(left_out, member_MxC)
    if complement_M is None:
        return moments_without_groups(loss_MxC, member_MxC, left_out.group_M, left_out.partner_GxC)
    # At most one model of each class is left out, which takes half the time.
    own, in_moments, out_moments = own_class_moments(loss_MxC, member_MxC)
    mask_MxC = as_bit_mask(member_MxC)
    # The other class of a model without a complement is complete.
    other = out_moments.select(mask_MxC, in_moments)
    has_complement_M = complement_M >= 0
    if has_complement_M.any():
        # A model and its complement are in different classes, so the other class lacks the complement only.
        of_complement = own.take(complement_M)
        other = of_complement.select(as_bit_mask(has_complement_M[:, None]), other)
    return own.select(mask_MxC, other), other.select(mask_MxC, own)


def has_both_classes(in_moments: Moments, out_moments: Moments) -> BoolArray:
    """Returns whether the models that remain include an IN and an OUT loss of the sample.

    Cells without them have no score in any attack. A sample that no other model was trained on is a non-member almost
    always, and its other moments are better known: it would have fewer large scores than the members, or more.
    """
    return (in_moments.count > 0) & (out_moments.count > 0)


def _complements(left_out: LeftOut, member_MxC: BoolArray) -> IntArray | None:
    """Returns the other model of each model's group, -1 without one; None if more than that is left out.

    More is left out if there are partners or groups of three, or if both models of a group are in the same class.
    """
    group_M = left_out.group_M
    size_G = np.bincount(group_M)
    if left_out.partner_GxC is not None or size_G.max(initial=0) > 2:
        return None
    complement_M = np.full(len(group_M), -1)
    if size_G.max(initial=0) == 2:
        order_M = np.argsort(group_M, kind="stable")
        first_P = order_M[np.flatnonzero(np.diff(group_M[order_M], append=-1) == 0)]
        second_P = order_M[np.flatnonzero(np.diff(group_M[order_M], prepend=-1) == 0)]
        if (member_MxC[first_P] == member_MxC[second_P]).any():
            return None
        complement_M[first_P], complement_M[second_P] = second_P, first_P
    return complement_M


def lira_leave_one_out(
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    offline: bool = False,
    sampled_share: float = 0.0,
    design: Design | None = None,
    id_N: ArrayLike | None = None,
    scatter_Mx2x2: FloatArray | None = None,
) -> FloatArray:
    """Computes the LiRA scores of each model as the target, with all other models as its references, in O(M N).

    The others must not reveal the members of the target. What is left out with it depends on how the training subsets
    are related (`design_of`):

    - Models with the same subset, such as several seeds, and with its complement, as in a balanced design, are left
      out. Otherwise the AUC on noise would be 0.58 for 4 subsets with 2 seeds each, and 0.37 to 0.49 for 6 to 16
      models in pairs of complements.
    - If every sample is in the same number of subsets, a member has one IN reference fewer than a non-member: the AUC
      on noise would be 0.44 for 8 models. A random partner of the other class is left out for each sample, so that
      members and non-members have equally many.
    - Subsets that overlap in another way are refused: no estimate is right.

    A cell has a score only if the models that remain include one that was trained on the sample and one that was not,
    also offline. Samples that no model was trained on are therefore left out: they are non-members without exception,
    and their many OUT references would give them other scores than samples that might be members.

    Args:
      loss_MxN: losses under all models, in nats per token; a NaN loss is left out, and its score is NaN.
      member_MxN: booleans, whether each sample was in each model's training subset.
      variance: "per_sample" or "pooled", as for `lira`. The pooled variances of a model leave out that model, too.
      offline: whether to use the OUT references only, as for `lira`.
      sampled_share: share of the population in a training subset, as for `lira`.
      design: the result of `design_of` for all samples, if these samples are one of several blocks. By default it is
        that of these samples.
      id_N: ids of the samples, from which partners are drawn; by default 0, 1, 2, ... They must differ between blocks.
      scatter_Mx2x2: sum of `leave_one_out_scatter` over all blocks of samples, if these samples are one of several
        blocks and the variance is pooled over all of them. By default it is computed from these samples.

    Returns:
      score_MxN: each row equals `lira` of that model against the models that are not left out; NaN where these do not
      include both classes.

    Raises:
      ValueError: as for `lira`, if subsets overlap, or if the design or the ids do not match the losses.

    Source: Carlini et al. 2022, who attack each of their shadow models with the others.

    Example:
      >>> from lm_mia.stats import lira_leave_one_out
      >>> loss_6x1 = [[1.0], [3.0], [2.0], [4.0], [6.0], [8.0]]
      >>> member_6x1 = [[True], [True], [True], [False], [False], [False]]
      >>> lira_leave_one_out(loss_6x1, member_6x1).round(2).T
      array([[  1.91,  -0.09,   2.35,   0.6 ,  -6.96, -15.4 ]])
    """
    loss_MxN, member_MxN = check_references(loss_MxN, member_MxN, variance)
    left_out = left_out_by_design(member_MxN, design, id_N)
    variance_factor = as_variance_factor(sampled_share)
    if variance == "pooled" and scatter_Mx2x2 is None:
        scatter_Mx2x2 = _scatter(loss_MxN, member_MxN, left_out)
    score_MxN = np.empty(loss_MxN.shape)
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        in_moments, out_moments = leave_one_out_moments(
            loss_MxN[:, chunk], member_MxN[:, chunk], left_out.select(chunk)
        )
        if variance == "pooled":
            assert scatter_Mx2x2 is not None
            var_Mx2 = divide_or_nan(scatter_Mx2x2[..., 0], scatter_Mx2x2[..., 1]) * variance_factor
            var_in, var_out = var_Mx2[:, :1], var_Mx2[:, 1:]
        else:
            var_in = variance_or_nan(in_moments, variance_factor)
            var_out = variance_or_nan(out_moments, variance_factor)
        loss_MxC = loss_MxN[:, chunk].astype(np.float64)
        mean_out_MxC, sd_out = mean_or_nan(out_moments), sd_or_nan(var_out)
        if offline:
            has_score_MxC = has_both_classes(in_moments, out_moments)
            distance_MxC = np.where(has_score_MxC, loss_MxC - mean_out_MxC, np.nan)
            score_MxN[:, chunk] = -scipy.special.log_ndtr(distance_MxC / sd_out)
        else:
            score_MxN[:, chunk] = log_ratio(
                loss_MxC, mean_or_nan(in_moments), sd_or_nan(var_in), mean_out_MxC, sd_out
            )
    return score_MxN


def leave_one_out_scatter(
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    *,
    design: Design | None = None,
    id_N: ArrayLike | None = None,
) -> FloatArray:
    """Computes, for each model, the `within_sample_scatter` of all models that are not left out with it.

    The results for blocks of samples can be added.

    Args:
      loss_MxN: losses under all models, in nats per token; NaN marks a missing loss.
      member_MxN: booleans, whether each sample was in each model's training subset.
      design, id_N: as for `lira_leave_one_out`.

    Returns:
      scatter_Mx2x2: for each left-out model one row per class, IN first, with columns (sum of squares, degrees of
      freedom).

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, if a loss is infinite, if subsets overlap,
        or if the design or the ids do not match the losses.
    """
    loss_MxN, member_MxN = check_references(loss_MxN, member_MxN, "pooled")
    return _scatter(loss_MxN, member_MxN, left_out_by_design(member_MxN, design, id_N))


def _scatter(loss_MxN: np.ndarray, member_MxN: BoolArray, left_out: LeftOut) -> FloatArray:
    total_Mx2x2 = np.zeros((loss_MxN.shape[0], 2, 2))
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        moments = leave_one_out_moments(
            loss_MxN[:, chunk], member_MxN[:, chunk], left_out.select(chunk)
        )
        for i, moments_MxC in enumerate(moments):
            total_Mx2x2[:, i, 0] += moments_MxC.squares.sum(axis=1)
            total_Mx2x2[:, i, 1] += np.maximum(moments_MxC.count - 1, 0).sum(axis=1)
    return total_Mx2x2
