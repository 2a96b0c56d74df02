"""Some samples of a population alone: those whose log-probability is stored token by token.

S: the samples, T: their tokens, one sample after another.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from lm_mia.population import Population


def subset(population: Population, ids_S: Sequence[int]) -> Population:
    """Those samples, in that order, in memory; table and hashes stay those of the original."""
    samples = [population.sample(i) for i in ids_S]
    return dataclasses.replace(
        population,
        tokens=np.concatenate(samples),
        offsets_N1=np.append(0, np.cumsum([len(sample) for sample in samples])),
    )


def token_columns(population: Population, ids_S: Sequence[int]) -> dict[str, np.ndarray]:
    """{name: value_T, int64}: what every token of those samples is; nothing if there are none.

    token_sample (the sample's id), token_position (0: <bos>) and token_piece (of the vocabulary).
    """
    if not ids_S:
        return {}
    some = subset(population, ids_S)
    length_S = some.lengths_N
    return {
        "token_sample": np.repeat(np.array(ids_S, np.int64), length_S),
        "token_position": np.arange(len(some.tokens))
        - np.repeat(np.cumsum(length_S) - length_S, length_S),
        "token_piece": some.tokens.astype(np.int64),
    }
