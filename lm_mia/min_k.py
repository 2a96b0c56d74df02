"""Statistics of a sample's least likely tokens: Min-K% and Min-K%++, at K = 20.

B: samples, L: tokens of a sample, V: pieces of the vocabulary. Larger = more member-like. The same from stored
log-probabilities, in numpy: `lm_mia.stats.baselines`.
"""

from collections.abc import Collection

import jax
import jax.numpy as jnp

from lm_mia import loss

_ONE_IN = 5  # 20 %, in whole numbers


def statistics(
    names: Collection[str], logits_BxLxV: jax.Array, x_BxL: jax.Array, length_B: jax.Array
) -> dict[str, jax.Array]:
    """Those of "min_k" and "min_k_plus_plus" that are named, of each sample.

    Args:
      names: others are passed over.
      logits_BxLxV, x_BxL, length_B: as of `loss.token_losses`.

    Returns:
      name -> value_B, float32; NaN for a sample of fewer than two tokens, which only fills a batch.
        min_k: mean log-probability, in nats, of the least likely fifth of the tokens (Shi et al. 2024, Detecting
          pretraining data from large language models).
        min_k_plus_plus: mean of the lowest fifth of the tokens' z-scores (`z_scores`; Zhang et al. 2025, Min-K%++).
    """
    found = {}
    if "min_k" in names:
        log_prob_BxL1 = -loss.token_losses(logits_BxLxV, x_BxL, length_B)
        found["min_k"] = lowest_mean(log_prob_BxL1, length_B)
    if "min_k_plus_plus" in names:
        found["min_k_plus_plus"] = lowest_mean(z_scores(logits_BxLxV, x_BxL), length_B)
    return found


def z_scores(logits_BxLxV: jax.Array, x_BxL: jax.Array) -> jax.Array:
    """z_BxL1, L1 = L - 1: (log p - mu) / sigma of every predicted token, padding not masked.

    mu and sigma are mean and standard deviation of log p with the token drawn from the model's own distribution of it.
    Where float32 cannot tell sigma from 0, the pieces are equally likely or one is certain: z is 0, its limit; but of a
    token that the model rules out it is the lowest that any distribution allows, -p ** -0.5, kept finite.
    """
    log_p_BxL1xV = jax.nn.log_softmax(logits_BxLxV[:, :-1])
    p_BxL1xV = jnp.exp(log_p_BxL1xV)
    mean_BxL1 = (p_BxL1xV * log_p_BxL1xV).sum(-1)
    # Around the mean: the difference of two moments would lose a small variance to rounding.
    centred_BxL1xV = log_p_BxL1xV - mean_BxL1[..., None]
    std_BxL1 = jnp.sqrt((p_BxL1xV * jnp.square(centred_BxL1xV)).sum(-1))
    of_token_BxL1 = jnp.take_along_axis(log_p_BxL1xV, x_BxL[:, 1:, None], axis=-1)[..., 0]
    spread_BxL1 = std_BxL1 > 1e-5 * jnp.abs(mean_BxL1)
    above_BxL1 = of_token_BxL1 - mean_BxL1
    z_BxL1 = above_BxL1 / jnp.where(spread_BxL1, std_BxL1, 1.0)
    # sigma^2 >= p (log p - mu)^2, of this token alone; above 1e35 a mean of several could overflow.
    lowest_BxL1 = -jnp.exp(jnp.minimum(-of_token_BxL1 / 2, 80.0))
    return jnp.where(spread_BxL1, z_BxL1, jnp.where(above_BxL1 < -1, lowest_BxL1, 0.0))


def lowest_mean(value_BxL1: jax.Array, length_B: jax.Array) -> jax.Array:
    """mean_B of the lowest fifth of a sample's values (rounded down, at least one), padding left out.

    Args:
      value_BxL1: of predicted tokens.
      length_B: tokens of each sample, one more than it has values; NaN comes back for 0 and 1.
    """
    count_B = length_B - 1
    lowest_B = jnp.maximum(count_B // _ONE_IN, 1)
    place_L1 = jnp.arange(value_BxL1.shape[1])
    sorted_BxL1 = jnp.sort(jnp.where(place_L1 < count_B[:, None], value_BxL1, jnp.inf))
    total_B = jnp.where(place_L1 < lowest_B[:, None], sorted_BxL1, 0.0).sum(1)
    return jnp.where(count_B > 0, total_B / lowest_B, jnp.nan)
