"""Causal attention within segments: one function, computed by XLA anywhere, or by kernels for NVIDIA GPUs and TPUs.

R: packed sequences, L: tokens per packed sequence, H: heads, K: width of a head, Q: queries of a block.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from lm_mia.model.gpu_attention import gpu_attention

AttentionKind = Literal["xla", "cudnn", "pallas_gpu", "pallas_tpu"]

# Queries per block of the XLA implementation, which skips the keys after the block.
_BLOCK_TOKENS = 256


def attention(
    q_RxLxHxK: jax.Array,
    k_RxLxHxK: jax.Array,
    v_RxLxHxK: jax.Array,
    segment_RxL: jax.Array,
    kind: AttentionKind = "xla",
) -> jax.Array:
    """Computes softmax(q k / sqrt(K)) v, where each token attends to itself and to earlier tokens of its segment.

    Args:
      q_RxLxHxK, k_RxLxHxK, v_RxLxHxK: queries, keys and values, all of one type.
      segment_RxL: int32; tokens attend to tokens of the same segment only. The tokens of a segment follow each other.
      kind: the implementation. Results differ by rounding only.

    Returns:
      o_RxLxHxK, of the type of the queries. The softmax is computed in float32.
    """
    if kind == "pallas_gpu":
        return gpu_attention(q_RxLxHxK, k_RxLxHxK, v_RxLxHxK, segment_RxL)
    q_RxLxHxK *= q_RxLxHxK.shape[-1] ** -0.5
    if kind == "cudnn":
        same_segment_Rx1xLxL = segment_RxL[:, None, :, None] == segment_RxL[:, None, None, :]
        return jax.nn.dot_product_attention(
            q_RxLxHxK,
            k_RxLxHxK,
            v_RxLxHxK,
            mask=same_segment_Rx1xLxL,
            is_causal=True,
            scale=1.0,
            implementation="cudnn",
        )
    if kind == "pallas_tpu":
        return _tpu_attention(q_RxLxHxK, k_RxLxHxK, v_RxLxHxK, segment_RxL)
    return _xla_attention(q_RxLxHxK, k_RxLxHxK, v_RxLxHxK, segment_RxL)


def _xla_attention(
    q_RxLxHxK: jax.Array, k_RxLxHxK: jax.Array, v_RxLxHxK: jax.Array, segment_RxL: jax.Array
) -> jax.Array:
    """Computes one block of queries at a time against the keys up to its end: little more than half of all pairs."""
    outputs = []
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
        same_segment_RxQxL = segment_RxL[:, low:high, None] == segment_RxL[:, None, :high]
        a_RxHxQxL = jnp.where((causal_QxL & same_segment_RxQxL)[:, None], a_RxHxQxL, -jnp.inf)
        p_RxHxQxL = jax.nn.softmax(a_RxHxQxL).astype(q_RxLxHxK.dtype)
        outputs.append(jnp.einsum("rhqt,rthk->rqhk", p_RxHxQxL, v_RxLxHxK[:, :high]))
    return jnp.concatenate(outputs, axis=1)


def _tpu_attention(
    q_RxLxHxK: jax.Array, k_RxLxHxK: jax.Array, v_RxLxHxK: jax.Array, segment_RxL: jax.Array
) -> jax.Array:
    """Computes splash attention on a TPU; L must be divisible by 128."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

    _, L, H, _ = q_RxLxHxK.shape
    causal = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((L, L))] * H)
    # The kernel's default blocks of 128 are marked as untuned. Larger blocks read keys and values less often.
    block = next(size for size in (512, 256, 128) if L % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    blocks: Any = {f"block_{name}": block for name in names}
    block_sizes = splash_attention_kernel.BlockSizes(**blocks)
    kernel = splash_attention_kernel.make_splash_mha_single_device(causal, block_sizes=block_sizes)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_L: jax.Array) -> Any:
        return kernel(q, k, v, splash_attention_kernel.SegmentIds(segment_L, segment_L))

    q, k, v = (x_RxLxHxK.swapaxes(1, 2) for x_RxLxHxK in (q_RxLxHxK, k_RxLxHxK, v_RxLxHxK))
    o_RxHxLxK: Any = jax.vmap(attend)(q, k, v, segment_RxL)
    return o_RxHxLxK.swapaxes(1, 2)
