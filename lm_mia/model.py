"""GPT-2-like decoder-only transformer: pre-layernorm without biases, learned positions, gelu, tied embeddings.

Parameters are a plain pytree of float32 arrays, the forward pass a pure function of them.

B: samples, L: tokens of a sample, D: width, H: heads, K: width of a head (D / H), F: hidden width of the MLP (4D),
V: pieces of the vocabulary.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

Params = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the model's parameters look like; ``dtype`` is that of activations."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    length_tokens: int
    dtype: str = "float32"


def init(key: jax.Array, shape: Shape) -> Params:
    """Fresh parameters: unit-variance-out embeddings over D, Glorot-uniform kernels, layernorm scales of one."""
    D, H, K = shape.width, shape.heads, shape.width // shape.heads
    F, V = 4 * D, shape.vocab_size
    embed = jax.nn.initializers.normal(D**-0.5)
    kernel = jax.nn.initializers.glorot_uniform()
    k_embed, k_position, *k_layers = jax.random.split(key, 2 + shape.layers)

    def layer(key: jax.Array) -> Params:
        kq, kk, kv, ko, ki, kf = jax.random.split(key, 6)
        return {
            "ln1_D": jnp.ones(D),
            "query_DxHxK": kernel(kq, (D, D)).reshape(D, H, K),
            "key_DxHxK": kernel(kk, (D, D)).reshape(D, H, K),
            "value_DxHxK": kernel(kv, (D, D)).reshape(D, H, K),
            "out_HxKxD": kernel(ko, (D, D)).reshape(H, K, D),
            "ln2_D": jnp.ones(D),
            "in_DxF": kernel(ki, (D, F)),
            "out_FxD": kernel(kf, (F, D)),
        }

    return {
        "embed_VxD": embed(k_embed, (V, D)),
        "position_LxD": embed(k_position, (shape.length_tokens, D)),
        "layers": [layer(k) for k in k_layers],
        "ln_D": jnp.ones(D),
    }


def forward(params: Params, x_BxL: jax.Array, dtype: str = "float32") -> jax.Array:
    """Logits of the next token at every position.

    Args:
      params: of ``init``.
      x_BxL: int32 token ids, L at most the model's length.
      dtype: of activations; softmax and logits are float32.

    Returns:
      logits_BxLxV, float32.
    """
    embed_VxD = params["embed_VxD"]
    h_BxLxD = (embed_VxD[x_BxL] + params["position_LxD"][: x_BxL.shape[1]]).astype(dtype)
    for layer in params["layers"]:
        h_BxLxD += _attention(layer, _layernorm(h_BxLxD, layer["ln1_D"]))
        h_BxLxD += _mlp(layer, _layernorm(h_BxLxD, layer["ln2_D"]))
    h_BxLxD = _layernorm(h_BxLxD, params["ln_D"]).astype(jnp.float32)
    return h_BxLxD @ embed_VxD.T


def parameter_count(params: Params) -> int:
    """Number of parameters, embeddings included."""
    return sum(p.size for p in jax.tree.leaves(params))


def _layernorm(x_BxLxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    x32_BxLxD = x_BxLxD.astype(jnp.float32)
    centred_BxLxD = x32_BxLxD - x32_BxLxD.mean(-1, keepdims=True)
    variance_BxLx1 = jnp.square(centred_BxLxD).mean(-1, keepdims=True)
    return (centred_BxLxD * jax.lax.rsqrt(variance_BxLx1 + 1e-6) * scale_D).astype(x_BxLxD.dtype)


def _attention(layer: Params, x_BxLxD: jax.Array) -> jax.Array:
    dtype, L = x_BxLxD.dtype, x_BxLxD.shape[1]
    q_BxLxHxK, k_BxLxHxK, v_BxLxHxK = (
        jnp.einsum("bld,dhk->blhk", x_BxLxD, layer[name].astype(dtype))
        for name in ("query_DxHxK", "key_DxHxK", "value_DxHxK")
    )
    q_BxLxHxK *= q_BxLxHxK.shape[-1] ** -0.5
    a_BxHxLxL = jnp.einsum("bqhk,bthk->bhqt", q_BxLxHxK, k_BxLxHxK).astype(jnp.float32)
    a_BxHxLxL = jnp.where(jnp.tril(jnp.ones((L, L), bool)), a_BxHxLxL, -jnp.inf)
    a_BxHxLxL = jax.nn.softmax(a_BxHxLxL).astype(dtype)
    o_BxLxHxK = jnp.einsum("bhqt,bthk->bqhk", a_BxHxLxL, v_BxLxHxK)
    return jnp.einsum("bqhk,hkd->bqd", o_BxLxHxK, layer["out_HxKxD"].astype(dtype))


def _mlp(layer: Params, x_BxLxD: jax.Array) -> jax.Array:
    dtype = x_BxLxD.dtype
    return jax.nn.gelu(x_BxLxD @ layer["in_DxF"].astype(dtype)) @ layer["out_FxD"].astype(dtype)
