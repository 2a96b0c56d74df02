"""Causal attention inside segments, behind one function: XLA anywhere, cuDNN on NVIDIA GPUs, Pallas on TPUs.

R: rows, L: tokens of a row, H: heads, K: width of a head.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

Kind = Literal["xla", "cudnn", "pallas"]

_BLOCK_TOKENS = 256  # queries that one block of the XLA path takes; later keys are never looked at


def attention(
    q_RxLxHxK: jax.Array,
    k_RxLxHxK: jax.Array,
    v_RxLxHxK: jax.Array,
    segment_RxL: jax.Array,
    kind: Kind = "xla",
) -> jax.Array:
    """Each token's mean of the values of its segment up to itself, weighted by softmax(q k / sqrt(K)).

    Args:
      q_RxLxHxK, k_RxLxHxK, v_RxLxHxK: queries, keys and values, of one type.
      segment_RxL: int32; tokens see those of their own segment only.
      kind: how it is computed; the results differ by rounding.

    Returns:
      o_RxLxHxK, of the type of the queries; the softmax is float32.
    """
    q_RxLxHxK *= q_RxLxHxK.shape[-1] ** -0.5
    if kind == "cudnn":
        same_Rx1xLxL = segment_RxL[:, None, :, None] == segment_RxL[:, None, None, :]
        return jax.nn.dot_product_attention(
            q_RxLxHxK,
            k_RxLxHxK,
            v_RxLxHxK,
            mask=same_Rx1xLxL,
            is_causal=True,
            scale=1.0,
            implementation="cudnn",
        )
    if kind == "pallas":
        return _pallas(q_RxLxHxK, k_RxLxHxK, v_RxLxHxK, segment_RxL)
    return _blocks(q_RxLxHxK, k_RxLxHxK, v_RxLxHxK, segment_RxL)


def _blocks(
    q_RxLxHxK: jax.Array, k_RxLxHxK: jax.Array, v_RxLxHxK: jax.Array, segment_RxL: jax.Array
) -> jax.Array:
    """A block of queries at a time against the keys up to its end: a little over half of all pairs."""
    parts = []
    L = q_RxLxHxK.shape[1]
    for low in range(0, L, _BLOCK_TOKENS):
        high = min(low + _BLOCK_TOKENS, L)
        a_RxHxQxL = jnp.einsum(
            "rqhk,rthk->rhqt",
            q_RxLxHxK[:, low:high],
            k_RxLxHxK[:, :high],
            preferred_element_type=jnp.float32,
        )
        causal_QxL = jnp.arange(high) <= jnp.arange(low, high)[:, None]
        same_RxQxL = segment_RxL[:, low:high, None] == segment_RxL[:, None, :high]
        a_RxHxQxL = jnp.where((causal_QxL & same_RxQxL)[:, None], a_RxHxQxL, -jnp.inf)
        p_RxHxQxL = jax.nn.softmax(a_RxHxQxL).astype(q_RxLxHxK.dtype)
        parts.append(jnp.einsum("rhqt,rthk->rqhk", p_RxHxQxL, v_RxLxHxK[:, :high]))
    return jnp.concatenate(parts, axis=1)


def _pallas(
    q_RxLxHxK: jax.Array, k_RxLxHxK: jax.Array, v_RxLxHxK: jax.Array, segment_RxL: jax.Array
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    _, L, H, _ = q_RxLxHxK.shape
    causal = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((L, L))] * H)
    # the kernel's own blocks of 128 are marked as untuned; larger ones read keys and values less often
    block = next(size for size in (512, 256, 128) if L % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: Any = {f"block_{name}": block for name in names}
    sizes = splash_attention_kernel.BlockSizes(**blocks)
    kernel = splash_attention_kernel.make_splash_mha_single_device(causal, block_sizes=sizes)

    def row(q: jax.Array, k: jax.Array, v: jax.Array, segment_L: jax.Array) -> Any:
        return kernel(q, k, v, splash_attention_kernel.SegmentIds(segment_L, segment_L))

    q, k, v = (x_RxLxHxK.swapaxes(1, 2) for x_RxLxHxK in (q_RxLxHxK, k_RxLxHxK, v_RxLxHxK))
    o_RxHxLxK: Any = jax.vmap(row)(q, k, v, segment_RxL)
    return o_RxHxLxK.swapaxes(1, 2)
