"""Document frequencies: in how many of a population's samples each piece of the vocabulary occurs."""

import numpy as np

from lm_mia import seeds
from lm_mia.documents import Progress

_CELLS = 2**24  # samples x pieces that are marked at once


def count(
    tokens: np.ndarray,
    offsets_N1: np.ndarray,
    vocab_size: int,
    samples: int,
    seed: int,
    progress: Progress,
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
