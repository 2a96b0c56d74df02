"""Scoring: the mean token loss of every sample of the population under a row, one forward pass a batch.

B: samples of a batch, L: tokens of a sample, N2: samples of the population (2N).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm_mia import batches, checkpoint, loss, model, subsets
from lm_mia.errors import UserError
from lm_mia.population import Population

Score = Callable[..., jax.Array]


def make_score(shape: model.Shape) -> Score:
    """The compiled scorer: (params, x_BxL, length_B) -> loss_nats_B, float32."""

    def score(params: model.Params, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
        return loss.sample_losses(model.forward(params, x_BxL, shape.dtype), x_BxL, length_B)

    return jax.jit(score)


def score_row(
    params: model.Params,
    population: Population,
    batch_size: int,
    score: Score,
) -> np.ndarray:
    """loss_nats_N2, float32: the mean loss a token of every sample, in population order.

    Args:
      params: of the row.
      population: the samples.
      batch_size: samples a call; the last call is filled up with samples that do not count.
      score: of ``make_score``, shared by rows.
    """
    losses: list[jax.Array] = []
    for low in range(0, len(population), batch_size):
        ids_B = np.arange(low, min(low + batch_size, len(population)))
        losses.append(score(params, *batches.padded(population, ids_B, batch_size)))
    return np.concatenate(jax.device_get(losses))[: len(population)]


def restore_params(row: subsets.Row, steps: int, shape: model.Shape, folder: Path) -> model.Params:
    """Parameters of a row after its last update; UserError if it has not been trained to its end."""
    like: Any = jax.eval_shape(lambda: model.init(jax.random.key(0), shape))
    with checkpoint.manager(folder) as checkpoints:
        if checkpoints.latest_step() != steps:
            raise UserError(f"row {row}: not trained yet; run `lm-mia train` first")
        return checkpoint.restore(checkpoints, steps, {"params": like})["params"]
