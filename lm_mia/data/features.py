"""Features of a population's samples: document frequencies, mean TF-IDF, and groups with a common prefix.

N: samples, V: pieces of the vocabulary, B: samples of a block, W: tokens of a block.
"""

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np

from lm_mia import seeds
from lm_mia.data.documents import ProgressCallback, no_progress

_BLOCK_CELLS = 2**24  # samples x pieces per block of `document_frequencies`
_BLOCK_TOKENS = 2**22  # tokens per block of `mean_tfidf`
_BLOCK_SAMPLES = 2**16  # samples per block of `prefix_groups`


def document_frequencies(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    vocab_size: int,
    num_samples: int,
    seed: int,
    progress: ProgressCallback,
) -> np.ndarray:
    """Counts the samples that contain each piece, over samples drawn by seed.

    Args:
      tokens: tokens of all samples, concatenated.
      offsets_N1: start of each sample in ``tokens``, and the end of the last one.
      vocab_size: V.
      num_samples: number of samples to draw.
      seed: seed of the draw, whose purpose is "population/frequency".
      progress: called after each block of samples.

    Returns:
      frequency_V, int64; <bos> and <eos> are counted like other pieces.
    """
    drawn = np.sort(seeds.draw(seed, "population/frequency", len(offsets_N1) - 1, num_samples))
    step = max(_BLOCK_CELLS // vocab_size, 1)
    frequency_V = np.zeros(vocab_size, np.int64)
    for low in range(0, num_samples, step):
        ids_B = drawn[low : low + step]
        present_BxV = np.zeros((len(ids_B), vocab_size), bool)
        for present_V, start, end in zip(
            present_BxV, offsets_N1[ids_B], offsets_N1[ids_B + 1], strict=True
        ):
            present_V[tokens[start:end]] = True
        frequency_V += present_BxV.sum(axis=0)
        progress("count document frequencies", low + len(ids_B), num_samples)
    return frequency_V


def mean_tfidf(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    frequency_V: np.ndarray,
    num_samples: int,
    excluded: tuple[int, ...],
    progress: ProgressCallback,
    over: Literal["distinct", "all"] = "distinct",
) -> np.ndarray:
    """Returns the mean TF-IDF of the pieces of each sample (StrongMIA Figure 31).

    The TF-IDF of a piece is the number of its occurrences in the sample, times log((1 + n) / (1 + f)) + 1, where f of
    n samples contain the piece. It is not normalized, and is smoothed as scikit-learn's
    ``TfidfVectorizer(norm=None)`` does.

    Args:
      tokens: tokens of all samples, concatenated.
      offsets_N1: start of each sample in ``tokens``, and the end of the last one.
      frequency_V: f, as returned by `document_frequencies`.
      num_samples: n, the number of samples over which ``frequency_V`` was counted.
      excluded: pieces that are not part of the text, such as <bos> and <eos>.
      progress: called after each block of a few million tokens.
      over: what the mean is over: the distinct pieces of a sample, or all its pieces, where one that occurs k times
        counts k times.

    Returns:
      tfidf_N, float64; NaN for a sample without any piece of text.
    """
    N, V = len(offsets_N1) - 1, len(frequency_V)
    idf_V = np.log((1 + num_samples) / (1 + frequency_V)) + 1
    idf_V[list(excluded)] = np.nan
    tfidf_N = np.full(N, np.nan)
    low = 0
    while low < N:
        # All samples that fit into a block of tokens, but at least one.
        high = int(np.searchsorted(offsets_N1, offsets_N1[low] + _BLOCK_TOKENS, side="right")) - 1
        high = min(max(high, low + 1), low + 2**32 // V, N)
        begin, end = int(offsets_N1[low]), int(offsets_N1[high])
        # 32-bit numbers sort several times as fast as 64-bit ones.
        sample_W = np.repeat(
            np.arange(high - low, dtype=np.uint32), np.diff(offsets_N1[low : high + 1])
        )
        cell, occurrences = np.unique(
            sample_W * np.uint32(V) + tokens[begin:end], return_counts=True
        )
        value = occurrences * idf_V[cell % V]
        is_text = ~np.isnan(value)
        sample, value = cell[is_text] // V, value[is_text]
        weight = occurrences[is_text] if over == "all" else np.ones(len(value), np.int64)
        total = np.bincount(sample, value * weight, high - low)
        pieces = np.bincount(sample, weight, high - low)
        np.divide(total, pieces, out=tfidf_N[low:high], where=pieces > 0)
        progress("compute TF-IDF", high, N)
        low = high
    return tfidf_N


def prefix_digest(tokens: Sequence[int] | np.ndarray, prefix_tokens: int) -> bytes:
    """Returns a 128-bit digest of the first tokens of a sample after <bos>; of all tokens if the sample is shorter."""
    prefix = np.asarray(tokens[1 : 1 + prefix_tokens], np.uint32).tobytes()
    return hashlib.blake2b(prefix, digest_size=16).digest()


def first_with_same_digest(digest_Nx2: np.ndarray) -> np.ndarray:
    """Returns first_N, int64: for each index, the lowest index with the same digest, which is a pair of uint64."""
    # A stable sort, so that of several indices with equal digests, the lowest comes first.
    order = np.lexsort(digest_Nx2.T)
    sorted_Nx2 = digest_Nx2[order]
    is_new_N = np.ones(len(order), bool)
    is_new_N[1:] = (sorted_Nx2[1:] != sorted_Nx2[:-1]).any(axis=1)
    first_N = np.empty(len(order), np.int64)
    first_N[order] = order[is_new_N][np.cumsum(is_new_N) - 1]
    return first_N


def prefix_groups(
    tokens: np.ndarray, offsets_N1: np.ndarray, prefix_tokens: int, progress: ProgressCallback
) -> np.ndarray:
    """Groups samples that start with the same tokens.

    Args:
      tokens: tokens of all samples, concatenated.
      offsets_N1: start of each sample in ``tokens``, and the end of the last one.
      prefix_tokens: number of tokens after <bos> to compare; all tokens of a shorter sample.
      progress: called after each block of 65,536 samples.

    Returns:
      group_N, int64: the ID of the first sample with the same prefix, which may be the sample itself.
    """
    digest_Nx2 = prefix_digests(tokens, offsets_N1, prefix_tokens, progress)
    return first_with_same_digest(digest_Nx2)


def prefix_digests(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    prefix_tokens: int,
    progress: ProgressCallback = no_progress,
) -> np.ndarray:
    """Returns digest_Nx2, uint64: the `prefix_digest` of each sample; arguments as of `prefix_groups`."""
    N = len(offsets_N1) - 1
    digest_Nx2 = np.empty((N, 2), np.uint64)
    for low in range(0, N, _BLOCK_SAMPLES):
        high = min(low + _BLOCK_SAMPLES, N)
        digests = b"".join(
            prefix_digest(tokens[begin:end], prefix_tokens)
            for begin, end in zip(
                offsets_N1[low:high].tolist(), offsets_N1[low + 1 : high + 1].tolist(), strict=True
            )
        )
        digest_Nx2[low:high] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        progress("group samples by prefix", high, N)
    return digest_Nx2
