"""Text features of samples: mean TF-IDF, and groups of samples that share a prefix.

N: samples, S: some of them, V: pieces, T: tokens of some samples, K: tokens compared.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from lm_mia import seeds
from lm_mia.data.documents import ProgressCallback

_CELLS = 2**24  # samples x pieces that are marked at once
_TOKENS = 2**22  # that are counted at once

_SAMPLES = 2**16  # whose beginnings are read at once


def document_frequencies(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    vocab_size: int,
    samples: int,
    seed: int,
    progress: ProgressCallback,
) -> np.ndarray:
    """frequency_V, int64: how many of some samples, drawn by seed, contain each piece, <bos> and <eos> too.

    Args:
      tokens: of all samples, one after another.
      offsets_N1: where each begins, and the end.
      vocab_size: V.
      samples: how many are drawn.
      seed: of the draw, whose purpose is "population/frequency".
      progress: called after every few hundred samples.
    """
    drawn = np.sort(seeds.draw(seed, "population/frequency", len(offsets_N1) - 1, samples))
    step = max(_CELLS // vocab_size, 1)
    frequency_V = np.zeros(vocab_size, np.int64)
    for low in range(0, samples, step):
        ids_B = drawn[low : low + step]
        there_BxV = np.zeros((len(ids_B), vocab_size), bool)
        for there_V, start, end in zip(
            there_BxV, offsets_N1[ids_B], offsets_N1[ids_B + 1], strict=True
        ):
            there_V[tokens[start:end]] = True
        frequency_V += there_BxV.sum(axis=0)
        progress("count document frequencies", low + len(ids_B), samples)
    return frequency_V


def mean_tfidf(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    frequency_V: np.ndarray,
    samples: int,
    left_out: tuple[int, ...],
    progress: ProgressCallback,
) -> np.ndarray:
    """tfidf_N, float64: of each sample the mean TF-IDF of its distinct pieces; NaN of a sample without any.

    TF-IDF of a piece is how often the sample has it, times log((1 + n) / (1 + f)) + 1, where f of n samples have it:
    not normalised (StrongMIA Figure 31; smoothed as scikit-learn's `TfidfVectorizer(norm=None)`).

    Args:
      tokens: of all samples, one after another.
      offsets_N1: where each begins, and the end.
      frequency_V: f, of `count`.
      samples: n, over which it was counted.
      left_out: pieces that are not of the text, as <bos> and <eos>.
      progress: called after every few million tokens.
    """
    N, V = len(offsets_N1) - 1, len(frequency_V)
    idf_V = np.log((1 + samples) / (1 + frequency_V)) + 1
    idf_V[list(left_out)] = np.nan
    tfidf_N = np.full(N, np.nan)
    low = 0
    while low < N:
        # as many samples as have so many tokens, and one at least
        high = int(np.searchsorted(offsets_N1, offsets_N1[low] + _TOKENS, side="right")) - 1
        high = min(max(high, low + 1), low + 2**32 // V, N)
        begin, end = int(offsets_N1[low]), int(offsets_N1[high])
        # 32 bits, which are sorted several times as fast as 64
        of_T = np.repeat(
            np.arange(high - low, dtype=np.uint32), np.diff(offsets_N1[low : high + 1])
        )
        cell, times = np.unique(of_T * np.uint32(V) + tokens[begin:end], return_counts=True)
        value = times * idf_V[cell % V]
        text = ~np.isnan(value)
        of, value = cell[text] // V, value[text]
        total, distinct = np.bincount(of, value, high - low), np.bincount(of, minlength=high - low)
        np.divide(total, distinct, out=tfidf_N[low:high], where=distinct > 0)
        progress("TF-IDF", high, N)
        low = high
    return tfidf_N


def prefix_digest(tokens: Sequence[int] | np.ndarray, prefix_tokens: int) -> bytes:
    """128 bits that stand for the first tokens of a sample after <bos>: all of them, if there are fewer."""
    prefix = np.asarray(tokens[1 : 1 + prefix_tokens], np.uint32).tobytes()
    return hashlib.blake2b(prefix, digest_size=16).digest()


def first_with_same_digest(digest_Nx2: np.ndarray) -> np.ndarray:
    """first_N, int64: the lowest place that has the same digest, of two uint64; a place is its own, if none does."""
    order = np.lexsort(digest_Nx2.T)  # stable: of equal ones, the lowest place comes first
    sorted_Nx2 = digest_Nx2[order]
    new_N = np.ones(len(order), bool)
    new_N[1:] = (sorted_Nx2[1:] != sorted_Nx2[:-1]).any(axis=1)
    first_N = np.empty(len(order), np.int64)
    first_N[order] = order[new_N][np.cumsum(new_N) - 1]
    return first_N


def prefix_groups(
    tokens: np.ndarray, offsets_N1: np.ndarray, prefix_tokens: int, progress: ProgressCallback
) -> np.ndarray:
    """group_N, int64: the first sample that begins with the same tokens; its own id, if none before it does.

    Args:
      tokens: of all samples, one after another.
      offsets_N1: where each begins, and the end.
      prefix_tokens: K, after <bos>; of a shorter sample all.
      progress: called after every 65,536 samples.
    """
    N = len(offsets_N1) - 1
    digest_Nx2 = np.empty((N, 2), np.uint64)
    for low in range(0, N, _SAMPLES):
        high = min(low + _SAMPLES, N)
        found = b"".join(
            prefix_digest(tokens[begin:end], prefix_tokens)
            for begin, end in zip(
                offsets_N1[low:high].tolist(), offsets_N1[low + 1 : high + 1].tolist(), strict=True
            )
        )
        digest_Nx2[low:high] = np.frombuffer(found, np.uint64).reshape(-1, 2)
        progress("compare beginnings", high, N)
    return first_with_same_digest(digest_Nx2)
