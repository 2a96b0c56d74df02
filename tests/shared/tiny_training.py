"""A tiny model that is trained in this process, for tests of training."""

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

MODEL_CONFIG = transformer.ModelConfig(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
MODEL = transformer.TransformerLM(MODEL_CONFIG)
OPTIMIZER = config.Optimizer(1e-4, 3e-2, 1e-3, warmup_steps=2)
# N = 10 members in batches of 4, so 3 steps per epoch, the last of which is short.
TRAIN = config.Train(batch_size=4, epochs=2)
SAVE_OFTEN = config.Train(batch_size=4, epochs=2, checkpoint_minutes=1e-9)
SEEDS, STEPS = ModelSeeds("reference", 1, 2, 3), 6
PLAN = execution.plan_execution(config.Compute(micro_batch_size=2), MODEL_CONFIG, 4, "cpu")
DEFAULT_PLAN = execution.plan_execution(config.Compute(), MODEL_CONFIG, 4, "cpu")


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return sharding.make_mesh(jax.local_devices()[:1])


# Steps and losses are compiled once for all trainers.
_step = functools.cache(make_step)
_loss = functools.cache(make_loss)


@functools.cache
def trainer(
    population: Population,
    train_config: config.Train = TRAIN,
    optimizer_config: config.Optimizer = OPTIMIZER,
    plan: execution.ExecutionPlan = PLAN,
    step: Callable[..., Any] | None = None,
) -> loop.Trainer:
    """Returns the trainer of a tiny model, with another update if given."""
    model = transformer.TransformerLM(plan.model_config)
    trainer_of_plan = loop.Trainer(population, model, optimizer_config, train_config, plan, mesh())
    trainer_of_plan.__dict__["step"] = step or _step(
        model, optimizer_config, plan.chunk_tokens, mesh()
    )
    trainer_of_plan.__dict__["_loss"] = _loss(model, plan.chunk_tokens, mesh())
    return trainer_of_plan


def run(
    population: Population,
    checkpoint_dir: Path,
    seeds: ModelSeeds = SEEDS,
    step: Callable[..., Any] | None = None,
    report: Callable[[loop.Event], None] | None = None,
    keep_steps: Sequence[int] = (),
    should_stop: Callable[[int], bool] = lambda step: False,
    train_config: config.Train = TRAIN,
    optimizer_config: config.Optimizer = OPTIMIZER,
    plan: execution.ExecutionPlan = PLAN,
) -> list[loop.Event]:
    """Trains a model for STEPS steps, with another update if given, and returns the reported events."""
    events: list[loop.Event] = []
    used = trainer(population, train_config, optimizer_config, plan, step)
    loop.train_model(
        used, seeds, STEPS, checkpoint_dir, report or events.append, keep_steps, should_stop
    )
    return events


def newest(
    checkpoint_dir: Path, step: int | None = None
) -> tuple[int | None, checkpoint.TrainState]:
    """Returns the steps done and the state of a checkpoint, by default the newest; (None, initial state) without
    any."""
    state = checkpoint.init_state(0, MODEL, optimizer(OPTIMIZER))
    with checkpoint.manager(checkpoint_dir) as checkpoints:
        steps_done = step or checkpoints.latest_step()
        if steps_done is None:
            return None, state
        return steps_done, checkpoint.restore(checkpoints, steps_done, state)


def finite(state: checkpoint.TrainState) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@jax.jit
@jax.value_and_grad
def slow_gradient(params: transformer.Params, x_L: jax.Array, i: int) -> jax.Array:
    """Returns value and gradient of the loss of token i alone."""
    logits_1xLxV: Any = MODEL.apply({"params": params}, x_L[None])
    return -jax.nn.log_softmax(logits_1xLxV[0, i - 1])[x_L[i]]


def ids_of_steps(model: ModelSeeds, design: subsets.Design, canaries: int = 0) -> list[list[int]]:
    """Returns the sample ids of each step, computed by walking through the order."""
    member_N2 = subsets.member(model.subset_seed, 20, design, canaries)
    ids = [i for i, m in enumerate(member_N2) if m]
    plan: list[list[int]] = []
    for epoch in range(2):
        order = batch_order.epoch_order(model.order_seed, epoch, len(ids)).tolist()
        plan += [[ids[k] for k in order[low : low + 4]] for low in range(0, len(ids), 4)]
    return plan
