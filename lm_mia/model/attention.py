"""Causal attention within segments: one function, computed by XLA anywhere, or by kernels for NVIDIA GPUs and TPUs.

B: packed sequences, L: tokens per packed sequence, H: heads, A: width of a head, Q: queries of a block.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from lm_mia.model.gpu_attention import gpu_attention

AttentionKind = Literal["xla", "cudnn", "pallas_gpu", "pallas_tpu"]

# Queries per block of the XLA implementation, which skips the keys after the block.
_BLOCK_TOKENS = 256


def attention(
    q_BxLxHxA: jax.Array,
    k_BxLxHxA: jax.Array,
    v_BxLxHxA: jax.Array,
    segment_BxL: jax.Array,
    kind: AttentionKind = "xla",
) -> jax.Array:
    """Computes softmax(q k / sqrt(A)) v, where each token attends to itself and to earlier tokens of its segment.

    Args:
      q_BxLxHxA, k_BxLxHxA, v_BxLxHxA: queries, keys and values, all of one type.
      segment_BxL: int32; tokens attend to tokens of the same segment only. The tokens of a segment follow each other.
      kind: the implementation. Results differ by rounding only.

    Returns:
      o_BxLxHxA, of the type of the queries. The softmax is computed in float32.
    """
    if kind == "pallas_gpu":
        return gpu_attention(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, segment_BxL)
    q_BxLxHxA *= q_BxLxHxA.shape[-1] ** -0.5
    if kind == "cudnn":
        same_segment_Bx1xLxL = segment_BxL[:, None, :, None] == segment_BxL[:, None, None, :]
        return jax.nn.dot_product_attention(
            q_BxLxHxA,
            k_BxLxHxA,
            v_BxLxHxA,
            mask=same_segment_Bx1xLxL,
            is_causal=True,
            scale=1.0,
            implementation="cudnn",
        )
    if kind == "pallas_tpu":
        return _tpu_attention(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, segment_BxL)
    return _xla_attention(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, segment_BxL)


def _xla_attention(
    q_BxLxHxA: jax.Array, k_BxLxHxA: jax.Array, v_BxLxHxA: jax.Array, segment_BxL: jax.Array
) -> jax.Array:
    """Computes one block of queries at a time against the keys up to its end: little more than half of all pairs."""
    outputs = []
    L = q_BxLxHxA.shape[1]
    for low in range(0, L, _BLOCK_TOKENS):
        high = min(low + _BLOCK_TOKENS, L)
        a_BxHxQxL = jnp.einsum(
            "rqhk,rthk->rhqt",
            q_BxLxHxA[:, low:high],
            k_BxLxHxA[:, :high],
            preferred_element_type=jnp.float32,
        )
        causal_QxL = jnp.arange(high) <= jnp.arange(low, high)[:, None]
        same_segment_BxQxL = segment_BxL[:, low:high, None] == segment_BxL[:, None, :high]
        a_BxHxQxL = jnp.where((causal_QxL & same_segment_BxQxL)[:, None], a_BxHxQxL, -jnp.inf)
        p_BxHxQxL = jax.nn.softmax(a_BxHxQxL).astype(q_BxLxHxA.dtype)
        outputs.append(jnp.einsum("rhqt,rthk->rqhk", p_BxHxQxL, v_BxLxHxA[:, :high]))
    return jnp.concatenate(outputs, axis=1)


def _tpu_attention(
    q_BxLxHxA: jax.Array, k_BxLxHxA: jax.Array, v_BxLxHxA: jax.Array, segment_BxL: jax.Array
) -> jax.Array:
    """Computes splash attention on a TPU; L must be divisible by 128."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    _, L, H, _ = q_BxLxHxA.shape
    causal = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((L, L))] * H)
    # The kernel's default blocks of 128 are marked as untuned. Larger blocks read keys and values less often.
    block = next(size for size in (512, 256, 128) if L % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: Any = {f"block_{name}": block for name in names}
    block_sizes = splash_attention_kernel.BlockSizes(**blocks)
    kernel = splash_attention_kernel.make_splash_mha_single_device(causal, block_sizes=block_sizes)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_L: jax.Array) -> Any:
        return kernel(q, k, v, splash_attention_kernel.SegmentIds(segment_L, segment_L))

    q, k, v = (x_BxLxHxA.swapaxes(1, 2) for x_BxLxHxA in (q_BxLxHxA, k_BxLxHxA, v_BxLxHxA))
    o_BxHxLxA: Any = jax.vmap(attend)(q, k, v, segment_BxL)
    return o_BxHxLxA.swapaxes(1, 2)
