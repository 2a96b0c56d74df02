"""A small batch with every edge that packing has, and what the compiled step makes of it."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh
from padded_batches import padded_plan

from lm_mia import config
from lm_mia.data.population import Population
from lm_mia.model import transformer
from lm_mia.train import batching, checkpoint, sharding
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import to_global_array

SHAPE = transformer.ModelConfig(layers=2, width=16, heads=2, vocab_size=64, length_tokens=32)
MODEL = transformer.TransformerLM(SHAPE)
RECIPE = config.Optimizer(warmup_steps=0, weight_decay=0.1, clip_norm=0.5)
# Whole rows, single tokens, pairs, and samples that leave tails: 8 packed rows.
LENGTHS = (32, 5, 9, 1, 20, 31, 2, 14, 7, 7, 3, 11, 30, 32, 1, 25)


def population(length_N: Sequence[int] = LENGTHS, seed: int = 0) -> Population:
    """Samples of such lengths and of random pieces, in memory."""
    tokens = np.random.default_rng(seed).integers(1, SHAPE.vocab_size, sum(length_N))
    settings = {"population.length_tokens": SHAPE.length_tokens}
    manifest = {"settings": settings, "vocab_size": SHAPE.vocab_size}
    return Population(Path(), tokens.astype(np.uint16), np.append(0, np.cumsum(length_N)), manifest)


def make_plan(
    micro_batch_size: int = 2,
    chunk_tokens: int = 24,
    scan_layers: bool = False,
    remat: Literal["none", "dots", "full"] = "none",
) -> ExecutionPlan:
    """Returns a plan for the model of this file."""
    config = dataclasses.replace(SHAPE, scan_layers=scan_layers, remat=remat)
    return ExecutionPlan(config, micro_batch_size, chunk_tokens, "for a test")


@functools.cache
def parameters(shape: transformer.ModelConfig = SHAPE) -> transformer.Params:
    """Initial weights, with so much noise that each of them affects the output."""
    noise, model = np.random.default_rng(0), transformer.TransformerLM(shape)
    return jax.tree.map(
        lambda p: p + 0.1 * noise.standard_normal(p.shape).astype(np.float32),
        jax.device_get(jax.jit(lambda: transformer.init_params(model, jax.random.key(0)))()),
    )


def state(
    mesh: Mesh, recipe: config.Optimizer = RECIPE, shape: transformer.ModelConfig = SHAPE
) -> checkpoint.TrainState:
    """The state before the first update, on a mesh: moments and the count of updates are 0."""
    params = jax.tree.map(
        np.array, parameters(shape)
    )  # copies, since an update writes over its state
    moments = jax.eval_shape(optimizer(recipe).init, params)
    zeros = jax.tree.map(lambda of: np.zeros(of.shape, of.dtype), moments)
    initial = checkpoint.TrainState(step=np.int32(0), params=params, opt_state=zeros)  # pyright: ignore
    return jax.device_put(initial, sharding.named_shardings(initial, mesh))


def laid_out(
    samples: Population,
    ids_B: np.ndarray,
    chosen: ExecutionPlan,
    mesh: Mesh,
    most: int = 0,
    packed: bool = True,
) -> tuple[batching.PackedBatch, batching.BatchStats]:
    """Samples as rows in memory, with space for ``most`` of them at least; one sample a row if they are not packed."""
    length_B = samples.lengths_N[ids_B]
    plan = batching.plan_packing(length_B, samples.length_tokens)
    if not packed:
        plan = padded_plan(length_B)
    count = batching.max_micro_batches(max(most, len(ids_B)), chosen.micro_batch_size, mesh.size)
    return batching.pack_batch(samples, ids_B, plan, count, chosen.micro_batch_size, mesh.size)


def arguments(
    rows: batching.PackedBatch, sizes: batching.BatchStats, mesh: Mesh
) -> tuple[Any, ...]:
    """What a step or a loss takes between state and learning rate."""
    return (
        to_global_array(rows, mesh),
        np.int32(sizes.num_micro_batches),
        np.float32(sizes.num_targets),
    )


def one_device() -> Mesh:
    return sharding.make_mesh(jax.devices()[:1])
