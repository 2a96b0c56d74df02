"""Which samples begin alike.

N: samples, S: some of them, K: tokens compared.
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from lm_mia.documents import Progress

_SAMPLES = 2**16  # whose beginnings are read at once


def digest(tokens: Sequence[int] | np.ndarray, prefix_tokens: int) -> bytes:
    """128 bits that stand for the first tokens of a sample after <bos>: all of them, if there are fewer."""
    prefix = np.asarray(tokens[1 : 1 + prefix_tokens], np.uint32).tobytes()
    return hashlib.blake2b(prefix, digest_size=16).digest()


def first_alike(digest_Nx2: np.ndarray) -> np.ndarray:
    """first_N, int64: the lowest place that has the same digest, of two uint64; a place is its own, if none does."""
    order = np.lexsort(digest_Nx2.T)  # stable: of equal ones, the lowest place comes first
    sorted_Nx2 = digest_Nx2[order]
    new_N = np.ones(len(order), bool)
    new_N[1:] = (sorted_Nx2[1:] != sorted_Nx2[:-1]).any(axis=1)
    first_N = np.empty(len(order), np.int64)
    first_N[order] = order[new_N][np.cumsum(new_N) - 1]
    return first_N


def groups(
    tokens: np.ndarray, offsets_N1: np.ndarray, prefix_tokens: int, progress: Progress
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
            digest(tokens[begin:end], prefix_tokens)
            for begin, end in zip(
                offsets_N1[low:high].tolist(), offsets_N1[low + 1 : high + 1].tolist(), strict=True
            )
        )
        digest_Nx2[low:high] = np.frombuffer(found, np.uint64).reshape(-1, 2)
        progress("compare beginnings", high, N)
    return first_alike(digest_Nx2)
