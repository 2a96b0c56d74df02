"""LiRA on every model as the target, with the others as its references, in time linear in the number of models.

Legend: M models, N samples, C samples of a chunk. Losses are means in nats per token; NaN marks a missing loss. Scores
are in log space and larger for members. Carlini et al. 2022, Membership Inference Attacks From First Principles.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.likelihood_ratio import (
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
    own_class_moments,
    variance_or_nan,
)

# Two independent subsets are complements on this many samples with a probability below 1e-19.
_COMPLEMENT_SAMPLES = 64


def leave_one_out_moments(
    loss_MxC: np.ndarray, member_MxC: BoolArray, complement_M: IntArray | None = None
) -> tuple[Moments, Moments]:
    """Computes the moments of both classes without each model, or without each model and its complement.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.
      complement_M: index of the model that is trained on the complement of each model's subset and left out, too; -1:
        there is none. None: no model has a complement.

    Returns:
      ``(IN moments of shape MxC, OUT moments of shape MxC)``.

    Raises:
      ValueError: if a loss is infinite.
    """
    own, in_moments, out_moments = own_class_moments(loss_MxC, member_MxC)
    mask_MxC = as_bit_mask(member_MxC)
    # The other class of a model without a complement is complete.
    other = out_moments.select(mask_MxC, in_moments)
    if complement_M is not None:
        # A model and its complement are in different classes, so the other class lacks the complement only.
        has_complement_Mx1 = (complement_M >= 0)[:, None]
        of_complement = own.take(complement_M)
        other = of_complement.select(as_bit_mask(has_complement_Mx1), other)
    return own.select(mask_MxC, other), other.select(mask_MxC, own)


def lira_leave_one_out(
    loss_MxN: ArrayLike,
    member_MxN: ArrayLike,
    *,
    variance: Variance = "per_sample",
    offline: bool = False,
    sampled_share: float = 0.0,
    pairs: bool = False,
    scatter_Mx2x2: FloatArray | None = None,
) -> FloatArray:
    """Computes the LiRA scores of each model as the target, with all other models as its references, in O(M N).

    The models must have independently drawn training subsets. In a balanced design, the subsets of models 2i and 2i + 1
    are complements, and every sample is in exactly half of the subsets, so a model leaves one IN reference fewer for
    its members than for its non-members. The mean of fewer losses is less exact, which lowers the scores of members: on
    noise, the AUC with a pooled variance is 0.41 for 4 models, 0.48 for 8 and 0.49 for 16, instead of 0.5. With
    ``pairs=True``, both models of a pair are left out: the other pairs contain every sample equally often, so that
    nothing is revealed. Without it, complements are refused if there are at least 64 samples.

    Args:
      loss_MxN: losses under all models, in nats per token; a NaN loss is left out, and its score is NaN.
      member_MxN: booleans, whether each sample was in each model's training subset.
      variance: "per_sample" or "pooled", as for `lira`. The pooled variances of a model leave out that model, too.
      offline: whether to use the OUT references only, as for `lira`.
      sampled_share: share of the population in a training subset, as for `lira`.
      pairs: whether each model is attacked with the models of all other pairs (2i, 2i + 1), as a balanced design
        requires.
      scatter_Mx2x2: sum of `leave_one_out_scatter` over all blocks of samples, if these samples are one of several
        blocks and the variance is pooled over all of them. By default it is computed from these samples.

    Returns:
      score_MxN: each row equals `lira` of that model against the others.

    Raises:
      ValueError: as for `lira`, if pairs is set and the models are not pairs of complements, or if pairs is not set
        and two models are complements.

    Source: Carlini et al. 2022, who attack each of their shadow models with the others.

    Example:
      >>> from lm_mia.stats import lira_leave_one_out
      >>> loss_6x1 = [[1.0], [3.0], [2.0], [4.0], [6.0], [8.0]]
      >>> member_6x1 = [[True], [True], [True], [False], [False], [False]]
      >>> lira_leave_one_out(loss_6x1, member_6x1).round(2).T
      array([[  1.91,  -0.09,   2.35,   0.6 ,  -6.96, -15.4 ]])
    """
    loss_MxN, member_MxN = check_references(loss_MxN, member_MxN, variance)
    if not pairs:
        check_no_complements(member_MxN)
    variance_factor = as_variance_factor(sampled_share)
    if variance == "pooled" and scatter_Mx2x2 is None:
        scatter_Mx2x2 = leave_one_out_scatter(loss_MxN, member_MxN, pairs=pairs)
    score_MxN = np.empty(loss_MxN.shape)
    complement_M = pair_complements(member_MxN) if pairs else None
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        in_moments, out_moments = leave_one_out_moments(
            loss_MxN[:, chunk], member_MxN[:, chunk], complement_M
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
            score_MxN[:, chunk] = -log_ndtr((loss_MxC - mean_out_MxC) / sd_out)
        else:
            score_MxN[:, chunk] = log_ratio(
                loss_MxC, mean_or_nan(in_moments), sd_or_nan(var_in), mean_out_MxC, sd_out
            )
    return score_MxN


def leave_one_out_scatter(
    loss_MxN: ArrayLike, member_MxN: ArrayLike, *, pairs: bool = False
) -> FloatArray:
    """Computes, for each model, the `within_sample_scatter` of all other models.

    The results for blocks of samples can be added.

    Args:
      loss_MxN: losses under all models, in nats per token; NaN marks a missing loss.
      member_MxN: booleans, whether each sample was in each model's training subset.
      pairs: whether the other model of each pair (2i, 2i + 1) is left out, too, as for `lira_leave_one_out`.

    Returns:
      scatter_Mx2x2: for each left-out model one row per class, IN first, with columns (sum of squares, degrees of
      freedom).

    Raises:
      ValueError: if the shapes do not match, if member_MxN is not boolean, if a loss is infinite, or if pairs is set
        and the models are not pairs of complements.
    """
    loss_MxN, member_MxN = check_references(loss_MxN, member_MxN, "pooled")
    total_Mx2x2 = np.zeros((loss_MxN.shape[0], 2, 2))
    complement_M = pair_complements(member_MxN) if pairs else None
    for chunk in chunks_of_samples(loss_MxN.shape[1]):
        moments = leave_one_out_moments(loss_MxN[:, chunk], member_MxN[:, chunk], complement_M)
        for i, moments_MxC in enumerate(moments):
            total_Mx2x2[:, i, 0] += moments_MxC.squares.sum(axis=1)
            total_Mx2x2[:, i, 1] += np.maximum(moments_MxC.count - 1, 0).sum(axis=1)
    return total_Mx2x2


def complements(member_MxN: BoolArray) -> IntArray:
    """Finds models that were trained on exactly the samples on which another model was not, as in a balanced design.

    Args:
      member_MxN: booleans, whether each sample was in each model's training subset.

    Returns:
      complement_M: the index of each model's complement; -1 without one, and if there are fewer than 64 samples, which
      do not suffice to recognize complements.
    """
    complement_M = np.full(len(member_MxN), -1)
    if member_MxN.shape[1] < _COMPLEMENT_SAMPLES:
        return complement_M
    first_MxB = np.packbits(member_MxN[:, : 2**10], axis=1)
    models: dict[bytes, list[int]] = {}
    for m, bits_B in enumerate(first_MxB):
        models.setdefault(bits_B.tobytes(), []).append(m)
    for m, bits_B in enumerate(np.packbits(~member_MxN[:, : 2**10], axis=1)):
        for other in models.get(bits_B.tobytes(), []):
            if (member_MxN[m] != member_MxN[other]).all():
                complement_M[m] = other
    return complement_M


def pair_complements(member_MxN: BoolArray) -> IntArray:
    """Returns complement_M of pairs (2i, 2i + 1); raises ValueError unless their subsets are complements."""
    if len(member_MxN) % 2 or (member_MxN[::2] == member_MxN[1::2]).any():
        raise ValueError(
            "pairs=True: the training subsets of models 2i and 2i + 1 must be complements of each other; "
            "use pairs=False for independent subsets"
        )
    return np.arange(len(member_MxN)) ^ 1


def check_no_complements(member_MxN: BoolArray) -> None:
    """Raises ValueError if a model was trained on exactly the samples on which another one was not."""
    has_complement_M = complements(member_MxN) >= 0
    if has_complement_M.any():
        raise ValueError(
            f"model {has_complement_M.argmax()} was trained on the complement of another model's subset (a balanced "
            "design), so the other models reveal its members; set pairs=True, which leaves out both, or use "
            "independent subsets"
        )
