"""One tiny row, trained in this process: what tests of training share."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm_mia import checkpoint, compute, config, model, sharding, train
from lm_mia.optimizer import optimizer
from lm_mia.population import Population
from lm_mia.subsets import Row

SHAPE = model.Shape(layers=1, width=8, heads=2, vocab_size=32, length_tokens=8)
RECIPE = config.Optimizer(1e-4, 3e-2, 1e-3, warmup_steps=2)
# N = 10 members in batches of 4, so 3 steps an epoch, of which the last is short.
TRAIN = config.Train(batch_size=4, epochs=2)
OFTEN = config.Train(batch_size=4, epochs=2, checkpoint_minutes=1e-9)
ROW, STEPS = Row("reference", 1, 2, 3), 6
CHOICE = compute.choose(config.Compute(micro_rows=2), SHAPE, 4, "cpu")
PADDED = compute.choose(config.Compute(batching="padded"), SHAPE, 4, "cpu")


@functools.cache
def mesh() -> jax.sharding.Mesh:
    return sharding.mesh(jax.local_devices()[:1])


_TRAINERS: dict[Any, train.Trainer] = {}


def trainer(
    population: Population,
    settings: config.Train = TRAIN,
    recipe: config.Optimizer = RECIPE,
    choice: compute.Choice = CHOICE,
    shape: model.Shape = SHAPE,
) -> train.Trainer:
    """One for each choice of arguments, so that each is compiled once."""
    key = str(population.folder), settings, recipe, choice, shape
    if key not in _TRAINERS:
        new = train.Trainer(population, shape, recipe, settings, choice, mesh())
        for (_, _, *others), made in _TRAINERS.items():  # compiled code does not depend on the rest
            if others == [recipe, choice, shape]:
                new.__dict__["step"] = made.step
        _TRAINERS[key] = new
    return _TRAINERS[key]


def run(
    population: Population,
    folder: Path,
    row: Row = ROW,
    step: Callable[..., Any] | None = None,
    report: Callable[[train.Event], None] | None = None,
    keep: Sequence[int] = (),
    stop: Callable[[int], bool] = lambda step: False,
    **of_trainer: Any,
) -> list[train.Event]:
    """Trains a row of STEPS steps to its end, with another update if given; what it reported."""
    events: list[train.Event] = []
    used = trainer(population, **of_trainer)
    if step:
        used = train.Trainer(
            *(used.population, used.shape, used.recipe, used.train, used.choice, used.mesh)
        )
        used.__dict__["step"] = step
    train.train_row(used, row, STEPS, folder, report or events.append, keep, stop)
    return events


def newest(folder: Path, step: int | None = None) -> tuple[int | None, checkpoint.State]:
    """A saved state of a row, or its newest; a fresh state if there is none."""
    state = checkpoint.fresh(0, SHAPE, optimizer(RECIPE))
    with checkpoint.manager(folder) as checkpoints:
        steps_done = step or checkpoints.latest_step()
        if steps_done is None:
            return None, state
        return steps_done, checkpoint.restore(checkpoints, steps_done, state)


def finite(state: checkpoint.State) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
