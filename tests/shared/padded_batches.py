"""Batches of one sample a row, which packed batches must equal."""

import numpy as np

from lm_mia.data.population import Population
from lm_mia.train.batching import Plan


def padded_plan(length_B: np.ndarray) -> Plan:
    """A row for each sample."""
    B = len(length_B)
    return Plan(np.arange(B), np.zeros(B, np.int64), np.ones(B, np.int64), B)


def padded(
    population: Population, ids_B: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """(x_BxL, length_B), int32: a short batch is filled up with samples of length 0, which no loss counts."""
    x_BxL = np.zeros((batch_size, population.length_tokens), np.int32)
    length_B = np.zeros(batch_size, np.int32)
    x_BxL[: len(ids_B)] = population.pad(ids_B)
    length_B[: len(ids_B)] = population.lengths_N[ids_B]
    return x_BxL, length_B
