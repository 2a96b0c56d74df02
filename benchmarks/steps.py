"""Training steps by name, ours and NanoDO's, on C4-like batches: to be run, measured or lowered.

B: samples of a batch, L: tokens per packed sequence, M: packed sequences per micro-batch, N: micro-batches,
R: packed sequences.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import c4_like
import fresh
import jax
import nanodo_peer
import numpy as np

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import transformer
from lm_mia.run import backend
from lm_mia.train import batching, checkpoint, execution, loop, sharding
from lm_mia.train.optimizer import learning_rates, optimizer
from lm_mia.train.step import to_global_array

Step = Callable[[np.ndarray], dict[str, Any]]
"""Trains on samples, given by their ids, and returns metrics, which may still be being computed."""
Attention = Literal["auto", "xla", "cudnn", "pallas"]

OPTIMIZER = config.Optimizer(warmup_steps=10)
ROUNDING = {"float32": 1e-5, "bfloat16": 1e-2}
"""Largest relative difference of a loss between implementations, by type of activations."""
STEPS = 1000  # length of the learning rate schedule
PACKED, PADDED = "packed", "padded"
THEIRS, CONCATENATED = "NanoDO padded", "NanoDO concatenated"


def sized_model_config(
    size: str, scale: int = 1, dtype: str = "float32"
) -> transformer.ModelConfig:
    """Returns the config of a named size with a vocabulary of 32,000; "small" is 2 layers of width 256 with 4,096."""
    layers, width = (2, 256) if size == "small" else config.MODEL_SIZES[size]
    model = config.resolve(config.Config(model=config.Model("custom", layers, width))).model
    vocab_size = 4096 if size == "small" else 32_000
    return transformer.ModelConfig(*model.shape, vocab_size, c4_like.LENGTH_TOKENS // scale, dtype)


def make_trainer(
    population: Population,
    model_config: transformer.ModelConfig,
    batch_size: int,
    attention: Attention = "auto",
) -> Any:
    """Returns our trainer on the first device, created as a worker does."""
    device = jax.local_devices()[0]
    compute = config.Compute(attention=attention)
    plan = execution.plan_execution(
        compute, model_config, batch_size, device.platform, backend.memory_bytes()
    )
    settings, mesh = config.Train(batch_size=batch_size), sharding.make_mesh([device])
    model = transformer.TransformerLM(plan.model_config)
    return loop.Trainer(population, model, OPTIMIZER, settings, plan, mesh)


def pack_padded(
    trainer: loop.Trainer, population: Population, ids_B: np.ndarray
) -> tuple[batching.PackedBatch, batching.BatchStats]:
    """Places samples on the device, one per packed sequence, for comparison with ``trainer.pack``."""
    B, M = len(ids_B), trainer.plan.micro_batch_size
    plan = batching.PackingPlan(np.arange(B), np.zeros(B, np.int64), np.ones(B, np.int64), B)
    count = batching.max_micro_batches(B, M, num_devices=1)
    batch, stats = batching.pack_batch(population, ids_B, plan, count, M)
    return to_global_array(batch, trainer.mesh), stats


def one_batch_a_size(
    population: Population,
    model_config: transformer.ModelConfig,
    attention: Attention,
    ids_TxB: np.ndarray,
) -> list[np.ndarray]:
    """Returns ids_B of the first batch for each size of micro-batches that our step uses for some batches."""
    plan = make_trainer(population, model_config, ids_TxB.shape[1], attention).plan
    first: dict[int, np.ndarray] = {}
    for ids_B in ids_TxB:
        packing = batching.plan_packing(population.lengths_N[ids_B], population.length_tokens)
        size = batching.choose_micro_batch_size(plan.micro_batch_sizes, packing.num_sequences, 1)
        first.setdefault(size, ids_B)
    return [*first.values()]


def make_step(
    name: str,
    population: Population,
    model_config: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
    attention: Attention = "auto",
    grad_accumulation_steps: int = 1,
) -> Step:
    """Returns a step by name, always from the same parameters.

    NanoDO's two steps share a state and an executable.

    Args:
      name: PACKED, PADDED, THEIRS or CONCATENATED.
      population: the samples.
      model_config: the model.
      batch_size: samples per batch.
      nanodo: a checkout of NanoDO, for its steps.
      attention: implementation of attention of our steps.
      grad_accumulation_steps: micro-batches into which THEIRS divides a batch. The metrics are those of the last one.
    """
    if name in (PACKED, PADDED):
        trainer = make_trainer(population, model_config, batch_size, attention)
        pack = trainer.pack if name == PACKED else functools.partial(pack_padded, trainer)
        learning_rate_S, count = learning_rates(OPTIMIZER, STEPS), itertools.count()
        state = checkpoint.init_state(0, trainer.model, optimizer(OPTIMIZER))

        def step(ids_B: np.ndarray) -> dict[str, Any]:
            nonlocal state
            batch, stats = pack(population, ids_B)
            num_micro_batches, num_targets = (
                np.int32(stats.num_micro_batches),
                np.float32(stats.num_targets),
            )
            state, metrics = trainer.step(
                state, batch, num_micro_batches, num_targets, learning_rate_S[next(count)]
            )
            return metrics

        return step
    assert nanodo
    theirs, count = _their_trainer(nanodo, model_config, batch_size, grad_accumulation_steps)
    if name == THEIRS:

        def their_step(ids_B: np.ndarray) -> dict[str, Any]:
            parts = np.split(ids_B, grad_accumulation_steps)
            return [theirs.do_step(next(count), population.pad(ids)) for ids in parts][-1]

        return their_step
    samples = [population.sample(i) for i in range(len(population))]
    x_BxL = nanodo_peer.concatenated(nanodo_peer.load(nanodo), samples, model_config.length_tokens)
    return lambda ids_B: theirs.do_step(next(count), x_BxL[ids_B])


@functools.cache
def _their_trainer(
    nanodo: Path,
    model_config: transformer.ModelConfig,
    batch_size: int,
    grad_accumulation_steps: int,
) -> tuple[Any, Iterator[int]]:
    settings = nanodo_peer.settings(
        model_config, OPTIMIZER, batch_size, STEPS, grad_accumulation_steps
    )
    theirs = nanodo_peer.trainer(nanodo_peer.load(nanodo), settings)
    model = transformer.TransformerLM(model_config)
    nanodo_peer.set_params(theirs, checkpoint.init_state(0, model, optimizer(OPTIMIZER)).params)
    return theirs, itertools.count()


def two_steps(
    clock: fresh.Clock,
    folder: Path,
    *,
    name: str,
    model_config: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
) -> fresh.Results:
    """Makes two steps, as a workload for `fresh.measure`."""
    population = c4_like.population(2 * batch_size, model_config.vocab_size)
    step = make_step(name, population, model_config, batch_size, nanodo)
    with clock:
        for ids_B in np.arange(2 * batch_size).reshape(2, batch_size):
            jax.block_until_ready(step(ids_B))
    return {}


def compiled_bytes(step: Any) -> int:
    """Returns the memory of a lowered step, once compiled: arguments, outputs and temporary arrays."""
    planned = step.compile().memory_analysis()
    outputs = planned.output_size_in_bytes - planned.alias_size_in_bytes
    return planned.argument_size_in_bytes + outputs + planned.temp_size_in_bytes


def lowered(
    *,
    name: str,
    model_config: transformer.ModelConfig,
    batch_size: int,
    nanodo: Path | None,
    whole_chunks: bool = False,
) -> Any:
    """Returns a lowered step, created without allocating arrays.

    Args:
      name, model_config, batch_size, nanodo: as for `make_step`.
      whole_chunks: lowers our step without its loop over chunks of tokens, so that all FLOPs of the loss are counted.
    """
    if name == THEIRS:
        assert nanodo
        settings = nanodo_peer.settings(model_config, OPTIMIZER, batch_size, STEPS)
        return nanodo_peer.lowered(nanodo_peer.load(nanodo), settings)
    # Packed and padded batches share one executable.
    t = make_trainer(
        c4_like.population(batch_size, model_config.vocab_size), model_config, batch_size
    )
    M = t.plan.micro_batch_size
    if whole_chunks:
        plan = dataclasses.replace(t.plan, chunk_tokens=M * model_config.length_tokens)
        t = dataclasses.replace(t, plan=plan)
    num_micro_batches = batching.max_micro_batches(batch_size, M, num_devices=1)
    x_UxBxL = jax.ShapeDtypeStruct((num_micro_batches, M, model_config.length_tokens), np.int32)
    state = checkpoint.abstract_state(t.model, optimizer(OPTIMIZER), t.mesh)
    return t.step.lower(
        state, batching.PackedBatch(*[x_UxBxL] * 3), np.int32(1), np.float32(1), np.float32(0)
    )
