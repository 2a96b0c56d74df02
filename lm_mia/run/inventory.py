"""Determines from files alone which rows of a workdir exist and which are missing."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path

import filelock

from lm_mia import config
from lm_mia.config import Config
from lm_mia.data import batch_order, subsets
from lm_mia.run.stages import ModelVerb
from lm_mia.store import check
from lm_mia.store.store import open_store, with_stored_statistics


def missing_models(
    verb: ModelVerb, c: Config, recipe_dir: Path, rows: list[subsets.ModelSeeds]
) -> list[subsets.ModelSeeds]:
    """The rows that a stage ("train", "score", or "run" for both) has yet to make, in their order.

    A row is scored when its losses and all that ``score.statistics`` asks for are stored, at every score point. Such a
    row needs no training, whether its checkpoints are still there or not; one that lacks a statistic is scored again
    from its checkpoints. A row that diverged is not missing: it would diverge again.
    """
    return [
        row
        for row in unscored_models(c, recipe_dir, rows)
        if not divergence_file(recipe_dir, row).exists()
        and (verb != "train" or not is_trained(c, recipe_dir, row))
    ]


def unscored_models(
    c: Config, recipe_dir: Path, rows: list[subsets.ModelSeeds]
) -> list[subsets.ModelSeeds]:
    """Returns the rows, in their order, for which a loss or a statistic that the config asks for is not stored."""
    return open_store(c, recipe_dir).missing_models(rows)


def is_trained(c: Config, recipe_dir: Path, row: subsets.ModelSeeds) -> bool:
    """Whether a row's last state is saved; reads names only."""
    return (checkpoint_dir(recipe_dir, row) / str(total_steps(c, row))).is_dir()


@functools.cache  # a Bernoulli subset is drawn to be counted
def total_steps(c: Config, row: subsets.ModelSeeds) -> int:
    """Updates of a row from start to end."""
    if c.train.subset != "bernoulli":
        return config.total_steps(c)
    members = int(subsets.member(row.subset_seed, c.population.samples, c.train.subset).sum())
    return c.train.epochs * batch_order.steps_per_epoch(members, c.train.batch_size)


def checkpoint_dir(recipe_dir: Path, row: subsets.ModelSeeds) -> Path:
    """Folder of a row's states."""
    return recipe_dir / "checkpoints" / str(row)


def divergence_file(recipe_dir: Path, row: subsets.ModelSeeds) -> Path:
    """Where it is written how a row diverged; there is such a file if it did."""
    return recipe_dir / "diverged" / f"{row}.json"


def model_lock(recipe_dir: Path, row: subsets.ModelSeeds) -> filelock.FileLock:
    """Returns the lock under which a model is trained and scored; acquiring a held lock raises `filelock.Timeout`.

    The operating system releases it when the process that holds it dies, also on another machine.
    """
    return filelock.FileLock(recipe_dir / "locks" / f"{row}.lock", timeout=0)


def is_locked(recipe_dir: Path, row: subsets.ModelSeeds) -> bool:
    """Returns whether a process is currently training or scoring a model."""
    held = model_lock(recipe_dir, row)
    if not Path(held.lock_file).exists():
        return False
    with contextlib.suppress(filelock.Timeout), held:
        return False
    return True


def check_shards(
    c: Config, recipe_dir: Path, progress: Callable[[int, int], None] = lambda done, of: None
) -> check.ShardReport:
    """Reads all scores in a recipe's store, and returns which shards are missing or corrupt.

    All statistics of the store are read, including those that the config does not request.

    Args:
      c: the config.
      recipe: its folder.
      progress: called with the number of shards that have been read, and their total.

    Raises:
      UserError: if the store's metadata is damaged.
    """
    store = open_store(with_stored_statistics(c, recipe_dir), recipe_dir)
    return check.check_shards(store, store.models(), progress)
