"""LiRA: the likelihood ratio of a target's loss under Gaussians fitted to the losses of IN and OUT references.

Moments are computed from deviations from one of the losses, never from raw squares. Therefore equal losses have a
variance of exactly zero, and a small spread around a large mean keeps its precision.

Legend: T targets, M references, N samples, C samples of a chunk, J (model, sample) pairs that are computed again.
Losses are means in nats per token; NaN marks a missing reference loss. Scores are in log space and larger for members.
StrongMIA, Appendix A; Carlini et al. 2022, Membership Inference Attacks From First Principles.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, log_ndtr

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.inputs import as_float64, as_members, as_real, check_magnitude

# glibc returns freed memory to the system beyond twice the largest block that was ever freed. Without the large block
# that is freed here, the temporaries of each chunk would be requested again, which doubles the time of a fit.
_large = np.empty(2**21)
del _large

_FIRST_SEARCHED = 16  # number of references that are searched first for one of a class
# A sum of squares that loses all but this share by a subtraction is computed again.
_CANCELLATION = 1e-6
_CHUNK = 2**10  # samples that are processed at once: M x C float64 numbers fit the cache of a core
# Two independent subsets are complements on this many samples with a probability below 1e-19.
_COMPLEMENT_SAMPLES = 64

Variance = Literal["per_sample", "pooled"]


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

    def swap_pairs(self) -> Moments:
        """Returns the moments of model 2i + 1 in place of those of model 2i, and vice versa."""
        M, C = self.count.shape

        def swap(value_MxC: FloatArray) -> FloatArray:
            return value_MxC.reshape(M // 2, 2, C)[:, ::-1].reshape(M, C)

        return Moments(swap(self.count), swap(self.mean), swap(self.squares))


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
      ValueError: if a loss is infinite.
    """
    loss_MxC = as_finite_float64(loss_MxC)
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


def leave_one_out_moments(
    loss_MxC: np.ndarray, member_MxC: BoolArray, *, pairs: bool = False
) -> tuple[Moments, Moments]:
    """Computes the moments of both classes without each model, or without each model and its complement.

    Args:
      loss_MxC: losses; NaN losses are left out.
      member_MxC: booleans, whether each sample is a member of each model's training subset.
      pairs: whether models 2i and 2i + 1 are both left out of the moments of either of them. Their training subsets
        must be complements.

    Returns:
      ``(IN moments of shape MxC, OUT moments of shape MxC)``.

    Raises:
      ValueError: if a loss is infinite, or if pairs is set and the models are not pairs of complements.
    """
    own, in_moments, out_moments = own_class_moments(loss_MxC, member_MxC)
    if pairs:
        _check_complements(member_MxC)
        # A model and its complement are in different classes, so the other class lacks the complement only.
        in_moments = out_moments = own.swap_pairs()
    mask_MxC = as_bit_mask(member_MxC)
    return own.select(mask_MxC, in_moments), out_moments.select(mask_MxC, own)


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
    loss_MxN, member_MxN = _check_references(reference_loss_MxN, reference_member_MxN, variance)
    variance_factor = _variance_factor(sampled_share)
    chunks: list[tuple[np.ndarray, ...]] = []
    for chunk in _chunks(loss_MxN.shape[1]):
        in_moments, out_moments, _ = class_moments(loss_MxN[:, chunk], member_MxN[:, chunk])
        chunks.append(
            (
                *_mean_variance_count(in_moments, variance_factor),
                *_mean_variance_count(out_moments, variance_factor),
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
    var_in, var_out = _divide_or_nan(scatter_2x2[:, 0], scatter_2x2[:, 1])
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
    sd_in_N, sd_out_N = _sd_or_nan(gaussians.var_in_N), _sd_or_nan(gaussians.var_out_N)
    for chunk in _chunks(samples):
        loss_TxC = as_finite_float64(target_TxN[:, chunk])
        mean_out_C, sd_out_C = gaussians.mean_out_N[chunk], sd_out_N[chunk]
        if offline:
            score_TxN[:, chunk] = -log_ndtr((loss_TxC - mean_out_C) / sd_out_C)
        else:
            score_TxN[:, chunk] = _log_ratio(
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
    return expit(as_float64(score, "scores"))


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
    loss_MxN, member_MxN = _check_references(loss_MxN, member_MxN, variance)
    if not pairs:
        _check_no_complements(member_MxN)
    variance_factor = _variance_factor(sampled_share)
    if variance == "pooled" and scatter_Mx2x2 is None:
        scatter_Mx2x2 = leave_one_out_scatter(loss_MxN, member_MxN, pairs=pairs)
    score_MxN = np.empty(loss_MxN.shape)
    for chunk in _chunks(loss_MxN.shape[1]):
        in_moments, out_moments = leave_one_out_moments(
            loss_MxN[:, chunk], member_MxN[:, chunk], pairs=pairs
        )
        if variance == "pooled":
            assert scatter_Mx2x2 is not None
            var_Mx2 = _divide_or_nan(scatter_Mx2x2[..., 0], scatter_Mx2x2[..., 1]) * variance_factor
            var_in, var_out = var_Mx2[:, :1], var_Mx2[:, 1:]
        else:
            var_in = _variance_or_nan(in_moments, variance_factor)
            var_out = _variance_or_nan(out_moments, variance_factor)
        loss_MxC = loss_MxN[:, chunk].astype(np.float64)
        mean_out_MxC, sd_out = _mean_or_nan(out_moments), _sd_or_nan(var_out)
        if offline:
            score_MxN[:, chunk] = -log_ndtr((loss_MxC - mean_out_MxC) / sd_out)
        else:
            score_MxN[:, chunk] = _log_ratio(
                loss_MxC, _mean_or_nan(in_moments), _sd_or_nan(var_in), mean_out_MxC, sd_out
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
    loss_MxN, member_MxN = _check_references(loss_MxN, member_MxN, "pooled")
    total_Mx2x2 = np.zeros((loss_MxN.shape[0], 2, 2))
    for chunk in _chunks(loss_MxN.shape[1]):
        moments = leave_one_out_moments(loss_MxN[:, chunk], member_MxN[:, chunk], pairs=pairs)
        for i, moments_MxC in enumerate(moments):
            total_Mx2x2[:, i, 0] += moments_MxC.squares.sum(axis=1)
            total_Mx2x2[:, i, 1] += np.maximum(moments_MxC.count - 1, 0).sum(axis=1)
    return total_Mx2x2


def _log_ratio(
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


def _mean_variance_count(
    moments: Moments, variance_factor: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Computes mean, unbiased variance times variance_factor, and count of one class; NaN where undefined."""
    variance = _variance_or_nan(moments, variance_factor)
    return _mean_or_nan(moments), variance, moments.count.astype(np.int64)


def _mean_or_nan(moments: Moments) -> FloatArray:
    if moments.count.all():  # almost always, and faster
        return moments.mean
    return np.where(moments.count > 0, moments.mean, np.nan)


def _variance_or_nan(moments: Moments, variance_factor: float) -> FloatArray:
    """Computes the unbiased variance times variance_factor; NaN for fewer than 2 losses."""
    return _divide_or_nan(moments.squares, np.maximum(moments.count - 1, 0)) * variance_factor


def _check_complements(member_MxC: BoolArray) -> None:
    """Raises ValueError unless the subsets of models 2i and 2i + 1 are complements of each other."""
    if len(member_MxC) % 2 or (member_MxC[::2] == member_MxC[1::2]).any():
        raise ValueError(
            "pairs=True: the training subsets of models 2i and 2i + 1 must be complements of each other; "
            "use pairs=False for independent subsets"
        )


def _variance_factor(sampled_share: float) -> float:
    if not 0 <= sampled_share < 1:
        raise ValueError(f"sampled_share={sampled_share}: must be in [0, 1)")
    return 1 / (1 - sampled_share)


def _chunks(samples: int) -> list[slice]:
    return [slice(low, min(low + _CHUNK, samples)) for low in range(0, samples, _CHUNK)]


def _check_references(
    loss: ArrayLike, member: ArrayLike, variance: str
) -> tuple[np.ndarray, BoolArray]:
    if variance not in ("per_sample", "pooled"):
        raise ValueError(f"variance={variance!r}: must be 'per_sample' or 'pooled'")
    loss_MxN, member_MxN = np.atleast_2d(as_real(loss, "losses")), np.atleast_2d(as_members(member))
    if loss_MxN.ndim != 2 or loss_MxN.shape != member_MxN.shape:
        raise ValueError(
            f"losses of shape {loss_MxN.shape} do not match members of shape {member_MxN.shape}"
        )
    return loss_MxN, member_MxN


def _check_no_complements(member_MxN: BoolArray) -> None:
    """Raises ValueError if a model was trained on exactly the samples on which another one was not."""
    if member_MxN.shape[1] < _COMPLEMENT_SAMPLES:
        return
    part_MxP = member_MxN[:, : 2**10]
    subsets = {member_P.tobytes() for member_P in part_MxP}
    for m, member_P in enumerate(~part_MxP):
        if member_P.tobytes() in subsets:
            raise ValueError(
                f"model {m} was trained on the complement of another model's subset (a balanced design), so the other "
                "models reveal its members; set pairs=True, which leaves out both, or use independent subsets"
            )


def _divide_or_nan(numerator: ArrayLike, denominator: ArrayLike) -> FloatArray:
    """Divides; NaN where the denominator is 0."""
    numerator = np.asarray(numerator, dtype=np.float64)
    denominator = np.asarray(denominator, dtype=np.float64)
    nan = np.full(denominator.shape, np.nan)
    return np.divide(numerator, denominator, out=nan, where=denominator > 0)


def _sd_or_nan(var_N: FloatArray) -> FloatArray:
    return np.sqrt(np.where(var_N > 0, var_N, np.nan))
