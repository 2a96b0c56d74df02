"""Which member a step sees: a pure function of (order_seed, epoch, step), so nothing about the order is ever stored.

Each epoch visits every member once, in an order of its own. N members in batches of B make ceil(N / B) steps an epoch;
the last batch of an epoch may be short.
"""

import numpy as np

from lm_mia.population import Population
from lm_mia.seeds import permutation


def steps_per_epoch(members: int, batch_size: int) -> int:
    """Number of batches of an epoch."""
    return -(-members // batch_size)


def epoch_order(order_seed: int, epoch: int, members: int) -> np.ndarray:
    """order_N, a permutation of 0..N-1: the place in the epoch -> the place in the ascending list of member ids."""
    return permutation(order_seed, f"order of epoch {epoch}", members)


def batch(order_N: np.ndarray, member_ids_N: np.ndarray, step: int, batch_size: int) -> np.ndarray:
    """Sample ids of one step of an epoch.

    Args:
      order_N: ``epoch_order`` of the epoch.
      member_ids_N: ascending sample ids of the members.
      step: within the epoch, 0 <= step < steps_per_epoch.
      batch_size: B.

    Returns:
      ids_B; the last batch of an epoch holds what is left.
    """
    return member_ids_N[order_N[step * batch_size : (step + 1) * batch_size]]


def step_of_members(order_seed: int, epoch: int, members: int, batch_size: int) -> np.ndarray:
    """step_N: the training step (counted over all epochs) at which each member is seen in an epoch; needs no data."""
    step_N = np.empty(members, np.int64)
    place_N = np.arange(members) // batch_size
    step_N[epoch_order(order_seed, epoch, members)] = place_N
    return step_N + epoch * steps_per_epoch(members, batch_size)


def padded(
    population: Population, ids_B: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and lengths of samples, one sample a row of the batch.

    Returns:
      (x_BxL, length_B), int32; a short batch is filled up with samples of length 0, which no loss counts.
    """
    x_BxL = np.zeros((batch_size, population.length_tokens), np.int32)
    length_B = np.zeros(batch_size, np.int32)
    x_BxL[: len(ids_B)] = population.pad(ids_B)
    length_B[: len(ids_B)] = population.lengths_N[ids_B]
    return x_BxL, length_B
