"""One tiny row, trained in this process: what tests of training share."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm_mia import config
from lm_mia.data import batch_order, subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.model import transformer
from lm_mia.train import checkpoint, execution, loop, sharding
from lm_mia.train.optimizer import optimizer
from lm_mia.train.step import make_loss, make_step

SHAPE = transformer.ModelConfig(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
MODEL = transformer.TransformerLM(SHAPE)
RECIPE = config.Optimizer(1e-4, 3e-2, 1e-3, warmup_steps=2)
# N = 10 members in batches of 4, so 3 steps an epoch, of which the last is short.
TRAIN = config.Train(batch_size=4, epochs=2)
OFTEN = config.Train(batch_size=4, epochs=2, checkpoint_minutes=1e-9)
ROW, STEPS = ModelSeeds("reference", 1, 2, 3), 6
CHOICE = execution.plan_execution(config.Compute(micro_batch_size=2), SHAPE, 4, "cpu")
PACKED = execution.plan_execution(config.Compute(), SHAPE, 4, "cpu")


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return sharding.make_mesh(jax.local_devices()[:1])


# Compiled once for all trainers.
_step = functools.cache(make_step)
_loss = functools.cache(make_loss)


@functools.cache
def trainer(
    population: Population,
    settings: config.Train = TRAIN,
    recipe: config.Optimizer = RECIPE,
    choice: execution.ExecutionPlan = CHOICE,
    step: Callable[..., Any] | None = None,
) -> loop.Trainer:
    """Of a tiny row, with another update if given."""
    model = transformer.TransformerLM(choice.model_config)
    new = loop.Trainer(population, model, recipe, settings, choice, mesh())
    new.__dict__["step"] = step or _step(model, recipe, choice.chunk_tokens, mesh())
    new.__dict__["_loss"] = _loss(model, choice.chunk_tokens, mesh())
    return new


def run(
    population: Population,
    folder: Path,
    row: ModelSeeds = ROW,
    step: Callable[..., Any] | None = None,
    report: Callable[[loop.Event], None] | None = None,
    keep: Sequence[int] = (),
    stop: Callable[[int], bool] = lambda step: False,
    settings: config.Train = TRAIN,
    recipe: config.Optimizer = RECIPE,
    choice: execution.ExecutionPlan = CHOICE,
) -> list[loop.Event]:
    """Trains a row of STEPS steps to its end, with another update if given; what it reported."""
    events: list[loop.Event] = []
    used = trainer(population, settings, recipe, choice, step)
    loop.train_model(used, row, STEPS, folder, report or events.append, keep, stop)
    return events


def newest(folder: Path, step: int | None = None) -> tuple[int | None, checkpoint.TrainState]:
    """A saved state of a row, or its newest; a fresh state if there is none."""
    state = checkpoint.init_state(0, MODEL, optimizer(RECIPE))
    with checkpoint.manager(folder) as checkpoints:
        steps_done = step or checkpoints.latest_step()
        if steps_done is None:
            return None, state
        return steps_done, checkpoint.restore(checkpoints, steps_done, state)


def finite(state: checkpoint.TrainState) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@jax.jit
@jax.value_and_grad
def slow_gradient(params: transformer.Params, x_L: jax.Array, i: int) -> jax.Array:
    """Of the loss of token i alone."""
    logits_1xLxV: Any = MODEL.apply({"params": params}, x_L[None])
    return -jax.nn.log_softmax(logits_1xLxV[0, i - 1])[x_L[i]]


def plan_of(row: ModelSeeds, design: subsets.Design) -> list[list[int]]:
    """Sample ids of every step, by a walk through the order."""
    ids = [i for i, m in enumerate(subsets.member(row.subset_seed, 20, design)) if m]
    plan: list[list[int]] = []
    for epoch in range(2):
        order = batch_order.epoch_order(row.order_seed, epoch, len(ids)).tolist()
        plan += [[ids[k] for k in order[low : low + 4]] for low in range(0, len(ids), 4)]
    return plan
