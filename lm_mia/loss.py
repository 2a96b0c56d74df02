"""Next-token loss, masked on padding.

B: samples, L: tokens of a sample, V: pieces of the vocabulary.
"""

import jax
import jax.numpy as jnp


def token_losses(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
    """Cross-entropy of every token given those before it.

    Args:
      logits_BxLxV: logits at position l predict token l + 1.
      x_BxL: token ids, of which the first length_B of a sample are real and the rest padding.
      length_B: tokens of each sample; 0 for a sample that only fills the batch.

    Returns:
      loss_nats_BxL1 with L1 = L - 1, float32, exactly 0 where the predicted token is padding. The first token (<bos>)
      is never predicted, so a sample of n tokens has n - 1 losses.
    """
    target_BxL1 = x_BxL[:, 1:]
    logits_BxL1xV = logits_BxLxV[:, :-1]
    log_z_BxL1 = jax.nn.logsumexp(logits_BxL1xV, axis=-1)
    chosen_BxL1 = jnp.take_along_axis(logits_BxL1xV, target_BxL1[..., None], axis=-1)[..., 0]
    real_BxL1 = jnp.arange(1, x_BxL.shape[1]) < length_B[:, None]
    return jnp.where(real_BxL1, log_z_BxL1 - chosen_BxL1, 0.0)


def batch_loss(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
    """Mean loss in nats over all predicted tokens of a batch: what training minimises. NaN for an empty batch."""
    return token_losses(logits_BxLxV, x_BxL, length_B).sum() / jnp.maximum(length_B - 1, 0).sum()


def sample_losses(logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
    """loss_nats_B: mean loss a predicted token of each sample; NaN for a sample of fewer than two tokens."""
    return token_losses(logits_BxLxV, x_BxL, length_B).sum(1) / jnp.maximum(length_B - 1, 0)
