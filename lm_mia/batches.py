"""Which member a step sees: a pure function of (order_seed, epoch, step), so nothing about the order is ever stored.

Each epoch visits every member once, in an order of its own. N members in batches of B make ceil(N / B) steps an epoch;
the last batch of an epoch may be short.

B: samples, L: tokens of a row, M: rows of a micro-batch over all devices, N: micro-batches that a batch may need.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from lm_mia import packing
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


def last_seen(order_seed: int, member_2N: np.ndarray, batch_size: int, steps: int) -> np.ndarray:
    """When a row last saw each sample of the population in its first steps; needs no data (StrongMIA Figure 6).

    Args:
      order_seed: of the row.
      member_2N: bool, of the row.
      batch_size: B.
      steps: so many updates were made, in one epoch or in several, of which the last may be cut.

    Returns:
      step_2N, int64: counted from 0 over all epochs; -1: never, as non-members and members that were still to come.
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


class Rows(NamedTuple):
    """A batch as micro-batches of rows: int32 arrays of a fixed shape, of which the first ``trips`` are filled.

    Of numpy here, of JAX once they are on devices.
    """

    x_NxMxL: Any
    segment_NxMxL: Any
    """Which sample of its row a token belongs to: 1, 2, ...; 0 where there is none."""
    position_NxMxL: Any
    """Place of a token in its sample."""


class Sizes(NamedTuple):
    """What a batch holds."""

    trips: int
    """Micro-batches that hold samples."""
    tokens: int
    predicted: int
    """Tokens that have a loss: all but the first of each sample."""
    square_tokens: int
    """Sum of the squares of the samples' tokens, which attention costs."""


def micro_batches(samples: int, micro_rows: int, devices: int) -> int:
    """N: the micro-batches that a batch needs at most, when no two samples fit into one row."""
    return -(-samples // (micro_rows * devices))


def rows(
    population: Population,
    ids_B: np.ndarray,
    plan: packing.Plan,
    micro_batches: int,
    micro_rows: int,
    devices: int = 1,
    mine: Collection[int] | None = None,
) -> tuple[Rows, Sizes]:
    """Samples laid out as a plan says; the layout does not depend on the devices, only who holds which rows does.

    Args:
      population: the samples.
      ids_B: which.
      plan: of `packing`, for their lengths.
      micro_batches: N.
      micro_rows: rows of one device; M is as many for each device.
      devices: over which each micro-batch is spread.
      mine: devices whose rows are wanted, ascending; only their samples are read. All, if None.

    Returns:
      The arrays, with M of the wanted devices only, and the sizes of the whole batch.
    """
    M, L = micro_rows * devices, population.length_tokens
    wanted = range(devices) if mine is None else sorted(mine)
    place = {device: i for i, device in enumerate(wanted)}
    shape = (micro_batches, micro_rows * len(place), L)
    found = Rows(*(np.zeros(shape, np.int32) for _ in Rows._fields))
    for i, row, start, segment in zip(
        *(a.tolist() for a in (ids_B, plan.row_B, plan.start_B, plan.segment_B)), strict=True
    ):
        trip, slot = divmod(row, M)
        device, slot = divmod(slot, micro_rows)
        if device not in place:
            continue
        sample = population.sample(i)
        at = (trip, place[device] * micro_rows + slot, slice(start, start + len(sample)))
        found.x_NxMxL[at] = sample
        found.segment_NxMxL[at] = segment
        found.position_NxMxL[at] = np.arange(len(sample))
    length_B = population.lengths_N[ids_B]
    sizes = Sizes(
        trips=-(-plan.rows // M),
        tokens=int(length_B.sum()),
        predicted=int((length_B - 1).sum()),
        square_tokens=int((length_B**2).sum()),
    )
    return found, sizes
