"""Which rows there are, and which are missing: asked of files alone."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from lm_mia import batches, config, points, store_table, subsets
from lm_mia.store import Store
from lm_mia.store_format import TOKENS, VARIABLES


def rows_of(c: config.Config) -> list[subsets.Row]:
    """The rows that a config asks for."""
    return subsets.rows(c.attack.references, c.attack.replicas)


def missing(
    todo: str, c: config.Config, recipe: Path, rows: list[subsets.Row]
) -> list[subsets.Row]:
    """The rows that a stage ("train", "score", or "run" for both) has yet to make, in their order.

    A row is scored when its losses and all that ``score.statistics`` asks for are stored, at every score point. Such a
    row needs no training, whether its checkpoints are still there or not; one that lacks a statistic is scored again
    from its checkpoints. A row that diverged is not missing: it would diverge again.
    """
    unscored = scores_of(c, recipe).missing(rows)
    return [
        row
        for row in unscored
        if not diverged(recipe, row).exists() and (todo != "train" or not trained(c, recipe, row))
    ]


def scores_of(c: config.Config, recipe: Path) -> Store:
    """The recipe's score store, whose rows have what the config asks for."""
    steps, total = points.score_steps(c), points.total_steps(c)
    asked = c.score.token_samples
    return Store(recipe / "scores.zarr", c.score.statistics, steps, total, token_samples=asked)


def with_stored(c: config.Config, recipe: Path) -> config.Config:
    """The config, asking also for all that the recipe's score store has: statistics, and tokens of samples."""
    path = recipe / "scores.zarr"
    if (table := store_table.read(path)) is None:
        return c
    more = [n for n in VARIABLES if n in table.names and n not in ("member", "loss", TOKENS)]
    statistics: Any = tuple(dict.fromkeys([*c.score.statistics, *more]))
    ids = store_table.token_samples(path) if TOKENS in table.names else c.score.token_samples
    score = dataclasses.replace(c.score, statistics=statistics, token_samples=ids)
    return dataclasses.replace(c, score=score)


def trained(c: config.Config, recipe: Path, row: subsets.Row) -> bool:
    """Whether a row's last state is saved; reads names only."""
    return (checkpoints(recipe, row) / str(total_steps(c, row))).is_dir()


@functools.cache  # a Bernoulli subset is drawn to be counted
def total_steps(c: config.Config, row: subsets.Row) -> int:
    """Updates of a row from start to end."""
    if c.train.subset != "bernoulli":
        return points.total_steps(c)
    members = int(subsets.member(row.subset_seed, c.population.samples, c.train.subset).sum())
    return c.train.epochs * batches.steps_per_epoch(members, c.train.batch_size)


def checkpoints(recipe: Path, row: subsets.Row) -> Path:
    """Folder of a row's states."""
    return recipe / "checkpoints" / str(row)


def diverged(recipe: Path, row: subsets.Row) -> Path:
    """Where it is written how a row diverged; there is such a file if it did."""
    return recipe / "diverged" / f"{row}.json"
