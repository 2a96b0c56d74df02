"""Membership scores that need no fitted distribution; larger means more member-like, as everywhere.

Shapes: T targets, M references, N samples, L tokens. Losses are mean nats a token. NaN is missing:
a score that needs a missing number is NaN, and the metrics of `lm_mia.stats.roc` count it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

_CHUNK = 2**18  # tokens at a time
_ROUNDING = 1e-3  # nats; float32 softmaxes are off by far less, and tokens differ by far more
_NO_SPREAD = 1e-12  # nats; the certainty of a model whose second choice has p = 3e-28

_ONE_IN = 5  # 20 %, in whole numbers


def loss_attack(target_loss_TxN: ArrayLike) -> NDArray[np.float64]:
    """Score of the loss attack: minus the loss.

    Returns:
      score_TxN in nats a token; a one-dimensional input counts as one target.

    Source: Yeom et al. 2018, with the threshold left to calibration; StrongMIA Appendix A.
    """
    return -np.atleast_2d(np.asarray(target_loss_TxN, dtype=np.float64))


def reference_calibrated(
    target_loss_TxN: ArrayLike, reference_loss_MxN: ArrayLike
) -> NDArray[np.float64]:
    """Mean reference loss minus target loss: how much easier a sample is than for other models.

    The mean is over all references given that have a loss for the sample, members or not; give OUT
    rows alone, or NaN where a reference is to be left out, for another choice.

    Args:
      target_loss_TxN: losses under the targets; a one-dimensional array counts as one target.
      reference_loss_MxN: losses under the references; NaN is a missing model.

    Returns:
      score_TxN in nats a token; NaN for a sample without any reference loss.

    Raises:
      ValueError: different numbers of samples, or an infinite reference loss.

    Source: Watson et al. 2022 (difficulty calibration), with the mean over several references.
    """
    target_TxN = np.atleast_2d(np.asarray(target_loss_TxN, dtype=np.float64))
    reference_MxN = np.atleast_2d(np.asarray(reference_loss_MxN))
    _same_samples(target_TxN, reference_MxN)
    count_N = np.zeros(target_TxN.shape[1])
    mean_N = np.zeros(target_TxN.shape[1])
    # A running mean, row by row: no copy of all references, no large sum that eats differences.
    for row_N in reference_MxN:
        loss_N = row_N.astype(np.float64)
        if np.isinf(loss_N).any():
            raise ValueError("reference losses must be finite, or NaN for a missing model")
        there_N = ~np.isnan(loss_N)
        count_N += there_N
        mean_N += np.where(there_N, loss_N - mean_N, 0.0) / np.maximum(count_N, 1)
    return np.where(count_N > 0, mean_N, np.nan) - target_TxN


def zlib_ratio(target_loss_TxN: ArrayLike, zlib_bytes_N: ArrayLike) -> NDArray[np.float64]:
    """Minus the ratio of loss to compressed size: low loss for a text's own entropy is member-like.

    Score = -loss / zlib_bytes, with loss the mean nats a token (log perplexity) and zlib_bytes the
    length in bytes of the zlib-compressed text. The minus sign is ours: Carlini et al. rank by the
    ratio, smallest first.

    Args:
      target_loss_TxN: losses under the targets; a one-dimensional array counts as one target.
      zlib_bytes_N: compressed size of each sample in bytes; NaN is missing.

    Returns:
      score_TxN in nats a token and byte.

    Raises:
      ValueError: different numbers of samples, or a size below 1.

    Source: Carlini et al. 2021, Extracting Training Data from Large Language Models, Section 5.2.
    """
    target_TxN = np.atleast_2d(np.asarray(target_loss_TxN, dtype=np.float64))
    bytes_1xN = np.atleast_2d(np.asarray(zlib_bytes_N, dtype=np.float64))
    _same_samples(target_TxN, bytes_1xN)
    if bytes_1xN.shape[0] != 1:
        raise ValueError(f"zlib_bytes must have one size a sample, not shape {bytes_1xN.shape}")
    if np.any(bytes_1xN < 1):
        raise ValueError("zlib_bytes must be 1 or more: even an empty text compresses to 8 bytes")
    return -target_TxN / bytes_1xN


def lowercase(target_loss_TxN: ArrayLike, lowercase_loss_TxN: ArrayLike) -> NDArray[np.float64]:
    """Loss of the lowercased text minus loss: memorised text minds the loss of its capitals.

    The log of the ratio of perplexities, after lowercasing over before, so that larger is more
    member-like. The authors' published code divides the two log perplexities instead, which ranks
    differently; the paper speaks of perplexities.

    Args:
      target_loss_TxN: losses under the targets; a one-dimensional array counts as one target.
      lowercase_loss_TxN: losses of the lowercased samples under the same targets, each a mean over
        the lowercased text's own tokens.

    Returns:
      score_TxN in nats a token; NaN where one of the two is, 0 for a text without capitals.

    Raises:
      ValueError: different shapes, or an infinite lowercase loss.

    Source: Carlini et al. 2021, Section 5.2.
    """
    target_TxN = np.atleast_2d(np.asarray(target_loss_TxN, dtype=np.float64))
    lower_TxN = np.atleast_2d(np.asarray(lowercase_loss_TxN, dtype=np.float64))
    _same_samples(target_TxN, lower_TxN)
    if target_TxN.shape != lower_TxN.shape:
        raise ValueError(f"not of the same targets: {target_TxN.shape} and {lower_TxN.shape}")
    if np.isinf(lower_TxN).any():
        raise ValueError("lowercase losses must be finite, or NaN for a missing one")
    return lower_TxN - target_TxN


def min_k(log_prob_NxL: ArrayLike, *, share: float = 0.2) -> NDArray[np.float64]:
    """Mean log probability of a text's least likely tokens: members have few surprising ones.

    Over the lowest floor(share * n) of a text's n tokens, and at least one: the published code
    truncates in the same way and has no score for a text of fewer than 1 / share tokens.

    Args:
      log_prob_NxL: log probability of each token under one model, nats; NaN is padding, anywhere.
      share: of the tokens, in (0, 1]; 1 gives minus the mean loss.

    Returns:
      score_N in nats; NaN for a text without tokens; -inf if a token has probability 0.

    Raises:
      ValueError: not a matrix, share out of range, or log probabilities above 0.

    Source: Shi et al. 2024, Detecting Pretraining Data from Large Language Models (Min-K% Prob).
    """
    log_prob_NxL = _tokens(log_prob_NxL, share)
    score_N = np.empty(log_prob_NxL.shape[0])
    for at in _chunks(log_prob_NxL):
        score_N[at] = _lowest(log_prob_NxL[at], share)
    return score_N


def min_k_plus_plus(
    log_prob_NxL: ArrayLike, mean_NxL: ArrayLike, std_NxL: ArrayLike, *, share: float = 0.2
) -> NDArray[np.float64]:
    """Mean z-score of the tokens of a text that stand lowest against what else could have come.

    z = (log p - mean) / std, over the lowest floor(share * n) of n tokens, and at least one. Where
    std is 0 (below 1e-12), the model is certain or all its choices are alike: log p is the mean,
    and z is 0, the limit of a token of probability 1 - e as e vanishes (z is about sqrt(e) there).
    A log p clearly below the mean at std 0 is a token that the model rules out: z is -inf.

    Args:
      log_prob_NxL: as of `min_k`.
      mean_NxL: mean of log p over the model's distribution of the token, sum p log p; NaN where
        there is a token makes the score NaN.
      std_NxL: standard deviation of log p over that distribution.
      share: of the tokens, in (0, 1].

    Returns:
      score_N in standard deviations; NaN for a text without tokens.

    Raises:
      ValueError: different shapes, a negative std, an infinite mean or std, or as of `min_k`.

    Source: Zhang et al. 2025, Min-K%++: Improved Baseline for Detecting Pre-Training Data.
    """
    log_prob_NxL = _tokens(log_prob_NxL, share)
    mean_NxL, std_NxL = np.asarray(mean_NxL), np.asarray(std_NxL)
    if not log_prob_NxL.shape == mean_NxL.shape == std_NxL.shape:
        raise ValueError(
            f"not of the same tokens: {log_prob_NxL.shape}, {mean_NxL.shape}, {std_NxL.shape}"
        )
    score_N = np.empty(log_prob_NxL.shape[0])
    for at in _chunks(log_prob_NxL):
        mean_CxL, std_CxL = mean_NxL[at].astype(np.float64), std_NxL[at].astype(np.float64)
        if np.any(std_CxL < 0) or np.isinf(mean_CxL).any() or np.isinf(std_CxL).any():
            raise ValueError("mean and std must be finite, and std not negative")
        padding_CxL = np.isnan(log_prob_NxL[at])
        above_CxL = log_prob_NxL[at] - mean_CxL
        alike_CxL = np.where(above_CxL < -_ROUNDING, -np.inf, 0.0)
        z_CxL = np.divide(above_CxL, std_CxL, out=alike_CxL, where=std_CxL > _NO_SPREAD)
        z_CxL[padding_CxL] = np.nan
        unknown_CxL = (np.isnan(mean_CxL) | np.isnan(std_CxL)) & ~padding_CxL
        score_N[at] = np.where(unknown_CxL.any(axis=1), np.nan, _lowest(z_CxL, share))
    return score_N


def _tokens(log_prob: ArrayLike, share: float) -> NDArray:
    if not 0 < share <= 1:
        raise ValueError(f"share={share}: must be above 0 and at most 1")
    log_prob_NxL = np.asarray(log_prob)
    if log_prob_NxL.ndim != 2:
        raise ValueError(f"log probabilities of shape {log_prob_NxL.shape}: must be texts x tokens")
    # Losses in place of log probabilities would turn the score round without a sound.
    if np.fmax.reduce(log_prob_NxL, axis=None, initial=-np.inf) > _ROUNDING:
        raise ValueError("log probabilities must not be above 0: are these losses?")
    return log_prob_NxL


def _chunks(log_prob_NxL: NDArray) -> Iterator[slice]:
    texts, tokens = log_prob_NxL.shape
    step = max(1, _CHUNK // max(1, tokens))
    return (slice(start, start + step) for start in range(0, texts, step))


def _lowest(value_CxL: NDArray, share: float) -> NDArray[np.float64]:
    """Mean of the lowest values of each row, NaN left out."""
    there_C = np.count_nonzero(~np.isnan(value_CxL), axis=1)
    # A hair more than the product, so that 0.29 of 100 tokens is 29 whatever the rounding.
    k_C = np.floor(share * there_C * (1 + 2**-50)).astype(np.int64)
    k_C = np.minimum(np.maximum(k_C, 1), there_C)
    lowest_CxK = np.sort(value_CxL, axis=1)[:, : k_C.max(initial=0)]  # NaN last
    taken_CxK = np.arange(lowest_CxK.shape[1]) < k_C[:, None]
    sum_C = np.sum(lowest_CxK, axis=1, dtype=np.float64, where=taken_CxK)
    return np.divide(sum_C, k_C, out=np.full(sum_C.shape, np.nan), where=k_C > 0)


def _same_samples(target_TxN: NDArray, other_KxN: NDArray) -> None:
    if target_TxN.ndim != 2 or other_KxN.ndim != 2 or target_TxN.shape[1] != other_KxN.shape[1]:
        raise ValueError(
            f"not over the same samples: shapes {target_TxN.shape} and {other_KxN.shape}"
        )


def lowest_mean(value_T: np.ndarray, count_S: np.ndarray) -> np.ndarray:
    """mean_S, float64, of the lowest fifth of each sample's values (rounded down, at least one), in numpy.

    Min-K% of log-probabilities in nats (Shi et al. 2024, Detecting pretraining data from large language models), and
    Min-K%++ of z-scores.

    Args:
      value_T: of the samples' predicted tokens, one sample after another.
      count_S: values of each sample, 1 or more.
    """
    sample_T = np.repeat(np.arange(len(count_S)), count_S)
    sorted_T = value_T[np.lexsort((value_T, sample_T))]
    begin_S = np.cumsum(count_S) - count_S
    lowest_S = np.maximum(count_S // _ONE_IN, 1)
    place_T = np.arange(len(value_T)) - np.repeat(begin_S, count_S)
    kept_T = np.where(place_T < np.repeat(lowest_S, count_S), sorted_T, 0.0)
    return np.add.reduceat(kept_T, begin_S, dtype=np.float64) / lowest_S
