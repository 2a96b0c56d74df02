"""Next-token losses and token statistics of packed sequences, computed without holding all logits at once.

B: packed sequences, L: tokens per packed sequence, V: tokens in the vocabulary, W: tokens, J: tokens per chunk,
I: chunks, D: width of the model.
"""

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp


def z_scores(log_p_WxV: jax.Array, token_W: jax.Array) -> jax.Array:
    """Computes the Min-K%++ z-score (log p - mu) / sigma of each token.

    mu and sigma are the mean and the standard deviation of log p when the token is drawn from the model's own
    distribution. Where float32 cannot distinguish sigma from 0, either all tokens are equally likely or one is certain,
    and z is 0, its limit. A token that a certain distribution rules out gets the lowest z that any distribution allows,
    -p ** -0.5, clipped so that it stays finite.

    Args:
      log_p_WxV: log-probabilities of the whole vocabulary, float32.
      token_W: ids of the tokens that occur.

    Returns:
      z_W, float32.

    Source: Zhang et al. 2025, Min-K%++.
    """
    p_WxV = jnp.exp(log_p_WxV)
    mean_W = (p_WxV * log_p_WxV).sum(-1)
    # Deviations from the mean: the difference of two moments would lose a small variance to rounding.
    std_W = jnp.sqrt((p_WxV * jnp.square(log_p_WxV - mean_W[:, None])).sum(-1))
    token_log_p_W = jnp.take_along_axis(log_p_WxV, token_W[:, None], axis=-1)[:, 0]
    has_spread_W = std_W > 1e-5 * jnp.abs(mean_W)
    deviation_W = token_log_p_W - mean_W
    z_W = deviation_W / jnp.where(has_spread_W, std_W, 1.0)
    # sigma^2 >= p (log p - mu)^2 from this token alone; above 1e35 a mean of several z-scores could overflow.
    lowest_W = -jnp.exp(jnp.minimum(-token_log_p_W / 2, 80.0))
    return jnp.where(has_spread_W, z_W, jnp.where(deviation_W < -1, lowest_W, 0.0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted_cross_entropy(
    h_WxD: jax.Array,
    embed_VxD: jax.Array,
    target_W: jax.Array,
    weight_W: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Computes the weighted sum of the tokens' cross-entropies, in nats, one chunk of tokens at a time.

    The forward pass also computes the gradient, chunk by chunk: this takes three matrix products with the embedding
    instead of four, and holds at most J x V logits. Differentiable with respect to h_WxD and embed_VxD only.

    Args:
      h_WxD: activations of any float type; the matrix products are computed in this type.
      embed_VxD: output embedding, float32. Logits are h @ embed.T, in float32.
      target_W: ids of the tokens to predict.
      weight_W: weights, float32; 0 where nothing is predicted.
      chunk_tokens: the largest J. W is padded to a multiple of J.

    Returns:
      The sum, a float32 scalar.
    """
    return _chunked_cross_entropy(
        h_WxD, embed_VxD, target_W, weight_W, chunk_tokens, with_gradient=False
    )[0]


def _chunked_cross_entropy(
    h_WxD: jax.Array,
    embed_VxD: jax.Array,
    target_W: jax.Array,
    weight_W: jax.Array,
    chunk_tokens: int,
    with_gradient: bool,
) -> tuple[jax.Array, Any]:
    """Returns the weighted sum and, if requested, its gradients (d_h_WxD, d_embed_VxD)."""
    W, D = h_WxD.shape
    J = min(chunk_tokens, W)
    num_chunks = -(-W // J)
    padding = num_chunks * J - W
    h_IxJxD = jnp.pad(h_WxD, ((0, padding), (0, 0))).reshape(num_chunks, J, D)
    target_IxJ, weight_IxJ = (
        jnp.pad(a, (0, padding)).reshape(num_chunks, J) for a in (target_W, weight_W)
    )
    compute_embed_VxD = embed_VxD.astype(h_WxD.dtype)

    def chunk(
        carry: tuple[jax.Array, Any], inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, Any], Any]:
        (total, d_embed_VxD), (h_JxD, target_J, weight_J) = carry, inputs
        logits_JxV = jnp.einsum(
            "cd,vd->cv", h_JxD, compute_embed_VxD, preferred_element_type=jnp.float32
        )
        log_z_J = jax.nn.logsumexp(logits_JxV, axis=-1)
        target_logit_J = jnp.take_along_axis(logits_JxV, target_J[:, None], axis=-1)[:, 0]
        total += (weight_J * (log_z_J - target_logit_J)).sum()
        if not with_gradient:
            return (total, None), None
        p_JxV = jnp.exp(logits_JxV - log_z_J[:, None])
        one_hot_JxV = jnp.arange(p_JxV.shape[1]) == target_J[:, None]
        d_logits_JxV = (weight_J[:, None] * (p_JxV - one_hot_JxV)).astype(h_JxD.dtype)
        d_embed_VxD += jnp.einsum(
            "cv,cd->vd", d_logits_JxV, h_JxD, preferred_element_type=jnp.float32
        )
        return (total, d_embed_VxD), jnp.einsum("cv,vd->cd", d_logits_JxV, compute_embed_VxD)

    zeros_VxD = jnp.zeros_like(embed_VxD) if with_gradient else None
    (total, d_embed_VxD), d_h_IxJxD = jax.lax.scan(
        chunk, (jnp.float32(0), zeros_VxD), (h_IxJxD, target_IxJ, weight_IxJ)
    )
    if not with_gradient:
        return total, None
    return total, (d_h_IxJxD.reshape(num_chunks * J, D)[:W], d_embed_VxD)


def _cross_entropy_forward(*args: Any) -> tuple[jax.Array, Any]:
    return _chunked_cross_entropy(*args, with_gradient=True)


def _cross_entropy_backward(_: int, gradients: Any, factor: jax.Array) -> tuple[Any, ...]:
    d_h_WxD, d_embed_VxD = gradients
    return (factor * d_h_WxD).astype(d_h_WxD.dtype), factor * d_embed_VxD, None, None


weighted_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def packed_loss(
    h_BxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_BxL: jax.Array,
    segment_BxL: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Computes the sum of the losses of all predicted tokens of packed sequences, in nats.

    A token is predicted if the token before it belongs to the same sample.

    Args:
      h_BxLxD: activations, as for `weighted_cross_entropy`.
      embed_VxD: output embedding, float32.
      x_BxL: token ids.
      segment_BxL: sample of each token within its packed sequence: 1, 2, ...; 0 for padding.
      chunk_tokens: largest number of tokens whose logits are held at once.

    Returns:
      The sum, a float32 scalar.
    """
    is_predicted_BxL1 = (segment_BxL[:, 1:] == segment_BxL[:, :-1]) & (segment_BxL[:, 1:] > 0)
    # The last position predicts nothing. It gets weight 0 instead of being cut off, so that shapes stay round.
    weight_BxL = jnp.pad(is_predicted_BxL1, ((0, 0), (0, 1))).astype(jnp.float32)
    target_BxL = jnp.pad(x_BxL[:, 1:], ((0, 0), (0, 1)))
    h_WxD = h_BxLxD.reshape(-1, h_BxLxD.shape[-1])
    return weighted_cross_entropy(
        h_WxD, embed_VxD, target_BxL.ravel(), weight_BxL.ravel(), chunk_tokens
    )


def token_statistics(
    h_BxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_BxL: jax.Array,
    names: Collection[str],
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """Computes statistics of each token of packed sequences given the tokens before it, one chunk at a time.

    Args:
      h_BxLxD: activations of any float type; the matrix product is computed in this type.
      embed_VxD: output embedding, float32. Logits are h @ embed.T, in float32.
      x_BxL: token ids.
      names: requested statistics beside "loss", which is always computed; see Returns.
      chunk_tokens: largest number of tokens whose logits are held at once.

    Returns:
      {name: value_BxL}, float32. The value at a position is that of the token at this position, predicted from the
      positions before it. The values at the first token of each sample are meaningless.

        loss: the cross-entropy, in nats.
        target_logit: the token's own logit.
        z_score: the z-score of the token's log-probability, see `z_scores`.
        greedy: 1 where no other token is likelier.
    """
    B, L, D = h_BxLxD.shape
    W, J = B * L, min(chunk_tokens, B * L)
    num_chunks = -(-W // J)
    padding = num_chunks * J - W
    # Each position predicts the next token. The prediction of the very last position is cut off below.
    target_W = jnp.pad(x_BxL[:, 1:], ((0, 0), (0, 1))).ravel()
    h_IxJxD = jnp.pad(h_BxLxD.reshape(W, D), ((0, padding), (0, 0))).reshape(num_chunks, J, D)
    target_IxJ = jnp.pad(target_W, (0, padding)).reshape(num_chunks, J)
    compute_embed_VxD = embed_VxD.astype(h_BxLxD.dtype)

    def chunk(inputs: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        h_JxD, target_J = inputs
        logits_JxV = jnp.einsum(
            "cd,vd->cv", h_JxD, compute_embed_VxD, preferred_element_type=jnp.float32
        )
        log_z_J = jax.nn.logsumexp(logits_JxV, axis=-1)
        target_logit_J = jnp.take_along_axis(logits_JxV, target_J[:, None], axis=-1)[:, 0]
        statistics = {"loss": log_z_J - target_logit_J}
        if "target_logit" in names:
            statistics["target_logit"] = target_logit_J
        if "z_score" in names:
            statistics["z_score"] = z_scores(logits_JxV - log_z_J[:, None], target_J)
        if "greedy" in names:
            statistics["greedy"] = (target_logit_J >= logits_JxV.max(axis=-1)).astype(jnp.float32)
        return statistics

    statistics = jax.lax.map(chunk, (h_IxJxD, target_IxJ))
    return {
        name: jnp.pad(value_IxJ.ravel()[:W].reshape(B, L)[:, :-1], ((0, 0), (1, 0)))
        for name, value_IxJ in statistics.items()
    }
