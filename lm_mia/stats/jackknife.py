"""Metrics of attacks on halves of the samples, and without groups of replicas, for estimates of variances.

Samples are halved rather than left out in small groups, because a TPR depends on a quantile of the scores, the
threshold, for which the jackknife without a few samples is not consistent.

Legend: N samples, L non-members, T targets, B replicas, F false positive rates, H halves of the samples, H1 all samples
and then each half, R1 all references and then each half, A1 all models or replicas and then without each group, P pairs
of models, V numbers of votes.

Sources: McCarthy (1969), Pseudo-replication: half samples; Shao and Wu (1989), A general theory for jackknife variance
estimation; Efron and Stein (1981), The jackknife estimate of variance; Cameron, Gelbach and Miller (2011), Robust
inference with multiway clustering; Kott (2001), The delete-a-group jackknife.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import scipy  # its parts are loaded when they are first used
from numpy.typing import ArrayLike, NDArray

from lm_mia.stats import ranking
from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.flips import COIN_FLIP_BIN, VERY_UNSTABLE_BIN, flip_bins, flip_rate
from lm_mia.stats.inputs import as_counts, as_float64, as_members, check_magnitude, check_rates
from lm_mia.stats.intervals import check_confidence
from lm_mia.stats.lira import posterior

_GROUPS = 8
"""Samples are divided into this many groups, and so are replicas, unless there are fewer."""
_SPLIT_Sx1 = np.arange(1, _GROUPS)[:, None]
_IN_SECOND_SxG = np.bitwise_count(_SPLIT_Sx1 & np.arange(_GROUPS)) % 2 == 1
HALVES_HxG = np.stack([~_IN_SECOND_SxG, _IN_SECOND_SxG], axis=1).reshape(-1, _GROUPS)
"""Which groups make up each half of the samples, as booleans (balanced half-samples). Halves 2i and 2i + 1 are
complements. Halves of different pairs share half of their groups, so that differences between complements are
uncorrelated."""


def sample_groups(unit_N: ArrayLike) -> NDArray[np.uint8]:
    """Divides samples into 8 groups of nearly equal size, which make up `HALVES_HxG`.

    Args:
      unit_N: number of each sample or, if samples are pieces of documents, of its document; 0 or larger. Samples with
        the same number are in the same group.

    Returns:
      group_N; ``HALVES_HxG[h, group_N]`` tells which samples are in half h.

    Raises:
      ValueError: if a number is negative or not an integer.
    """
    return (as_counts(unit_N, "numbers of samples or documents") % _GROUPS).astype(np.uint8)


def model_groups(models: int, group_M: ArrayLike | None = None) -> NDArray[np.uint8]:
    """Divides models into up to 8 groups of whole pairs (2i, 2i + 1), for intervals of rates over all models.

    The scores of a model on many samples vary together, and each model is a reference of all others, so rates over all
    models and samples are far from binomial. Instead, the whole analysis is repeated without each group of models:
    moments, scores, thresholds and rates of the remaining models. The 1 + G values give an interval by the jackknife:

        group_M = model_groups(models)
        parts = [np.full(models, True), *(group_M != g for g in range(group_M.max() + 1))]
        value_A1 = np.array([analysis(loss_MxN[kept_M], member_MxN[kept_M]) for kept_M in parts])
        margin = jackknife_margin(value_A1[:, None, None])  # value_A1[0] - margin to value_A1[0] + margin

    The interval is that of Student's t distribution with G - 1 degrees of freedom. It is for the expectation of the
    value over models that are trained anew with the same samples. Models of one pair, which may be complements, and
    models with equal or complementary subsets are in the same group, so that their relations stay as they are.

    Args:
      models: number of models.
      group_M: groups of models with equal or complementary subsets, as of `design_of`; by default each has its own.

    Returns:
      group_M, from 0 to G - 1, where G is at most 8 and at most the number of pairs; with fewer than 2 groups there is
      no interval.

    Raises:
      ValueError: if models is negative or not an integer, or if there is not a group for each model.

    Source: the delete-a-group jackknife: Kott (2001).

    Example:
      >>> from lm_mia.stats import model_groups
      >>> model_groups(20)
      array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 0, 0, 1, 1],
            dtype=uint8)
    """
    index_M = np.arange(int(as_counts(models, "models")))
    related_M = index_M if group_M is None else as_counts(group_M, "group_M")
    if related_M.shape != index_M.shape:
        raise ValueError(
            f"group_M of shape {related_M.shape}: must have a group for each of {models} models"
        )
    pair_M = index_M // 2
    if group_M is not None:
        # Pairs that share a group are joined, also by way of other pairs.
        is_joined_PxP = np.zeros((models // 2 + models % 2,) * 2, np.bool_)
        first_M = np.unique(related_M, return_index=True)[1][
            np.unique(related_M, return_inverse=True)[1]
        ]
        is_joined_PxP[pair_M, pair_M[first_M]] = True
        joined_P = scipy.sparse.csgraph.connected_components(is_joined_PxP, directed=False)[1]
        pair_M = joined_P[pair_M]
    return (pair_M % _GROUPS).astype(np.uint8)


def rates_of_halves(
    score_TxN: ArrayLike, member: ArrayLike, group_N: ArrayLike, fprs: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Computes AUC and TPRs of each target on each half of the samples; thresholds are calibrated on the half.

    Args:
      score_TxN: membership scores, larger for members; NaN scores are left out.
      member: booleans, member_N or member_TxN.
      group_N: the result of `sample_groups`.
      fprs: false positive rates.

    Returns:
      (auc_TxH, tpr_TxHxF); NaN where a class has no score, and TPRs also at rates above 0 for which a half has too few
      non-members.

    Raises:
      ValueError: as `tpr_at_fpr`, or if there is not one group, from 0 to 7, for each sample.
    """
    score_TxN, group_N, fpr_F = _check(score_TxN, member, group_N, fprs)
    member_TxN = np.broadcast_to(np.asarray(member), score_TxN.shape)
    auc_TxH = np.full((len(score_TxN), len(HALVES_HxG)), np.nan)
    tpr_TxHxF = np.full((*auc_TxH.shape, fpr_F.size), np.nan)
    for t, (score_N, member_N) in enumerate(zip(score_TxN, member_TxN, strict=True)):
        # Each class is sorted once, since half of a sorted array is sorted.
        classes = []
        for class_N in (~member_N, member_N):
            index_K = np.flatnonzero(class_N & ~np.isnan(score_N))
            index_K = index_K[np.argsort(score_N[index_K])]
            classes.append((score_N[index_K], group_N[index_K]))
        for h, half_G in enumerate(HALVES_HxG):
            nonmembers, members = (score_K[half_G[group_K]] for score_K, group_K in classes)
            if nonmembers.size and members.size:
                threshold_F = ranking.thresholds_at_fprs(nonmembers, fpr_F)
                called_F = ranking.count_at_or_above(members, threshold_F)
                tpr_TxHxF[t, h] = called_F / members.size
                tpr_TxHxF[t, h, ranking.too_low(nonmembers.size, fpr_F)] = np.nan
                auc_TxH[t, h] = ranking.auc_from_sorted(nonmembers, members)
    return auc_TxH, tpr_TxHxF


def mean_rate_interval(
    rate_TxS: ArrayLike, rate_TxHxS: ArrayLike, *, confidence: float = 0.95
) -> tuple[FloatArray, FloatArray]:
    """Computes the confidence interval of the mean of a rate over targets, for new targets and new samples.

    The targets are models that were trained independently, given what they share, and are evaluated on the same
    samples. The variance of the mean over them has two parts: that over models, s^2 / T, where s is the standard
    deviation of the T targets, and that over samples, a quarter of the mean squared difference between the means on
    complementary halves of the samples. The interval is that of Student's t distribution, with the degrees of freedom
    of Satterthwaite, from T - 1 of the first part and 7 of the second. In simulations it covers the expectation of the
    rate in 90 to 100 %.

    It covers nothing that the targets share: for replicas their training subset and initial weights, and always the
    references.

    Args:
      rate_TxS: AUCs or TPRs of the targets on all samples.
      rate_TxHxS: the same on each half of the samples, in the order of `HALVES_HxG`, as of `rates_of_halves`.
      confidence: in (0, 1).

    Returns:
      ``(low_S, high_S)``, limited to [0, 1]; NaN with fewer than two targets, and where a rate is NaN, as a TPR is if
      a half has too few non-members for its false positive rate.

    Raises:
      ValueError: if confidence is out of range, if the shapes do not match, or if a rate is not from 0 to 1.

    Source: Satterthwaite (1946), An approximate distribution of estimates of variance components; McCarthy (1969) for
    the halves.
    """
    check_confidence(confidence)
    rate_TxS, rate_TxHxS = as_float64(rate_TxS, "rates"), as_float64(rate_TxHxS, "rates of halves")
    if rate_TxS.ndim != 2 or rate_TxHxS.shape != (
        len(rate_TxS),
        len(HALVES_HxG),
        rate_TxS.shape[1],
    ):
        raise ValueError(
            f"rates of shape {rate_TxS.shape} and of halves of shape {rate_TxHxS.shape}: must be T x S and "
            f"T x {len(HALVES_HxG)} x S"
        )
    check_rates(rate_TxS, "rates")
    check_rates(rate_TxHxS, "rates of halves")
    targets = len(rate_TxS)
    if targets < 2:
        return np.full(rate_TxS.shape[1], np.nan), np.full(rate_TxS.shape[1], np.nan)
    mean_S, mean_HxS = rate_TxS.mean(axis=0), rate_TxHxS.mean(axis=0)
    over_models_S = rate_TxS.var(axis=0, ddof=1) / targets
    over_samples_S = np.square(mean_HxS[0::2] - mean_HxS[1::2]).mean(axis=0) / 4
    variance_S = over_models_S + over_samples_S
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom_S = np.square(variance_S) / (
            np.square(over_models_S) / (targets - 1) + np.square(over_samples_S) / (_GROUPS - 1)
        )
        margin_S = scipy.special.stdtrit(freedom_S, (1 + confidence) / 2) * np.sqrt(variance_S)
    margin_S = np.where(variance_S == 0, 0.0, margin_S)  # all rates are equal
    return np.maximum(mean_S - margin_S, 0.0), np.minimum(mean_S + margin_S, 1.0)


@dataclasses.dataclass(frozen=True)
class DecisionMetrics:
    """Metrics of the decisions of replicas, also without groups of replicas and on halves of the samples."""

    auc_A1xH1: FloatArray
    """Mean AUC over the replicas."""
    distance_correlation_A1xH1: FloatArray
    """Rank correlation, over members, of the flip rate at the focus rate with the mean distance over replicas of the
    posterior from the threshold."""
    member_flip_rate_A1xH1xF: FloatArray
    """Mean flip rate of members."""
    nonmember_flip_rate_A1xH1xF: FloatArray
    member_coin_flips_A1xH1xF: FloatArray
    """Share of members whose decisions are like coin flips."""
    nonmember_coin_flips_A1xH1xF: FloatArray
    tpr_A1xH1xF: FloatArray
    """Mean TPR over the replicas."""
    coin_flip_tpr_A1xH1xF: FloatArray
    """Mean TPR over the replicas that is due to members whose decisions are like coin flips."""
    unstable_tpr_A1xH1xF: FloatArray
    """The same, of members whose decisions are very unstable or like coin flips."""
    threshold_spread_A1xH1xF: FloatArray
    """Mean absolute deviation of the thresholds of the replicas, as posteriors, from their median."""


def decision_metrics(
    score_BxN: ArrayLike,
    member_N: ArrayLike,
    group_N: ArrayLike,
    fprs: ArrayLike,
    focus: int,
    alpha: float = 0.05,
) -> DecisionMetrics:
    """Computes metrics of the decisions of replicas, with all replicas and without each of up to 8 groups of them.

    Thresholds are calibrated on the samples of each half. Samples without a score from every replica are left out.

    Args:
      score_BxN: membership scores of replicas, larger for members.
      member_N: booleans, whether each sample is in the training subset of the replicas.
      group_N: the result of `sample_groups`.
      fprs: false positive rates.
      focus: index of the rate at which the rank correlation is computed.
      alpha: level of the coin-flip test.

    Returns:
      The metrics; NaN where a class has no samples, where fewer than two replicas remain, and, except for the AUC, at
      rates above 0 for which a half has too few non-members.

    Raises:
      ValueError: as `rates_of_halves`, or if focus is not the index of a rate.
    """
    score_BxN, group_N, fpr_F = _check(score_BxN, member_N, group_N, fprs)
    member_N = np.asarray(member_N)
    if member_N.ndim != 1:
        raise ValueError(f"members of shape {member_N.shape}: replicas must share their members")
    if focus not in range(fpr_F.size):
        raise ValueError(f"focus={focus}: must be the index of one of {fpr_F.size} rates")
    present_N = ~np.isnan(score_BxN).any(axis=0)
    # Non-members come first, so that the members of any part are a slice.
    order_N = np.concatenate(
        [np.flatnonzero(present_N & ~member_N), np.flatnonzero(present_N & member_N)]
    )
    score_BxN, nonmembers = score_BxN[:, order_N], int((present_N & ~member_N).sum())
    used_H1xG = np.concatenate([np.ones((1, _GROUPS), np.bool_), HALVES_HxG])
    group_N, posterior_BxN, replicas = group_N[order_N], posterior(score_BxN), len(score_BxN)
    # Each replica is sorted once, since half of a sorted array is sorted.
    rank_BxL = np.argsort(score_BxN[:, :nonmembers], axis=1)
    sorted_BxL, group_BxL = np.take_along_axis(score_BxN, rank_BxL, axis=1), group_N[rank_BxL]
    auc_H1xB = np.stack(
        [
            _aucs_of_parts(sorted_L, group_L, score_N[nonmembers:], group_N[nonmembers:], used_H1xG)
            for sorted_L, group_L, score_N in zip(sorted_BxL, group_BxL, score_BxN, strict=True)
        ],
        axis=1,
    )
    groups = min(_GROUPS, replicas)
    part_B = np.arange(replicas) % groups
    count_type = np.min_scalar_type(replicas)  # small types are several times as fast
    threshold_BxH1xF = np.full((replicas, len(used_H1xG), fpr_F.size), np.nan)
    is_low_H1xF = np.zeros(threshold_BxH1xF.shape[1:], np.bool_)
    shape = 1 + groups, *is_low_H1xF.shape
    metrics = {
        field.name: np.full(shape if field.name.endswith("F") else shape[:2], np.nan)
        for field in dataclasses.fields(DecisionMetrics)
    }
    kept_A1xB = part_B != np.arange(-1, groups)[:, None]
    kept_A1 = kept_A1xB.sum(axis=1).tolist()
    weights = {kept: _vote_weights(kept, alpha) for kept in {*kept_A1} if kept >= 2}
    for h, used_G in enumerate(used_H1xG):
        index_K, low = np.flatnonzero(used_G[group_N]), int(used_G[group_N[:nonmembers]].sum())
        if not 0 < low < index_K.size:
            continue
        sorted_BxK = sorted_BxL[used_G[group_BxL]].reshape(replicas, low)
        threshold_BxF = ranking.thresholds_of_targets(sorted_BxK, fpr_F)
        called_BxFxK = score_BxN.take(index_K, axis=1)[:, None] >= threshold_BxF[:, :, None]
        threshold_BxF = threshold_BxH1xF[:, h] = posterior(threshold_BxF)
        distance_BxK = np.abs(posterior_BxN.take(index_K, axis=1) - threshold_BxF[:, focus, None])
        # Sums over the replicas of each group; those without a group follow by subtraction.
        votes_AxFxK = np.array([called_BxFxK[a::groups].sum(0, count_type) for a in range(groups)])
        distance_AxK = np.array([distance_BxK[a::groups].sum(axis=0) for a in range(groups)])
        votes_FxK = votes_AxFxK.sum(axis=0, dtype=count_type)
        distance_K = distance_AxK.sum(axis=0)
        # Nothing is decided there: zeros would make differences between halves look certain.
        too_low_F = ranking.too_low(low, fpr_F)
        for left_out, kept in enumerate(kept_A1):
            if kept < 2:
                continue
            rest_FxK, rest_K = votes_FxK, distance_K
            if left_out:
                rest_FxK = votes_FxK - votes_AxFxK[left_out - 1]
                rest_K = distance_K - distance_AxK[left_out - 1]
            for name, value_F in _vote_metrics(rest_FxK, low, weights[kept]).items():
                metrics[name][left_out, h] = np.where(too_low_F, np.nan, value_F)
            if not too_low_F[focus]:
                votes_S = rest_FxK[focus, low:]
                metrics["distance_correlation_A1xH1"][left_out, h] = _rank_correlation(
                    rest_K[low:], np.minimum(votes_S, kept - votes_S)
                )
        is_low_H1xF[h] = too_low_F
    for left_out, kept_B in enumerate(kept_A1xB):
        if kept_A1[left_out] >= 2:
            metrics["auc_A1xH1"][left_out] = auc_H1xB[:, kept_B].copy(order="C").mean(axis=1)
            spread_BxH1xF = threshold_BxH1xF[kept_B]
            spread_BxH1xF = spread_BxH1xF - np.median(spread_BxH1xF, axis=0)
            spread_H1xF = np.abs(spread_BxH1xF).mean(axis=0)
            metrics["threshold_spread_A1xH1xF"][left_out] = np.where(
                is_low_H1xF, np.nan, spread_H1xF
            )
    return DecisionMetrics(**metrics)


def jackknife_variance(value_A1xR1xH1: ArrayLike) -> tuple[float, float]:
    """Estimates the variance of a number over the models, the references and the samples at once.

    The number is known with all models, references and samples, and also without each group of models, with each half
    of the references, on each half of the samples, and with combinations of these. Contrasts between these values show
    the parts of its variance. V with a set of factors estimates the variance of their interaction, including its
    interactions with the other factors:

        variance = V_models + V_references + V_samples
                   - V_models,references - V_models,samples - V_references,samples + V_models,references,samples

    For example, noise that differs between models and between samples is part of V_models, of V_samples and of
    V_models,samples, and so counts once. If the first three terms were only added, intervals would be too wide.

    The sum is noisy, since a few models or halves determine each term. None of the first three terms is larger than
    the variance, except by chance, so it is at least the largest of them. benchmarks/claims.py simulates how often the
    intervals miss.

    References and samples are halved because a number varies on one of two halves as it would on new references or
    samples, with about twice the variance. Without one group of eight, only few samples would cross a threshold, and
    their small number would exaggerate the variance of a TPR.

    Args:
      value_A1xR1xH1: the number with all models, references and samples, and with parts of them. Halves 2i + 1 and
        2i + 2 are complements, as in `HALVES_HxG`. An axis of length 1 is not varied: the variance holds these models,
        references or samples fixed.

    Returns:
      (variance, degrees of freedom); NaN if one of the values is NaN or infinite.

    Raises:
      ValueError: if there are not three axes, none of them has more than one value, one has none, there is no pair
        for each half, or a value is too large.

    Source: Efron and Stein (1981); the signs are those of Cameron, Gelbach and Miller (2011).
    """
    value_A1xR1xH1 = as_float64(value_A1xR1xH1, "values")
    varied = [axis for axis, length in enumerate(value_A1xR1xH1.shape) if length > 1]
    if value_A1xR1xH1.ndim != 3 or not varied or not value_A1xR1xH1.size:
        raise ValueError(
            f"values of shape {value_A1xR1xH1.shape}: there must be three axes, one of them with several values"
        )
    for axis, name in ((1, "references"), (2, "samples")):
        if value_A1xR1xH1.shape[axis] % 2 == 0:
            raise ValueError(
                f"values of shape {value_A1xR1xH1.shape}: must have one value of all {name}, then pairs of halves"
            )
    if np.isinf(value_A1xR1xH1).any():
        return math.nan, math.nan
    check_magnitude(value_A1xR1xH1, "values")
    terms = {
        axes: _variance_of(value_A1xR1xH1, axes)
        for count in range(1, len(varied) + 1)
        for axes in itertools.combinations(varied, count)
    }
    total = sum(variance * (-1) ** (len(axes) + 1) for axes, (variance, _) in terms.items())
    single = [term for axes, term in terms.items() if len(axes) == 1]
    if math.isnan(total):
        return math.nan, math.nan
    largest = max(single, key=lambda term: term[0])
    if total <= largest[0]:
        return largest
    return total, total**2 / sum(variance**2 / df for variance, df in single)


def _variance_of(value_A1xR1xH1: FloatArray, axes: tuple[int, ...]) -> tuple[float, int]:
    """Returns the part of the variance that is due to the interaction of the factors on some axes, or to one."""
    contrast, df = value_A1xR1xH1, 1
    for axis in range(contrast.ndim):
        before = (slice(None),) * axis  # the axes before this one
        if axis not in axes:
            contrast = contrast[*before, :1]
        elif axis == 0:
            # The values without each group deviate from their mean by 1 / (A - 1) of the deviation of the group.
            groups, parts = len(contrast) - 1, contrast[1:]
            contrast = (parts - parts.mean(axis=0)) * math.sqrt((groups - 1) / groups)
            df *= groups - 1
        else:
            # Half the difference of two halves varies as their mean does.
            splits = (contrast.shape[axis] - 1) // 2
            halves = contrast[*before, 1::2], contrast[*before, 2::2]
            contrast = (halves[0] - halves[1]) / (2 * math.sqrt(splits))
            df *= splits
    return float((contrast**2).sum()), max(df, 1)


def shared_reference_variance(half_TxH: ArrayLike) -> float:
    """Estimates the variance that targets attacked with one set of references have in common.

    With one set of references, numbers such as the TPR differ between targets, but the choice of the set also moves all
    of them together, which their variance over targets does not show. The sum of the two is the variance of attacks
    each of which has a target and a set of references of its own. What a set does to a single target is part of the
    variance over targets already, so only products of different targets count here.

    Args:
      half_TxH: the number of each target, attacked with each half of the references. Halves 2i and 2i + 1 are
        complements, as in `HALVES_HxG`.

    Returns:
      The mean over splits and pairs of different targets of the product of their half differences of the two halves,
      which varies as with two sets of all references. It is unbiased if the number is a mean over the references, and
      so may be negative; NaN with a single target.

    Raises:
      ValueError: if there is no target, there are no pairs of halves, or a value is infinite or too large.

    Source: half samples: McCarthy (1969).
    """
    half_TxH = as_float64(half_TxH, "values")
    check_magnitude(half_TxH, "values")
    if half_TxH.ndim != 2 or not half_TxH.size or half_TxH.shape[1] % 2:
        raise ValueError(
            f"values of shape {half_TxH.shape}: there must be a row per target, with pairs of halves"
        )
    targets = len(half_TxH)
    if targets == 1:
        return math.nan
    contrast_TxS = (half_TxH[:, ::2] - half_TxH[:, 1::2]) / 2
    products_S = contrast_TxS.sum(axis=0) ** 2 - (contrast_TxS**2).sum(axis=0)
    return float(products_S.mean() / (targets * (targets - 1)))


def jackknife_margin(value_A1xR1xH1: ArrayLike, confidence: float = 0.95) -> float:
    """Returns half the width of Student's t interval with the variance of `jackknife_variance`.

    If the variance is 0, there is an interval only for the number 0, where the compared numbers are identical. For
    other numbers, a variance of 0 is a coincidence among few models.

    Args:
      value_A1xR1xH1: as in `jackknife_variance`.
      confidence: of the interval, in (0, 1).

    Returns:
      The margin; NaN if there is no interval.

    Raises:
      ValueError: as `jackknife_variance`, or if the confidence is outside (0, 1).
    """
    check_confidence(confidence)
    variance, df = jackknife_variance(value_A1xR1xH1)
    value = as_float64(value_A1xR1xH1, "values")[0, 0, 0]
    if not (variance > 0 or (variance == 0 and value == 0)):
        return math.nan
    return float(scipy.special.stdtrit(df, (1 + confidence) / 2)) * math.sqrt(variance)


def _check(
    score_TxN: ArrayLike, member: ArrayLike, group_N: ArrayLike, fprs: ArrayLike
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Converts and checks the arguments that both functions share; returns (score_TxN, group_N, fpr_F)."""
    score_TxN, member = np.atleast_2d(as_float64(score_TxN, "scores")), as_members(member)
    if score_TxN.ndim != 2 or member.shape not in (score_TxN.shape, score_TxN.shape[1:]):
        raise ValueError(
            f"scores of shape {score_TxN.shape} do not match members of shape {member.shape}"
        )
    groups = as_counts(group_N, "groups")
    if groups.shape != score_TxN.shape[1:] or np.any(groups >= _GROUPS):
        raise ValueError(
            f"groups of shape {groups.shape}: each of the {score_TxN.shape[1]} samples must have a group from 0 to "
            f"{_GROUPS - 1}"
        )
    return score_TxN, groups, ranking.as_fprs(fprs)


def _vote_weights(replicas: int, alpha: float) -> dict[str, FloatArray]:
    """Returns weight_V: metric of `DecisionMetrics` -> what a sample with each number of votes adds to it."""
    votes_V = np.arange(replicas + 1)
    flip_V = flip_rate(votes_V, replicas)
    bin_V = flip_bins(votes_V, replicas, alpha)
    is_coin_V, is_unstable_V = bin_V == COIN_FLIP_BIN, bin_V >= VERY_UNSTABLE_BIN
    return {
        "flip_rate_A1xH1xF": flip_V,
        "coin_flips_A1xH1xF": is_coin_V.astype(np.float64),
        "tpr_A1xH1xF": votes_V / replicas,
        "coin_flip_tpr_A1xH1xF": is_coin_V * votes_V / replicas,
        "unstable_tpr_A1xH1xF": is_unstable_V * votes_V / replicas,
    }


def _vote_metrics(
    votes_FxK: IntArray, low: int, weights: dict[str, FloatArray]
) -> dict[str, FloatArray]:
    """Returns metrics of votes, the first `low` of which are those of non-members, with the result of `_vote_weights`.

    Each number of votes has one weight, so that a table of counts is enough.
    """
    shape = len(votes_FxK), len(weights["tpr_A1xH1xF"])
    cell_FxK = votes_FxK + np.arange(0, math.prod(shape), shape[1])[:, None]
    values: dict[str, FloatArray] = {}
    for name, class_FxK in (("member", cell_FxK[:, low:]), ("nonmember", cell_FxK[:, :low])):
        count_FxV = np.bincount(class_FxK.ravel(), minlength=math.prod(shape)).reshape(shape)
        share_FxV = count_FxV / class_FxK.shape[1]
        for metric, weight_V in weights.items():
            if not metric.endswith("tpr_A1xH1xF"):
                values[f"{name}_{metric}"] = share_FxV @ weight_V
            elif name == "member":
                values[metric] = share_FxV @ weight_V
    return values


def _aucs_of_parts(
    sorted_L: FloatArray,
    group_L: IntArray,
    member_score_K: FloatArray,
    member_group_K: IntArray,
    used_H1xG: BoolArray,
) -> FloatArray:
    """Returns the AUC on the groups of samples of each part, as `ranking.auc_from_sorted`; NaN without a class.

    The pairs of a non-member and a member in which the member has the higher score are counted once, for each pair of
    groups; all counts are whole numbers below 2^53, and hence exact.

    Args:
      sorted_L, group_L: the sorted scores of the non-members, and their groups.
      member_score_K, member_group_K: the scores of the members, in any order, and their groups.
      used_H1xG: which groups are in each part.
    """
    group_G = np.arange(_GROUPS)
    before_L1xG = np.zeros((sorted_L.size + 1, _GROUPS))
    np.cumsum(group_L[:, None] == group_G, axis=0, out=before_L1xG[1:])
    twice_KxG = before_L1xG[np.searchsorted(sorted_L, member_score_K, "left")]
    twice_KxG += before_L1xG[np.searchsorted(sorted_L, member_score_K, "right")]
    is_of_group_GxK = member_group_K == group_G[:, None]
    twice_GxG = is_of_group_GxK.astype(np.float64) @ twice_KxG
    pairs_GxG = is_of_group_GxK.sum(axis=1)[:, None] * before_L1xG[-1]
    with np.errstate(invalid="ignore"):
        return _sums_of_parts(twice_GxG, used_H1xG) / (2 * _sums_of_parts(pairs_GxG, used_H1xG))


def _sums_of_parts(value_GxG: FloatArray, used_H1xG: BoolArray) -> FloatArray:
    """Returns the sum over all pairs of groups that are used in each part."""
    return ((used_H1xG @ value_GxG) * used_H1xG).sum(axis=1)


def _mean_ranks(ties_V: IntArray) -> FloatArray:
    """Returns the rank of each of the ascending values, from how often each occurs: equal ones have the mean rank."""
    return np.cumsum(ties_V) - (ties_V - 1) / 2


def _rank_correlation(x_K: FloatArray, count_K: IntArray) -> float:
    """Returns Spearman's rank correlation of numbers with small counts; NaN if one of the two is constant."""
    order_K = np.argsort(x_K)
    x_K = x_K[order_K]
    last_V = np.append(np.flatnonzero(x_K[1:] != x_K[:-1]), len(x_K) - 1)  # of the equal numbers
    ties_V = np.append(last_V[:1] + 1, last_V[1:] - last_V[:-1])
    middle = (len(x_K) + 1) / 2
    rank_K = np.empty(len(x_K))
    rank_K[order_K] = np.repeat(_mean_ranks(ties_V) - middle, ties_V)
    count_rank_K = _mean_ranks(np.bincount(count_K))[count_K] - middle
    scale = np.sqrt((rank_K @ rank_K) * (count_rank_K @ count_rank_K))
    return float(rank_K @ count_rank_K / scale) if scale > 0 else np.nan
