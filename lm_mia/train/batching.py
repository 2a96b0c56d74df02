"""Packs samples into sequences of fixed length, for training and for scoring.

Samples are packed by best-fit decreasing on their lengths. For scoring, the population is divided into fixed windows
that are packed independently of each other, so that every process packs them in the same way.

C: samples of a batch or window, B: packed sequences (of a micro-batch over all devices, or of a window), L: tokens per
packed sequence, U: micro-batches that a batch may need, W: tokens.
"""

import bisect
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from lm_mia.data.population import Population

WINDOW_SAMPLES = 2**13
"""Samples per window: enough to fill packed sequences to 99%, and few enough to be packed while a device computes."""


@dataclasses.dataclass(frozen=True, eq=False)
class PackingPlan:
    """The position of each sample of a batch in packed sequences."""

    sequence_C: np.ndarray
    """The packed sequence that holds each sample, from 0 to num_sequences - 1."""
    start_C: np.ndarray
    """The position of each sample's first token. Samples of a packed sequence follow each other without gaps."""
    segment_C: np.ndarray
    """The number of each sample within its packed sequence: 1, 2, ...; 0 stands for padding."""
    num_sequences: int


def plan_packing(length_C: np.ndarray, length_tokens: int) -> PackingPlan:
    """Plans how to pack samples into few sequences.

    Samples are placed in order of decreasing length. Each goes into the packed sequence where it leaves the least
    space, or into a new one if it fits nowhere. Batches of 128 C4-like samples fill their packed sequences to about
    98%, and planning them takes about 0.1 ms.

    Args:
      length_C: number of tokens of each sample.
      length_tokens: L.

    Raises:
      ValueError: if a sample has no tokens or more than length_tokens.

    Source: best-fit decreasing bin packing, which never needs more than 11/9 of the fewest bins plus 4 (Johnson 1974).
    """
    C = len(length_C)
    sequence_C, start_C, segment_C = (np.zeros(C, np.int64) for _ in range(3))
    free_space: list[tuple[int, int]] = []  # (free tokens, packed sequence), ascending
    num_segments: list[int] = []  # of each packed sequence
    lengths = np.asarray(length_C).tolist()
    for i in np.argsort(-np.asarray(length_C, np.int64), kind="stable").tolist():
        length = lengths[i]
        if not 0 < length <= length_tokens:
            raise ValueError(f"a sample of {length} tokens: must have 1 to {length_tokens} tokens")
        best = bisect.bisect_left(free_space, (length, -1))
        if best == len(free_space):
            free_tokens, sequence = length_tokens, len(num_segments)
            num_segments.append(0)
        else:
            free_tokens, sequence = free_space.pop(best)
        num_segments[sequence] += 1
        sequence_C[i], start_C[i] = sequence, length_tokens - free_tokens
        segment_C[i] = num_segments[sequence]
        bisect.insort(free_space, (free_tokens - length, sequence))
    return PackingPlan(sequence_C, start_C, segment_C, len(num_segments))


class PackedBatch(NamedTuple):
    """A batch as micro-batches of packed sequences.

    The int32 arrays have a fixed shape; only the first ``BatchStats.num_micro_batches`` micro-batches hold samples. The
    arrays are numpy's here, and JAX's once they are on devices.
    """

    x_UxBxL: Any
    """Token ids."""
    segment_UxBxL: Any
    """The sample of each token within its packed sequence: 1, 2, ...; 0 for padding."""
    position_UxBxL: Any
    """The position of each token in its sample."""


class BatchStats(NamedTuple):
    """Sizes of a batch."""

    num_micro_batches: int
    """Micro-batches that hold samples."""
    micro_batch_size: int
    """Packed sequences of a micro-batch per device, some of which may be empty."""
    num_tokens: int
    """Tokens of all samples, without padding."""
    num_targets: int
    """Tokens that are predicted: all but the first of each sample."""
    sum_squared_lengths: int
    """Sum of the squares of the samples' numbers of tokens, to which the cost of attention is proportional."""


def choose_micro_batch_size(
    micro_batch_sizes: Collection[int], num_sequences: int, num_devices: int
) -> int:
    """Returns the smallest size of micro-batches with which a batch needs no more of them than with the largest.

    Args:
      micro_batch_sizes: allowed numbers of packed sequences per device and micro-batch.
      num_sequences: number of packed sequences of the batch.
      num_devices: devices over which each micro-batch is spread.
    """

    def cost(size: int) -> tuple[int, int]:
        return max_micro_batches(num_sequences, size, num_devices), size

    return min(micro_batch_sizes, key=cost)


def max_micro_batches(num_samples: int, micro_batch_size: int, num_devices: int) -> int:
    """Returns U, the number of micro-batches that a batch needs if no two samples fit into one packed sequence."""
    return -(-num_samples // (micro_batch_size * num_devices))


def pack_batch(
    population: Population,
    ids_C: np.ndarray,
    plan: PackingPlan,
    micro_batches: int,
    micro_batch_size: int,
    num_devices: int = 1,
    device_indices: Collection[int] | None = None,
) -> tuple[PackedBatch, BatchStats]:
    """Arranges samples in packed sequences as planned.

    The layout does not depend on the devices; they only determine which process holds which packed sequences.

    Args:
      population: the samples.
      ids_C: ids of the samples of the batch.
      plan: result of `plan_packing` for their lengths.
      micro_batches: U.
      micro_batch_size: packed sequences per device and micro-batch; B is this times num_devices.
      num_devices: devices over which each micro-batch is spread.
      device_indices: devices whose packed sequences are returned; only the samples in these are read. None: all
        devices.

    Returns:
      The arrays, in which B covers the given devices only, and the sizes of the whole batch.
    """
    B, L = micro_batch_size * num_devices, population.length_tokens
    devices = range(num_devices) if device_indices is None else sorted(device_indices)
    is_local_C = np.isin(plan.sequence_C % B // micro_batch_size, devices)
    local_plan = PackingPlan(
        plan.sequence_C[is_local_C],
        plan.start_C[is_local_C],
        plan.segment_C[is_local_C],
        micro_batches * B,
    )
    *arrays, _ = _layout(population, ids_C[is_local_C], local_plan)
    shape = (micro_batches, num_devices, micro_batch_size, L)
    batch = PackedBatch(
        *(a.reshape(shape)[:, devices].reshape(micro_batches, -1, L) for a in arrays)
    )
    length_C = population.lengths_N[ids_C]
    stats = BatchStats(
        num_micro_batches=-(-plan.num_sequences // B),
        micro_batch_size=micro_batch_size,
        num_tokens=int(length_C.sum()),
        num_targets=int((length_C - 1).sum()),
        sum_squared_lengths=int((length_C**2).sum()),
    )
    return batch, stats


def _layout(population: Population, ids_C: np.ndarray, plan: PackingPlan) -> tuple[np.ndarray, ...]:
    """Returns x_BxL, segment_BxL and position_BxL, int32, and index_W, each token's index in the flattened arrays."""
    L, length_C = population.length_tokens, population.lengths_N[ids_C]
    position_W = np.arange(length_C.sum()) - np.repeat(np.cumsum(length_C) - length_C, length_C)
    index_W = np.repeat(plan.sequence_C * L + plan.start_C, length_C) + position_W
    token_W = population.tokens[np.repeat(population.offsets_N1[ids_C], length_C) + position_W]
    segment_W = np.repeat(plan.segment_C, length_C)
    flat_3xBL = np.zeros((3, plan.num_sequences * L), np.int32)
    for flat_BL, value_W in zip(flat_3xBL, (token_W, segment_W, position_W), strict=True):
        flat_BL[index_W] = value_W
    return *flat_3xBL.reshape(3, -1, L), index_W


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """Consecutive samples in packed sequences, and the index that puts their tokens back in order."""

    first_id: int
    """Id of the first sample."""
    length_C: np.ndarray
    """Number of tokens of each sample."""
    index_W: np.ndarray
    """Index of each token, sample after sample, in the flattened arrays."""
    x_BxL: np.ndarray
    """Token ids."""
    segment_BxL: np.ndarray
    """The sample of each token within its packed sequence: 1, 2, ...; 0 for padding."""
    position_BxL: np.ndarray
    """The position of each token in its sample."""

    def in_sample_order(self, value_BxL: np.ndarray) -> np.ndarray:
        """Returns value_W, the values of all tokens, sample after sample, without padding."""
        return value_BxL.reshape(-1)[self.index_W]


def packed_windows(
    population: Population, low: int, high: int, call_sequences: int
) -> Iterator[Window]:
    """Yields samples low to high (exclusive) in windows that begin at multiples of `WINDOW_SAMPLES`.

    A packed sequence never holds samples of two windows. B is a multiple of call_sequences; the last packed sequences
    may be empty.
    """
    while low < high:
        end = min(low - low % WINDOW_SAMPLES + WINDOW_SAMPLES, high)
        yield pack_window(population, low, end, call_sequences)
        low = end


def pack_window(population: Population, low: int, high: int, call_sequences: int) -> Window:
    """Packs samples low to high (exclusive) as one window; see `packed_windows`."""
    ids_C = np.arange(low, high)
    length_C = population.lengths_N[ids_C]
    plan = plan_packing(length_C, population.length_tokens)
    B = -(-plan.num_sequences // call_sequences) * call_sequences
    *arrays, index_W = _layout(population, ids_C, dataclasses.replace(plan, num_sequences=B))
    return Window(low, length_C, index_W, *arrays)
