"""Next-token loss and statistics of tokens, from the activations of packed rows, without ever holding all logits.

R: rows, L: tokens of a row, V: pieces of the vocabulary, T: tokens of any number of rows, C: tokens of a chunk,
D: width.
"""

import functools
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp


def z_scores(log_p_TxV: jax.Array, token_T: jax.Array) -> jax.Array:
    """z_T: (log p - mu) / sigma of every token (Zhang et al. 2025, Min-K%++), in JAX.

    mu and sigma are mean and standard deviation of log p with the token drawn from the model's own distribution of it.
    Where float32 cannot tell sigma from 0, the pieces are equally likely or one is certain: z is 0, its limit; but of a
    token that the model rules out it is the lowest that any distribution allows, -p ** -0.5, kept finite.

    Args:
      log_p_TxV: log-probabilities of all pieces, float32.
      token_T: the piece that came.
    """
    p_TxV = jnp.exp(log_p_TxV)
    mean_T = (p_TxV * log_p_TxV).sum(-1)
    # Around the mean: the difference of two moments would lose a small variance to rounding.
    std_T = jnp.sqrt((p_TxV * jnp.square(log_p_TxV - mean_T[:, None])).sum(-1))
    of_token_T = jnp.take_along_axis(log_p_TxV, token_T[:, None], axis=-1)[:, 0]
    spread_T = std_T > 1e-5 * jnp.abs(mean_T)
    above_T = of_token_T - mean_T
    z_T = above_T / jnp.where(spread_T, std_T, 1.0)
    # sigma^2 >= p (log p - mu)^2, of this token alone; above 1e35 a mean of several could overflow.
    lowest_T = -jnp.exp(jnp.minimum(-of_token_T / 2, 80.0))
    return jnp.where(spread_T, z_T, jnp.where(above_T < -1, lowest_T, 0.0))


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def summed(
    h_TxD: jax.Array,
    embed_VxD: jax.Array,
    target_T: jax.Array,
    weight_T: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Weighted sum of the cross-entropies of tokens, in nats, float32, a chunk of tokens at a time.

    The gradient is taken with the loss, chunk by chunk: three matrix products of V x D a token, not four, and logits
    of C x V at most. Differentiable in h_TxD and embed_VxD only.

    Args:
      h_TxD: activations, of any float type, which is also that of the matrix products.
      embed_VxD: float32; logits are h @ embed.T, float32.
      target_T: the pieces to predict.
      weight_T: float32, 0 where nothing is predicted.
      chunk_tokens: C at most; T is filled up to a multiple of it.
    """
    return _chunks(h_TxD, embed_VxD, target_T, weight_T, chunk_tokens, with_gradient=False)[0]


def _chunks(
    h_TxD: jax.Array,
    embed_VxD: jax.Array,
    target_T: jax.Array,
    weight_T: jax.Array,
    chunk_tokens: int,
    with_gradient: bool,
) -> tuple[jax.Array, Any]:
    T, D = h_TxD.shape
    C = min(chunk_tokens, T)
    n = -(-T // C)
    fill = n * C - T
    h_NxCxD = jnp.pad(h_TxD, ((0, fill), (0, 0))).reshape(n, C, D)
    target_NxC, weight_NxC = (jnp.pad(a, (0, fill)).reshape(n, C) for a in (target_T, weight_T))
    rough_VxD = embed_VxD.astype(h_TxD.dtype)

    def chunk(
        carry: tuple[jax.Array, Any], part: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, Any], Any]:
        (total, d_embed_VxD), (h_CxD, target_C, weight_C) = carry, part
        logits_CxV = jnp.einsum("cd,vd->cv", h_CxD, rough_VxD, preferred_element_type=jnp.float32)
        log_z_C = jax.nn.logsumexp(logits_CxV, axis=-1)
        chosen_C = jnp.take_along_axis(logits_CxV, target_C[:, None], axis=-1)[:, 0]
        total += (weight_C * (log_z_C - chosen_C)).sum()
        if not with_gradient:
            return (total, None), None
        p_CxV = jnp.exp(logits_CxV - log_z_C[:, None])
        hit_CxV = jnp.arange(p_CxV.shape[1]) == target_C[:, None]
        d_logits_CxV = (weight_C[:, None] * (p_CxV - hit_CxV)).astype(h_CxD.dtype)
        d_embed_VxD += jnp.einsum(
            "cv,cd->vd", d_logits_CxV, h_CxD, preferred_element_type=jnp.float32
        )
        return (total, d_embed_VxD), jnp.einsum("cv,vd->cd", d_logits_CxV, rough_VxD)

    zero = jnp.zeros_like(embed_VxD) if with_gradient else None
    (total, d_embed_VxD), d_h_NxCxD = jax.lax.scan(
        chunk, (jnp.float32(0), zero), (h_NxCxD, target_NxC, weight_NxC)
    )
    if not with_gradient:
        return total, None
    return total, (d_h_NxCxD.reshape(n * C, D)[:T], d_embed_VxD)


def _summed_forward(*args: Any) -> tuple[jax.Array, Any]:
    return _chunks(*args, with_gradient=True)


def _summed_backward(_: int, gradient: Any, factor: jax.Array) -> tuple[Any, ...]:
    d_h_TxD, d_embed_VxD = gradient
    return (factor * d_h_TxD).astype(d_h_TxD.dtype), factor * d_embed_VxD, None, None


summed.defvjp(_summed_forward, _summed_backward)


def packed_loss(
    h_RxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_RxL: jax.Array,
    segment_RxL: jax.Array,
    chunk_tokens: int,
) -> jax.Array:
    """Sum, in nats, of the losses of all predicted tokens of packed rows.

    A token is predicted where the one before it is of the same sample (segments 1, 2, ...; 0 is no sample).
    """
    same_RxL1 = (segment_RxL[:, 1:] == segment_RxL[:, :-1]) & (segment_RxL[:, 1:] > 0)
    # the last token of a row predicts nothing: its weight is 0, so that the shapes stay round
    weight_RxL = jnp.pad(same_RxL1, ((0, 0), (0, 1))).astype(jnp.float32)
    target_RxL = jnp.pad(x_RxL[:, 1:], ((0, 0), (0, 1)))
    h_TxD = h_RxLxD.reshape(-1, h_RxLxD.shape[-1])
    return summed(h_TxD, embed_VxD, target_RxL.ravel(), weight_RxL.ravel(), chunk_tokens)


def token_statistics(
    h_RxLxD: jax.Array,
    embed_VxD: jax.Array,
    x_RxL: jax.Array,
    names: Collection[str],
    chunk_tokens: int,
) -> dict[str, jax.Array]:
    """What a model says of every token of packed rows given those before it, a chunk of tokens at a time.

    Args:
      h_RxLxD: activations, of any float type, which is also that of the matrix product.
      embed_VxD: float32; logits are h @ embed.T, float32.
      x_RxL: token ids.
      names: of what is wanted; see below.
      chunk_tokens: logits of so many tokens at most are held at once.

    Returns:
      {name: value_RxL}, float32. At a place stands the value of the token there, which the place before it predicts;
      what stands at the first token of a sample means nothing.
        loss: nats.
        target_logit: the token's own logit.
        z_score: of its log-probability, as of `z_scores`.
        greedy: 1 where no other piece is likelier.
    """
    R, L, D = h_RxLxD.shape
    T, C = R * L, min(chunk_tokens, R * L)
    n = -(-T // C)
    # the place before a token predicts it; what that is for the first of all is never looked at
    target_T = jnp.pad(x_RxL[:, 1:], ((0, 0), (0, 1))).ravel()
    h_NxCxD = jnp.pad(h_RxLxD.reshape(T, D), ((0, n * C - T), (0, 0))).reshape(n, C, D)
    target_NxC = jnp.pad(target_T, (0, n * C - T)).reshape(n, C)
    rough_VxD = embed_VxD.astype(h_RxLxD.dtype)

    def chunk(part: tuple[jax.Array, jax.Array]) -> dict[str, jax.Array]:
        h_CxD, target_C = part
        logits_CxV = jnp.einsum("cd,vd->cv", h_CxD, rough_VxD, preferred_element_type=jnp.float32)
        log_z_C = jax.nn.logsumexp(logits_CxV, axis=-1)
        chosen_C = jnp.take_along_axis(logits_CxV, target_C[:, None], axis=-1)[:, 0]
        found = {"loss": log_z_C - chosen_C}
        if "target_logit" in names:
            found["target_logit"] = chosen_C
        if "z_score" in names:
            found["z_score"] = z_scores(logits_CxV - log_z_C[:, None], target_C)
        if "greedy" in names:
            found["greedy"] = (chosen_C >= logits_CxV.max(axis=-1)).astype(jnp.float32)
        return found

    found = jax.lax.map(chunk, (h_NxCxD, target_NxC))
    return {
        name: jnp.pad(value_NxC.ravel()[:T].reshape(R, L)[:, :-1], ((0, 0), (1, 0)))
        for name, value_NxC in found.items()
    }
