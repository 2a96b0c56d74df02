"""The order of training samples: the batch of a step is a pure function of (order_seed, epoch, step).

The order is therefore never stored. Each epoch visits every member once, in a new order. With N members and batches of
B samples, an epoch has ceil(N / B) steps, and its last batch may be smaller.

N: members, 2N: samples of the population, B: samples of a batch.
"""

import dataclasses

import numpy as np

from lm_mia.seeds import permutation


def steps_per_epoch(num_members: int, batch_size: int) -> int:
    """Returns the number of batches of an epoch."""
    return -(-num_members // batch_size)


def epoch_order(order_seed: int, epoch: int, num_members: int) -> np.ndarray:
    """Returns order_N, a permutation that maps positions in the epoch to positions in the ascending member IDs."""
    return permutation(order_seed, f"order of epoch {epoch}", num_members)


def batch(order_N: np.ndarray, member_ids_N: np.ndarray, step: int, batch_size: int) -> np.ndarray:
    """Returns the sample IDs of one step of an epoch.

    Args:
      order_N: order of the epoch, as returned by `epoch_order`.
      member_ids_N: ascending sample IDs of the members.
      step: step within the epoch, 0 <= step < steps_per_epoch.
      batch_size: B.

    Returns:
      ids_B; the last batch of an epoch may be smaller.
    """
    return member_ids_N[order_N[step * batch_size : (step + 1) * batch_size]]


def last_seen(order_seed: int, member_2N: np.ndarray, batch_size: int, steps: int) -> np.ndarray:
    """Computes the last step at which a model saw each sample, from its order seed alone (StrongMIA Figure 6).

    Args:
      order_seed: order seed of the model.
      member_2N: bool, whether each sample is a member of the model.
      batch_size: B.
      steps: number of updates of the model so far; the last epoch may be incomplete.

    Returns:
      step_2N, int64: the step, counted from 0 over all epochs; -1 for samples that the model has not seen, which are
        the non-members and, during the first epoch, the members later in the order.
    """
    num_members = int(np.count_nonzero(member_2N))
    step_N = np.full(num_members, -1, np.int64)
    per_epoch = steps_per_epoch(num_members, batch_size)
    epochs, remaining_steps = divmod(steps, per_epoch) if num_members else (0, 0)
    step_in_epoch_N = np.arange(num_members) // batch_size
    if epochs:
        order_N = epoch_order(order_seed, epochs - 1, num_members)
        step_N[order_N] = (epochs - 1) * per_epoch + step_in_epoch_N
    if remaining_steps:
        seen_N = step_in_epoch_N < remaining_steps
        order_N = epoch_order(order_seed, epochs, num_members)
        step_N[order_N[seen_N]] = epochs * per_epoch + step_in_epoch_N[seen_N]
    step_2N = np.full(len(member_2N), -1, np.int64)
    step_2N[np.flatnonzero(member_2N)] = step_N
    return step_2N


@dataclasses.dataclass(frozen=True)
class Batches:
    """What the order of the training samples of a recipe depends on besides the seeds of its models."""

    batch_size: int = 1
    epochs: int = 1

    def last_seen_share(self, order_seed: int, member_2N: np.ndarray, step: int = 0) -> np.ndarray:
        """Returns the step at which a model last saw each sample, counted from 1, over its number of steps.

        Args:
          order_seed: order seed of the model.
          member_2N: bool, whether each sample is a member of the model.
          step: the number of updates after which the model was scored; 0: the end of training.

        Returns:
          share_2N, in (0, 1]; NaN for samples that the model has not seen.
        """
        per_epoch = steps_per_epoch(int(np.count_nonzero(member_2N)), self.batch_size)
        steps = step or self.epochs * per_epoch
        seen_2N = last_seen(order_seed, member_2N, self.batch_size, steps)
        return np.where(seen_2N >= 0, (seen_2N + 1) / max(steps, 1), np.nan)
