"""GPT-2 as OpenAI released it: biases in dense layers and layernorms, learned positions, tied embeddings.

Shape letters are those of `transformer`.
"""

from typing import Any

import jax
from flax import linen as nn

from lm_mia.model.checkpoint_mapping import Format, Tensor
from lm_mia.model.transformer import (
    ModelConfig,
    SelfAttention,
    TransformerLM,
    dense,
    gelu,
)


def layernorm(config: ModelConfig, name: str | None = None) -> nn.LayerNorm:
    """Returns a layernorm with bias, computed in float32, whose output has the dtype of activations."""
    # The fast variance, E[x^2] - E[x]^2, loses digits where the mean is large.
    return nn.LayerNorm(config.norm_epsilon, use_fast_variance=False, dtype=config.dtype, name=name)


class Gpt2Attention(SelfAttention):
    """Attention whose dense layers have biases."""

    def setup(self) -> None:
        """Declares the submodules."""
        config = self.config
        heads = config.heads_shape
        self.query = dense(config, heads, use_bias=True)
        self.key = dense(config, heads, use_bias=True)
        self.value = dense(config, heads, use_bias=True)
        self.out = dense(config, config.width, axis=(-2, -1), use_bias=True)


class Gpt2Mlp(nn.Module):
    """Two dense layers with biases, and a gelu between them."""

    config: ModelConfig

    def setup(self) -> None:
        """Declares the submodules."""
        self.up = dense(self.config, self.config.mlp_width or 4 * self.config.width, use_bias=True)
        self.down = dense(self.config, self.config.width, use_bias=True)

    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """Returns the output of the layer, RxLxD, in the dtype of activations."""
        return self.down(gelu(self.up(x_BxLxD)))


class Gpt2LM(TransformerLM):
    """The language model; see `TransformerLM`."""

    attention_class: type[nn.Module] = Gpt2Attention
    mlp_class: type[nn.Module] = Gpt2Mlp
    norm: Any = layernorm


def tensors(config: ModelConfig) -> dict[str, Tensor]:
    """Returns the tensor of a checkpoint for each parameter, as `checkpoint_mapping.params_from_tensors` takes them."""
    mapping = {
        "token_embed/embedding": Tensor("transformer.wte.weight"),
        "pos_embed/embedding": Tensor("transformer.wpe.weight", has_more_rows=True),
        "ln_out/scale": Tensor("transformer.ln_f.weight"),
        "ln_out/bias": Tensor("transformer.ln_f.bias"),
    }
    block = "transformer.h.{}"
    for ours, theirs in (("scale", "weight"), ("bias", "bias")):
        mapping[f"blocks/ln_attn/{ours}"] = Tensor(f"{block}.ln_1.{theirs}")
        mapping[f"blocks/ln_mlp/{ours}"] = Tensor(f"{block}.ln_2.{theirs}")
    for ours, theirs in (("kernel", "weight"), ("bias", "bias")):
        for i, name in enumerate(("query", "key", "value")):
            mapping[f"blocks/attn/{name}/{ours}"] = Tensor(
                f"{block}.attn.c_attn.{theirs}", part=i, parts=3
            )
        mapping[f"blocks/attn/out/{ours}"] = Tensor(f"{block}.attn.c_proj.{theirs}")
        mapping[f"blocks/mlp/up/{ours}"] = Tensor(f"{block}.mlp.c_fc.{theirs}")
        mapping[f"blocks/mlp/down/{ours}"] = Tensor(f"{block}.mlp.c_proj.{theirs}")
    return mapping


CHECKPOINT = Format(tensors, "transformer.", (".attn.bias", ".attn.masked_bias"))
