"""The gradient of embeddings for NVIDIA GPUs, interpreted on a CPU."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_case import slow_case

from lm_mia.model import gpu_embedding


@pytest.mark.parametrize(
    ("V", "D", "T", "dtype"),
    [
        (1000, 96, 333, "float32"),  # no size is a multiple of a block
        slow_case(1000, 128, 512, "bfloat16"),
        slow_case(64, 200, 100, "float32"),
        (100, 128, 64, "bfloat16"),
        (3, 16, 1, "float32"),
    ],
)
def test_rows_and_their_gradients_equal_sums_in_float64(V: int, D: int, T: int, dtype: Any):
    rng = np.random.default_rng([V, D, T])
    embedding_VxD = rng.normal(size=(V, D)).astype(np.float32)
    # Some ids are frequent, most do not occur, and the last one does.
    id_T = np.minimum(rng.zipf(1.3, T) - 1, V - 1).astype(np.int32)
    d_row_TxD = jnp.asarray(rng.normal(size=(T, D)), dtype).astype(jnp.float32)
    row_TxD, backward = jax.vjp(
        lambda embedding_VxD: gpu_embedding.look_up(
            embedding_VxD, jnp.asarray(id_T), dtype, interpret=True
        ),
        jnp.asarray(embedding_VxD),
    )
    np.testing.assert_array_equal(row_TxD, embedding_VxD[id_T])
    expected_VxD = np.zeros((V, D))
    np.add.at(expected_VxD, id_T, np.asarray(d_row_TxD, np.float64))
    np.testing.assert_allclose(backward(d_row_TxD)[0], expected_VxD, rtol=0, atol=3e-5)
