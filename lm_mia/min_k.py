"""Statistics of a sample's least likely tokens: Min-K% and Min-K%++, at K = 20.

T: tokens, V: pieces of the vocabulary, S: samples. Larger = more member-like. The same from stored log-probabilities of
one sample a row: `lm_mia.stats.baselines`.
"""

import jax
import jax.numpy as jnp
import numpy as np

_ONE_IN = 5  # 20 %, in whole numbers


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


def lowest_mean(value_T: np.ndarray, count_S: np.ndarray) -> np.ndarray:
    """mean_S, float64, of the lowest fifth of each sample's values (rounded down, at least one), in numpy.

    Min-K% of log-probabilities in nats (Shi et al. 2024, Detecting pretraining data from large language models), and
    Min-K%++ of z-scores.

    Args:
      value_T: of the samples' predicted tokens, one sample after another.
      count_S: values of each sample, 1 or more.
    """
    sample_T = np.repeat(np.arange(len(count_S)), count_S)
    sorted_T = value_T[np.lexsort((value_T, sample_T))]
    begin_S = np.cumsum(count_S) - count_S
    lowest_S = np.maximum(count_S // _ONE_IN, 1)
    place_T = np.arange(len(value_T)) - np.repeat(begin_S, count_S)
    kept_T = np.where(place_T < np.repeat(lowest_S, count_S), sorted_T, 0.0)
    return np.add.reduceat(kept_T, begin_S, dtype=np.float64) / lowest_S
