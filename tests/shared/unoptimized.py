"""A fixture for tests that take much longer to compile than to compute."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def without_optimizations() -> Iterator[None]:
    """Turns off the optimization of machine code, which halves compilation time.

    Only for functions that no other test module compiles, since compiled functions are reused.
    """
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)
