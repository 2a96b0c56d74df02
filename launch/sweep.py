"""What a sweep is made of: a task for each recipe, its folder, and the blocks of rows that jobs are."""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch import records
from lm_mia import config, costs, identity, parse, subsets
from lm_mia.config import Config
from lm_mia.costs import Asked
from lm_mia.errors import UserError
from lm_mia.workdir import Workdir

_LABEL = 48  # characters of a folder's name that say what an entry sets


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A config with its `sweep()`, as given on the command line, and its folder."""

    config: str
    """FILE.py[:ARG]."""
    folder: Path
    overrides: tuple[str, ...]
    """``--config.section.field=value``, for all entries."""
    tasks: tuple["Task", ...]

    def command(self, python: Sequence[str], verb: str, *more: str) -> list[str]:
        """The arguments of a process that is at work on this sweep."""
        about = [f"--config={self.config}", f"--workdir={self.folder}"]
        return [*python, "-m", "launch", verb, *about, *more, *self.overrides]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be made of one recipe."""

    asked: Asked
    folder: Path
    """A workdir of `lm-mia`; the sweep's own folder, if the config has no sweep."""
    shared: Path | None
    """The population that tasks with the same samples share; None: it is the workdir's own."""

    @property
    def key(self) -> str:
        """What jobs call the recipe."""
        return self.asked.key

    @property
    def config(self) -> Config:
        """Of all rows that the sweep wants of the recipe."""
        return self.asked.config

    @property
    def label(self) -> str:
        """What its entry of the sweep sets, for people."""
        sets = self.asked.sets.items()
        return ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in sets) or "the config"

    @property
    def rows(self) -> list[subsets.Row]:
        """All rows that are wanted, in the order in which they are numbered."""
        return subsets.rows(self.config.attack.references, self.config.attack.replicas)

    @property
    def workdir(self) -> Workdir:
        """The folder, as `lm-mia` sees it."""
        return Workdir(self.folder)

    @property
    def population(self) -> Path:
        """Where the samples are, or will be."""
        return self.shared or self.workdir.population

    def recipe(self) -> Path | None:
        """The folder of scores and checkpoints; None before there is a population, which is a part of its name."""
        if not self.population.exists():
            return None
        from lm_mia.population import open_population  # here: pandas and pyarrow take a second

        sha256 = open_population(self.population, verify=False).sha256
        return self.workdir.recipe(identity.recipe_hash(self.config, sha256))

    def missing(self) -> list[int]:
        """Numbers of the rows that are to be made: neither present, nor diverged, nor set aside."""
        rows, recipe = self.rows, self.recipe()
        if recipe is None:
            return list(range(len(rows)))
        from lm_mia import presence  # here: tensorstore takes half a second

        self.workdir.check(self.config)
        left = set(presence.missing("run", self.config, recipe, rows))
        return [
            i for i, row in enumerate(rows) if row in left and not records.set_aside(recipe, row)
        ]


def read(config_arg: str, folder: str, overrides: Sequence[str]) -> Sweep:
    """The sweep of a config file.

    Args:
      config_arg: ``FILE.py`` or ``FILE.py:ARG``.
      folder: where everything is written.
      overrides: as of `lm_mia.parse.sweep`.

    Raises:
      UserError: a line for every mistake in the config and its sweep.
    """
    return of_entries(config_arg, folder, overrides, parse.sweep(config_arg, overrides))


def of_entries(
    config_arg: str, folder: str, overrides: Sequence[str], entries: Sequence[costs.Entry]
) -> Sweep:
    """As `read`, with the entries that `lm_mia.parse.sweep` found."""
    where, tasks = Path(folder), []
    if where.exists() and not where.is_dir():
        raise UserError(f"--workdir={folder}: is a file; choose a folder that can be written")
    ran = folder and (where / "config.json").exists() and not (where / "populations").exists()
    if len(entries) > 1 and ran:
        raise UserError(
            f"--workdir={folder}: has the rows of one config, not of a sweep; choose another folder for the sweep"
        )
    for asked in costs.asked(entries):
        if len(entries) == 1:
            tasks.append(Task(asked, where, None))
            continue
        parts = config.to_dict(asked.config)
        named = {k: parts[k] for k in ("corpus", "tokenizer", "population")}
        del named["corpus"]["processes"]
        samples = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:8]
        name = re.sub(r"[^A-Za-z0-9.+-]+", "_", Task(asked, where, None).label).strip("_")
        there = sorted(where.glob(f"*_{asked.key}"))  # its entry may have had another name
        path = there[0] if there else where / f"{name[:_LABEL]}_{asked.key}"
        tasks.append(Task(asked, path, where / "populations" / samples))
    return Sweep(config_arg, where, tuple(overrides), tuple(tasks))


def absolute(of: Sweep) -> Sweep:
    """The same, with paths that hold wherever a process is started."""
    name, *arg = of.config.split(":", 1)
    tasks = tuple(
        dataclasses.replace(t, folder=_absolute(t.folder), shared=t.shared and _absolute(t.shared))
        for t in of.tasks
    )
    config_arg = ":".join([os.path.abspath(name), *arg])
    return dataclasses.replace(of, config=config_arg, folder=_absolute(of.folder), tasks=tasks)


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


def task_of(of: Sweep, key: str) -> Task:
    """The task of a recipe; UserError if the sweep has no such recipe any more."""
    for task in of.tasks:
        if task.key == key:
            return task
    known = ", ".join(f"{task.key} ({task.label})" for task in of.tasks)
    raise UserError(
        f"--recipe={key}: {of.config} asks for no such recipe, so the config is not the one that the job was written "
        f"for; put it back, or write the jobs again; it asks for {known}"
    )


def link(task: Task) -> bool:
    """Lets the task's workdir show the population that it shares; whether it did not before."""
    if task.shared is None:
        return False
    task.folder.mkdir(parents=True, exist_ok=True)
    try:
        os.symlink(Path("..", "populations", task.shared.name), task.workdir.population)
    except FileExistsError:
        return False
    return True


def blocks(missing: Sequence[int], rows_per_job: int) -> list[int]:
    """Numbers of the blocks that rows are in: block k is rows k n to (k + 1) n."""
    return sorted({i // rows_per_job for i in missing})


def slice_of(block: int, rows_per_job: int, rows: int) -> str:
    """The rows of a block, as ``--rows`` takes them."""
    return f"{block * rows_per_job}:{min((block + 1) * rows_per_job, rows)}"


def rows_of(said: str, task: Task) -> list[subsets.Row]:
    """The rows that ``--rows=BEGIN:END`` names; UserError if they are no rows of the task."""
    rows = task.rows
    found = re.fullmatch(r"(\d+):(\d+)", said)
    begin, end = map(int, found.groups()) if found else (0, 0)
    if not begin < end <= len(rows):
        raise UserError(
            f"--rows={said}: must be BEGIN:END, the first and the one after the last of {len(rows)} rows; try "
            f"--rows=0:{len(rows)}"
        )
    return rows[begin:end]


def as_json(task: Task) -> dict[str, Any]:
    """What scripts are told of a task."""
    return {
        "recipe": task.key,
        "label": task.label,
        "sets": task.asked.sets,
        "entries": list(task.asked.entries),
        "workdir": str(task.folder),
    }
