"""Bitwise comparison of two pytrees of arrays."""

from typing import Any

import jax
import numpy as np


def same(one: Any, other: Any) -> bool:
    """Returns whether structure, dtypes and all bits are equal."""
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(a, b, strict=True)
    )
