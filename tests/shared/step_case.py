"""A small batch with all edge cases of packing, and inputs of the compiled step."""

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
from lm_mia.model import kinds, transformer
from lm_mia.train import batching, checkpoint, sharding
from lm_mia.train.execution import ExecutionPlan
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import to_global_array

MODEL_CONFIG = transformer.ModelConfig(layers=2, width=16, heads=2, vocab_size=64, length_tokens=32)
MODEL = transformer.TransformerLM(MODEL_CONFIG)
OPTIMIZER = config.Optimizer(warmup_steps=0, weight_decay=0.1, clip_norm=0.5)
# Samples of full length, single tokens, pairs, and lengths that leave padding: 8 packed sequences.
LENGTHS = (32, 5, 9, 1, 20, 31, 2, 14, 7, 7, 3, 11, 30, 32, 1, 25)


def population(length_N: Sequence[int] = LENGTHS, seed: int = 0) -> Population:
    """Returns samples with these lengths and random tokens, in memory."""
    tokens = np.random.default_rng(seed).integers(1, MODEL_CONFIG.vocab_size, sum(length_N))
    settings = {"population.length_tokens": MODEL_CONFIG.length_tokens}
    manifest = {"settings": settings, "vocab_size": MODEL_CONFIG.vocab_size}
    return Population(Path(), tokens.astype(np.uint16), np.append(0, np.cumsum(length_N)), manifest)


def make_plan(
    micro_batch_size: int = 2,
    chunk_tokens: int = 24,
    scan_layers: bool = False,
    remat: Literal["none", "dots", "full"] = "none",
) -> ExecutionPlan:
    """Returns a plan for the model of this file."""
    config = dataclasses.replace(MODEL_CONFIG, scan_layers=scan_layers, remat=remat)
    return ExecutionPlan(config, (micro_batch_size,), chunk_tokens, "for a test")


@functools.cache
def parameters(shape: transformer.ModelConfig = MODEL_CONFIG) -> transformer.Params:
    """Returns initial weights with so much noise that each of them affects the output."""
    noise, model = np.random.default_rng(0), kinds.build(shape)
    return jax.tree.map(
        lambda p: p + 0.1 * noise.standard_normal(p.shape).astype(np.float32),
        jax.device_get(jax.jit(lambda: transformer.init_params(model, jax.random.key(0)))()),
    )


def state(
    mesh: Mesh, recipe: config.Optimizer = OPTIMIZER, shape: transformer.ModelConfig = MODEL_CONFIG
) -> checkpoint.TrainState:
    """Returns the state before the first update, on a mesh: moments and the count of updates are 0."""
    # These are copies, since an update writes over its state.
    params = jax.tree.map(np.array, parameters(shape))
    moments = jax.eval_shape(optimizer(recipe).init, params)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), moments)
    initial = checkpoint.TrainState(step=np.int32(0), params=params, opt_state=zeros)  # pyright: ignore
    return jax.device_put(initial, sharding.named_shardings(initial, mesh))


def pack(
    samples: Population,
    ids_B: np.ndarray,
    plan: ExecutionPlan,
    mesh: Mesh,
    min_samples: int = 0,
    packed: bool = True,
) -> tuple[batching.PackedBatch, batching.BatchStats]:
    """Packs samples in memory, with space for min_samples; without packing, each sample gets its own sequence."""
    length_B = samples.lengths_N[ids_B]
    packing_plan = batching.plan_packing(length_B, samples.length_tokens)
    if not packed:
        packing_plan = padded_plan(length_B)
    num_samples, M = max(min_samples, len(ids_B)), plan.micro_batch_size
    micro_batches = batching.max_micro_batches(num_samples, M, mesh.size)
    return batching.pack_batch(samples, ids_B, packing_plan, micro_batches, M, mesh.size)


def arguments(
    batch: batching.PackedBatch, stats: batching.BatchStats, mesh: Mesh
) -> tuple[Any, ...]:
    """Returns the arguments of a step or loss between state and learning rate."""
    return (
        to_global_array(batch, mesh),
        np.int32(stats.num_micro_batches),
        np.float32(stats.num_targets),
    )


def one_device() -> Mesh:
    return sharding.make_mesh(jax.devices()[:1])
