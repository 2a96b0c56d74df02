"""The attention kernel for NVIDIA GPUs, interpreted on a CPU, against XLA's attention."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_case import slow_case

from lm_mia.model import gpu_attention
from lm_mia.model.attention import attention


def random_inputs(L: int, A: int, dtype: str) -> list[jax.Array]:
    """Returns queries, keys, values and a gradient of the output, for two packed sequences and two heads."""
    rng = np.random.default_rng([L, A])
    return [jnp.asarray(rng.normal(size=(2, L, 2, A)), dtype) for _ in range(4)]


def segments(L: int, seed: int = 0) -> np.ndarray:
    """Returns segment_2xL: many samples and padding in the first sequence, and one sample in the second."""
    ends = np.sort(np.random.default_rng(seed).choice(np.arange(1, L), 6, replace=False))
    segment_L = np.searchsorted(ends, np.arange(L), side="right") + 1
    return np.stack([np.where(segment_L == 7, 0, segment_L), np.ones(L)]).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0)
def _outputs(function: Any, q: Any, k: Any, v: Any, d_o: Any, segment_BxL: Any) -> Any:
    o, backward = jax.vjp(lambda q, k, v: function(q, k, v, segment_BxL), q, k, v)
    return o, *backward(d_o)


def outputs(function: Any, *arrays: Any) -> list[np.ndarray]:
    """Returns the output, and the gradients of queries, keys and values, in float64."""
    return [np.asarray(array, np.float64) for array in _outputs(function, *arrays)]


def kernel(q: jax.Array, k: jax.Array, v: jax.Array, segment_BxL: jax.Array) -> jax.Array:
    return gpu_attention.gpu_attention(q, k, v, segment_BxL, True)


@pytest.mark.parametrize(
    ("dtype", "A", "L", "tolerance"),
    [
        ("float32", 64, 256, 1e-6),
        slow_case("float32", 128, 128, 1e-6),
        ("float32", 16, 192, 1e-6),
        slow_case("bfloat16", 64, 256, 6e-3),
        ("bfloat16", 128, 192, 6e-3),
    ],
)
def test_values_and_gradients_equal_those_of_xla(dtype: str, A: int, L: int, tolerance: float):
    q, k, v, d_o = random_inputs(L, A, dtype)
    for seed in range(2):
        segment_BxL = jnp.asarray(segments(L, seed))
        actual = outputs(kernel, q, k, v, d_o, segment_BxL)
        expected = outputs(attention, q, k, v, d_o, segment_BxL)
        for a, b in zip(actual, expected, strict=True):
            assert np.linalg.norm(a - b) < tolerance * np.linalg.norm(b)


def test_other_samples_and_later_tokens_change_no_bit():
    """Blocks that hold tokens of several samples mask the others, however large their values are."""
    L = 192
    q, k, v, d_o = random_inputs(L, 16, "float32")
    segment_BxL = np.repeat([[1, 2, 3]], [50, 90, 52], axis=1).repeat(2, axis=0).astype(np.int32)
    is_sample_L = segment_BxL[0] == 2
    is_outside = ~is_sample_L[None, :, None, None]

    def run(factor: float) -> list[np.ndarray]:
        changed_q, changed_k, changed_v = (jnp.where(is_outside, factor * x, x) for x in (q, k, v))
        gradient = jnp.where(is_outside, 0, d_o)
        return outputs(kernel, changed_q, changed_k, changed_v, gradient, segment_BxL)

    for before, after in zip(run(1.0), run(1e4), strict=True):
        np.testing.assert_array_equal(before[:, is_sample_L], after[:, is_sample_L])
    for gradient in run(1e4)[1:]:
        np.testing.assert_array_equal(gradient[:, ~is_sample_L], 0)


def test_segment_ends_worked_by_hand():
    segment_BxL = jnp.array([[1, 1, 2, 3, 3, 0], [4, 4, 4, 4, 4, 4]], jnp.int32)
    first_BxL, last_BxL = gpu_attention._segment_ends(segment_BxL)
    assert first_BxL.tolist() == [[0, 0, 2, 3, 3, 5], [0] * 6]
    assert last_BxL.tolist() == [[1, 1, 2, 4, 4, 5], [5] * 6]
