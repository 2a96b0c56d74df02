"""Autoregressive text generation with cached keys and values.

All prefixes of a call have the same length, so that nothing is padded and no sample attends to another. <eos> does not
end a text: it is a token like any other, both in a prefix and in generated text.

B: samples, P: tokens of a prefix, G: generated tokens, V: vocabulary size.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from lm_mia import stats
from lm_mia.model import transformer

_Carry = tuple[jax.Array, Any]  # logits of the next token, BxV, and the cache


@functools.partial(jax.jit, static_argnames=("model", "num_tokens", "scheme"))
def generate(
    model: transformer.TransformerLM,
    params: transformer.Params,
    prefix_BxP: jax.Array,
    key_B: jax.Array,
    num_tokens: int,
    scheme: stats.SamplingScheme,
) -> jax.Array:
    """Generates the continuation of each prefix.

    Args:
      model: the model.
      params: its parameters.
      prefix_BxP: int32 token ids.
      key_B: one `jax.random` key per sample, so that a text does not depend on the other samples of the call.
      num_tokens: G; P + G must not exceed ``model.config.length_tokens``.
      scheme: the sampling scheme. Among equally likely tokens, greedy decoding takes the one with the lowest id.

    Returns:
      text_BxG, int32.
    """
    B, P = prefix_BxP.shape
    if P + num_tokens > (longest := model.config.length_tokens):
        raise ValueError(f"P + G = {P} + {num_tokens}: must be at most length_tokens={longest}")
    decoder = model.clone(decode=True)
    decoder_params = transformer.unstack_blocks(params)

    def next_logits(cache: Any, x_BxL: jax.Array, start: jax.Array | int) -> _Carry:
        """Appends tokens to the sequences, of which the first has position ``start``."""
        positions_BxL = jnp.broadcast_to(start + jnp.arange(x_BxL.shape[1]), x_BxL.shape)
        h_BxLxD, updated = decoder.apply(
            {"params": decoder_params, "cache": cache},
            x_BxL,
            jnp.ones_like(x_BxL),
            positions_BxL,
            method="hidden",
            mutable=["cache"],
        )
        logits_BxV: Any = decoder.apply({"params": decoder_params}, h_BxLxD[:, -1], method="logits")
        return logits_BxV, updated["cache"]

    def sample(logits_BxV: jax.Array, i: jax.Array) -> jax.Array:
        if scheme.temperature == 0:
            return logits_BxV.argmax(-1).astype(jnp.int32)
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(key_B, i)
        filtered_BxV = filter_logits(logits_BxV / scheme.temperature, scheme)
        return jax.vmap(jax.random.categorical)(keys_B, filtered_BxV).astype(jnp.int32)

    def step(carry: _Carry, i: jax.Array) -> tuple[_Carry, jax.Array]:
        logits_BxV, cache = carry
        token_B = sample(logits_BxV, i)
        return next_logits(cache, token_B[:, None], P + i), token_B

    first = next_logits(empty_cache(decoder, B, P + num_tokens), prefix_BxP, 0)
    _, text_GxB = jax.lax.scan(step, first, jnp.arange(num_tokens))
    return text_GxB.T


def empty_cache(decoder: transformer.TransformerLM, num_samples: int, num_tokens: int) -> Any:
    """Returns an empty cache with space for that many tokens of each sample."""
    x_BxL = jax.ShapeDtypeStruct((num_samples, num_tokens), jnp.int32)
    variables = jax.eval_shape(decoder.init, jax.random.key(0), x_BxL)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), variables["cache"])


def filter_logits(logits_BxV: jax.Array, scheme: stats.SamplingScheme) -> jax.Array:
    """Returns the logits, with -inf for tokens that the top-k and top-p settings of a scheme exclude.

    Computed in float32 by the definitions of `stats.token_log_probs`: tokens that are as likely as the k-th
    are kept, and the token with which the total probability reaches top_p is the last that is kept, but at least one.

    Args:
      logits_BxV: logits after division by the temperature.
      scheme: the sampling scheme.
    """
    if 0 < scheme.top_k < logits_BxV.shape[-1]:
        smallest_Bx1 = jax.lax.top_k(logits_BxV, scheme.top_k)[0][..., -1:]
        logits_BxV = jnp.where(logits_BxV >= smallest_Bx1, logits_BxV, -jnp.inf)
    if scheme.top_p < 1:
        order_BxV = jnp.argsort(-logits_BxV, axis=-1, stable=True)
        p_BxV = jax.nn.softmax(jnp.take_along_axis(logits_BxV, order_BxV, -1))
        is_kept_BxV = (jnp.cumsum(p_BxV, -1) - p_BxV < scheme.top_p).at[..., 0].set(True)
        rank_BxV = jnp.argsort(order_BxV, axis=-1)
        is_kept_BxV = jnp.take_along_axis(is_kept_BxV, rank_BxV, -1)
        logits_BxV = jnp.where(is_kept_BxV, logits_BxV, -jnp.inf)
    return logits_BxV
