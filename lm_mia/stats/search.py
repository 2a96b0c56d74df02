"""How many of many sorted numbers are at most a level, for millions of levels."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_MAX_BINS = 2**21  # of the table that stands before the search: 8 MB


def counter(
    z_Z: NDArray[np.float64], levels: int
) -> Callable[[NDArray[np.float64]], NDArray[np.int64]]:
    """A function that says how many of the ascending z are at most each level (NaN: any number).

    What searchsorted(side="right") says, but a table over equal bins between outer quantiles of z
    answers for most levels: a bin holds no z, or a single one, which is compared. Levels in fuller
    bins (tails, ties) are searched for. A fifth of the time of a search for 2^20 levels in 300,000
    z without ties, and never much more.
    """

    def search(level_C: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.searchsorted(z_Z, level_C, side="right")

    bins = min(max(1 << (8 * z_Z.size - 1).bit_length(), 2**12), _MAX_BINS)
    low, high = z_Z[z_Z.size // 1000], z_Z[-1 - z_Z.size // 1000]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        scale = bins / (high - low)
    if 2 * levels < z_Z.size or not 0 < scale < np.inf:  # not worth a table, or no range
        return search

    def bin_of(value_C: NDArray[np.float64]) -> NDArray[np.int32]:
        """Ascending in the value whatever the rounding, so z in lower bins are below the level."""
        with np.errstate(over="ignore"):
            place_C = (value_C - low) * scale
        np.fmin(place_C, bins, out=place_C)  # NaN goes to the last bin
        return np.fmax(place_C, 0, out=place_C).astype(np.int32)

    before = np.zeros(bins + 2, dtype=np.int32)  # z in lower bins
    np.cumsum(np.bincount(bin_of(z_Z), minlength=bins + 1), out=before[1:])
    next_z = np.append(z_Z, np.nan)  # after the last comes none

    def look_up(level_C: NDArray[np.float64]) -> NDArray[np.int64]:
        bin_C = bin_of(level_C)
        below_C = before.take(bin_C)
        # Of an empty bin, the next z lies in a higher one and does not count.
        count_C = below_C + (next_z.take(below_C) <= level_C).astype(np.int64)
        fuller = np.flatnonzero(before.take(bin_C + 1) - below_C > 1)
        count_C[fuller] = search(level_C.take(fuller))
        return count_C

    return look_up
