"""Membership scores that need no fitted distribution; larger means more member-like, as everywhere.

Shapes: T targets, M references, N samples. Losses are mean nats a token. NaN is missing: a score
that needs a missing number is NaN, and the metrics of `lm_mia.stats.roc` count it.
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


def _same_samples(target_TxN: NDArray, other_KxN: NDArray) -> None:
    if target_TxN.ndim != 2 or other_KxN.ndim != 2 or target_TxN.shape[1] != other_KxN.shape[1]:
        raise ValueError(
            f"not over the same samples: shapes {target_TxN.shape} and {other_KxN.shape}"
        )
