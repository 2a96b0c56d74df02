"""Whether two pytrees of arrays are the same to the last bit."""

from typing import Any

import jax
import numpy as np


def same(one: Any, other: Any) -> bool:
    """Structure, types and every bit."""
    a, b = jax.tree.leaves(one), jax.tree.leaves(other)
    return jax.tree.structure(one) == jax.tree.structure(other) and all(
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(a, b, strict=True)
    )
