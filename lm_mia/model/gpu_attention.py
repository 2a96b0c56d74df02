"""Causal attention within segments on NVIDIA GPUs, in Pallas: the same bits in every run, and no work between segments.

Flash attention (Dao 2023): softmax weights are computed block by block and never stored, and the backward pass
computes them again. Gradients of queries and of keys are summed by kernels of their own, in fixed order, so that no
atomic additions are needed, which cuDNN's backward pass uses. A block of queries skips the keys before the segment of
its first query: with C4-like lengths, these are about a third of all blocks below the diagonal.

B: packed sequences, L: positions of a packed sequence, H: heads, A: width of a head, Q: queries of a block, K: keys of
a block; both are `BLOCK_TOKENS`.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

BLOCK_TOKENS = 64
"""Queries or keys of a block, which divides L. Larger and smaller blocks were slower on an H100."""
_COMPILER_PARAMS = plgpu.CompilerParams(num_warps=4, num_stages=3)
# Scores are computed in units of log2, since GPUs have an instruction for powers of two.
_LOG2_E = math.log2(math.e)
# Not -inf, so that a block of keys in which a query attends to none gives no NaN; later blocks correct its sum.
_MASKED = -1e30


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def gpu_attention(
    q_BxLxHxA: jax.Array,
    k_BxLxHxA: jax.Array,
    v_BxLxHxA: jax.Array,
    segment_BxL: jax.Array,
    interpret: bool = False,
) -> jax.Array:
    """Computes softmax(q k / sqrt(A)) v, where each token attends to itself and to earlier tokens of its segment.

    Args:
      q_BxLxHxA, k_BxLxHxA, v_BxLxHxA: queries, keys and values, all of one type. L is divisible by `BLOCK_TOKENS`, and
        A is a power of two from 16 to 128.
      segment_BxL: int32; the positions of a segment follow each other.
      interpret: whether the kernels are computed by XLA on any device, for tests.

    Returns:
      o_BxLxHxA, of the type of the queries. The softmax is computed in float32.
    """
    return _forward(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, segment_BxL, interpret)[0]


def _segment_ends(segment_BxL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns first_BxL and last_BxL, int32: the first and the last position of the segment of each position."""
    L = segment_BxL.shape[1]
    position_L = jnp.arange(L, dtype=jnp.int32)
    is_new_BxL = jnp.pad(segment_BxL[:, 1:] != segment_BxL[:, :-1], ((0, 0), (1, 0)))
    first_BxL = jax.lax.cummax(jnp.where(is_new_BxL, position_L, 0), axis=1)
    is_last_BxL = jnp.roll(is_new_BxL, -1, axis=1).at[:, -1].set(False)
    last_BxL = jax.lax.cummin(jnp.where(is_last_BxL, position_L, L - 1), axis=1, reverse=True)
    return first_BxL, last_BxL


def _forward(
    q_BxLxHxA: jax.Array,
    k_BxLxHxA: jax.Array,
    v_BxLxHxA: jax.Array,
    segment_BxL: jax.Array,
    interpret: bool,
) -> tuple[jax.Array, Any]:
    B, L, H, A = q_BxLxHxA.shape
    first_BxL, last_BxL = _segment_ends(segment_BxL)
    block, whole = _Specs.of_blocks(A), _Specs.of_sequences(L, A)
    o_BxLxHxA, log_sum_BxHxL = pl.pallas_call(
        _forward_kernel,
        grid=(L // BLOCK_TOKENS, H, B),
        in_specs=[block.vectors, whole.vectors, whole.vectors, block.positions],
        out_specs=[block.vectors, block.numbers],
        out_shape=[_like(q_BxLxHxA), jax.ShapeDtypeStruct((B, H, L), jnp.float32)],
        compiler_params=_COMPILER_PARAMS,
        interpret=interpret,
        name="attention_forward",
    )(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, first_BxL)
    saved = q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, first_BxL, last_BxL, o_BxLxHxA, log_sum_BxHxL
    return o_BxLxHxA, saved


class _Specs(NamedTuple):
    """What a program of the grid (blocks, heads, packed sequences) reads or writes of an array, by its shape."""

    vectors: pl.BlockSpec
    """Of B x L x H x A."""
    numbers: pl.BlockSpec
    """Of B x H x L."""
    positions: pl.BlockSpec
    """Of B x L."""

    @classmethod
    def of_blocks(cls, A: int) -> "_Specs":
        """Returns the specs of the program's own block of tokens."""
        return cls(
            pl.BlockSpec((None, BLOCK_TOKENS, None, A), lambda i, h, b: (b, i, h, 0)),
            pl.BlockSpec((None, None, BLOCK_TOKENS), lambda i, h, b: (b, h, i)),
            pl.BlockSpec((None, BLOCK_TOKENS), lambda i, h, b: (b, i)),
        )

    @classmethod
    def of_sequences(cls, L: int, A: int) -> "_Specs":
        """Returns the specs of the program's whole packed sequence."""
        return cls(
            pl.BlockSpec((None, L, None, A), lambda i, h, b: (b, 0, h, 0)),
            pl.BlockSpec((None, None, L), lambda i, h, b: (b, h, 0)),
            pl.BlockSpec((None, L), lambda i, h, b: (b, 0)),
        )


def _like(array: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _forward_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    first_ref: Any,
    o_ref: Any,
    log_sum_ref: Any,
) -> None:
    """Computes the output of a block of queries, and the log2 of the sum of its exponentials."""
    Q = K = BLOCK_TOKENS
    begin = pl.program_id(0) * Q
    q_QxA, first_Q = q_ref[...], first_ref[...]
    query_Q = begin + jnp.arange(Q)

    def add_keys(i: jax.Array, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        o_QxA, max_Q, sum_Q = sums
        keys = pl.ds(i * K, K)
        k_KxA, v_KxA = k_ref[keys, :], v_ref[keys, :]
        score_QxK = _scores(q_QxA, k_KxA, query_Q, i * K + jnp.arange(K), first_Q)
        new_max_Q = jnp.maximum(max_Q, score_QxK.max(1))
        p_QxK = jnp.exp2(score_QxK - new_max_Q[:, None])
        correction_Q = jnp.exp2(max_Q - new_max_Q)
        o_QxA = o_QxA * correction_Q[:, None] + dot(p_QxK.astype(v_KxA.dtype), v_KxA)
        return o_QxA, new_max_Q, sum_Q * correction_Q + p_QxK.sum(1)

    zeros_Q = jnp.zeros(Q, jnp.float32)
    low, high = jax.lax.div(first_ref[0], K), pl.program_id(0) + 1
    o_QxA, max_Q, sum_Q = jax.lax.fori_loop(
        low, high, add_keys, (jnp.zeros(q_QxA.shape, jnp.float32), zeros_Q + _MASKED, zeros_Q)
    )
    o_ref[...] = (o_QxA / sum_Q[:, None]).astype(o_ref.dtype)
    log_sum_ref[...] = max_Q + jnp.log2(sum_Q)


def _scores(
    q_QxA: jax.Array, k_KxA: jax.Array, query_Q: jax.Array, key_K: jax.Array, first_Q: jax.Array
) -> jax.Array:
    """Returns score_QxK = q k / sqrt(A), in units of log2; _MASKED where a query does not attend to a key."""
    score_QxK = dot(q_QxA, k_KxA, trans_b=True) * (_LOG2_E * q_QxA.shape[1] ** -0.5)
    attends_QxK = (key_K <= query_Q[:, None]) & (key_K >= first_Q[:, None])
    return jnp.where(attends_QxK, score_QxK, _MASKED)


def dot(a: jax.Array, b: jax.Array, trans_a: bool = False, trans_b: bool = False) -> jax.Array:
    """Returns a matrix product inside a kernel, in float32; that of float32 matrices does not round them to TF32."""
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return plgpu.dot(a, b, trans_a, trans_b, precision=precision)


def _backward(interpret: bool, saved: Any, d_o_BxLxHxA: jax.Array) -> tuple[Any, ...]:
    q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, first_BxL, last_BxL, o_BxLxHxA, log_sum_BxHxL = saved
    B, L, H, A = q_BxLxHxA.shape
    block, whole = _Specs.of_blocks(A), _Specs.of_sequences(L, A)
    d_q_BxLxHxA, delta_BxHxL = pl.pallas_call(
        _backward_queries_kernel,
        grid=(L // BLOCK_TOKENS, H, B),
        in_specs=[
            block.vectors,
            whole.vectors,
            whole.vectors,
            block.vectors,
            block.vectors,
            block.numbers,
            block.positions,
        ],
        out_specs=[block.vectors, block.numbers],
        out_shape=[_like(q_BxLxHxA), _like(log_sum_BxHxL)],
        compiler_params=_COMPILER_PARAMS,
        interpret=interpret,
        name="attention_backward_queries",
    )(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, o_BxLxHxA, d_o_BxLxHxA, log_sum_BxHxL, first_BxL)
    d_k_BxLxHxA, d_v_BxLxHxA = pl.pallas_call(
        _backward_keys_kernel,
        grid=(L // BLOCK_TOKENS, H, B),
        in_specs=[
            whole.vectors,
            block.vectors,
            block.vectors,
            whole.vectors,
            whole.numbers,
            whole.numbers,
            whole.positions,
            block.positions,
        ],
        out_specs=[block.vectors, block.vectors],
        out_shape=[_like(k_BxLxHxA), _like(v_BxLxHxA)],
        compiler_params=_COMPILER_PARAMS,
        interpret=interpret,
        name="attention_backward_keys",
    )(
        q_BxLxHxA,
        k_BxLxHxA,
        v_BxLxHxA,
        d_o_BxLxHxA,
        log_sum_BxHxL,
        delta_BxHxL,
        first_BxL,
        last_BxL,
    )
    return d_q_BxLxHxA, d_k_BxLxHxA, d_v_BxLxHxA, None


def _backward_queries_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    o_ref: Any,
    d_o_ref: Any,
    log_sum_ref: Any,
    first_ref: Any,
    d_q_ref: Any,
    delta_ref: Any,
) -> None:
    """Computes the gradient of a block of queries, and delta_Q, the sum of output times gradient of each query."""
    Q = K = BLOCK_TOKENS
    begin = pl.program_id(0) * Q
    q_QxA, d_o_QxA, log_sum_Q, first_Q = q_ref[...], d_o_ref[...], log_sum_ref[...], first_ref[...]
    query_Q = begin + jnp.arange(Q)
    delta_Q = (o_ref[...].astype(jnp.float32) * d_o_QxA.astype(jnp.float32)).sum(1)
    delta_ref[...] = delta_Q

    def add_keys(i: jax.Array, d_q_QxA: jax.Array) -> jax.Array:
        keys = pl.ds(i * K, K)
        k_KxA, v_KxA = k_ref[keys, :], v_ref[keys, :]
        score_QxK = _scores(q_QxA, k_KxA, query_Q, i * K + jnp.arange(K), first_Q)
        p_QxK = jnp.exp2(score_QxK - log_sum_Q[:, None])
        d_score_QxK = p_QxK * (dot(d_o_QxA, v_KxA, trans_b=True) - delta_Q[:, None])
        return d_q_QxA + dot(d_score_QxK.astype(k_KxA.dtype), k_KxA)

    low, high = jax.lax.div(first_ref[0], K), pl.program_id(0) + 1
    d_q_QxA = jax.lax.fori_loop(low, high, add_keys, jnp.zeros(q_QxA.shape, jnp.float32))
    d_q_ref[...] = (d_q_QxA * q_QxA.shape[1] ** -0.5).astype(d_q_ref.dtype)


def _backward_keys_kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    d_o_ref: Any,
    log_sum_ref: Any,
    delta_ref: Any,
    first_ref: Any,
    last_ref: Any,
    d_k_ref: Any,
    d_v_ref: Any,
) -> None:
    Q = K = BLOCK_TOKENS
    begin = pl.program_id(0) * K
    k_KxA, v_KxA = k_ref[...], v_ref[...]
    key_K = begin + jnp.arange(K)

    def add_queries(i: jax.Array, sums: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        d_k_KxA, d_v_KxA = sums
        queries = pl.ds(i * Q, Q)
        q_QxA, d_o_QxA = q_ref[queries, :], d_o_ref[queries, :]
        score_QxK = _scores(q_QxA, k_KxA, i * Q + jnp.arange(Q), key_K, first_ref[queries])
        p_QxK = jnp.exp2(score_QxK - log_sum_ref[queries][:, None])
        d_v_KxA += dot(p_QxK.astype(d_o_QxA.dtype), d_o_QxA, trans_a=True)
        d_p_QxK = dot(d_o_QxA, v_KxA, trans_b=True)
        d_score_QxK = p_QxK * (d_p_QxK - delta_ref[queries][:, None])
        d_k_KxA += dot(d_score_QxK.astype(q_QxA.dtype), q_QxA, trans_a=True)
        return d_k_KxA, d_v_KxA

    zeros_KxA = jnp.zeros(k_KxA.shape, jnp.float32)
    low, high = pl.program_id(0), jax.lax.div(last_ref[K - 1], Q) + 1
    d_k_KxA, d_v_KxA = jax.lax.fori_loop(low, high, add_queries, (zeros_KxA, zeros_KxA))
    d_k_ref[...] = (d_k_KxA * k_KxA.shape[1] ** -0.5).astype(d_k_ref.dtype)
    d_v_ref[...] = d_v_KxA.astype(d_v_ref.dtype)


gpu_attention.defvjp(_forward, _backward)
