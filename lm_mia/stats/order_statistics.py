"""Exact order statistics of more numbers than memory holds, by a radix selection in a few passes.

Legend: K numbers of a block, R ranks, P distinct prefixes, B buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from lm_mia.stats.array_types import FloatArray, IntArray

_BITS = 16
_GATHERED = 2**22  # numbers that are sorted at once: 32 MiB


def order_statistics(
    blocks: Callable[[], Iterable[FloatArray]], ranks: Callable[[int], IntArray]
) -> FloatArray:
    """Selects the r-th smallest number for each rank r.

    Few numbers are sorted. Otherwise, a first pass counts how many numbers share each value of the first 16 bits, and
    so finds the first 16 bits of each order statistic. Once few numbers with these bits remain, a last pass gathers and
    sorts them; otherwise, another pass finds the next 16 bits. So there are 2 to 4 passes after the one that finds that
    there are too many numbers to sort, whatever the numbers are, and their order does not matter.

    Args:
      blocks: function that returns the numbers, as float64 arrays value_K without NaN, once per pass.
      ranks: function that returns the ranks, counted from 0, given how many numbers there are.

    Returns:
      value_R; empty if there are no numbers or no ranks.
    """
    if (sorted_K := _sorted_if_few(blocks)) is not None:
        return sorted_K[ranks(sorted_K.size)] if sorted_K.size else sorted_K
    shift = 64 - _BITS
    count_B = np.zeros(2**_BITS, np.int64)
    for value_K in blocks():
        count_B += np.bincount((_as_keys(value_K) >> shift) + 2 ** (_BITS - 1), minlength=2**_BITS)
    rank_R = ranks(int(count_B.sum()))
    if rank_R.size == 0:
        return np.empty(0)
    bucket_R, rank_R, size_R = _locate(np.broadcast_to(count_B, (rank_R.size, 2**_BITS)), rank_R)
    prefix_R = bucket_R - 2 ** (_BITS - 1)
    while shift:
        prefix_P, first_P, index_R = np.unique(prefix_R, return_index=True, return_inverse=True)
        if size_R[first_P].sum() <= _GATHERED:
            return _gather(blocks, prefix_P, shift)[index_R, rank_R]
        shift -= _BITS
        count_PxB = np.zeros((prefix_P.size, 2**_BITS), np.int64)
        for value_K in blocks():
            key_K = _as_keys(value_K)
            key_K >>= shift
            first_K = key_K >> _BITS
            for count_B, prefix in zip(count_PxB, prefix_P, strict=True):
                next_bits = np.compress(first_K == prefix, key_K) & (2**_BITS - 1)
                count_B += np.bincount(next_bits, minlength=2**_BITS)
        bucket_R, rank_R, size_R = _locate(count_PxB[index_R], rank_R)
        prefix_R = (prefix_R << _BITS) | bucket_R
    return _from_keys(prefix_R)


def _sorted_if_few(blocks: Callable[[], Iterable[FloatArray]]) -> FloatArray | None:
    """Returns all numbers in ascending order; None if there are too many to sort at once."""
    parts: list[FloatArray] = [np.empty(0)]
    for value_K in blocks():
        parts.append(value_K)
        if sum(map(len, parts)) > _GATHERED:
            return None
    return np.sort(np.concatenate(parts))


def _locate(count_RxB: IntArray, rank_R: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Returns the bucket of each rank, the rank within the bucket, and the size of the bucket."""
    end_RxB = np.cumsum(count_RxB, axis=1)
    bucket_R = (end_RxB <= rank_R[:, None]).sum(axis=1)
    size_R = np.take_along_axis(count_RxB, bucket_R[:, None], axis=1)[:, 0]
    end_R = np.take_along_axis(end_RxB, bucket_R[:, None], axis=1)[:, 0]
    return bucket_R, rank_R - (end_R - size_R), size_R


def _gather(
    blocks: Callable[[], Iterable[FloatArray]], prefix_P: IntArray, shift: int
) -> FloatArray:
    """Returns the sorted numbers with each prefix, filled up with NaN."""
    parts: list[list[FloatArray]] = [[] for _ in prefix_P]
    for value_K in blocks():
        first_K = _as_keys(value_K) >> shift
        for part, prefix in zip(parts, prefix_P, strict=True):
            part.append(np.compress(first_K == prefix, value_K))
    sorted_P = [np.sort(np.concatenate(part)) for part in parts]
    value_PxK = np.full((len(sorted_P), max(map(len, sorted_P))), np.nan)
    for row_K, value_K in zip(value_PxK, sorted_P, strict=True):
        row_K[: value_K.size] = value_K
    return value_PxK


def _as_keys(value_K: FloatArray) -> IntArray:
    """Returns 64-bit integers in the order of the numbers (-0.0 is below 0.0, and equals it as a number)."""
    bits_K = np.ascontiguousarray(value_K).view(np.int64)
    # The order of negative numbers is reversed by flipping all bits but the sign.
    return bits_K ^ ((bits_K >> 63) & (2**63 - 1))


def _from_keys(key_R: IntArray) -> FloatArray:
    return (key_R ^ ((key_R >> 63) & (2**63 - 1))).view(np.float64)
