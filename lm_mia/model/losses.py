"""Next-token losses and token statistics of packed sequences, computed without holding all logits at once.

R: packed sequences, L: tokens per packed sequence, V: tokens in the vocabulary, T: tokens, C: tokens per chunk,
N: chunks, D: width of the model.
"""

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp


def z_scores(log_p_TxV: jax.Array, token_T: jax.Array) -> jax.Array:
    """Computes the Min-K%++ z-score (log p - mu) / sigma of each token.

    mu and sigma are the mean and the standard deviation of log p when the token is drawn from the model's own
    distribution. Where float32 cannot distinguish sigma from 0, either all tokens are equally likely or one is certain,
    and z is 0, its limit. A token that a certain distribution rules out gets the lowest z that any distribution allows,
    -p ** -0.5, clipped so that it stays finite.

    Args:
      log_p_TxV: log-probabilities of the whole vocabulary, float32.
      token_T: ids of the tokens that occur.

    Returns:
      z_T, float32.

    Source: Zhang et al. 2025, Min-K%++.
    """
    p_TxV = jnp.exp(log_p_TxV)
    mean_T = (p_TxV * log_p_TxV).sum(-1)
    # Deviations from the mean: the difference of two moments would lose a small variance to rounding.
    std_T = jnp.sqrt((p_TxV * jnp.square(log_p_TxV - mean_T[:, None])).sum(-1))
    token_log_p_T = jnp.take_along_axis(log_p_TxV, token_T[:, None], axis=-1)[:, 0]
    has_spread_T = std_T > 1e-5 * jnp.abs(mean_T)
    deviation_T = token_log_p_T - mean_T
    z_T = deviation_T / jnp.where(has_spread_T, std_T, 1.0)
    # sigma^2 >= p (log p - mu)^2 from this token alone; above 1e35 a mean of several z-scores could overflow.
    lowest_T = -jnp.exp(jnp.minimum(-token_log_p_T / 2, 80.0))
    return jnp.where(has_spread_T, z_T, jnp.where(deviation_T < -1, lowest_T, 0.0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def weighted_cross_entropy(
    h_TxD: jax.Array,
    embed_VxD: jax.Array,
    target_T: jax.Array,
    weight_T: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Computes the weighted sum of the tokens' cross-entropies, in nats, one chunk of tokens at a time.

    The forward pass also computes the gradient, chunk by chunk: this takes three matrix products with the embedding
    instead of four, and holds at most C x V logits. Differentiable with respect to h_TxD and embed_VxD only.

    Args:
      h_TxD: activations of any float type; the matrix products are computed in this type.
      embed_VxD: output embedding, float32. Logits are h @ embed.T, in float32.
      target_T: ids of the tokens to predict.
      weight_T: weights, float32; 0 where nothing is predicted.
      chunk_tokens: the largest C. T is padded to a multiple of C.

    Returns:
      The sum, a float32 scalar.
    """
    return _chunked_cross_entropy(
        h_TxD, embed_VxD, target_T, weight_T, chunk_tokens, with_gradient=False
    )[0]


def _chunked_cross_entropy(
    h_TxD: jax.Array,
    embed_VxD: jax.Array,
    target_T: jax.Array,
    weight_T: jax.Array,
    chunk_tokens: int,
    with_gradient: bool,
) -> tuple[jax.Array, Any]:
    """Returns the weighted sum and, if requested, its gradients (d_h_TxD, d_embed_VxD)."""
    T, D = h_TxD.shape
    C = min(chunk_tokens, T)
    num_chunks = -(-T // C)
    padding = num_chunks * C - T
    h_NxCxD = jnp.pad(h_TxD, ((0, padding), (0, 0))).reshape(num_chunks, C, D)
    target_NxC, weight_NxC = (
        jnp.pad(a, (0, padding)).reshape(num_chunks, C) for a in (target_T, weight_T)
    )
    compute_embed_VxD = embed_VxD.astype(h_TxD.dtype)

    def chunk(
        carry: tuple[jax.Array, Any], inputs: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, Any], Any]:
        (total, d_embed_VxD), (h_CxD, target_C, weight_C) = carry, inputs
        logits_CxV = jnp.einsum(
            "cd,vd->cv", h_CxD, compute_embed_VxD, preferred_element_type=jnp.float32
        )
        log_z_C = jax.nn.logsumexp(logits_CxV, axis=-1)
        target_logit_C = jnp.take_along_axis(logits_CxV, target_C[:, None], axis=-1)[:, 0]
        total += (weight_C * (log_z_C - target_logit_C)).sum()
        if not with_gradient:
            return (total, None), None
        p_CxV = jnp.exp(logits_CxV - log_z_C[:, None])
        one_hot_CxV = jnp.arange(p_CxV.shape[1]) == target_C[:, None]
        d_logits_CxV = (weight_C[:, None] * (p_CxV - one_hot_CxV)).astype(h_CxD.dtype)
        d_embed_VxD += jnp.einsum(
            "cv,cd->vd", d_logits_CxV, h_CxD, preferred_element_type=jnp.float32
        )
        return (total, d_embed_VxD), jnp.einsum("cv,vd->cd", d_logits_CxV, compute_embed_VxD)

    zeros_VxD = jnp.zeros_like(embed_VxD) if with_gradient else None
    (total, d_embed_VxD), d_h_NxCxD = jax.lax.scan(
        chunk, (jnp.float32(0), zeros_VxD), (h_NxCxD, target_NxC, weight_NxC)
    )
    if not with_gradient:
        return total, None
    return total, (d_h_NxCxD.reshape(num_chunks * C, D)[:T], d_embed_VxD)


def _cross_entropy_forward(*args: Any) -> tuple[jax.Array, Any]:
    return _chunked_cross_entropy(*args, with_gradient=True)


def _cross_entropy_backward(_: int, gradients: Any, factor: jax.Array) -> tuple[Any, ...]:
    d_h_TxD, d_embed_VxD = gradients
    return (factor * d_h_TxD).astype(d_h_TxD.dtype), factor * d_embed_VxD, None, None


weighted_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def packed_loss(
    h_RxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_RxL: jax.Array,
    segment_RxL: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Computes the sum of the losses of all predicted tokens of packed sequences, in nats.

    A token is predicted if the token before it belongs to the same sample.

    Args:
      h_RxLxD: activations, as for `weighted_cross_entropy`.
      embed_VxD: output embedding, float32.
      x_RxL: token ids.
      segment_RxL: sample of each token within its packed sequence: 1, 2, ...; 0 for padding.
      chunk_tokens: largest number of tokens whose logits are held at once.

    Returns:
      The sum, a float32 scalar.
    """
    is_predicted_RxL1 = (segment_RxL[:, 1:] == segment_RxL[:, :-1]) & (segment_RxL[:, 1:] > 0)
    # The last position predicts nothing. It gets weight 0 instead of being cut off, so that shapes stay round.
    weight_RxL = jnp.pad(is_predicted_RxL1, ((0, 0), (0, 1))).astype(jnp.float32)
    target_RxL = jnp.pad(x_RxL[:, 1:], ((0, 0), (0, 1)))
    h_TxD = h_RxLxD.reshape(-1, h_RxLxD.shape[-1])
    return weighted_cross_entropy(
        h_TxD, embed_VxD, target_RxL.ravel(), weight_RxL.ravel(), chunk_tokens
    )


def token_statistics(
    h_RxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_RxL: jax.Array,
    names: Collection[str],
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """Computes statistics of each token of packed sequences given the tokens before it, one chunk at a time.

    Args:
      h_RxLxD: activations of any float type; the matrix product is computed in this type.
      embed_VxD: output embedding, float32. Logits are h @ embed.T, in float32.
      x_RxL: token ids.
      names: requested statistics beside "loss", which is always computed; see Returns.
      chunk_tokens: largest number of tokens whose logits are held at once.

    Returns:
      {name: value_RxL}, float32. The value at a position is that of the token at this position, predicted from the
      positions before it. The values at the first token of each sample are meaningless.

        loss: the cross-entropy, in nats.
        target_logit: the token's own logit.
        z_score: the z-score of the token's log-probability, see `z_scores`.
        greedy: 1 where no other token is likelier.
    """
    R, L, D = h_RxLxD.shape
    T, C = R * L, min(chunk_tokens, R * L)
    num_chunks = -(-T // C)
    padding = num_chunks * C - T
    # Each position predicts the next token. The prediction of the very last position is cut off below.
    target_T = jnp.pad(x_RxL[:, 1:], ((0, 0), (0, 1))).ravel()
    h_NxCxD = jnp.pad(h_RxLxD.reshape(T, D), ((0, padding), (0, 0))).reshape(num_chunks, C, D)
    target_NxC = jnp.pad(target_T, (0, padding)).reshape(num_chunks, C)
    compute_embed_VxD = embed_VxD.astype(h_RxLxD.dtype)

    def chunk(inputs: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        h_CxD, target_C = inputs
        logits_CxV = jnp.einsum(
            "cd,vd->cv", h_CxD, compute_embed_VxD, preferred_element_type=jnp.float32
        )
        log_z_C = jax.nn.logsumexp(logits_CxV, axis=-1)
        target_logit_C = jnp.take_along_axis(logits_CxV, target_C[:, None], axis=-1)[:, 0]
        statistics = {"loss": log_z_C - target_logit_C}
        if "target_logit" in names:
            statistics["target_logit"] = target_logit_C
        if "z_score" in names:
            statistics["z_score"] = z_scores(logits_CxV - log_z_C[:, None], target_C)
        if "greedy" in names:
            statistics["greedy"] = (target_logit_C >= logits_CxV.max(axis=-1)).astype(jnp.float32)
        return statistics

    statistics = jax.lax.map(chunk, (h_NxCxD, target_NxC))
    return {
        name: jnp.pad(value_NxC.ravel()[:T].reshape(R, L)[:, :-1], ((0, 0), (1, 0)))
        for name, value_NxC in statistics.items()
    }
