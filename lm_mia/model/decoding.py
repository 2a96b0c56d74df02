"""Text that a model writes after a prefix, a token at a time, with the keys and values of earlier tokens kept.

All prefixes of a call have the same length, so nothing is padded and no sample sees another. <eos> ends nothing: it is
a token like any other, in a prefix and in what is written.

B: samples, P: tokens of a prefix, G: tokens written, T = P + G, D: width, H: heads, K: width of a head, V: pieces.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from lm_mia import stats
from lm_mia.model import transformer


@functools.partial(jax.jit, static_argnames=("shape", "tokens", "scheme"))
def write(
    params: transformer.Params,
    prefix_BxP: jax.Array,
    key_B: jax.Array,
    shape: transformer.ModelConfig,
    tokens: int,
    scheme: stats.SamplingScheme,
) -> jax.Array:
    """written_BxG, int32: each next token drawn, or taken, as a scheme says.

    Args:
      params: of `transformer.init`.
      prefix_BxP: token ids; P + tokens at most the model's length.
      key_B: of `jax.random`, one a sample, so that what is drawn for it does not depend on the others.
      shape: of the model.
      tokens: G.
      scheme: of equally likely pieces, greedy takes the one with the lowest number.
    """
    P = prefix_BxP.shape[1]
    if P + tokens > shape.length_tokens:
        raise ValueError(f"{P} + {tokens} tokens: the model takes {shape.length_tokens}")
    layers = transformer.unstacked(params)["layers"]
    empty_BxTxHxK = jnp.zeros(
        (len(prefix_BxP), P + tokens, shape.heads, shape.width // shape.heads), shape.dtype
    )
    caches = [(empty_BxTxHxK, empty_BxTxHxK) for _ in layers]

    def see(x_BxQ: jax.Array, at: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
        """Logits after the last of Q tokens that begin at a place, and keys and values with theirs."""
        Q = x_BxQ.shape[1]
        position_Q = at + jnp.arange(Q)
        h_BxQxD = params["embed_VxD"][x_BxQ] + params["position_LxD"][position_Q]
        h_BxQxD, new = h_BxQxD.astype(shape.dtype), []
        for of, (k_BxTxHxK, v_BxTxHxK) in zip(layers, caches, strict=True):
            q_BxQxHxK, k_BxQxHxK, v_BxQxHxK = transformer.projected(
                of, transformer.layernorm(h_BxQxD, of["ln1_D"])
            )
            k_BxTxHxK = jax.lax.dynamic_update_slice_in_dim(k_BxTxHxK, k_BxQxHxK, at, 1)
            v_BxTxHxK = jax.lax.dynamic_update_slice_in_dim(v_BxTxHxK, v_BxQxHxK, at, 1)
            new.append((k_BxTxHxK, v_BxTxHxK))
            a_BxHxQxT = jnp.einsum(
                "bqhk,bthk->bhqt", q_BxQxHxK, k_BxTxHxK, preferred_element_type=jnp.float32
            )
            before_QxT = jnp.arange(k_BxTxHxK.shape[1]) <= position_Q[:, None]
            a_BxHxQxT = jnp.where(before_QxT, a_BxHxQxT * q_BxQxHxK.shape[-1] ** -0.5, -jnp.inf)
            p_BxHxQxT = jax.nn.softmax(a_BxHxQxT).astype(shape.dtype)
            o_BxQxHxK = jnp.einsum("bhqt,bthk->bqhk", p_BxHxQxT, v_BxTxHxK)
            h_BxQxD += jnp.einsum("bqhk,hkd->bqd", o_BxQxHxK, of["out_HxKxD"].astype(shape.dtype))
            h_BxQxD += transformer.mlp(of, transformer.layernorm(h_BxQxD, of["ln2_D"]))
        last_BxD = transformer.layernorm(h_BxQxD[:, -1], params["ln_D"])
        return last_BxD.astype(jnp.float32) @ params["embed_VxD"].T, new

    def choose(logits_BxV: jax.Array, i: jax.Array) -> jax.Array:
        if scheme.temperature == 0:
            return logits_BxV.argmax(-1).astype(jnp.int32)
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, i)
        kept_BxV = kept(logits_BxV / scheme.temperature, scheme)
        return jax.vmap(jax.random.categorical)(keys_B, kept_BxV).astype(jnp.int32)

    def step(carry: tuple[jax.Array, Any], i: jax.Array) -> tuple[tuple[jax.Array, Any], jax.Array]:
        logits_BxV, caches = carry
        token_B = choose(logits_BxV, i)
        return see(token_B[:, None], P + i, caches), token_B

    first = see(prefix_BxP, jnp.int32(0), caches)
    _, written_GxB = jax.lax.scan(step, first, jnp.arange(tokens))
    return written_GxB.T


def kept(logits_BxV: jax.Array, scheme: stats.SamplingScheme) -> jax.Array:
    """Logits of the pieces that a scheme draws from, after its temperature; -inf of the others.

    As `stats.token_log_probs` has it, in float32: pieces as likely as the k-th are kept, and the piece that
    reaches top_p is the last.
    """
    if 0 < scheme.top_k < logits_BxV.shape[-1]:
        least_Bx1 = jax.lax.top_k(logits_BxV, scheme.top_k)[0][..., -1:]
        logits_BxV = jnp.where(logits_BxV >= least_Bx1, logits_BxV, -jnp.inf)
    if scheme.top_p < 1:
        order_BxV = jnp.argsort(-logits_BxV, axis=-1, stable=True)
        p_BxV = jax.nn.softmax(jnp.take_along_axis(logits_BxV, order_BxV, -1))
        whole_BxV = jnp.cumsum(p_BxV, -1) - p_BxV < scheme.top_p
        rank_BxV = jnp.argsort(order_BxV, axis=-1)
        whole_BxV = jnp.take_along_axis(whole_BxV, rank_BxV, -1)
        logits_BxV = jnp.where(whole_BxV, logits_BxV, -jnp.inf)
    return logits_BxV
