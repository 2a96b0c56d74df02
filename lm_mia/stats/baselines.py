"""Attacks without a fitted distribution: loss, calibrated loss, zlib ratio, lowercase and Min-K%.

Legend: T targets (in `min_k`: tokens), M references, N samples. Losses are means in nats per token. NaN marks a missing
value; the score of a sample that lacks a required value is NaN. Larger scores are more member-like.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import FloatArray
from lm_mia.stats.inputs import as_counts, as_float64, as_real, check_magnitude


def loss_attack(target_loss_TxN: ArrayLike) -> FloatArray:
    """Computes the membership scores of the loss attack, which are the negated losses.

    Args:
      target_loss_TxN: losses under the targets, in nats per token. A one-dimensional array is treated as one target.

    Returns:
      score_TxN, in nats per token.

    Source: Yeom et al. 2018. Here the threshold is calibrated rather than fixed; StrongMIA, Appendix A.
    """
    return -np.atleast_2d(as_float64(target_loss_TxN, "target losses"))


def reference_calibrated_loss(
    target_loss_TxN: ArrayLike, reference_loss_MxN: ArrayLike
) -> FloatArray:
    """Computes the mean reference loss minus the target loss of each sample.

    The score tells how much easier a sample is for the target than for other models. The mean is over all references
    that have a loss for the sample, whether or not they were trained on it. To average over OUT references only, set
    the losses of the others to NaN.

    Args:
      target_loss_TxN: losses under the targets, in nats per token. A one-dimensional array is treated as one target.
      reference_loss_MxN: losses under the references; NaN marks a missing loss.

    Returns:
      score_TxN, in nats per token; NaN for a sample without a reference loss.

    Raises:
      ValueError: if the numbers of samples differ, or if a reference loss is infinite or above 1e29.

    Source: Watson et al. 2022 (difficulty calibration), with the mean over several references.
    """
    target_TxN = np.atleast_2d(as_float64(target_loss_TxN, "target losses"))
    reference_MxN = np.atleast_2d(as_real(reference_loss_MxN, "reference losses"))
    _check_same_samples(target_TxN, reference_MxN)
    count_N = np.zeros(target_TxN.shape[1])
    mean_N = np.zeros(target_TxN.shape[1])
    # The running mean avoids a float64 copy of all references and the rounding errors of a large sum.
    for reference_N in reference_MxN:
        loss_N = reference_N.astype(np.float64)
        check_magnitude(loss_N, "reference losses")
        present_N = ~np.isnan(loss_N)
        count_N += present_N
        mean_N += np.where(present_N, loss_N - mean_N, 0.0) / np.maximum(count_N, 1)
    return np.where(count_N > 0, mean_N, np.nan) - target_TxN


def zlib_ratio(target_loss_TxN: ArrayLike, zlib_bytes_N: ArrayLike) -> FloatArray:
    """Computes the negated ratio of the loss to the compressed size of each sample.

    score = -loss / zlib_bytes, where the loss is the log perplexity and zlib_bytes the length of the zlib-compressed
    text. The compressed size measures how hard the text is in itself. Carlini et al. rank by the ratio, smallest first;
    the sign is changed so that larger scores are more member-like.

    Args:
      target_loss_TxN: losses under the targets, in nats per token. A one-dimensional array is treated as one target.
      zlib_bytes_N: compressed size of each sample in bytes; NaN marks a missing size.

    Returns:
      score_TxN, in nats per token and byte.

    Raises:
      ValueError: if the numbers of samples differ, or if a size is below 1 or infinite.

    Source: Carlini et al. 2021, Extracting Training Data from Large Language Models, Section 5.2.
    """
    target_TxN = np.atleast_2d(as_float64(target_loss_TxN, "target losses"))
    bytes_1xN = np.atleast_2d(as_float64(zlib_bytes_N, "zlib_bytes"))
    _check_same_samples(target_TxN, bytes_1xN)
    if bytes_1xN.shape[0] != 1:
        raise ValueError(f"zlib_bytes must hold one size per sample, not shape {bytes_1xN.shape}")
    if np.any((bytes_1xN < 1) | np.isinf(bytes_1xN)):
        raise ValueError(
            "zlib_bytes must be finite and at least 1: an empty text compresses to 8 bytes"
        )
    return -target_TxN / bytes_1xN


def lowercase_loss_difference(
    target_loss_TxN: ArrayLike, lowercase_loss_TxN: ArrayLike
) -> FloatArray:
    """Computes the loss of the lowercased text minus the loss of the original text.

    A model that memorized a text is surprised by a changed case. The score is the log of the ratio of the two
    perplexities. The authors' published code divides the log perplexities instead, which gives a different ranking; the
    paper defines the attack by perplexities.

    Args:
      target_loss_TxN: losses under the targets, in nats per token. A one-dimensional array is treated as one target.
      lowercase_loss_TxN: losses of the lowercased samples under the same targets, each a mean over the tokens of the
        lowercased text.

    Returns:
      score_TxN, in nats per token; NaN where either loss is NaN, 0 for a text without capital letters.

    Raises:
      ValueError: if the shapes differ, or if a lowercase loss is infinite or above 1e29.

    Source: Carlini et al. 2021, Section 5.2.
    """
    target_TxN = np.atleast_2d(as_float64(target_loss_TxN, "target losses"))
    lowercase_TxN = np.atleast_2d(as_float64(lowercase_loss_TxN, "lowercase losses"))
    _check_same_samples(target_TxN, lowercase_TxN)
    if target_TxN.shape != lowercase_TxN.shape:
        raise ValueError(
            f"losses of shape {target_TxN.shape} and lowercase losses of shape {lowercase_TxN.shape} "
            "must cover the same targets"
        )
    check_magnitude(lowercase_TxN, "lowercase losses")
    return lowercase_TxN - target_TxN


def min_k(value_T: ArrayLike, count_N: ArrayLike) -> FloatArray:
    """Computes the mean of the lowest 20 % of token values of each sample.

    Applied to log-probabilities this is Min-K% Prob, applied to their z-scores it is Min-K%++: members have few
    surprising tokens. The number of averaged tokens, count / 5, is rounded down, and is at least 1. The published code
    rounds in the same way, but returns no score for a text of fewer than five tokens.

    Args:
      value_T: log-probabilities in nats, or z-scores, of all predicted tokens, one sample after another; -inf for a
        probability of 0.
      count_N: number of predicted tokens of each sample, at least 1.

    Returns:
      score_N, in nats (z-scores: in standard deviations); NaN for a sample with a NaN token.

    Raises:
      ValueError: if the counts are not whole numbers of at least 1 whose sum is the number of values, or if a value is
        inf or above 1e100 in magnitude.

    Source: Shi et al. 2024, Detecting Pretraining Data from Large Language Models (Min-K% Prob); Zhang et al. 2025,
    Min-K%++: Improved Baseline for Detecting Pre-Training Data.

    Example:
      Two samples of 5 and 10 tokens, of which the lowest 1 and 2 are averaged:

      >>> from lm_mia.stats import min_k
      >>> min_k([-1, -4, -2, -3, -1, -9, -7, -1, -1, -1, -1, -1, -1, -1, -1], [5, 10])
      array([-4., -8.])
    """
    value_T, count_N = as_real(value_T, "token values"), as_counts(count_N, "token counts")
    # The z-score of a token in float32 may be as low as -1e38.
    check_magnitude(value_T[value_T != -np.inf], "token values", limit=1e100)
    if (
        value_T.ndim != 1
        or count_N.ndim != 1
        or np.any(count_N < 1)
        or count_N.sum() != value_T.size
    ):
        raise ValueError(
            f"token values of shape {value_T.shape} and token counts of shape {count_N.shape}: each sample needs at "
            "least one token, and the counts must sum to the number of values"
        )
    if count_N.size == 0:
        return np.empty(0)
    sample_T = np.repeat(np.arange(len(count_N)), count_N)
    sorted_T = value_T[np.lexsort((value_T, sample_T))]
    start_N = np.cumsum(count_N) - count_N
    num_averaged_N = np.maximum(count_N // 5, 1)
    rank_T = np.arange(len(value_T)) - np.repeat(start_N, count_N)
    averaged_T = np.where(rank_T < np.repeat(num_averaged_N, count_N), sorted_T, 0.0)
    score_N = np.add.reduceat(averaged_T, start_N, dtype=np.float64) / num_averaged_N
    # NaN is sorted to the end of its sample, so it is seldom among the averaged tokens.
    return np.where(np.isnan(sorted_T[start_N + count_N - 1]), np.nan, score_N)


def _check_same_samples(target_TxN: np.ndarray, other_KxN: np.ndarray) -> None:
    if target_TxN.ndim != 2 or other_KxN.ndim != 2 or target_TxN.shape[1] != other_KxN.shape[1]:
        raise ValueError(
            f"shapes {target_TxN.shape} and {other_KxN.shape} must cover the same samples"
        )
