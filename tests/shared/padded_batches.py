"""Batches of one sample per sequence, and their loss from all logits, as a reference for packed batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lm_mia.data.population import Population
from lm_mia.train.batching import PackingPlan


def padded_plan(length_B: np.ndarray) -> PackingPlan:
    """Returns a plan with one sample per sequence."""
    B = len(length_B)
    return PackingPlan(np.arange(B), np.zeros(B, np.int64), np.ones(B, np.int64), B)


def padded(
    population: Population, ids_B: np.ndarray, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns x_BxL and length_B, int32. A short batch is filled up with samples of length 0, which have no loss."""
    x_BxL = np.zeros((batch_size, population.length_tokens), np.int32)
    length_B = np.zeros(batch_size, np.int32)
    x_BxL[: len(ids_B)] = population.pad(ids_B)
    length_B[: len(ids_B)] = population.lengths_N[ids_B]
    return x_BxL, length_B


def token_losses(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
    """Returns loss_nats_BxL1 of each token given those before it, L1 = L - 1; 0 where the token is padding."""
    nats_BxL1 = optax.softmax_cross_entropy_with_integer_labels(logits_BxLxV[:, :-1], x_BxL[:, 1:])
    return jnp.where(jnp.arange(1, x_BxL.shape[1]) < length_B[:, None], nats_BxL1, 0.0)


def batch_loss(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
    """Returns the mean loss in nats over all predicted tokens of a batch, which training minimizes."""
    return token_losses(logits_BxLxV, x_BxL, length_B).sum() / jnp.maximum(length_B - 1, 0).sum()
