"""Both potential outcomes of every sample, from the scores of many models that were trained with and without it.

The mean score of the models with a sample in their training data (IN) estimates its score as a member, and that of the
other models (OUT) its score as a non-member. Averaged over samples, these give the true values that evaluations of a
single model try to estimate, up to standard errors, which come from a jackknife over models.

Legend: M models, N samples, C samples of a block, S samples of a piece of a block, G jackknife groups (of models with
equal or complementary subsets), Q quantities with a standard error, F false positive rates, K bins of scores, K1 bins
and the end of the last one, 2K bins of scores of IN models and then of OUT models.

Source: CausalMIA, Eqs. 1 and 2 and Section 3.2; Shao and Tu 1995, The Jackknife and Bootstrap, Chapter 2.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike

from lm_mia.stats import ranking
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.design import design_of
from lm_mia.stats.inputs import MAX_LOSS, as_float64, as_members, check_magnitude

Block = tuple[np.ndarray, np.ndarray]
"""Scores and membership of all models for consecutive samples: (score_MxC, member_MxC)."""

_EXACT_SCORES = 2**20
"""Up to this many scores are kept in memory, and each distinct one has its own bin."""
_BINS = 2**16
"""Number of bins for more scores."""
_PIECE = 2**17
"""Number of scores of a piece, so that its temporary arrays stay in the cache."""
_MAX_SCORE = 1e100  # so that squares do not overflow
_BANDWIDTH = 0.25
"""The slope of the ROC curve at an FPR of f is measured from f - b to f + b, where b is this number * min(f, 1 - f)."""


@dataclasses.dataclass(frozen=True)
class PotentialOutcomes:
    """Effects of membership on every sample, and causal metrics with standard errors over models."""

    mean_in_N: FloatArray
    """Mean score over the models with the sample in their training data; NaN without such a model."""
    mean_out_N: FloatArray
    """Mean score over the other models; NaN without such a model."""
    effect_N: FloatArray
    """mean_in_N - mean_out_N."""
    effect_se_N: FloatArray
    """Standard error of the effect (Welch); NaN with fewer than two IN or two OUT models."""
    num_in_N: IntArray
    """Number of models with the sample in their training data and a score that is not NaN."""
    num_out_N: IntArray
    """Number of other models with a score that is not NaN."""
    ate: float
    """Mean effect over the samples, weighted by weight_N."""
    ate_se: float
    auc: float
    """Pr[Y(1) > Y(0)] for two independent samples and models, ties counted as 1/2."""
    auc_se: float
    tpr_F: FloatArray
    """TPR at the smallest OUT score with an FPR of at most each requested rate, as for `threshold_at_fpr`; NaN at a
    rate above 0 that is below the weight of the highest OUT score, so that no score is a threshold. With equal weights,
    `nonmembers_needed` says how many OUT scores it needs."""
    tpr_se_F: FloatArray
    threshold_F: FloatArray
    """These thresholds; +inf if no OUT score is one, and the smallest score for a rate of 1."""
    left_out: int
    """Number of samples with a weight above 0 but without an IN or without an OUT model."""
    models: int


@dataclasses.dataclass(frozen=True)
class _Bins:
    """Maps scores to bins in ascending order."""

    distinct_K: FloatArray | None
    """Each distinct score if there are few; else bins have equal width in z / (1 + |z|), where z is the score minus
    center, divided by scale."""
    center: float
    scale: float
    count: int

    def find(self, score_MxS: FloatArray) -> IntArray:
        """Returns the bin of each score."""
        if self.distinct_K is not None:
            return np.searchsorted(self.distinct_K, score_MxS)
        z_MxS = (score_MxS - self.center) / self.scale
        z_MxS /= 1 + np.abs(z_MxS)
        z_MxS += 1
        z_MxS *= self.count / 2
        return np.minimum(z_MxS.astype(np.int64), self.count - 1)

    def lower_end(self, bin_F: IntArray) -> FloatArray:
        """Returns the smallest score of each bin, up to rounding."""
        if self.distinct_K is not None:
            return self.distinct_K[bin_F]
        u_F = 2 * bin_F / self.count - 1
        with np.errstate(divide="ignore"):
            return self.center + self.scale * u_F / (1 - np.abs(u_F))


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Scores of some samples with the IN and OUT models of each."""

    columns: slice
    score_MxS: FloatArray
    """Missing scores are replaced by some other number."""
    bin_MxS: IntArray
    in_MxS: FloatArray
    """1 for an IN model with a score, else 0."""
    out_MxS: FloatArray
    num_in_S: FloatArray
    num_out_S: FloatArray
    weight_S: FloatArray
    """Weights of the target distribution; 0 for samples without an IN or an OUT model."""
    left_out: int


@dataclasses.dataclass(frozen=True)
class _Rates:
    """Metrics of the distributions of Y(1) and Y(0), and what their standard errors need."""

    auc: float
    tpr_F: FloatArray
    threshold_F: FloatArray
    win_2K: FloatArray
    """Pr[Y(0) < y] for an IN score y of each bin, then Pr[Y(1) > y] for an OUT score, ties counted as 1/2."""
    cut_F: IntArray
    """First bin that is called a member."""
    slope_F: FloatArray
    """Slope of the ROC curve at each rate."""


def potential_outcomes(
    blocks: Callable[[], Iterable[Block]],
    weight_N: ArrayLike,
    fprs: ArrayLike,
    *,
    pairs: bool = False,
) -> PotentialOutcomes:
    """Computes both potential outcomes of every sample, and the causal metrics of a distribution over samples.

    A member of the target distribution is a random sample, drawn by weight, under a random IN model of this sample; a
    non-member is drawn in the same way from OUT models. So every sample has the same weight in TPR and FPR.

    With more than 2^20 scores, AUC and thresholds are computed from 2^16 bins, which are narrow where the scores of
    the first block are: 0.00003 of their interquartile range r in the middle, and 0.004 r at a distance of 10 r.
    Scores of one bin count as tied, so the error of the AUC is at most half of the share of non-members in the largest
    bin. Memory depends on the number of samples and the size of a block only.

    Standard errors are those of a jackknife that leaves out one model at a time: they describe how the metrics would
    vary if models with the same samples were trained anew. The ATE is computed exactly without each model; AUC and TPRs
    are linearized in the distributions of Y(1) and Y(0). For a TPR this includes the threshold, by the
    slope of the ROC curve, measured from 3/4 to 5/4 of the FPR.

    Args:
      blocks: a function that returns all blocks in the order of the samples, (score_MxC, member_MxC) each; it is called
        twice. Larger scores mean members; NaN is a missing score. With an attack that uses reference models, the score
        of a model must not depend on its own membership other than through its training.
      weight_N: weight of each sample in the target distribution, 0 or larger, of any sum.
      fprs: one false positive rate in [0, 1], or several.
      pairs: whether models 2i and 2i + 1 were trained on complementary subsets, which is then checked. The jackknife
        leaves out groups of models with equal or complementary subsets, which it finds in the first block
        (`design_of`), and pairs in any case.

    Returns:
      Outcomes and effects of all samples, and the metrics. Samples without an IN or without an OUT model are left out
      of the metrics. Standard errors are NaN with fewer than two groups of models.

    Raises:
      ValueError: if the shapes do not match, a score is infinite or too large, a weight is negative or NaN, the weights
        are too large or too small, no sample with a weight has both IN and OUT models, or pairs are not complements.

    Source: CausalMIA, Eqs. 1 and 2 and Section 3.2.

    Example:
      >>> import numpy as np
      >>> from lm_mia.stats import potential_outcomes
      >>> rng = np.random.default_rng(0)
      >>> member_MxN = rng.random((64, 1000)) < 0.5
      >>> score_MxN = rng.normal(size=(64, 1000)) + 0.5 * member_MxN
      >>> truth = potential_outcomes(lambda: [(score_MxN, member_MxN)], np.ones(1000), fprs=0.1)
      >>> bool(abs(truth.ate - 0.5) < 3 * truth.ate_se < 0.05)
      True
    """
    weight_N = as_float64(weight_N, "weight_N")
    if weight_N.ndim != 1 or not np.all((weight_N >= 0) & (weight_N < MAX_LOSS)):
        raise ValueError(
            f"weight_N: must be numbers, 0 or larger and below {MAX_LOSS:g}, one per sample"
        )
    fpr_F = ranking.as_fprs(fprs)
    first_pass, second_pass, group_M, bins = _open_blocks(blocks, weight_N, pairs)

    # First pass: outcomes of the samples, and the distributions of Y(1) and Y(0).
    outcome_6xN = np.empty((6, weight_N.size))
    mass_2K = np.zeros(2 * bins.count)
    total_effect = total_weight = 0.0
    left_out = 0
    for piece in first_pass:
        outcome_6xS = _outcomes(piece, bins.center)
        outcome_6xN[:, piece.columns] = outcome_6xS
        share_MxS = piece.in_MxS * _divide(piece.weight_S, piece.num_in_S)
        share_MxS += piece.out_MxS * _divide(piece.weight_S, piece.num_out_S)
        class_bin_MxS = piece.bin_MxS + bins.count * (piece.out_MxS > 0)
        mass_2K += np.bincount(class_bin_MxS.ravel(), share_MxS.ravel(), 2 * bins.count)
        total_effect += float(np.sum(piece.weight_S * np.nan_to_num(outcome_6xS[2])))
        total_weight += float(piece.weight_S.sum())
        left_out += piece.left_out
    if not total_weight > 0:
        raise ValueError("member_MxC: no sample with a weight has both IN and OUT models")
    if total_weight < 1 / MAX_LOSS:
        raise ValueError(
            f"weight_N: the sum of the weights is {total_weight:g}; it must be at least {1 / MAX_LOSS:g}"
        )
    rates = _rates(mass_2K, fpr_F, bins)

    # Without an allowed false positive, no score is a threshold.
    is_too_low_F = (fpr_F > 0) & np.isinf(rates.threshold_F)
    se_Q = _jackknife(second_pass(), rates, group_M, bins)
    mean_in_N, mean_out_N, effect_N, effect_se_N, num_in_N, num_out_N = outcome_6xN
    return PotentialOutcomes(
        mean_in_N=mean_in_N,
        mean_out_N=mean_out_N,
        effect_N=effect_N,
        effect_se_N=effect_se_N,
        num_in_N=num_in_N.astype(np.int64),
        num_out_N=num_out_N.astype(np.int64),
        ate=total_effect / total_weight,
        ate_se=float(se_Q[0]),
        auc=rates.auc,
        auc_se=float(se_Q[1]),
        tpr_F=np.where(is_too_low_F, np.nan, rates.tpr_F),
        tpr_se_F=np.where(is_too_low_F, np.nan, se_Q[2:]),
        threshold_F=rates.threshold_F,
        left_out=left_out,
        models=len(group_M),
    )


def multi_run_trials(
    score_MxN: ArrayLike, member_MxN: ArrayLike, seed: int
) -> tuple[IntArray, FloatArray, BoolArray]:
    """Takes one sample from each model, a different one every time: independent trials of a multi-run evaluation.

    Args:
      score_MxN: membership scores of all models, larger for members.
      member_MxN: booleans, whether each model was trained on each sample.
      seed: seed of the draw of samples.

    Returns:
      ``(sample_M, score_M, member_M)``: the sample of each model, its score and its membership.

    Raises:
      ValueError: if the shapes do not match, member_MxN is not boolean, or there are more models than samples.

    Source: CausalMIA, Algorithm 1, with training sets that are random.
    """
    score_MxN, member_MxN = as_float64(score_MxN, "score_MxN"), as_members(member_MxN, "member_MxN")
    if score_MxN.ndim != 2 or member_MxN.shape != score_MxN.shape:
        raise ValueError(
            f"scores of shape {score_MxN.shape} do not match members of shape {member_MxN.shape}"
        )
    models, samples = score_MxN.shape
    if models > samples:
        raise ValueError(
            f"score_MxN of shape {score_MxN.shape}: there must be a sample for each model"
        )
    sample_M = np.random.default_rng(seed).choice(samples, size=models, replace=False)
    index_M = np.arange(models)
    return sample_M, score_MxN[index_M, sample_M], member_MxN[index_M, sample_M]


def _open_blocks(
    blocks: Callable[[], Iterable[Block]], weight_N: FloatArray, pairs: bool
) -> tuple[Iterable[_Piece], Callable[[], Iterable[_Piece]], IntArray, _Bins]:
    """Returns the pieces for both passes, the jackknife group of each model, and bins that suit the scores."""
    first_pass = iter(blocks())
    first = next(first_pass, None)
    if first is None or np.ndim(first[0]) != 2:
        raise ValueError("blocks: must return blocks (score_MxC, member_MxC) with two dimensions")
    models = len(first[0])
    if pairs and models % 2:
        raise ValueError(f"pairs=True: there must be an even number of models, not {models}")
    group_M = _groups(as_members(first[1]), pairs)
    first_pass = itertools.chain([first], first_pass)
    if models * weight_N.size <= _EXACT_SCORES:
        kept = list(first_pass)
        score = np.concatenate([np.ravel(as_float64(block[0], "score_MxC")) for block in kept])
        distinct_K = np.unique(score[~np.isnan(score)])
        if not distinct_K.size:
            raise ValueError("score_MxC: all scores are NaN")
        center = float(distinct_K[distinct_K.size // 2])
        bins = _Bins(distinct_K, center, 1.0, distinct_K.size)
        pieces = list(_pieces(kept, weight_N, models, pairs, bins))
        return pieces, lambda: pieces, group_M, bins
    score = as_float64(first[0], "score_MxC").ravel()
    score = score[:: max(1, score.size // _PIECE)]
    score = score[np.isfinite(score)]
    low, center, high = np.quantile(score, [0.25, 0.5, 0.75]) if score.size else (0.0, 0.0, 0.0)
    bins = _Bins(None, float(center), float(high - low) if high > low else 1.0, _BINS)
    return (
        _pieces(first_pass, weight_N, models, pairs, bins),
        lambda: _pieces(blocks(), weight_N, models, pairs, bins),
        group_M,
        bins,
    )


def _groups(member_MxC: BoolArray, pairs: bool) -> IntArray:
    """Returns the jackknife group of each model."""
    group_M = design_of(member_MxC).group_M
    index_M = np.arange(len(group_M))
    is_joined_MxM = group_M[:, None] == group_M
    if pairs:
        is_joined_MxM |= index_M[:, None] // 2 == index_M // 2
    return scipy.sparse.csgraph.connected_components(is_joined_MxM, directed=False)[1]


def _pieces(
    blocks: Iterable[Block], weight_N: FloatArray, models: int, pairs: bool, bins: _Bins
) -> Iterator[_Piece]:
    """Divides blocks into pieces that fit the cache, and checks them."""
    start = 0
    step = max(1, _PIECE // models)
    for block in blocks:
        block_score, block_member = as_float64(block[0], "score_MxC"), as_members(block[1])
        if block_score.shape != block_member.shape or len(block_score) != models:
            raise ValueError(
                f"blocks: scores of shape {block_score.shape} and members of shape {block_member.shape} must both have "
                f"a row for each of {models} models"
            )
        stop = start + block_score.shape[1]
        if stop > weight_N.size:
            break
        for first in range(0, block_score.shape[1], step):
            columns = slice(start + first, min(start + first + step, stop))
            score_MxS = block_score[:, first : first + step]
            member_MxS = block_member[:, first : first + step]
            if pairs and np.any(member_MxS[0::2] == member_MxS[1::2]):
                raise ValueError(
                    "pairs=True: the members of models 2i and 2i + 1 must be complements; use pairs=False"
                )
            yield _piece(columns, score_MxS, member_MxS, weight_N[columns], bins)
        start = stop
    if start != weight_N.size:
        raise ValueError(
            f"weight_N: {weight_N.size} weights do not match the samples of the blocks"
        )


def _piece(
    columns: slice,
    score_MxS: FloatArray,
    member_MxS: BoolArray,
    weight_S: FloatArray,
    bins: _Bins,
) -> _Piece:
    in_MxS = member_MxS.astype(np.float64)
    out_MxS = 1 - in_MxS
    check_magnitude(score_MxS, "score_MxC: scores", _MAX_SCORE)
    if np.isnan(score_MxS.sum()):
        missing_MxS = np.isnan(score_MxS)
        score_MxS = np.where(missing_MxS, bins.center, score_MxS)
        in_MxS[missing_MxS] = out_MxS[missing_MxS] = 0.0
    num_in_S, num_out_S = in_MxS.sum(axis=0), out_MxS.sum(axis=0)
    is_used_S = (num_in_S > 0) & (num_out_S > 0)
    return _Piece(
        columns=columns,
        score_MxS=score_MxS,
        bin_MxS=bins.find(score_MxS),
        in_MxS=in_MxS,
        out_MxS=out_MxS,
        num_in_S=num_in_S,
        num_out_S=num_out_S,
        weight_S=np.where(is_used_S, weight_S, 0.0),
        left_out=int(np.sum(~is_used_S & (weight_S > 0))),
    )


def _outcomes(piece: _Piece, center: float) -> FloatArray:
    """Returns mean_in, mean_out, effect, effect_se, num_in and num_out of each sample."""
    score_MxS = piece.score_MxS - center  # less rounding
    moments: list[tuple[FloatArray, FloatArray]] = []
    for class_MxS, num_S in ((piece.in_MxS, piece.num_in_S), (piece.out_MxS, piece.num_out_S)):
        mean_S = _divide(np.einsum("ms,ms->s", class_MxS, score_MxS), num_S, np.nan)
        deviation_MxS = score_MxS - np.nan_to_num(mean_S)
        deviation_MxS *= class_MxS
        squares_S = np.einsum("ms,ms->s", deviation_MxS, deviation_MxS)
        moments.append((mean_S, _divide(squares_S, num_S * (num_S - 1), np.nan)))
    (in_S, in_variance_S), (out_S, out_variance_S) = moments
    se_S = np.sqrt(in_variance_S + out_variance_S)
    effect_S = in_S - out_S
    return np.array(
        [in_S + center, out_S + center, effect_S, se_S, piece.num_in_S, piece.num_out_S]
    )


def _rates(mass_2K: FloatArray, fpr_F: FloatArray, bins: _Bins) -> _Rates:
    in_K, out_K = mass_2K.reshape(2, -1)
    # Rates at the lower end of each bin, and 0 above the last one.
    tpr_K1, fpr_K1 = (
        np.append(np.cumsum(mass_K[::-1])[::-1], 0.0) / np.cumsum(mass_K[::-1])[-1]
        for mass_K in (in_K, out_K)
    )
    # Scores of one bin count as tied.
    mean_tpr_K, mean_fpr_K = (tpr_K1[1:] + tpr_K1[:-1]) / 2, (fpr_K1[1:] + fpr_K1[:-1]) / 2
    # The smallest threshold with an allowed rate, at a bin that has OUT scores; all bins for a rate of 1.
    cut_F = bins.count + 1 - np.searchsorted(fpr_K1[::-1], fpr_F, side="right")
    first = np.flatnonzero((in_K > 0) | (out_K > 0))[0]
    filled_K = np.append(np.flatnonzero(out_K > 0), bins.count)
    cut_F = np.where(cut_F == 0, first, filled_K[np.searchsorted(filled_K, cut_F)])
    threshold_F = np.full(fpr_F.size, np.inf)
    is_score_F = cut_F < bins.count
    threshold_F[is_score_F] = bins.lower_end(cut_F[is_score_F])
    # If the FPR at a fixed threshold rises by d, the TPR at a fixed FPR falls by d times the slope of the ROC curve.
    width_F = _BANDWIDTH * np.minimum(fpr_F, 1 - fpr_F)
    below_F, above_F = (
        np.interp(rate_F, fpr_K1[::-1], tpr_K1[::-1])
        for rate_F in (fpr_F - width_F, fpr_F + width_F)
    )
    slope_F = _divide(above_F - below_F, 2 * width_F)
    return _Rates(
        auc=float(np.sum(in_K * (1 - mean_fpr_K))) / float(in_K.sum()),
        tpr_F=tpr_K1[cut_F],
        threshold_F=threshold_F,
        win_2K=np.concatenate([1 - mean_fpr_K, mean_tpr_K]),
        cut_F=cut_F,
        slope_F=slope_F,
    )


def _jackknife(
    pieces: Iterable[_Piece], rates: _Rates, group_M: IntArray, bins: _Bins
) -> FloatArray:
    """Computes the standard errors of the ATE, the AUC and the TPRs.

    Each quantity is the weighted mean over samples of the mean of a function over IN models plus the mean of another
    one over OUT models. Without a group of k IN models, the first mean of a sample changes by
    (k mean - sum of their values) / (num_in - k). A sample whose IN or OUT models are all left out does not count.
    """
    groups = int(group_M.max(initial=-1)) + 1
    order_M = np.argsort(group_M, kind="stable")
    first_G = np.searchsorted(group_M[order_M], np.arange(groups))

    def add_up(value_MxS: FloatArray) -> FloatArray:
        """Returns the sum over the models of each group."""
        return value_MxS if groups == len(group_M) else np.add.reduceat(value_MxS[order_M], first_G)

    quantities = 2 + rates.cut_F.size
    total_Q = np.zeros(quantities)
    change_GxQ = np.zeros((groups, quantities))
    weight = 0.0
    lost_weight_G = np.zeros(groups)
    for piece in pieces:
        in_MxS, out_MxS, weight_S = piece.in_MxS, piece.out_MxS, piece.weight_S
        weight += float(weight_S.sum())
        # Of each class: its models, their number, those of each group, and the weight over the number of the others.
        classes: list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]] = []
        lost_GxS = np.zeros((groups, weight_S.size), np.bool_)
        for class_MxS, num_S in ((in_MxS, piece.num_in_S), (out_MxS, piece.num_out_S)):
            class_GxS = add_up(class_MxS)
            classes.append((class_MxS, num_S, class_GxS, _divide(weight_S, num_S - class_GxS)))
            lost_GxS |= (class_GxS == num_S) & (weight_S > 0)
        has_lost = bool(lost_GxS.any())
        if has_lost:
            for _, _, _, factor_GxS in classes:
                factor_GxS[lost_GxS] = 0.0
            lost_weight_G += lost_GxS @ weight_S
        for q in range(quantities):
            if q == 0:
                value_MxS = (piece.score_MxS - bins.center) * (in_MxS - out_MxS)
            elif q == 1:
                value_MxS = rates.win_2K[piece.bin_MxS + bins.count * (out_MxS > 0)]
            else:
                value_MxS = in_MxS - rates.slope_F[q - 2] * out_MxS
                value_MxS *= piece.bin_MxS >= rates.cut_F[q - 2]
            total_S = np.zeros(weight_S.size)
            # Without a group, a class of n with mean m loses n_g models with the sum s_g: its mean changes by
            # (n_g m - s_g) / (n - n_g).
            for class_MxS, num_S, class_GxS, factor_GxS in classes:
                sum_GxS = add_up(class_MxS * value_MxS)
                mean_S = _divide(sum_GxS.sum(axis=0), num_S)
                total_S += mean_S
                change_GxQ[:, q] += np.einsum("gs,gs->g", class_GxS * mean_S - sum_GxS, factor_GxS)
            total_Q[q] += np.sum(weight_S * total_S)
            if has_lost:
                change_GxQ[:, q] -= lost_GxS @ (weight_S * total_S)
    if groups < 2:
        return np.full(quantities, np.nan)
    value_GxQ = _divide(total_Q + change_GxQ, (weight - lost_weight_G)[:, None], np.nan)
    deviation_GxQ = value_GxQ - value_GxQ.mean(axis=0)
    return np.sqrt((groups - 1) / groups * np.sum(deviation_GxQ**2, axis=0))


def _divide(numerator: FloatArray, denominator: FloatArray, otherwise: float = 0.0) -> FloatArray:
    """Divides; the result is otherwise where the denominator is not larger than 0."""
    is_valid = denominator > 0
    return np.where(is_valid, numerator / np.where(is_valid, denominator, 1.0), otherwise)
