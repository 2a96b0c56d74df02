"""Which samples each training step sees: the batch of a step is a pure function of (order_seed, epoch, step).

The order is therefore never stored. Each epoch visits every member once, in a new order. With N members and batches of
B samples, an epoch has ceil(N / B) steps, and its last batch may be smaller. 2N: samples of the population.
"""

import numpy as np

from lm_mia.seeds import permutation


def steps_per_epoch(num_members: int, batch_size: int) -> int:
    """Number of batches in an epoch."""
    return -(-num_members // batch_size)


def epoch_order(order_seed: int, epoch: int, num_members: int) -> np.ndarray:
    """order_N, a permutation of 0..N-1: position in the epoch -> position in the ascending list of member ids."""
    return permutation(order_seed, f"order of epoch {epoch}", num_members)


def batch(order_N: np.ndarray, member_ids_N: np.ndarray, step: int, batch_size: int) -> np.ndarray:
    """Sample ids of one step of an epoch.

    Args:
      order_N: ``epoch_order`` of the epoch.
      member_ids_N: ascending sample ids of the members.
      step: within the epoch, 0 <= step < steps_per_epoch.
      batch_size: B.

    Returns:
      ids_B; the last batch of an epoch may be smaller.
    """
    return member_ids_N[order_N[step * batch_size : (step + 1) * batch_size]]


def last_seen(order_seed: int, member_2N: np.ndarray, batch_size: int, steps: int) -> np.ndarray:
    """The last step at which a model saw each sample, from its seed alone (StrongMIA Figure 6).

    Args:
      order_seed: the order seed of the model.
      member_2N: bool, whether each sample is a member of the model.
      batch_size: B.
      steps: number of updates that the model has made; they may end within an epoch.

    Returns:
      step_2N, int64: the step, counted from 0 over all epochs; -1 for samples that the model has not seen, which are
        the non-members and the members that come later in the first epoch.
    """
    members = int(np.count_nonzero(member_2N))
    step_N = np.full(members, -1, np.int64)
    per_epoch = steps_per_epoch(members, batch_size)
    whole, rest = divmod(steps, per_epoch) if members else (0, 0)
    place_N = np.arange(members) // batch_size
    if whole:
        step_N[epoch_order(order_seed, whole - 1, members)] = (whole - 1) * per_epoch + place_N
    if rest:
        seen_N = place_N < rest
        order_N = epoch_order(order_seed, whole, members)
        step_N[order_N[seen_N]] = whole * per_epoch + place_N[seen_N]
    step_2N = np.full(len(member_2N), -1, np.int64)
    step_2N[np.flatnonzero(member_2N)] = step_N
    return step_2N
