"""Scoring: loss and statistics of every sample of the population under a row, one forward pass a batch.

B: samples of a batch, L: tokens of a sample, N2: samples of the population (2N).
"""

import dataclasses
import functools
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm_mia import batches, checkpoint, loss, lowercase, min_k, model, sharding, subsets
from lm_mia.errors import UserError
from lm_mia.population import Population

Score = Callable[..., jax.Array]
Scores = Callable[..., dict[str, jax.Array]]

_CPU_TOKENS, _DEVICE_TOKENS = 1024, 65_536  # of a call


def make_score(shape: model.Shape) -> Score:
    """The compiled scorer: (params, x_BxL, length_B) -> loss_nats_B, float32."""

    def score(params: model.Params, x_BxL: jax.Array, length_B: jax.Array) -> jax.Array:
        return loss.sample_losses(model.forward(params, x_BxL, shape.dtype), x_BxL, length_B)

    return jax.jit(score)


def batch_size(asked: int, length_tokens: int, platform: str) -> int:
    """Samples a call: as many as asked for, or what did best on a platform ("cpu" or another), if 0."""
    return asked or max((_CPU_TOKENS if platform == "cpu" else _DEVICE_TOKENS) // length_tokens, 1)


@functools.cache
def make_scores(shape: model.Shape, statistics: frozenset[str]) -> Scores:
    """The compiled scorer of more than the loss, one a process: (params, x_BxL, length_B) -> {name: value_B}, float32.

    Args:
      shape: of the model.
      statistics: of `min_k.statistics`, beside "loss"; all come from one forward pass.
    """

    def scores(params: model.Params, x_BxL: jax.Array, length_B: jax.Array) -> dict[str, jax.Array]:
        logits_BxLxV = model.forward(params, x_BxL, shape.dtype)
        found = {"loss": loss.sample_losses(logits_BxLxV, x_BxL, length_B)}
        return found | min_k.statistics(statistics, logits_BxLxV, x_BxL, length_B)

    return jax.jit(scores)


def score_row(
    params: model.Params, population: Population, batch_size: int, score: Callable[..., Any]
) -> Any:
    """What a scorer says of every sample, in population order.

    Args:
      params: of the row.
      population: the samples.
      batch_size: samples a call; the last call is filled up with samples that do not count.
      score: of ``make_score`` or ``make_scores``, shared by rows.

    Returns:
      loss_nats_N2, float32, the mean loss a token; or {name: value_N2, float32} for a scorer of ``make_scores``.
    """
    found: list[Any] = []
    for low in range(0, len(population), batch_size):
        ids_B = np.arange(low, min(low + batch_size, len(population)))
        found.append(score(params, *batches.padded(population, ids_B, batch_size)))
    return jax.tree.map(
        lambda *value_B: np.concatenate(value_B)[: len(population)], *jax.device_get(found)
    )


@dataclasses.dataclass(frozen=True)
class Scorer:
    """What a worker scores rows with: compiled scorers and the population in lower case, made on first use and kept."""

    shape: model.Shape
    population: Population
    batch_size: int

    def values(self, params: model.Params, statistics: Collection[str]) -> dict[str, np.ndarray]:
        """{name: value_N2}, float32, of every sample under a row: "loss" and the statistics named.

        Loss, "min_k" and "min_k_plus_plus" come from one forward pass, "lowercase_loss" from one more.
        """
        of_tokens = frozenset(statistics) - {"lowercase_loss"}
        if of_tokens:
            found = self._score(params, self.population, make_scores(self.shape, of_tokens))
        else:
            found = {"loss": self._score(params, self.population, self._loss)}
        if "lowercase_loss" in statistics:
            found["lowercase_loss"] = self._score(params, self._lowercase, self._loss)
        return found

    def _score(self, params: model.Params, population: Population, score: Any) -> Any:
        return score_row(params, population, self.batch_size, score)

    @functools.cached_property
    def _loss(self) -> Score:
        return make_score(self.shape)

    @functools.cached_property
    def _lowercase(self) -> Population:
        return lowercase.lowercase(self.population)


def restore_params(
    row: subsets.Row,
    step: int,
    shape: model.Shape,
    folder: Path,
    mesh: jax.sharding.Mesh | None = None,
) -> model.Params:
    """Parameters of a row after so many updates, at a score point or its end; UserError if they are not there.

    All of them on this process's first device of the mesh (or of all), however many devices they were trained on.
    """
    mesh = mesh or sharding.mesh(jax.local_devices()[:1])
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    shapes: Any = jax.eval_shape(lambda: model.init(jax.random.key(0), shape))
    like = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=whole), shapes)
    with checkpoint.manager(folder) as checkpoints:
        if step not in checkpoints.all_steps():
            raise UserError(
                f"row {row}: not trained yet; run `lm-mia train` first (its state after step {step} is not there)"
            )
        params = checkpoint.restore(checkpoints, step, {"params": like})["params"]
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), params)
