"""RMIA: how often a sample's likelihood ratio against the references beats that of other samples.

Shapes: T targets, M references, N samples under attack x, Z population samples z. Inputs are log
signals, log p = -loss with losses in mean nats a token, and all work is done on logs. NaN is a
missing signal. Scores are larger for members. StrongMIA Appendix A; Zarifzadeh et al. 2024.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MAX_BINS = 2**21  # of the table that stands before the search: 8 MB

_CHUNK = 2**13  # samples; a chunk of all references stays in cache between its passes
_SEARCH_CHUNK = 2**15  # samples looked up at a time
_FAR = np.float32(1e30)  # nats; float32 keeps a float32 store in float32


def counter(
    z_Z: NDArray[np.float64], levels: int
) -> Callable[[NDArray[np.float64]], NDArray[np.int64]]:
    """A function that says how many of the ascending z are at most each level (NaN: any number).

    What searchsorted(side="right") says, but a table over equal bins between outer quantiles of z
    answers for most levels: a bin holds no z, or a single one, which is compared. Levels in fuller
    bins (tails, ties) are searched for. A fifth of the time of a search for 2^20 levels in 300,000
    z without ties, and never much more.
    """

    def search(level_C: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(z_Z, level_C, side="right")

    bins = min(max(1 << (8 * z_Z.size - 1).bit_length(), 2**12), _MAX_BINS)
    low, high = z_Z[z_Z.size // 1000], z_Z[-1 - z_Z.size // 1000]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = bins / (high - low)
    if 2 * levels < z_Z.size or not 0 < scale < np.inf:  # not worth a table, or no range
        return search

    def bin_of(value_C: NDArray[np.float64]) -> NDArray[np.int32]:
        """Ascending in the value whatever the rounding, so z in lower bins are below the level."""
        with np.errstate(over="ignore"):
            place_C = (value_C - low) * scale
        np.fmin(place_C, bins, out=place_C)  # NaN goes to the last bin
        return np.fmax(place_C, 0, out=place_C).astype(np.int32)

    before = np.zeros(bins + 2, dtype=np.int32)  # z in lower bins
    np.cumsum(np.bincount(bin_of(z_Z), minlength=bins + 1), out=before[1:])
    next_z = np.append(z_Z, np.nan)  # after the last comes none

    def look_up(level_C: NDArray[np.float64]) -> NDArray[np.int64]:
        bin_C = bin_of(level_C)
        below_C = before.take(bin_C)
        # Of an empty bin, the next z lies in a higher one and does not count.
        count_C = below_C + (next_z.take(below_C) <= level_C).astype(np.int64)
        fuller = np.flatnonzero(before.take(bin_C + 1) - below_C > 1)
        count_C[fuller] = search(level_C.take(fuller))
        return count_C

    return look_up


def log_alpha(
    target_TxN: ArrayLike,
    reference_MxN: ArrayLike,
    *,
    reference_member_MxN: ArrayLike | None = None,
    offline: bool = False,
    a: float = 1.0,
) -> NDArray[np.float64]:
    """Log of alpha(x) = p_target(x) / p(x); see `log_mean_probability` for p(x) and its arguments.

    A target must not be among its references.

    Args:
      target_TxN: log p under the targets; NaN gives NaN. A one-dimensional array counts as one
        target.

    Returns:
      log_alpha_TxN, a log likelihood ratio; NaN where log p(x) is.

    Raises:
      ValueError: different numbers of samples, infinite signals, or as of `log_mean_probability`.

    Source: StrongMIA Eq. 3.
    """
    target_TxN = np.atleast_2d(np.asarray(target_TxN))
    log_p_N = log_mean_probability(
        reference_MxN, reference_member_MxN=reference_member_MxN, offline=offline, a=a
    )
    if target_TxN.ndim != 2 or target_TxN.shape[1:] != log_p_N.shape:
        raise ValueError(f"targets of shape {target_TxN.shape} for {log_p_N.size} samples")
    out_TxN = np.empty(target_TxN.shape)
    for t, signal_N in enumerate(target_TxN):
        out_TxN[t] = _log_alpha(signal_N, log_p_N)
    return out_TxN


def log_mean_probability(
    reference_MxN: ArrayLike,
    *,
    reference_member_MxN: ArrayLike | None = None,
    offline: bool = False,
    a: float = 1.0,
) -> NDArray[np.float64]:
    """Log of p(x), the denominator of alpha: one number a sample, which all targets share.

    Online: the mean of p over all references, IN or OUT, whatever their numbers. Offline: p(x) =
    ((1 + a) p_OUT(x) + (1 - a)) / 2, with p_OUT the mean over references that were not trained on
    the sample; the mean of p_IN is taken to be a p_OUT + (1 - a).

    Args:
      reference_MxN: log p under the references; NaN is a missing model: means are over the others.
      reference_member_MxN: booleans, whether the sample was in the reference's training subset;
        needed offline, of no effect online.
      offline: use OUT references only.
      a: in [0, 1]; offline only. 1 is the plain OUT mean, 0 takes every IN model to be certain
        of the sample; Zarifzadeh et al. tune it on models of the attacker's own.

    Returns:
      log_p_N in nats; NaN for a sample without a reference (offline: without an OUT reference).

    Raises:
      ValueError: shapes that do not fit, members missing offline or not booleans, a outside [0, 1],
        or infinite signals.

    Source: StrongMIA Eq. 3; offline its Appendix B.3, Zarifzadeh et al. 2024, Appendix B.2.2 (a).
    """
    if not 0 <= a <= 1:
        raise ValueError(f"a={a}: must lie between 0 and 1")
    signal_MxN = np.atleast_2d(np.asarray(reference_MxN))
    if signal_MxN.ndim != 2:
        raise ValueError(f"references of shape {signal_MxN.shape}: must be models x samples")
    member_MxN = _members(reference_member_MxN, signal_MxN.shape) if offline else None
    log_p_N = np.empty(signal_MxN.shape[1])
    for start in range(0, log_p_N.size, _CHUNK):
        at = slice(start, start + _CHUNK)
        log_p_N[at] = _log_mean(
            -signal_MxN[:, at], None if member_MxN is None else member_MxN[:, at]
        )
    if offline and a < 1:
        with np.errstate(invalid="ignore"):  # logaddexp warns of NaN
            log_p_N = np.logaddexp(np.log((1 + a) / 2) + log_p_N, np.log((1 - a) / 2))
    return log_p_N


def rmia_simple(target_TxN: ArrayLike, reference_MxN: ArrayLike) -> NDArray[np.float64]:
    """Score of RMIA (simple): log alpha(x) over all references, without a population z.

    As `log_alpha`, which has the offline form too. Source: StrongMIA Appendix B.2.1.
    """
    return log_alpha(target_TxN, reference_MxN)


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
) -> NDArray[np.float64]:
    """RMIA scores: the share of population samples z with alpha(x) / alpha(z) >= gamma.

    O((N + Z) log Z) for each target; memory beyond the result is of the order of N + Z.

    Args:
      target_TxN: log p of the samples x under the targets; NaN gives NaN. A one-dimensional array
        counts as one target.
      reference_MxN: log p of x under the references, see `log_mean_probability`.
      target_TxZ: log p of z under the same targets.
      reference_MxZ: log p of z under the same references.
      gamma: threshold of the pairwise ratio, above 0; see `share_beaten`.
      reference_member_MxN: who trained on which x; offline only, as are the next and `a`.
      reference_member_MxZ: who trained on which z.
      offline: use OUT references only, for x and for z.
      a: see `log_mean_probability`.

    Returns:
      score_TxN in [0, 1], multiples of 1 / Z: false positive rates below 1 / Z are out of reach.
      NaN where log alpha(x) is, and for a target without any log alpha(z).

    Raises:
      ValueError: as of `log_alpha` and `share_beaten`.

    Source: StrongMIA Eqs. 3-5.
    """
    target_TxN, target_TxZ = np.atleast_2d(np.asarray(target_TxN), np.asarray(target_TxZ))
    members = (reference_member_MxN, reference_member_MxZ)
    log_p_N, log_p_Z = (
        log_mean_probability(signals, reference_member_MxN=member, offline=offline, a=a)
        for signals, member in zip((reference_MxN, reference_MxZ), members, strict=True)
    )
    targets = target_TxN.shape[0]
    if (target_TxN.shape, target_TxZ.shape) != ((targets, log_p_N.size), (targets, log_p_Z.size)):
        raise ValueError(
            f"targets of shapes {target_TxN.shape} and {target_TxZ.shape} for {log_p_N.size} "
            f"samples and a population of {log_p_Z.size}"
        )
    score_TxN = np.empty(target_TxN.shape)
    for t, signal_N in enumerate(target_TxN):
        sorted_Z = np.sort(_log_alpha(target_TxZ[t], log_p_Z))
        score_TxN[t] = share_beaten(_log_alpha(signal_N, log_p_N), sorted_Z, gamma)[0]
    return score_TxN


def share_beaten(
    log_alpha_TxN: ArrayLike, sorted_log_alpha_TxZ: ArrayLike, gamma: float = 1.0
) -> NDArray[np.float64]:
    """Share of the population samples z with log alpha(x) - log alpha(z) >= log gamma.

    A z without a log alpha (NaN) is no comparison: it is left out of both parts of the share, so
    the share is out of the z's there are, target by target. At gamma = 1 the comparison is exact,
    and ties count. At other gammas a z counts if log alpha(z) <= log alpha(x) - log gamma in
    float64: a ratio within rounding of gamma (1 part in 10^15 or so) may fall on either side, but
    alike for equal x, and a larger gamma or a smaller alpha(x) never gives a larger share.

    Args:
      log_alpha_TxN: of the samples under attack; NaN gives NaN. A one-dimensional array counts as
        one target.
      sorted_log_alpha_TxZ: of the population under the same targets, each row as `np.sort` leaves
        it, that is, ascending with NaN last.
      gamma: above 0 and finite.

    Returns:
      score_TxN in [0, 1]; NaN for a target without any z.

    Raises:
      ValueError: different numbers of targets, an empty population, rows that are not sorted, or a
        gamma that is not positive and finite.

    Source: StrongMIA Eqs. 4-5.
    """
    x_TxN = np.atleast_2d(np.asarray(log_alpha_TxN))
    z_TxZ = np.atleast_2d(np.asarray(sorted_log_alpha_TxZ))
    if x_TxN.ndim != 2 or z_TxZ.ndim != 2 or x_TxN.shape[0] != z_TxZ.shape[0]:
        raise ValueError(f"not of the same targets: shapes {x_TxN.shape} and {z_TxZ.shape}")
    if z_TxZ.shape[1] == 0:
        raise ValueError("the population is empty: RMIA needs samples z to compare with")
    if not 0 < gamma < np.inf:
        raise ValueError(f"gamma={gamma}: must be above 0 and finite")
    log_gamma = np.log(gamma)
    score_TxN = np.empty(x_TxN.shape)
    for t, row_Z in enumerate(z_TxZ):
        z_Z = row_Z[: row_Z.size - np.count_nonzero(np.isnan(row_Z))].astype(np.float64)
        if np.isnan(z_Z).any() or np.any(z_Z[1:] < z_Z[:-1]):
            raise ValueError("log alpha of the population must be sorted, with NaN last: use sort")
        if z_Z.size == 0:
            score_TxN[t] = np.nan
            continue
        count_up_to = counter(z_Z, x_TxN.shape[1])
        for start in range(0, x_TxN.shape[1], _SEARCH_CHUNK):
            at = slice(start, start + _SEARCH_CHUNK)
            level_C = x_TxN[t, at].astype(np.float64) - log_gamma
            share_C = count_up_to(level_C) / z_Z.size
            score_TxN[t, at] = np.where(np.isnan(level_C), np.nan, share_C)
    return score_TxN


def _log_alpha(signal_N: NDArray, log_p_N: NDArray[np.float64]) -> NDArray[np.float64]:
    if np.isinf(signal_N).any():
        raise ValueError("target signals must be finite, or NaN for a missing one")
    return signal_N.astype(np.float64) - log_p_N


def _members(member: ArrayLike | None, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    if member is None:
        raise ValueError("offline RMIA needs reference_member: it uses OUT references only")
    member_MxN = np.atleast_2d(np.asarray(member))
    if member_MxN.shape != shape:
        raise ValueError(f"references of shape {shape}, members of {member_MxN.shape}")
    if member_MxN.dtype != np.bool_:
        raise ValueError(f"members must be booleans, not {member_MxN.dtype}")
    return member_MxN


def _log_mean(loss_MxC: NDArray, member_MxC: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Log of the mean of exp(-loss) over the references that are there (and OUT, given members)."""
    used_MxC = ~np.isnan(loss_MxC)
    if not np.fmax.reduce(np.abs(loss_MxC), axis=None, initial=0) < _FAR / 2:
        raise ValueError("reference signals must be finite, or NaN for a missing model")
    # References that are not used move far away, to p = 0. By arithmetic: a choice between two
    # values at random places, such as members are, costs more than the exponentials below.
    loss_MxC = np.fmin(loss_MxC, _FAR)
    if member_MxC is not None:
        used_MxC &= ~member_MxC
        loss_MxC += member_MxC * _FAR
    count_C = np.add.reduce(used_MxC, axis=0, dtype=np.int32)
    # The likeliest reference is taken out of the sum, which then lies in [1, M] at any loss.
    low_C = loss_MxC.min(axis=0, initial=2 * _FAR).astype(np.float64)
    sum_C = np.zeros(low_C.shape)
    # Row by row, so that equal samples get equal bits wherever they stand: ties are to stay ties.
    for loss_C in loss_MxC:
        # Less than e^-700 adds nothing to a sum of 1 or more, and exponentials near 0 are slow.
        sum_C += np.exp(np.maximum(low_C - loss_C, -700.0))
    mean_C = np.divide(sum_C, count_C, out=np.full(low_C.shape, np.nan), where=count_C > 0)
    return np.log(mean_C) - low_C
