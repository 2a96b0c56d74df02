"""Determines from file names which models of a workdir exist and which are missing, and checks their scores."""

import contextlib
import functools
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import filelock
import numpy as np

from lm_mia import config
from lm_mia.config import Config
from lm_mia.data import batch_order, subsets
from lm_mia.data.subsets import ModelSeeds
from lm_mia.run.stages import ModelVerb
from lm_mia.store import check
from lm_mia.store.store import open_store, with_stored_statistics

if TYPE_CHECKING:
    from lm_mia.data.population import Population


_MOMENTS = "opt_state"
"""The part of a checkpoint that `lm_mia.train.checkpoint` calls so; that module loads JAX."""


def missing_models(
    verb: ModelVerb, c: Config, recipe_dir: Path, models: list[ModelSeeds]
) -> list[ModelSeeds]:
    """Returns the models that a verb has to make, in the given order.

    A model is finished when its losses and all of ``score.statistics`` are stored, at every score point; it then needs
    no training, even if its checkpoints were deleted. A model that lacks a statistic is scored again from its
    checkpoints. A model that diverged is not missing, since it would diverge again.

    Args:
      verb: whether models are to be trained, scored, or both ("run").
      c: the config.
      recipe_dir: folder of the recipe.
      models: the requested models.
    """
    return [
        model
        for model in unscored_models(c, recipe_dir, models)
        if not divergence_file(recipe_dir, model).exists()
        and (verb != "train" or not is_trained(c, recipe_dir, model))
    ]


def unscored_models(c: Config, recipe_dir: Path, models: list[ModelSeeds]) -> list[ModelSeeds]:
    """Returns the models for which a loss or a requested statistic is not stored, in the given order."""
    return open_store(c, recipe_dir).missing_models(models)


def missing_parts(c: Config, recipe_dir: Path, models: Sequence[ModelSeeds]) -> list[int]:
    """Returns the number of parts of the scores that each model lacks: shards of one statistic at one score point.

    It is 0 for a model that is not trained yet.
    """
    store = open_store(c, recipe_dir)
    stored = {*store.models()}
    return [
        sum(len(store.missing_shards(model, step)) for step in (0, *store.steps))
        if model in stored and is_trained(c, recipe_dir, model)
        else 0
        for model in models
    ]


def is_trained(c: Config, recipe_dir: Path, model: ModelSeeds) -> bool:
    """Returns whether the final state of a model is saved, judging by file names alone; a base needs no training."""
    if model.role == "base":
        return True
    return (checkpoint_dir(recipe_dir, model) / str(total_steps(c, model))).is_dir()


@functools.cache  # the size of a Bernoulli subset is known only after drawing it
def total_steps(c: Config, model: ModelSeeds) -> int:
    """Returns the number of training steps of a model."""
    if c.train.subset != "bernoulli":
        return config.total_steps(c)
    members = int(subsets.member_of_config(model, c).sum())
    return c.train.epochs * batch_order.steps_per_epoch(members, c.train.batch_size)


def checkpoint_dir(recipe_dir: Path, model: ModelSeeds) -> Path:
    """Returns the folder of a model's checkpoints."""
    return recipe_dir / "checkpoints" / str(model)


def drop_moments(recipe_dir: Path, model: ModelSeeds) -> None:
    """Deletes the state of the optimizer from all checkpoints of a model, which must be trained; parameters stay."""
    for folder in checkpoint_dir(recipe_dir, model).glob(f"*/{_MOMENTS}"):
        shutil.rmtree(folder)


def divergence_file(recipe_dir: Path, model: ModelSeeds) -> Path:
    """Returns the path of the file that describes how a model diverged; it exists only if the model did."""
    return recipe_dir / "diverged" / f"{model}.json"


def model_lock(recipe_dir: Path, model: ModelSeeds) -> filelock.FileLock:
    """Returns the lock under which a model is trained and scored; acquiring a held lock raises `filelock.Timeout`.

    The operating system releases it when the process that holds it dies, even on another machine.
    """
    return filelock.FileLock(recipe_dir / "locks" / f"{model}.lock", timeout=0)


def is_locked(recipe_dir: Path, model: ModelSeeds) -> bool:
    """Returns whether a process is currently training or scoring a model."""
    lock = model_lock(recipe_dir, model)
    if not Path(lock.lock_file).exists():
        return False
    with contextlib.suppress(filelock.Timeout), lock:
        return False
    return True


def check_store(
    c: Config,
    recipe_dir: Path,
    population: "Population | None",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> check.ShardReport:
    """Reads a recipe's score store completely, and returns which shards are missing or corrupt.

    All statistics of the store are read, including those that the config does not request.

    Args:
      c: the config.
      recipe_dir: folder of the recipe.
      population: its samples, with which the coordinates are compared; None if they are missing.
      progress: called with the number of shards that have been read, and their total.

    Raises:
      UserError: if the store's metadata or a coordinate is damaged.
    """
    from lm_mia.data.population import token_columns  # pandas takes a second

    store = open_store(with_stored_statistics(c, recipe_dir), recipe_dir)
    columns: dict[str, np.ndarray] = {}
    if population is not None:
        columns = {"sample": np.arange(len(population)), **population.sample_columns()}
        columns |= token_columns(population, store.token_samples)
    check.check_metadata(store, columns)
    return check.check_shards(store, store.models(), progress)
