"""GPT-2-like decoder-only transformer: pre-layernorm without biases, learned positions, gelu, tied embeddings.

Parameters are a plain pytree of float32 arrays, those of all layers stacked; the forward pass is a pure function of
them. A row holds one sample or several, each a segment of its own: no token sees another sample's.

N: layers, R: rows, L: tokens of a row, D: width, H: heads, K: width of a head (D / H), F: hidden width of the MLP (4D),
V: pieces of the vocabulary.
"""

import dataclasses
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from lm_mia.model.attention import AttentionKind, attention

Params = dict[str, Any]


class ModelSettings(Protocol):
    """The model settings that determine its shape; a resolved `lm_mia.config.Model` satisfies this protocol."""

    @property
    def layers(self) -> int:
        """The number of layers."""
        ...

    @property
    def width(self) -> int:
        """The width of the residual stream."""
        ...

    @property
    def heads(self) -> int:
        """The number of attention heads, which divides the width."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of activations."""
        ...


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What the model's parameters look like; ``dtype`` is that of activations."""

    layers: int
    width: int
    heads: int
    vocab_size: int
    length_tokens: int
    dtype: str = "float32"

    @classmethod
    def from_settings(
        cls, model: ModelSettings, vocab_size: int, length_tokens: int
    ) -> "ModelConfig":
        """Returns the shape of a model for the vocabulary and the sequence length of a population."""
        sizes = model.layers, model.width, model.heads
        return cls(*sizes, vocab_size, length_tokens, model.dtype)


@dataclasses.dataclass(frozen=True)
class Way:
    """How the layers are computed: what it costs, and rounding."""

    attention: AttentionKind = "xla"
    scanned: bool = False
    """Compiled once for all layers, else one by one."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass computes again: nothing, all but matrix products, everything."""


def init(key: jax.Array, shape: ModelConfig) -> Params:
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
        "layers": jax.vmap(layer)(jnp.stack(k_layers)),
        "ln_D": jnp.ones(D),
    }


def unstacked(params: Params) -> Params:
    """The same parameters with a list of layers: the form to differentiate where layers are not scanned."""
    layers = jax.tree.leaves(params["layers"])[0].shape[0]
    return params | {
        "layers": [jax.tree.map(lambda leaf: leaf[i], params["layers"]) for i in range(layers)]  # noqa: B023
    }


def stacked(params: Params) -> Params:
    """The inverse of `unstacked`."""
    return params | {"layers": jax.tree.map(lambda *leaf: jnp.stack(leaf), *params["layers"])}


def hidden(
    params: Params,
    x_RxL: jax.Array,
    segment_RxL: jax.Array,
    position_RxL: jax.Array,
    dtype: str = "float32",
    way: Way = Way(),
) -> jax.Array:
    """What the layers make of each token, for the product with the embeddings.

    Args:
      params: of ``init``, or `unstacked` where layers are not scanned.
      x_RxL: int32 token ids, L at most the model's length.
      segment_RxL: int32; tokens attend to those of their segment only.
      position_RxL: int32, of each token in its own sample.
      dtype: of activations; softmax and layernorm are float32.
      way: how.

    Returns:
      h_RxLxD, of that dtype.
    """
    embedded_RxLxD = params["embed_VxD"][x_RxL] + params["position_LxD"][position_RxL]

    def layer(h_RxLxD: jax.Array, of: Params) -> tuple[jax.Array, None]:
        normed_RxLxD = layernorm(h_RxLxD, of["ln1_D"])
        h_RxLxD += _attention(of, normed_RxLxD, segment_RxL, way.attention)
        return h_RxLxD + mlp(of, layernorm(h_RxLxD, of["ln2_D"])), None

    if way.remat != "none":
        policies = jax.checkpoint_policies
        policy = {
            "dots": policies.dots_with_no_batch_dims_saveable,
            "full": policies.nothing_saveable,
        }
        # a scan keeps XLA from merging the two computations by itself
        layer = jax.checkpoint(layer, policy=policy[way.remat], prevent_cse=not way.scanned)
    h_RxLxD = embedded_RxLxD.astype(dtype)
    if way.scanned:
        h_RxLxD, _ = jax.lax.scan(layer, h_RxLxD, params["layers"])
    else:
        for of in params["layers"]:
            h_RxLxD, _ = layer(h_RxLxD, of)
    return layernorm(h_RxLxD, params["ln_D"])


def forward(params: Params, x_BxL: jax.Array, dtype: str = "float32") -> jax.Array:
    """Logits of the next token at every position, one sample a row: the reference that packing must equal.

    Args:
      params: of ``init``.
      x_BxL: int32 token ids, L at most the model's length.
      dtype: of activations; softmax and logits are float32.

    Returns:
      logits_BxLxV, float32.
    """
    position_BxL = jnp.broadcast_to(jnp.arange(x_BxL.shape[1]), x_BxL.shape)
    segment_BxL = jnp.ones_like(x_BxL)
    h_BxLxD = hidden(unstacked(params), x_BxL, segment_BxL, position_BxL, dtype)
    return h_BxLxD.astype(jnp.float32) @ params["embed_VxD"].T


def layernorm(x_RxLxD: jax.Array, scale_D: jax.Array) -> jax.Array:
    """x in its own type, each token's values centred and scaled to a variance of 1, in float32; no bias."""
    x32_RxLxD = x_RxLxD.astype(jnp.float32)
    centred_RxLxD = x32_RxLxD - x32_RxLxD.mean(-1, keepdims=True)
    variance_RxLx1 = jnp.square(centred_RxLxD).mean(-1, keepdims=True)
    return (centred_RxLxD * jax.lax.rsqrt(variance_RxLx1 + 1e-6) * scale_D).astype(x_RxLxD.dtype)


def projected(layer: Params, x_RxLxD: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values, each RxLxHxK, of normed activations."""
    query, key, value = (
        jnp.einsum("rld,dhk->rlhk", x_RxLxD, layer[name].astype(x_RxLxD.dtype))
        for name in ("query_DxHxK", "key_DxHxK", "value_DxHxK")
    )
    return query, key, value


def _attention(
    layer: Params, x_RxLxD: jax.Array, segment_RxL: jax.Array, kind: AttentionKind
) -> jax.Array:
    o_RxLxHxK = attention(*projected(layer, x_RxLxD), segment_RxL, kind)
    return jnp.einsum("rqhk,hkd->rqd", o_RxLxHxK, layer["out_HxKxD"].astype(x_RxLxD.dtype))


def mlp(layer: Params, x_RxLxD: jax.Array) -> jax.Array:
    """What the two dense products of a layer make of normed activations."""
    dtype = x_RxLxD.dtype
    return jax.nn.gelu(x_RxLxD @ layer["in_DxF"].astype(dtype)) @ layer["out_FxD"].astype(dtype)
