"""A fixture for tests that compile far longer than they compute."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module")
def quickly_compiled() -> Iterator[None]:
    """Programs are transformed as always, but their machine code is not optimised, which halves the time to compile.

    For functions that this module alone compiles, since what is compiled once is used as it is.
    """
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)
