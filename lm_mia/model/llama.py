"""Llama and its relatives (Qwen 2 and 3, SmolLM): RMSNorm, rotary positions, SwiGLU, grouped-query attention.

P: pairs of dimensions of a head, G: heads of keys and values.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from lm_mia.model.checkpoint_mapping import Format, Tensor
from lm_mia.model.transformer import ModelConfig, SelfAttention, TransformerLM, dense


def rmsnorm(config: ModelConfig, name: str | None = None) -> nn.RMSNorm:
    """Returns an RMSNorm, computed in float32, whose output has the dtype of activations."""
    return nn.RMSNorm(epsilon=config.norm_epsilon, dtype=config.dtype, name=name)


def mlp_width(config: ModelConfig) -> int:
    """Returns the hidden width of the MLP.

    By default it is 8/3 of the width, rounded up to a multiple of 64, for as many parameters
    as two layers of four widths have.
    """
    return config.mlp_width or -(-8 * config.width // (3 * 64)) * 64


def frequencies(config: ModelConfig) -> np.ndarray:
    """Returns the angle per position of each pair of dimensions of a head, float32."""
    A, scaling = config.heads_shape[1], config.rope_scaling
    # In float32, as PyTorch computes it: with more precision, losses of long samples differ more.
    power = np.arange(0, A, 2, dtype=np.float32) / np.float32(A)
    frequency = 1 / np.float32(config.rope_theta) ** power
    if len(scaling) == 1:
        frequency /= scaling[0]
    elif scaling:  # long waves are stretched, short ones are not, and those between partly
        factor, low, high, original_tokens = scaling
        rotations = original_tokens * frequency / (2 * np.pi)
        share = np.clip((rotations - low) / (high - low), 0, 1)
        frequency = (1 - share) * frequency / factor + share * frequency
    return frequency.astype(np.float32)


def rotate(x_BxLxHxA: jax.Array, positions_BxL: jax.Array, frequency_P: np.ndarray) -> jax.Array:
    """Rotates the pairs (i, i + A / 2) of dimensions of each head by angles proportional to the position.

    P: pairs of dimensions, A / 2.
    """
    angle = positions_BxL[..., None, None] * frequency_P
    first, second = jnp.split(x_BxLxHxA.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    rotated = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate(rotated, axis=-1).astype(x_BxLxHxA.dtype)


class LlamaAttention(SelfAttention):
    """Attention with rotary positions, and with as many or fewer heads of keys and values."""

    def setup(self) -> None:
        """Declares the submodules."""
        config = self.config
        heads, head_width = config.heads_shape
        kv_heads = (config.kv_heads or heads, head_width)
        self.query = dense(config, (heads, head_width), use_bias=config.qkv_bias)
        self.key = dense(config, kv_heads, use_bias=config.qkv_bias)
        self.value = dense(config, kv_heads, use_bias=config.qkv_bias)
        self.out = dense(config, config.width, axis=(-2, -1), use_bias=config.out_bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = rmsnorm(config), rmsnorm(config)

    def project(
        self, x_BxLxD: jax.Array, positions_BxL: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns queries, RxLxHxK, and keys and values, each RxLxGxK."""
        q_BxLxHxA, k_BxLxGxA = self.query(x_BxLxD), self.key(x_BxLxD)
        if self.config.qk_norm:
            q_BxLxHxA, k_BxLxGxA = self.q_norm(q_BxLxHxA), self.k_norm(k_BxLxGxA)
        frequency_P = frequencies(self.config)
        q_BxLxHxA = rotate(q_BxLxHxA, positions_BxL, frequency_P)
        k_BxLxGxA = rotate(k_BxLxGxA, positions_BxL, frequency_P)
        return q_BxLxHxA, k_BxLxGxA, self.value(x_BxLxD)


class LlamaMlp(nn.Module):
    """SwiGLU (Shazeer 2020), without biases."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the submodules."""
        self.gate = dense(self.config, mlp_width(self.config))
        self.up = dense(self.config, mlp_width(self.config))
        self.down = dense(self.config, self.config.width)

    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """Returns the output of the layer, RxLxD, in the dtype of activations."""
        return self.down(jax.nn.silu(self.gate(x_BxLxD)) * self.up(x_BxLxD))


class LlamaLM(TransformerLM):
    """The language model; see `TransformerLM`."""

    attention_class: type[nn.Module] = LlamaAttention
    mlp_class: type[nn.Module] = LlamaMlp
    norm: Any = rmsnorm

    def setup(self) -> None:
        """Declares the submodules."""
        super().setup()
        if not self.config.tied:
            width = self.config.width
            init = nn.initializers.normal(width**-0.5)
            self.output_embed = nn.Embed(self.config.vocab_size, width, embedding_init=init)

    def embed(self, x_BxL: jax.Array, positions_BxL: jax.Array) -> jax.Array:
        """Returns the token embeddings, RxLxD, in the dtype of activations."""
        return self.token_embed(x_BxL).astype(self.config.dtype)

    def logits(self, h_BxLxD: jax.Array) -> jax.Array:
        """Returns the product of activations of `hidden` with the output embeddings, RxLxV, float32."""
        embed = self.token_embed if self.config.tied else self.output_embed
        return embed.attend(h_BxLxD.astype(jnp.float32))

    @staticmethod
    def activation_numbers(config: ModelConfig) -> float:
        """Returns the numbers that a layer keeps per token; see `TransformerLM`."""
        copies = 3 if config.qk_norm else 2
        heads = config.heads + (config.kv_heads or config.heads)
        heads_width = heads * config.heads_shape[1]
        return 4.2 * config.width + copies * heads_width + 3 * mlp_width(config)


def tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Returns the tensor of a checkpoint for each parameter, as `checkpoint_mapping.params_from_tensors` takes them."""
    block = "model.layers.{}"
    mapping = {
        "token_embed/embedding": Tensor("model.embed_tokens.weight"),
        "ln_out/scale": Tensor("model.norm.weight"),
        "blocks/ln_attn/scale": Tensor(f"{block}.input_layernorm.weight"),
        "blocks/ln_mlp/scale": Tensor(f"{block}.post_attention_layernorm.weight"),
    }
    for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
        name = f"{block}.self_attn.{theirs}_proj"
        mapping[f"blocks/attn/{ours}/kernel"] = Tensor(f"{name}.weight", is_transposed=True)
        if config.out_bias if ours == "out" else config.qkv_bias:
            mapping[f"blocks/attn/{ours}/bias"] = Tensor(f"{name}.bias")
    for name in ("gate", "up", "down"):
        mapping[f"blocks/mlp/{name}/kernel"] = Tensor(
            f"{block}.mlp.{name}_proj.weight", is_transposed=True
        )
    for name in ("q_norm", "k_norm") if config.qk_norm else ():
        mapping[f"blocks/attn/{name}/scale"] = Tensor(f"{block}.self_attn.{name}.weight")
    if not config.tied:
        mapping["output_embed/embedding"] = Tensor("lm_head.weight")
    return mapping


CHECKPOINT = Format(tensors, "model.", (".rotary_emb.inv_freq",))
