"""Checks of the arrays that the statistics take: real numbers, whole counts, booleans, losses that cannot overflow."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lm_mia.stats.array_types import BoolArray, FloatArray, IntArray

MAX_LOSS = 1e29
"""Losses and log-probabilities must be smaller in magnitude, so that no sum of squares overflows."""
MIN_SCALE = 1e-100
"""The largest loss must be at least this, unless all are 0, so that no square of a difference underflows."""


def as_real(values: ArrayLike, name: str) -> np.ndarray:
    """Converts values to an array of floating-point numbers of at most 64 bits.

    float16, float32 and float64 arrays are not copied. Integers become float64: negating unsigned integers, as signals
    are, would wrap around.

    Args:
      values: real numbers; NaN marks a missing one.
      name: what the values are, for the error message.

    Raises:
      ValueError: if the values are complex, text or other objects (such as None), or if some of them are masked.
    """
    check_not_masked(values, name, "replace them with NaN, as values.filled(np.nan) does")
    array = np.asarray(values)
    if (
        array.dtype.kind == "V" and "float" in array.dtype.name
    ):  # bfloat16 of JAX, and smaller types
        raise ValueError(
            f"{name}: NumPy cannot compute with {array.dtype.name}; convert them by .astype(np.float32)"
        )
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name}: must be real numbers, not {array.dtype}; NaN marks a missing one"
        )
    keeps_type = array.dtype.kind == "f" and array.dtype.itemsize <= 8
    native = array.dtype.newbyteorder("=") if keeps_type else np.dtype(np.float64)
    return array.astype(native, copy=False)


def as_float64(values: ArrayLike, name: str) -> FloatArray:
    """Converts values to float64; arguments and errors are those of `as_real`."""
    return as_real(values, name).astype(np.float64, copy=False)


def check_magnitude(array: np.ndarray, name: str, limit: float = MAX_LOSS) -> None:
    """Raises ValueError if a value is infinite or not below the limit in magnitude; NaN is allowed."""
    largest = float(np.fmax.reduce(np.abs(array), axis=None, initial=0))
    if not largest < limit:
        raise ValueError(
            f"{name} must be finite (below {limit:g} in magnitude), or NaN if they are missing"
        )


def check_rates(array: np.ndarray, name: str) -> None:
    """Raises ValueError if a value is outside [0, 1]; NaN is allowed."""
    if np.any((array < 0) | (array > 1)):
        raise ValueError(f"{name} must be in [0, 1], or NaN if they are missing")


def check_scale(array: np.ndarray, name: str) -> None:
    """Raises ValueError if all values are so small that the squares of their differences would lose digits, or be 0.

    The largest magnitude is the scale: some values may be exactly 0, or all of them, but a set of values that are all
    tiny has another unit.
    """
    largest = float(np.fmax.reduce(np.abs(array), axis=None, initial=0))
    if 0 < largest < MIN_SCALE:
        raise ValueError(
            f"{name}: the largest is {largest:g} in magnitude, but must be at least {MIN_SCALE:g} unless all are 0; "
            "give losses in nats"
        )


def as_counts(values: ArrayLike, name: str) -> IntArray:
    """Converts counts to integers.

    Raises:
      ValueError: as `as_real`, and for counts that are negative, fractional, NaN or infinite.
    """
    count = as_float64(values, name)
    if not np.all((count >= 0) & (count < 2**63) & (count == np.floor(count))):
        raise ValueError(f"{name}: must be whole numbers, 0 or larger")
    return count.astype(np.int64)


def check_prior(prior: float) -> None:
    """Raises ValueError unless the prior probability of membership is in (0, 1)."""
    if not 0 < prior < 1:
        raise ValueError(f"prior={prior}: must be between 0 and 1, both excluded")


def check_delta(delta: float) -> None:
    """Raises ValueError unless delta, of (epsilon, delta)-differential privacy, is in [0, 1)."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must be from 0 to 1, 1 excluded")


def as_members(values: ArrayLike, name: str = "members") -> BoolArray:
    """Converts the membership of samples to an array of booleans.

    Raises:
      ValueError: if the values are not booleans, such as the integers 0 and 1, or if some of them are masked.
    """
    check_not_masked(values, name, "leave out their samples")
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise ValueError(f"{name} must be booleans, not {array.dtype}")
    return array


def check_not_masked(values: ArrayLike, name: str, remedy: str) -> None:
    """Raises ValueError, with the remedy, if some values are masked; NumPy functions would use them."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name}: some values are masked, but the mask would be ignored; {remedy}")
