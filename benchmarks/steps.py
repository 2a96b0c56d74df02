"""Training steps by name, ours and NanoDO's, on C4-like batches: to be run, measured or lowered.

B: samples of a batch, L: tokens of a row, M: rows of a micro-batch, N: micro-batches, R: rows.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import c4_like
import fresh
import jax
import nanodo_peer
import numpy as np

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import transformer
from lm_mia.train import batching, checkpoint, execution, loop, sharding
from lm_mia.train.optimizer import learning_rates, optimizer
from lm_mia.train.step import to_global_array

Step = Callable[[np.ndarray], dict[str, Any]]
"""Trains on samples, by their ids, and returns metrics, which may not be there yet."""

RECIPE = config.Optimizer(warmup_steps=10)
STEPS = 1000  # of the schedule
PACKED, PADDED = "packed", "padded"
THEIRS, CONCATENATED = "NanoDO padded", "NanoDO concatenated"


def shape_of(size: str, scale: int = 1, dtype: str = "float32") -> transformer.ModelConfig:
    """A size by name, with 32,000 pieces; "small" is 2 layers of 256, with 4,096."""
    layers, width = (2, 256) if size == "small" else config.MODEL_SIZES[size]
    vocab_size, heads = 4096 if size == "small" else 32_000, width // config.HEAD_WIDTH
    return transformer.ModelConfig(
        layers, width, heads, vocab_size, c4_like.LENGTH_TOKENS // scale, dtype
    )


def ours(population: Population, shape: transformer.ModelConfig, batch_size: int) -> Any:
    """Our trainer on the first device, as a worker makes it."""
    device = jax.local_devices()[0]
    choice = execution.plan_execution(config.Compute(), shape, batch_size, device.platform)
    settings, mesh = config.Train(batch_size=batch_size), sharding.make_mesh([device])
    model = transformer.TransformerLM(choice.model_config)
    return loop.Trainer(population, model, RECIPE, settings, choice, mesh)


def padded_rows(
    trainer: loop.Trainer, population: Population, ids_B: np.ndarray
) -> tuple[batching.PackedBatch, batching.BatchStats]:
    """Samples on the device, one a row, to be compared with the packed batches of ``trainer.pack``."""
    B, M = len(ids_B), trainer.plan.micro_batch_size
    plan = batching.PackingPlan(np.arange(B), np.zeros(B, np.int64), np.ones(B, np.int64), B)
    count = batching.max_micro_batches(B, M, num_devices=1)
    rows, sizes = batching.pack_batch(population, ids_B, plan, count, M)
    return to_global_array(rows, trainer.mesh), sizes


def make_step(
    name: str,
    population: Population,
    shape: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
) -> Step:
    """A step by its name, from the same parameters each time; NanoDO's two share a state and an executable."""
    if name in (PACKED, PADDED):
        trainer = ours(population, shape, batch_size)
        laid_out = trainer.pack if name == PACKED else functools.partial(padded_rows, trainer)
        rate_T, count = learning_rates(RECIPE, STEPS), itertools.count()
        state = checkpoint.init_state(0, trainer.model, optimizer(RECIPE))

        def step(ids_B: np.ndarray) -> dict[str, Any]:
            nonlocal state
            rows, sizes = laid_out(population, ids_B)
            trips, predicted = np.int32(sizes.num_micro_batches), np.float32(sizes.num_targets)
            state, metrics = trainer.step(state, rows, trips, predicted, rate_T[next(count)])
            return metrics

        return step
    assert nanodo
    theirs, count = _their_trainer(nanodo, shape, batch_size)
    if name == THEIRS:
        return lambda ids_B: theirs.do_step(next(count), population.pad(ids_B))
    samples = [population.sample(i) for i in range(len(population))]
    x_RxL = nanodo_peer.concatenated(nanodo_peer.load(nanodo), samples, shape.length_tokens)
    return lambda ids_B: theirs.do_step(next(count), x_RxL[ids_B])


@functools.cache
def _their_trainer(
    nanodo: Path, shape: transformer.ModelConfig, batch_size: int
) -> tuple[Any, Iterator[int]]:
    given = nanodo_peer.settings(shape, RECIPE, batch_size, STEPS)
    theirs = nanodo_peer.trainer(nanodo_peer.load(nanodo), given)
    model = transformer.TransformerLM(shape)
    nanodo_peer.use(theirs, checkpoint.init_state(0, model, optimizer(RECIPE)).params)
    return theirs, itertools.count()


def two_steps(
    clock: fresh.Clock,
    folder: Path,
    *,
    name: str,
    shape: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
) -> fresh.Results:
    """A work for `fresh.measure`."""
    population = c4_like.population(2 * batch_size, shape.vocab_size)
    step = make_step(name, population, shape, batch_size, nanodo)
    with clock:
        for ids_B in np.arange(2 * batch_size).reshape(2, batch_size):
            jax.block_until_ready(step(ids_B))
    return {}


def compiled_bytes(step: Any) -> int:
    """What a lowered step, once compiled, needs at most: arguments, and all that is computed from them."""
    found = step.compile().memory_analysis()
    outputs = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + outputs + found.temp_size_in_bytes


def lowered(
    *,
    name: str,
    shape: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
    whole_chunks: bool = False,
) -> Any:
    """A step as XLA gets it, made without any array.

    Args:
      name, shape, batch_size, nanodo: as of `make_step`.
      whole_chunks: ours without the loop over chunks of tokens whose logits are held at once, so that all are counted.
    """
    if name == THEIRS:
        assert nanodo
        given = nanodo_peer.settings(shape, RECIPE, batch_size, STEPS)
        return nanodo_peer.lowered(nanodo_peer.load(nanodo), given)
    # The executable is the same for packed and for padded rows.
    t = ours(c4_like.population(batch_size, shape.vocab_size), shape, batch_size)
    M = t.plan.micro_batch_size
    if whole_chunks:
        choice = dataclasses.replace(t.plan, chunk_tokens=M * shape.length_tokens)
        t = dataclasses.replace(t, plan=choice)
    micro_batches = batching.max_micro_batches(batch_size, M, num_devices=1)
    x_NxMxL = jax.ShapeDtypeStruct((micro_batches, M, shape.length_tokens), np.int32)
    state = checkpoint.abstract_state(t.model, optimizer(RECIPE), t.mesh)
    return t.step.lower(
        state, batching.PackedBatch(*[x_NxMxL] * 3), np.int32(1), np.float32(1), np.float32(0)
    )
