"""Membership scores that need no fitted distribution; larger means more member-like, as everywhere.

Shapes: T targets (in `min_k`: tokens), M references, N samples. Losses are mean nats a token. NaN is missing:
a score that needs a missing number is NaN, and the metrics of `lm_mia.stats.roc` count it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


def min_k(value_T: np.ndarray, count_N: np.ndarray) -> NDArray[np.float64]:
    """Mean over the fifth of a sample's tokens that has the lowest values: members have few surprising tokens.

    It is Min-K% of log-probabilities and Min-K%++ of their z-scores. The fifth is rounded down, to one token at least;
    the published code rounds in the same way and has no score for a text of fewer than five tokens.

    Args:
      value_T: log-probabilities in nats, or z-scores, of all predicted tokens, one sample after another.
      count_N: number of predicted tokens of each sample, at least 1.

    Returns:
      score_N in nats, or in standard deviations.

    Source: Shi et al. 2024, Detecting Pretraining Data from Large Language Models (Min-K% Prob); Zhang et al. 2025,
    Min-K%++: Improved Baseline for Detecting Pre-Training Data.
    """
    sample_T = np.repeat(np.arange(len(count_N)), count_N)
    sorted_T = value_T[np.lexsort((value_T, sample_T))]
    begin_N = np.cumsum(count_N) - count_N
    lowest_N = np.maximum(count_N // 5, 1)
    place_T = np.arange(len(value_T)) - np.repeat(begin_N, count_N)
    kept_T = np.where(place_T < np.repeat(lowest_N, count_N), sorted_T, 0.0)
    return np.add.reduceat(kept_T, begin_N, dtype=np.float64) / lowest_N


def _same_samples(target_TxN: NDArray, other_KxN: NDArray) -> None:
    if target_TxN.ndim != 2 or other_KxN.ndim != 2 or target_TxN.shape[1] != other_KxN.shape[1]:
        raise ValueError(
            f"not over the same samples: shapes {target_TxN.shape} and {other_KxN.shape}"
        )
