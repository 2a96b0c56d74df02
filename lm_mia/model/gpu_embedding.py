"""The gradient of an embedding on NVIDIA GPUs, summed in a fixed order by a Pallas kernel.

XLA adds the gradients of all positions to their rows by atomic additions, whose order differs between runs. Here the
positions are sorted by their ids. Each block of rows of the embedding then belongs to consecutive positions, and their
sum is the product of a small one-hot matrix with the gradients of these positions.

V: rows of the embedding, W: tokens, D: width, I: rows of a block, K: tokens of a block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from lm_mia.model.gpu_attention import dot

_ROWS, _TOKENS, _COLUMNS = 64, 64, 128  # of a block


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def look_up(
    embedding_VxD: jax.Array, id_W: jax.Array, dtype: str, interpret: bool = False
) -> jax.Array:
    """Returns row_WxD = embedding_VxD[id_W], whose gradient is summed in the same order in every run.

    Args:
      embedding_VxD: the embedding, float32.
      id_W: int32, from 0 to V - 1.
      dtype: the type that the sum of all embeddings of a token is converted to. Gradients have been rounded to this
        type, and their products are computed in it.
      interpret: whether the kernel is computed by XLA on any device, for tests.
    """
    return jnp.take(embedding_VxD, id_W, axis=0)


def _forward(
    embedding_VxD: jax.Array, id_W: jax.Array, dtype: str, interpret: bool
) -> tuple[jax.Array, Any]:
    return look_up(embedding_VxD, id_W, dtype, interpret), (id_W, len(embedding_VxD))


def _backward(
    dtype: str, interpret: bool, saved: tuple[jax.Array, int], d_row_WxD: jax.Array
) -> tuple[Any, None]:
    id_W, V = saved
    W, D = d_row_WxD.shape
    order_W = jnp.argsort(id_W)
    num_blocks = pl.cdiv(V, _ROWS)
    # Padding has ids that belong to no block.
    padding = -W % _TOKENS
    sorted_id_W = jnp.pad(id_W[order_W], (0, padding), constant_values=num_blocks * _ROWS)
    sorted_d_row_WxD = jnp.pad(d_row_WxD.astype(dtype)[order_W], ((0, padding), (0, -D % _COLUMNS)))
    # Positions of the first token of each block, and of the end.
    edges = jnp.arange(num_blocks + 1) * _ROWS
    begin_I1 = jnp.searchsorted(sorted_id_W, edges, method="compare_all").astype(jnp.int32)
    columns = pl.cdiv(D, _COLUMNS)
    d_embedding_VxD = pl.pallas_call(
        _sum_kernel,
        grid=(num_blocks, columns),
        in_specs=[
            pl.BlockSpec((W + padding,), lambda i, j: (0,)),
            pl.BlockSpec((W + padding, _COLUMNS), lambda i, j: (0, j)),
            pl.BlockSpec((None,), lambda i, j: (i,)),
            pl.BlockSpec((None,), lambda i, j: (i,)),
        ],
        out_specs=pl.BlockSpec((_ROWS, _COLUMNS), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((num_blocks * _ROWS, columns * _COLUMNS), jnp.float32),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=3),
        interpret=interpret,
        name="embedding_gradient",
    )(sorted_id_W, sorted_d_row_WxD, begin_I1[:-1], begin_I1[1:])
    return d_embedding_VxD[:V, :D], None


def _sum_kernel(id_ref: Any, d_row_ref: Any, begin_ref: Any, end_ref: Any, sum_ref: Any) -> None:
    """Computes the sums of a block of rows and columns over the tokens from begin to end."""
    row_I = pl.program_id(0) * _ROWS + jnp.arange(_ROWS)

    def add_tokens(i: jax.Array, sum_IxD: jax.Array) -> jax.Array:
        tokens = pl.ds(i * _TOKENS, _TOKENS)
        d_row_KxD = d_row_ref[tokens, :]
        # The first and the last block hold tokens of other rows too, which no row matches.
        one_hot_IxK = (id_ref[tokens] == row_I[:, None]).astype(d_row_KxD.dtype)
        return sum_IxD + dot(one_hot_IxK, d_row_KxD)

    low = jax.lax.div(begin_ref[...], _TOKENS)
    high = jax.lax.div(end_ref[...] + _TOKENS - 1, _TOKENS)
    zeros_IxD = jnp.zeros((_ROWS, _COLUMNS), jnp.float32)
    sum_ref[...] = jax.lax.fori_loop(low, high, add_tokens, zeros_IxD)


look_up.defvjp(_forward, _backward)
