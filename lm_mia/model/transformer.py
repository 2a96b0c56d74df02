"""GPT-2-like decoder-only transformer in flax.linen: pre-layernorm, no biases, learned positions, tied embeddings.

A packed sequence holds one or more samples, each of which is a segment: tokens attend only to tokens of their own
segment. Parameters are float32, and the parameters of all layers are stacked along a first axis of length Y.

A different architecture replaces one module and leaves the rest of the package as it is. See `TransformerLM`.

Y: layers, B: packed sequences, L: tokens of a packed sequence, D: width, H: heads, A: width of a head (D / H),
G: heads of keys and values, E: hidden width of the MLP (4 D), V: vocabulary size, W: tokens, J: tokens that the cache
has space for.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn

from lm_mia.model import gpu_embedding
from lm_mia.model.attention import AttentionKind, attention

Params = dict[str, Any]
"""A nested dict of arrays: the collection "params" of a `TransformerLM`."""


class ModelSettings(Protocol):
    """The settings that determine the architecture; a resolved `lm_mia.config.Model` satisfies this protocol."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of layers, the width of the residual stream and the number of heads, which divides the width."""
        ...

    @property
    def dtype(self) -> str:
        """The dtype of activations."""
        ...

    @property
    def kind(self) -> str:
        """The kind of model, one of `kinds.KINDS`, or FILE.py:CLASS."""
        ...

    @property
    def kind_source(self) -> str:
        """The digest of the source of FILE.py:CLASS."""
        ...

    @property
    def kv_heads(self) -> int | Literal["auto"]:
        """The number of heads of keys and values, which divides that of heads; auto: as many."""
        ...

    @property
    def head_width(self) -> int | Literal["auto"]:
        """The width of a head; auto: ``width / heads``."""
        ...

    @property
    def mlp_width(self) -> int | Literal["auto"]:
        """The hidden width of the MLP; auto: that of the kind."""
        ...

    @property
    def rope_theta(self) -> float:
        """The base of the frequencies of rotary positions."""
        ...

    @property
    def rope_scaling(self) -> tuple[float, ...]:
        """How rotary positions are stretched."""
        ...

    @property
    def norm_epsilon(self) -> float:
        """What is added to the mean square in normalizations."""
        ...

    @property
    def tied(self) -> bool:
        """Whether logits are computed from the token embeddings."""
        ...

    @property
    def qk_norm(self) -> bool:
        """Whether each head of the queries and keys is normalized."""
        ...

    @property
    def qkv_bias(self) -> bool:
        """Whether queries, keys and values have biases."""
        ...

    @property
    def out_bias(self) -> bool:
        """Whether the output of the attention has a bias."""
        ...

    @property
    def vocab_size(self) -> int | Literal["auto"]:
        """The number of rows of the embeddings; auto: that of the vocabulary."""
        ...


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The architecture of a model, and how it is computed.

    ``attention``, ``scan_layers``, ``remat`` and ``embedding_gradient`` change speed, memory and rounding, but neither
    the structure nor the initial values of the parameters.
    """

    layers: int
    width: int
    heads: int
    vocab_size: int
    length_tokens: int
    """The maximum number of tokens of a sample."""
    dtype: str = "float32"
    """The dtype of activations. Parameters, layernorm and softmax are float32."""
    attention: AttentionKind = "xla"
    """The implementation of attention."""
    scan_layers: bool = False
    """Whether one compiled layer is applied in a loop, which saves memory and compile time, or the loop is unrolled."""
    remat: Literal["none", "dots", "full"] = "none"
    """What the backward pass recomputes: nothing, all but matrix products, or everything."""
    embedding_gradient: Literal["scatter", "sorted"] = "scatter"
    """How the gradients of embeddings are summed: as XLA does, in an order that differs between runs on GPUs, or by
    `gpu_embedding`, which needs an NVIDIA GPU."""
    kind: str = "gpt"
    """The kind of model, one of `kinds.KINDS`, or FILE.py:CLASS. See `lm_mia.config.Model` for this and the following
    fields."""
    kind_source: str = ""
    """The digest that the source of FILE.py:CLASS must have; "": any."""
    kv_heads: int = 0
    """The number of heads of keys and values; 0: ``heads``."""
    head_width: int = 0
    """The width of a head; 0: ``width / heads``."""
    mlp_width: int = 0
    """The hidden width of the MLP; 0: that of the kind."""
    rope_theta: float = 10_000.0
    rope_scaling: tuple[float, ...] = ()
    norm_epsilon: float = 1e-5
    tied: bool = True
    qk_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False

    @property
    def heads_shape(self) -> tuple[int, int]:
        """The number of heads of the queries, and the width of each."""
        return self.heads, self.head_width or self.width // self.heads

    @classmethod
    def from_settings(
        cls, model: ModelSettings, vocab_size: int, length_tokens: int
    ) -> "ModelConfig":
        """Returns the config of a model for the vocabulary and the sequence length of a population."""
        return cls(
            *model.shape,
            vocab_size if model.vocab_size == "auto" else model.vocab_size,
            length_tokens,
            model.dtype,
            kind=model.kind,
            kind_source=model.kind_source,
            kv_heads=0 if model.kv_heads == "auto" else model.kv_heads,
            head_width=0 if model.head_width == "auto" else model.head_width,
            mlp_width=0 if model.mlp_width == "auto" else model.mlp_width,
            rope_theta=model.rope_theta,
            rope_scaling=model.rope_scaling,
            norm_epsilon=model.norm_epsilon,
            tied=model.tied,
            qk_norm=model.qk_norm,
            qkv_bias=model.qkv_bias,
            out_bias=model.out_bias,
        )


class Embedding(nn.Embed):
    """An embedding whose gradient is summed as ``ModelConfig.embedding_gradient`` says."""

    gradient: Literal["scatter", "sorted"] = "scatter"
    gradient_dtype: str = "float32"
    """The type to which the sum of the embeddings of a token is converted."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns the rows of these ids, float32."""
        if self.gradient == "scatter":
            return super().__call__(inputs)
        row_WxD: Any = gpu_embedding.look_up(self.embedding, inputs.ravel(), self.gradient_dtype)
        return row_WxD.reshape(*inputs.shape, -1)


def layernorm(config: ModelConfig, name: str | None = None) -> nn.LayerNorm:
    """Returns a layernorm without bias, computed in float32, whose output has the dtype of activations."""
    return nn.LayerNorm(use_bias=False, dtype=config.dtype, name=name)


def dense(
    config: ModelConfig, features: int | tuple[int, ...], axis: Any = -1, use_bias: bool = False
) -> nn.DenseGeneral:
    """Returns a dense layer whose output has the dtype of activations."""
    return nn.DenseGeneral(
        features,
        axis,
        use_bias=use_bias,
        dtype=config.dtype,
        kernel_init=nn.initializers.glorot_uniform(),
    )


class SelfAttention(nn.Module):
    """Causal multi-head self-attention within segments.

    With ``decode=True``, keys and values are stored in the collection "cache", and each call appends its tokens to
    those of earlier calls. The call that creates the cache fixes its length J.
    """

    config: ModelConfig
    decode: bool = False

    def setup(self) -> None:
        """Declares the submodules."""
        config = self.config
        self.query = dense(config, config.heads_shape)
        self.key = dense(config, config.heads_shape)
        self.value = dense(config, config.heads_shape)
        self.out = dense(config, config.width, axis=(-2, -1))

    def __call__(
        self, x_BxLxD: jax.Array, segments_BxL: jax.Array, positions_BxL: jax.Array
    ) -> jax.Array:
        """Returns the output of the layer, RxLxD, in the dtype of activations."""
        q_BxLxHxA, k_BxLxHxA, v_BxLxHxA = self.project(x_BxLxD, positions_BxL)
        if self.decode:
            o_BxLxHxA = self.attend_to_cache(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA)
        else:
            k_BxLxHxA, v_BxLxHxA = repeat_heads(q_BxLxHxA, k_BxLxHxA, v_BxLxHxA)
            o_BxLxHxA = attention(
                q_BxLxHxA, k_BxLxHxA, v_BxLxHxA, segments_BxL, self.config.attention
            )
        return self.out(o_BxLxHxA)

    def project(
        self, x_BxLxD: jax.Array, positions_BxL: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns queries, keys and values, each RxLxHxK.

        A subclass may make them depend on positions, and may return fewer heads of keys and values, each of which then
        serves several heads of queries that follow each other.
        """
        return self.query(x_BxLxD), self.key(x_BxLxD), self.value(x_BxLxD)

    @nn.compact
    def attend_to_cache(
        self, q_BxLxHxA: jax.Array, k_BxLxHxA: jax.Array, v_BxLxHxA: jax.Array
    ) -> jax.Array:
        """Appends keys and values to the cache, and returns the attention of the queries to all of it, RxLxHxK."""
        cached_key = self.variable("cache", "cached_key", jnp.zeros_like, k_BxLxHxA)
        cached_value = self.variable("cache", "cached_value", jnp.zeros_like, v_BxLxHxA)
        cache_index = self.variable("cache", "cache_index", jnp.zeros, (), jnp.int32)
        index, L = cache_index.value, q_BxLxHxA.shape[1]
        append = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=index, axis=1)
        k_BxJxHxA = cached_key.value = append(cached_key.value, k_BxLxHxA)
        v_BxJxHxA = cached_value.value = append(cached_value.value, v_BxLxHxA)
        cache_index.value = index + L
        k_BxJxHxA, v_BxJxHxA = repeat_heads(q_BxLxHxA, k_BxJxHxA, v_BxJxHxA)
        a_BxHxLxJ = jnp.einsum(
            "rlhk,rthk->rhlt", q_BxLxHxA, k_BxJxHxA, preferred_element_type=jnp.float32
        )
        causal_LxJ = jnp.arange(k_BxJxHxA.shape[1]) <= (index + jnp.arange(L))[:, None]
        a_BxHxLxJ = jnp.where(causal_LxJ, a_BxHxLxJ * q_BxLxHxA.shape[-1] ** -0.5, -jnp.inf)
        p_BxHxLxJ = jax.nn.softmax(a_BxHxLxJ).astype(q_BxLxHxA.dtype)
        return jnp.einsum("rhlt,rthk->rlhk", p_BxHxLxJ, v_BxJxHxA)


def repeat_heads(
    q_BxLxHxA: jax.Array, k_BxJxGxA: jax.Array, v_BxJxGxA: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values with as many heads as the queries, RxTxHxK."""
    copies = q_BxLxHxA.shape[2] // k_BxJxGxA.shape[2]
    if copies == 1:
        return k_BxJxGxA, v_BxJxGxA
    return jnp.repeat(k_BxJxGxA, copies, axis=2), jnp.repeat(v_BxJxGxA, copies, axis=2)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """Returns the gelu, of which the backward pass keeps only the argument: it computes the rest again."""
    return jax.nn.gelu(x)


def _gelu_backward(x: jax.Array, d_y: jax.Array) -> tuple[jax.Array]:
    # Without the barrier, the compiler would keep what the forward pass has computed.
    x, d_y = jax.lax.optimization_barrier((x, d_y))
    return jax.vjp(jax.nn.gelu, x)[1](d_y)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


class Mlp(nn.Module):
    """Two dense layers with a gelu between them."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """Returns the output of the layer, RxLxD, in the dtype of activations."""
        dense = functools.partial(
            nn.Dense,
            use_bias=False,
            dtype=self.config.dtype,
            kernel_init=nn.initializers.glorot_uniform(),
        )
        x_BxLxE = gelu(dense(4 * self.config.width, name="up")(x_BxLxD))
        return dense(self.config.width, name="down")(x_BxLxE)


class Block(nn.Module):
    """A transformer layer: attention and MLP, each after a layernorm and within a residual connection."""

    config: ModelConfig
    attention_class: type[nn.Module] = SelfAttention
    mlp_class: type[nn.Module] = Mlp
    norm: Callable[..., nn.Module] = layernorm
    decode: bool = False

    @nn.compact
    def __call__(
        self, h_BxLxD: jax.Array, segments_BxL: jax.Array, positions_BxL: jax.Array
    ) -> tuple[jax.Array, None]:
        """Returns the activations after the layer, RxLxD, and None, as `flax.linen.scan` requires."""
        attn: Any = self.attention_class(self.config, decode=self.decode, name="attn")
        mlp: Any = self.mlp_class(self.config, name="mlp")
        normed_BxLxD = self.norm(self.config, name="ln_attn")(h_BxLxD)
        h_BxLxD += attn(normed_BxLxD, segments_BxL, positions_BxL)
        h_BxLxD += mlp(self.norm(self.config, name="ln_mlp")(h_BxLxD))
        return h_BxLxD, None


class TransformerLM(nn.Module):
    """The language model: embeddings, Y blocks, and logits from the tied token embeddings.

    The trainer, the scorer and extraction take a module of this class. To change the architecture, pass them a module
    with other fields or a subclass:

    - ``attention_class``, ``mlp_class``: modules to use instead of `SelfAttention` and `Mlp`. They are constructed
      and called with the same arguments, and their dense weights should be called "kernel", since weights of that
      name are converted to the dtype of activations once per step.
    - ``norm``: a function ``norm(config, name=None)`` that returns a normalization, instead of `layernorm`.
    - `embed` of a subclass computes the input of the first block, and `output_embedding` returns the VxD array from
      which `logits` are computed.
    - `activation_numbers` of a subclass returns what its memory estimate needs.

    For example, rotary positions (Su et al. 2021) instead of learned ones::

        class RotaryAttention(SelfAttention):
            def project(self, x_BxLxD, positions_BxL):
                q_BxLxHxA, k_BxLxHxA, v_BxLxHxA = super().project(x_BxLxD, positions_BxL)
                return rotate(q_BxLxHxA, positions_BxL), rotate(k_BxLxHxA, positions_BxL), v_BxLxHxA


        class RotaryLM(TransformerLM):
            attention_class: type[nn.Module] = RotaryAttention

            def embed(self, x_BxL, positions_BxL):
                return self.token_embed(x_BxL).astype(self.config.dtype)
    """

    config: ModelConfig
    attention_class: type[nn.Module] = SelfAttention
    mlp_class: type[nn.Module] = Mlp
    norm: Callable[..., nn.Module] = layernorm
    decode: bool = False
    """Whether calls continue the sequences of earlier calls, which the collection "cache" holds.

    If so, parameters are those of `unstack_blocks`.
    """
    is_unstacked: bool = False
    """Whether parameters are those of `unstack_blocks`, which saves the backward pass the stacking of gradients."""

    if TYPE_CHECKING:

        def __hash__(self) -> int: ...  # flax defines it, but type checkers do not know

    def setup(self) -> None:
        """Declares the submodules."""
        config = self.config
        embed = functools.partial(
            Embedding,
            features=config.width,
            embedding_init=nn.initializers.normal(config.width**-0.5),
            gradient=config.embedding_gradient,
            gradient_dtype=config.dtype,
        )
        self.token_embed = embed(config.vocab_size)
        self.pos_embed = embed(config.length_tokens)
        self.ln_out = self.norm(config)
        block: Any = Block
        if config.remat != "none" and not self.decode:
            policies = jax.checkpoint_policies
            policy = {
                "dots": policies.dots_with_no_batch_dims_saveable,
                "full": policies.nothing_saveable,
            }[config.remat]
            # In a loop, XLA cannot merge the two computations, so that nothing has to prevent it.
            block = nn.remat(Block, policy=policy, prevent_cse=not config.scan_layers)
        # When decoding, a scan would copy the parameters of each layer, and its cache, for every token.
        if self.decode or self.is_unstacked:
            self.blocks: Any = [
                block(config, self.attention_class, self.mlp_class, self.norm, decode=self.decode)
                for _ in range(config.layers)
            ]
            return
        self.blocks = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,  # pyright: ignore[reportArgumentType]
            length=config.layers,
            unroll=1 if config.scan_layers else config.layers,
        )(config, self.attention_class, self.mlp_class, self.norm)

    def __call__(
        self,
        x_BxL: jax.Array,
        segments_BxL: jax.Array | None = None,
        positions_BxL: jax.Array | None = None,
    ) -> jax.Array:
        """Returns the logits of the next token at every position, RxLxV, float32.

        Args:
          x_BxL: int32 token ids, with L at most ``config.length_tokens``.
          segments_BxL: see `hidden`; by default, each sequence is one sample.
          positions_BxL: see `hidden`; by default, 0 to L - 1.
        """
        if segments_BxL is None:
            segments_BxL = jnp.ones_like(x_BxL)
        if positions_BxL is None:
            positions_BxL = jnp.broadcast_to(jnp.arange(x_BxL.shape[1]), x_BxL.shape)
        return self.logits(self.hidden(x_BxL, segments_BxL, positions_BxL))

    def hidden(
        self, x_BxL: jax.Array, segments_BxL: jax.Array, positions_BxL: jax.Array
    ) -> jax.Array:
        """Returns the activations before the product with the embeddings, RxLxD, in the dtype of activations.

        Args:
          x_BxL: int32 token ids, with L at most ``config.length_tokens``.
          segments_BxL: int32; tokens attend only to tokens with the same number.
          positions_BxL: int32, the position of each token in its sample.
        """
        h_BxLxD = self.embed(x_BxL, positions_BxL)
        for block in self.blocks if self.decode or self.is_unstacked else [self.blocks]:
            h_BxLxD, _ = block(h_BxLxD, segments_BxL, positions_BxL)
        return self.ln_out(h_BxLxD)

    def logits(self, h_BxLxD: jax.Array) -> jax.Array:
        """Returns the product of activations of `hidden` with the token embeddings, RxLxV, float32."""
        return self.token_embed.attend(h_BxLxD.astype(jnp.float32))

    def embed(self, x_BxL: jax.Array, positions_BxL: jax.Array) -> jax.Array:
        """Returns the sum of token and position embeddings, RxLxD, in the dtype of activations."""
        embedded_BxLxD = self.token_embed(x_BxL) + self.pos_embed(positions_BxL)
        return embedded_BxLxD.astype(self.config.dtype)

    @staticmethod
    def output_embedding(params: Params) -> jax.Array:
        """Returns the VxD array from which the logits are computed."""
        return params.get("output_embed", params["token_embed"])["embedding"]

    @staticmethod
    def activation_numbers(config: ModelConfig) -> float:
        """Returns how many numbers, in the dtype of activations, a layer keeps per token for the backward pass.

        Attention weights are not counted.
        """
        return 16.2 * config.width


def unstack_blocks(params: Params) -> Params:
    """Returns the parameters with an entry "blocks_i" for each layer i, instead of "blocks" with the layers stacked."""
    unstacked = {name: value for name, value in params.items() if name != "blocks"}
    for i in range(len(jax.tree.leaves(params["blocks"])[0])):
        unstacked[f"blocks_{i}"] = jax.tree.map(operator.itemgetter(i), params["blocks"])
    return unstacked


def stack_blocks(unstacked: Params) -> Params:
    """Returns the parameters, or their gradients, with all layers stacked in "blocks": reverses `unstack_blocks`."""
    blocks = [value for name, value in unstacked.items() if name.startswith("blocks_")]
    params = {name: value for name, value in unstacked.items() if not name.startswith("blocks_")}
    layers = [unstacked[f"blocks_{i}"] for i in range(len(blocks))]
    return params | {"blocks": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}


def init_params(model: TransformerLM, key: jax.Array) -> Params:
    """Returns initial parameters, a pure function of the key and the architecture.

    Embeddings are normal with standard deviation D^-0.5, kernels are Glorot-uniform, and layernorm scales are one.
    """
    # Always computed in the same way, so that not even rounding depends on it.
    config = dataclasses.replace(
        model.config,
        attention="xla",
        scan_layers=True,
        remat="none",
        embedding_gradient="scatter",
    )
    variables: Any = model.clone(config=config).init(key, jnp.zeros((1, 1), jnp.int32))
    return variables["params"]


@functools.lru_cache(maxsize=8)  # tracing takes longer than restoring a small model
def abstract_params(model: TransformerLM) -> Params:
    """Returns the shape and dtype of each parameter, without values, with layers stacked in "blocks"."""
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
