"""Packs samples into sequences of fixed length, for training and for scoring.

Samples are packed by best-fit decreasing on their lengths. For scoring, the population is divided into fixed windows
that are packed independently of each other, so that every process packs them in the same way.

B: samples of a batch, L: tokens per packed sequence, R: packed sequences, M: packed sequences per micro-batch over all
devices, N: micro-batches that a batch may need, C: samples of a window, W: packed sequences of a window, T: tokens.
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

    sequence_B: np.ndarray
    """The packed sequence that holds each sample, from 0 to num_sequences - 1."""
    start_B: np.ndarray
    """The position of each sample's first token. Samples of a packed sequence follow each other without gaps."""
    segment_B: np.ndarray
    """The number of each sample within its packed sequence: 1, 2, ...; 0 stands for padding."""
    num_sequences: int


def plan_packing(length_B: np.ndarray, length_tokens: int) -> PackingPlan:
    """Plans how to pack samples into few sequences.

    Samples are placed in order of decreasing length. Each goes into the packed sequence where it leaves the least
    space, or into a new one if it fits nowhere. Batches of 128 C4-like samples fill their packed sequences to about
    98%, and planning them takes about 0.1 ms.

    Args:
      length_B: number of tokens of each sample.
      length_tokens: L.

    Raises:
      ValueError: if a sample has no tokens or more than length_tokens.

    Source: best-fit decreasing bin packing, which never needs more than 11/9 of the fewest bins plus 4 (Johnson 1974).
    """
    B = len(length_B)
    sequence_B, start_B, segment_B = (np.zeros(B, np.int64) for _ in range(3))
    free_space: list[tuple[int, int]] = []  # (free tokens, packed sequence), ascending
    num_segments: list[int] = []  # of each packed sequence
    lengths = np.asarray(length_B).tolist()
    for i in np.argsort(-np.asarray(length_B, np.int64), kind="stable").tolist():
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
        sequence_B[i], start_B[i] = sequence, length_tokens - free_tokens
        segment_B[i] = num_segments[sequence]
        bisect.insort(free_space, (free_tokens - length, sequence))
    return PackingPlan(sequence_B, start_B, segment_B, len(num_segments))


class PackedBatch(NamedTuple):
    """A batch as micro-batches of packed sequences.

    The int32 arrays have a fixed shape; only the first ``BatchStats.num_micro_batches`` micro-batches hold samples. The
    arrays are numpy's here, and JAX's once they are on devices.
    """

    x_NxMxL: Any
    """Token ids."""
    segment_NxMxL: Any
    """The sample of each token within its packed sequence: 1, 2, ...; 0 for padding."""
    position_NxMxL: Any
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
    """Returns N, the number of micro-batches that a batch needs if no two samples fit into one packed sequence."""
    return -(-num_samples // (micro_batch_size * num_devices))


def pack_batch(
    population: Population,
    ids_B: np.ndarray,
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
      ids_B: ids of the samples of the batch.
      plan: result of `plan_packing` for their lengths.
      micro_batches: N.
      micro_batch_size: packed sequences per device and micro-batch; M is this times num_devices.
      num_devices: devices over which each micro-batch is spread.
      device_indices: devices whose packed sequences are returned; only the samples in these are read. None: all
        devices.

    Returns:
      The arrays, in which M covers the given devices only, and the sizes of the whole batch.
    """
    M, L = micro_batch_size * num_devices, population.length_tokens
    devices = range(num_devices) if device_indices is None else sorted(device_indices)
    is_local_B = np.isin(plan.sequence_B % M // micro_batch_size, devices)
    local_plan = PackingPlan(
        plan.sequence_B[is_local_B],
        plan.start_B[is_local_B],
        plan.segment_B[is_local_B],
        micro_batches * M,
    )
    *arrays, _ = _layout(population, ids_B[is_local_B], local_plan)
    shape = (micro_batches, num_devices, micro_batch_size, L)
    batch = PackedBatch(
        *(a.reshape(shape)[:, devices].reshape(micro_batches, -1, L) for a in arrays)
    )
    length_B = population.lengths_N[ids_B]
    stats = BatchStats(
        num_micro_batches=-(-plan.num_sequences // M),
        micro_batch_size=micro_batch_size,
        num_tokens=int(length_B.sum()),
        num_targets=int((length_B - 1).sum()),
        sum_squared_lengths=int((length_B**2).sum()),
    )
    return batch, stats


def _layout(population: Population, ids_B: np.ndarray, plan: PackingPlan) -> tuple[np.ndarray, ...]:
    """Returns x_RxL, segment_RxL and position_RxL, int32, and index_T, each token's index in the flattened arrays."""
    L, length_B = population.length_tokens, population.lengths_N[ids_B]
    position_T = np.arange(length_B.sum()) - np.repeat(np.cumsum(length_B) - length_B, length_B)
    index_T = np.repeat(plan.sequence_B * L + plan.start_B, length_B) + position_T
    token_T = population.tokens[np.repeat(population.offsets_N1[ids_B], length_B) + position_T]
    segment_T = np.repeat(plan.segment_B, length_B)
    flat_3xRL = np.zeros((3, plan.num_sequences * L), np.int32)
    for flat_RL, value_T in zip(flat_3xRL, (token_T, segment_T, position_T), strict=True):
        flat_RL[index_T] = value_T
    return *flat_3xRL.reshape(3, -1, L), index_T


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """Consecutive samples in packed sequences, and the index that puts their tokens back in order."""

    first_id: int
    """Id of the first sample."""
    length_C: np.ndarray
    """Number of tokens of each sample."""
    index_T: np.ndarray
    """Index of each token, sample after sample, in the flattened arrays."""
    x_WxL: np.ndarray
    """Token ids."""
    segment_WxL: np.ndarray
    """The sample of each token within its packed sequence: 1, 2, ...; 0 for padding."""
    position_WxL: np.ndarray
    """The position of each token in its sample."""

    def in_sample_order(self, value_WxL: np.ndarray) -> np.ndarray:
        """Returns value_T, the values of all tokens, sample after sample, without padding."""
        return value_WxL.reshape(-1)[self.index_T]


def packed_windows(
    population: Population, low: int, high: int, call_sequences: int
) -> Iterator[Window]:
    """Yields samples low to high (exclusive) in windows that begin at multiples of `WINDOW_SAMPLES`.

    A packed sequence never holds samples of two windows. W is a multiple of call_sequences; the last packed sequences
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
    W = -(-plan.num_sequences // call_sequences) * call_sequences
    *arrays, index_T = _layout(population, ids_C, dataclasses.replace(plan, num_sequences=W))
    return Window(low, length_C, index_T, *arrays)
