"""The population as packed rows for scoring: windows of samples, each packed by itself, the same whoever asks.

C: samples of a window, W: rows of a window, R: rows of a call, L: tokens of a row, T: tokens of a window's samples.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from lm_mia import packing
from lm_mia.population import Population

SAMPLES = 2**13
"""Of a window: enough to fill rows to 99 %, few enough to be packed while a device is at work on the one before."""


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """Samples low, low + 1, ... in rows, and where to find each token again."""

    low: int
    length_C: np.ndarray
    place_T: np.ndarray
    """Of every token, sample after sample: its index in the flattened rows."""
    x_WxL: np.ndarray
    segment_WxL: np.ndarray
    """1, 2, ...: which sample of its row; 0: the tail that is of none."""
    position_WxL: np.ndarray

    def in_order(self, value_WxL: np.ndarray) -> np.ndarray:
        """value_T: of every token, sample after sample."""
        return value_WxL.reshape(-1)[self.place_T]


def windows(population: Population, low: int, high: int, micro_rows: int) -> Iterator[Window]:
    """Samples low to high (exclusive) in windows that begin at multiples of `SAMPLES`.

    A row never holds samples of two windows, and W is a multiple of micro_rows: the last rows may be empty.
    """
    while low < high:
        end = min(low - low % SAMPLES + SAMPLES, high)
        yield window(population, low, end, micro_rows)
        low = end


def window(population: Population, low: int, high: int, micro_rows: int) -> Window:
    """One window of samples low to high (exclusive)."""
    L = population.length_tokens
    begin, end = (int(population.offsets_N1[i]) for i in (low, high))
    length_C = np.diff(population.offsets_N1[low : high + 1])
    plan = packing.packed(length_C, L)
    within_T = np.arange(end - begin) - np.repeat(np.cumsum(length_C) - length_C, length_C)
    place_T = np.repeat(plan.row_B * L + plan.start_B, length_C) + within_T
    W = -(-plan.rows // micro_rows) * micro_rows
    x_WL, segment_WL, position_WL = (np.zeros(W * L, np.int32) for _ in range(3))
    x_WL[place_T] = population.tokens[begin:end]
    segment_WL[place_T] = np.repeat(plan.segment_B, length_C)
    position_WL[place_T] = within_T
    rows = (array.reshape(W, L) for array in (x_WL, segment_WL, position_WL))
    return Window(low, length_C, place_T, *rows)
