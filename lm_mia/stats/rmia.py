"""RMIA: how often the likelihood ratio of a sample exceeds those of population samples.

Legend: T targets, M references, N samples x under attack, Z population samples z, C samples of a chunk. Inputs are log
signals, log p = -loss with losses as means in nats per token; all arithmetic is in log space. NaN marks a missing
signal. Scores are larger for members. StrongMIA, Appendix A; Zarifzadeh et al. 2024, Low-Cost High-Power Membership
Inference Attacks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray
from lm_mia.stats.design import design_of, left_out
from lm_mia.stats.inputs import as_members, as_real, check_magnitude
from lm_mia.stats.roc import auc

_MAX_BINS = 2**21  # of the table that replaces most searches: 8 MB

_CHUNK = 2**13  # samples; the losses of all references for a chunk stay in the cache between passes
_SEARCH_CHUNK = 2**15  # samples that are looked up at once
_FAR = np.float32(1e30)  # nats, above `MAX_LOSS`; float32, so that float32 losses are not converted


def make_counter(z_Z: FloatArray, levels: int) -> Callable[[FloatArray], IntArray]:
    """Returns a function that counts how many of the ascending z are at most each level.

    The result equals ``searchsorted(z, level, side="right")``; it is arbitrary for a NaN level. A table over equal bins
    between outer quantiles of z answers for most levels, whose bin holds at most one z. Levels in bins with more
    (tails, ties) are searched. For 2^20 levels among 300,000 z without ties this takes a fifth of the time of a search,
    and never much more than a search.

    Args:
      z_Z: values in ascending order, without NaN.
      levels: number of levels that will be looked up; for few levels no table is built.
    """

    def search(level_C: FloatArray) -> IntArray:
        return np.searchsorted(z_Z, level_C, side="right")

    bins = min(max(1 << (8 * z_Z.size - 1).bit_length(), 2**12), _MAX_BINS)
    low, high = z_Z[z_Z.size // 1000], z_Z[-1 - z_Z.size // 1000]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = bins / (high - low)
    if 2 * levels < z_Z.size or not 0 < scale < np.inf:  # too few levels for a table, or no range
        return search

    def bin_of(value_C: FloatArray) -> np.ndarray:
        """Returns a bin that never decreases with the value, so all z in lower bins are below the level."""
        with np.errstate(over="ignore"):
            position_C = (value_C - low) * scale
        np.fmin(position_C, bins, out=position_C)  # NaN is assigned to the last bin
        return np.fmax(position_C, 0, out=position_C).astype(np.int32)

    num_lower = np.zeros(bins + 2, dtype=np.int32)  # number of z in lower bins
    np.cumsum(np.bincount(bin_of(z_Z), minlength=bins + 1), out=num_lower[1:])
    z_then_nan = np.append(z_Z, np.nan)  # no level reaches the element after the last z

    def look_up(level_C: FloatArray) -> IntArray:
        bin_C = bin_of(level_C)
        lower_C = num_lower.take(bin_C)
        # If the bin is empty, the next z is in a higher bin and is not counted.
        count_C = lower_C + (z_then_nan.take(lower_C) <= level_C).astype(np.int64)
        searched = np.flatnonzero(num_lower.take(bin_C + 1) - lower_C > 1)
        count_C[searched] = search(level_C.take(searched))
        return count_C

    return look_up


def rmia_log_alpha(
    target_TxN: ArrayLike,
    reference_MxN: ArrayLike,
    *,
    reference_member_MxN: ArrayLike | None = None,
    offline: bool = False,
    a: float = 1.0,
) -> FloatArray:
    """Computes log alpha(x) = log p_target(x) - log p(x), the log likelihood ratio of RMIA.

    p(x) is the mean probability under the references; `rmia_log_mean_probability` defines it. A target must not be
    among its references.

    Args:
      target_TxN: log p = -loss under the targets, in nats; NaN gives NaN. A one-dimensional array is treated as one
        target.
      reference_MxN: log p under the references; NaN marks a missing one.
      reference_member_MxN: booleans, whether each sample was in each reference's training subset; required offline.
      offline: whether to use OUT references only.
      a: as for `rmia_log_mean_probability`.

    Returns:
      log_alpha_TxN, in nats; NaN where log p(x) is NaN.

    Raises:
      ValueError: if the numbers of samples differ, if a signal is infinite, or as for `rmia_log_mean_probability`.

    Source: StrongMIA, Eq. 3.
    """
    target_TxN = np.atleast_2d(as_real(target_TxN, "target signals"))
    log_p_N = rmia_log_mean_probability(
        reference_MxN, reference_member_MxN=reference_member_MxN, offline=offline, a=a
    )
    if target_TxN.ndim != 2 or target_TxN.shape[1:] != log_p_N.shape:
        raise ValueError(
            f"targets of shape {target_TxN.shape} do not match references of {log_p_N.size} samples"
        )
    log_alpha_TxN = np.empty(target_TxN.shape)
    for t, signal_N in enumerate(target_TxN):
        log_alpha_TxN[t] = _log_alpha(signal_N, log_p_N)
    return log_alpha_TxN


def rmia_log_mean_probability(
    reference_MxN: ArrayLike,
    *,
    reference_member_MxN: ArrayLike | None = None,
    offline: bool = False,
    a: float = 1.0,
) -> FloatArray:
    """Computes log p(x), the denominator of alpha(x), which is the same for all targets.

    Online, p(x) is the mean of p over all references, IN and OUT, whatever their numbers. Offline,
    p(x) = ((1 + a) p_OUT(x) + (1 - a)) / 2, where p_OUT is the mean over references that were not trained on the
    sample; this assumes that the mean of p_IN is a p_OUT + (1 - a).

    Args:
      reference_MxN: log p = -loss under the references, in nats; NaN marks a missing one, which is left out of the
        mean.
      reference_member_MxN: booleans, whether each sample was in each reference's training subset; required offline, not
        used online.
      offline: whether to use OUT references only.
      a: in [0, 1], used offline only. 1 gives the OUT mean; 0 assumes that IN models are certain of the sample.
        Zarifzadeh et al. tune it on the attacker's own models.

    Returns:
      log_p_N, in nats; NaN for a sample without a reference (offline: without an OUT reference).

    Raises:
      ValueError: if the shapes do not match, if members are missing offline or not boolean, if a is outside [0, 1], or
        if a signal is infinite.

    Source: StrongMIA, Eq. 3; offline StrongMIA, Appendix B.3, and Zarifzadeh et al. 2024, Appendix B.2.2 (a).
    """
    if not 0 <= a <= 1:
        raise ValueError(f"a={a}: must be between 0 and 1")
    signal_MxN = np.atleast_2d(as_real(reference_MxN, "reference signals"))
    if signal_MxN.ndim != 2:
        raise ValueError(f"references of shape {signal_MxN.shape}: must be models x samples")
    member_MxN = _check_members(reference_member_MxN, signal_MxN.shape) if offline else None
    log_p_N = np.empty(signal_MxN.shape[1])
    for start in range(0, log_p_N.size, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        member_MxC = None if member_MxN is None else member_MxN[:, chunk]
        log_p_N[chunk] = _log_mean(-signal_MxN[:, chunk], member_MxC)
    return _mixed(log_p_N, a) if offline else log_p_N


def rmia_simple(target_TxN: ArrayLike, reference_MxN: ArrayLike) -> FloatArray:
    """Computes the scores of RMIA (simple): log alpha(x) over all references, without population samples.

    `rmia_log_alpha` computes the offline form.

    Args:
      target_TxN: log p = -loss under the targets, in nats; NaN gives NaN. A one-dimensional array is treated as one
        target.
      reference_MxN: log p under the references; NaN marks a missing one.

    Returns:
      score_TxN, in nats; NaN for a sample without a reference.

    Raises:
      ValueError: if the numbers of samples differ or a signal is infinite.

    Source: StrongMIA, Appendix B.2.1.

    Example:
      One sample with probability 1/2 under the target, and 1/4 and 1/8 under the references: alpha = (1/2) / (3/16).

      >>> import numpy as np
      >>> from lm_mia.stats import rmia_simple
      >>> np.exp(rmia_simple(np.log([[0.5]]), np.log([[0.25], [0.125]]))).round(3)
      array([[2.667]])
    """
    return rmia_log_alpha(target_TxN, reference_MxN)


def rmia(
    target_TxN: ArrayLike,
    reference_MxN: ArrayLike,
    target_TxZ: ArrayLike,
    reference_MxZ: ArrayLike,
    *,
    gamma: float = 1.0,
    reference_member_MxN: ArrayLike | None = None,
    reference_member_MxZ: ArrayLike | None = None,
    offline: bool = False,
    a: float = 1.0,
) -> FloatArray:
    """Computes RMIA scores: the share of population samples z with alpha(x) / alpha(z) >= gamma.

    The time is O((N + Z) log Z) per target, and the memory beyond the result is of the order of N + Z. A target must
    not be among its references.

    Args:
      target_TxN: log p = -loss of the samples x under the targets, in nats; NaN gives NaN. A one-dimensional array is
        treated as one target.
      reference_MxN: log p of x under the references; NaN marks a missing one.
      target_TxZ: log p of the population samples z under the same targets.
      reference_MxZ: log p of z under the same references.
      gamma: threshold of the pairwise ratio, positive and finite.
      reference_member_MxN: booleans, whether each x was in each reference's training subset; required offline.
      reference_member_MxZ: the same for z.
      offline: whether to use OUT references only, for x and for z.
      a: as for `rmia_log_mean_probability`; used offline only.

    Returns:
      score_TxN in [0, 1], multiples of 1 / Z, so false positive rates below 1 / Z cannot be reached. NaN where
      log alpha(x) is NaN, and for a target without any log alpha(z).

    Raises:
      ValueError: if the shapes do not match, or as for `rmia_log_alpha` and `rmia_from_log_alpha`.

    Source: StrongMIA, Eqs. 3-5.

    Example:
      One sample x and three population samples z with probability 1/2 under the target. Their alphas are 8/3, and 4/3,
      8/3 and 4, so x exceeds or ties with two of three:

      >>> import numpy as np
      >>> from lm_mia.stats import rmia
      >>> target_1x1, reference_2x1 = np.log([[0.5]]), np.log([[0.25], [0.125]])
      >>> target_1x3 = np.log([[0.5, 0.5, 0.5]])
      >>> reference_2x3 = np.log([[0.5, 0.25, 0.125], [0.25, 0.125, 0.125]])
      >>> rmia(target_1x1, reference_2x1, target_1x3, reference_2x3).round(3)
      array([[0.667]])
    """
    target_TxN, target_TxZ = np.atleast_2d(
        as_real(target_TxN, "target signals"), as_real(target_TxZ, "target signals")
    )
    members = (reference_member_MxN, reference_member_MxZ)
    log_p_N, log_p_Z = (
        rmia_log_mean_probability(signals, reference_member_MxN=member, offline=offline, a=a)
        for signals, member in zip((reference_MxN, reference_MxZ), members, strict=True)
    )
    targets = target_TxN.shape[0]
    if (target_TxN.shape, target_TxZ.shape) != ((targets, log_p_N.size), (targets, log_p_Z.size)):
        raise ValueError(
            f"targets of shapes {target_TxN.shape} and {target_TxZ.shape} do not match references of "
            f"{log_p_N.size} samples and {log_p_Z.size} population samples"
        )
    score_TxN = np.empty(target_TxN.shape)
    for t, signal_N in enumerate(target_TxN):
        sorted_Z = np.sort(_log_alpha(target_TxZ[t], log_p_Z))
        score_TxN[t] = rmia_from_log_alpha(_log_alpha(signal_N, log_p_N), sorted_Z, gamma)[0]
    return score_TxN


def rmia_from_log_alpha(
    log_alpha_TxN: ArrayLike, sorted_log_alpha_TxZ: ArrayLike, gamma: float = 1.0
) -> FloatArray:
    """Computes RMIA scores from log alpha: the share of z with log alpha(x) - log alpha(z) >= log gamma.

    A z whose log alpha is NaN is left out of the share of that target. At gamma = 1 the comparison is exact, and ties
    count. At other gammas a z counts if log alpha(z) <= log alpha(x) - log gamma in float64: a ratio within rounding
    error of gamma (about 1 part in 10^15) may or may not count, but equal x have equal scores, and a larger gamma or a
    smaller alpha(x) never gives a larger score.

    Args:
      log_alpha_TxN: log alpha of the samples under attack, from `rmia_log_alpha`; NaN gives NaN. A one-dimensional
        array is treated as one target.
      sorted_log_alpha_TxZ: log alpha of the population samples under the same targets; each target's values sorted as
        by `np.sort`, in ascending order with NaN last.
      gamma: threshold of the ratio, positive and finite.

    Returns:
      score_TxN in [0, 1]; NaN for a target without any log alpha(z).

    Raises:
      ValueError: if the numbers of targets differ, if the population is empty, if the values are not sorted, or if
        gamma is not positive and finite.

    Source: StrongMIA, Eqs. 4-5.
    """
    x_TxN = np.atleast_2d(as_real(log_alpha_TxN, "log alpha"))
    z_TxZ = np.atleast_2d(as_real(sorted_log_alpha_TxZ, "log alpha"))
    if x_TxN.ndim != 2 or z_TxZ.ndim != 2 or x_TxN.shape[0] != z_TxZ.shape[0]:
        raise ValueError(f"shapes {x_TxN.shape} and {z_TxZ.shape} must cover the same targets")
    if z_TxZ.shape[1] == 0:
        raise ValueError("the population is empty: RMIA compares with population samples z")
    if not 0 < gamma < np.inf:
        raise ValueError(f"gamma={gamma}: must be positive and finite")
    log_gamma = np.log(gamma)
    score_TxN = np.empty(x_TxN.shape)
    for t, with_nan_Z in enumerate(z_TxZ):
        num_present = with_nan_Z.size - np.count_nonzero(np.isnan(with_nan_Z))
        z_Z = with_nan_Z[:num_present].astype(np.float64)
        if np.isnan(z_Z).any() or np.any(z_Z[1:] < z_Z[:-1]):
            raise ValueError("log alpha of the population must be sorted with NaN last, as by sort")
        if z_Z.size == 0:
            score_TxN[t] = np.nan
            continue
        count_at_or_below = make_counter(z_Z, x_TxN.shape[1])
        for start in range(0, x_TxN.shape[1], _SEARCH_CHUNK):
            chunk = slice(start, start + _SEARCH_CHUNK)
            level_C = x_TxN[t, chunk].astype(np.float64) - log_gamma
            share_C = count_at_or_below(level_C) / z_Z.size
            score_TxN[t, chunk] = np.where(np.isnan(level_C), np.nan, share_C)
    return score_TxN


def tuned_rmia_a(
    reference_MxN: ArrayLike,
    member_MxN: ArrayLike,
    reference_MxZ: ArrayLike,
    member_MxZ: ArrayLike,
) -> float:
    """Tunes the parameter a of offline RMIA in an attack on the first reference, whose members the attacker knows.

    Offline RMIA with gamma = 1 attacks the first reference with the others. References without any log p, as those that
    are left out with a target, count as absent. References with the same subset, with its complement as in a balanced
    design, and random partners if every sample is in equally many subsets are left out as in `lira_leave_one_out`,
    because they reveal the members of the first reference.

    Args:
      reference_MxN: log p = -loss of the samples x under the references, in nats; NaN marks a missing one.
      member_MxN: booleans, whether each x was in each reference's training subset.
      reference_MxZ: log p of the population samples z under the same references.
      member_MxZ: the same as member_MxN for z.

    Returns:
      The value among 0, 0.1, ..., 1 with the largest AUC; the smallest one in case of ties.

    Raises:
      ValueError: if the shapes do not match, or if no AUC can be computed: without another reference that may be used,
        or without members or non-members of the first one that have scores.

    Source: Zarifzadeh et al. 2024, Appendix B.2.2; PrivacyGuard tunes it by default.
    """
    signals = [
        np.atleast_2d(as_real(x, "reference signals")) for x in (reference_MxN, reference_MxZ)
    ]
    members = [
        _check_members(m, x.shape) for m, x in zip((member_MxN, member_MxZ), signals, strict=True)
    ]
    if len(signals[0]) != len(signals[1]):
        raise ValueError(
            f"{len(signals[0])} references of x and {len(signals[1])} of z: must be the same references"
        )
    has_values_M = ~np.isnan(signals[0]).all(axis=1)
    signals, members = ([x[has_values_M] for x in both] for both in (signals, members))
    if not has_values_M.any():
        raise ValueError("reference_MxN: all values are NaN")
    design = design_of(members[0])
    others_M = design.group_M != design.group_M[:1]
    if not others_M.any():
        raise ValueError(
            "there must be a reference besides the first one and those with its subset or the complement of it"
        )
    out_x_N, out_z_Z = (
        rmia_log_mean_probability(
            np.where(left_out(design, m, 0, np.arange(x.shape[1])), np.nan, x)[others_M],
            reference_member_MxN=m[others_M],
            offline=True,
        )
        for x, m in zip(signals, members, strict=True)
    )
    candidates = [i / 10 for i in range(11)]
    aucs: list[float] = []
    for a in candidates:
        log_alpha_N, log_alpha_Z = (
            _log_alpha(x[0], _mixed(log_p, a))
            for x, log_p in zip(signals, (out_x_N, out_z_Z), strict=True)
        )
        score_1xN = rmia_from_log_alpha(log_alpha_N, np.sort(log_alpha_Z))
        aucs.append(float(auc(score_1xN, members[0][0]).auc_T[0]))
    if np.isnan(aucs).any():
        raise ValueError("the first reference must have members and non-members with scores")
    return candidates[int(np.argmax(aucs))]


def _mixed(log_p_N: FloatArray, a: float) -> FloatArray:
    """Computes log p(x) offline from the log mean probability under OUT references."""
    if a == 1:
        return log_p_N
    with np.errstate(invalid="ignore"):  # logaddexp warns of NaN
        return np.logaddexp(np.log((1 + a) / 2) + log_p_N, np.log((1 - a) / 2))


def _log_alpha(signal_N: np.ndarray, log_p_N: FloatArray) -> FloatArray:
    check_magnitude(signal_N, "target signals")
    return signal_N.astype(np.float64) - log_p_N


def _check_members(member: ArrayLike | None, shape: tuple[int, ...]) -> BoolArray:
    if member is None:
        raise ValueError("offline RMIA needs reference_member, because it uses OUT references only")
    member_MxN = np.atleast_2d(as_members(member))
    if member_MxN.shape != shape:
        raise ValueError(
            f"references of shape {shape} do not match members of shape {member_MxN.shape}"
        )
    return member_MxN


def _log_mean(loss_MxC: np.ndarray, member_MxC: BoolArray | None) -> FloatArray:
    """Computes the log of the mean of exp(-loss) over the references with a loss.

    If members are given, only OUT references are used.
    """
    used_MxC = ~np.isnan(loss_MxC)
    check_magnitude(loss_MxC, "reference signals")
    # Losses that are not used are made so large that p is 0. This is done by arithmetic, because a choice between two
    # values by unpredictable membership takes longer than the exponentials below.
    loss_MxC = np.fmin(loss_MxC, _FAR)
    if member_MxC is not None:
        used_MxC &= ~member_MxC
        loss_MxC += member_MxC * _FAR
    count_C = np.add.reduce(used_MxC, axis=0, dtype=np.int32)
    # The lowest loss is factored out of the sum, which is then in [1, M] for any loss.
    lowest_C = loss_MxC.min(axis=0, initial=2 * _FAR).astype(np.float64)
    sum_C = np.zeros(lowest_C.shape)
    # References are added one after another, so that equal samples have bitwise equal sums, and ties remain ties.
    for loss_C in loss_MxC:
        # Below e^-700 a term adds nothing to a sum of at least 1, and exponentials near 0 are slow.
        sum_C += np.exp(np.maximum(lowest_C - loss_C, -700.0))
    mean_C = np.divide(sum_C, count_C, out=np.full(lowest_C.shape, np.nan), where=count_C > 0)
    return np.log(mean_C) - lowest_C
