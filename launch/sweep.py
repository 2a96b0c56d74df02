"""A sweep as jobs see it: its command lines, and the blocks of rows that jobs are."""

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launch import records
from lm_mia import costs, parse, subsets, sweep
from lm_mia.errors import UserError


class Task(sweep.Task):
    """What is to be made of one recipe, apart from rows that were set aside."""

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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A config with its `sweep()`, as given on the command line, and its folder."""

    config: str
    """FILE.py[:ARG]."""
    folder: Path
    overrides: tuple[str, ...]
    """``--config.section.field=value``, for all entries."""
    tasks: tuple[Task, ...]

    def command(self, python: Sequence[str], verb: str, *more: str) -> list[str]:
        """The arguments of a process that is at work on this sweep."""
        about = [f"--config={self.config}", f"--workdir={self.folder}"]
        return [*python, "-m", "launch", verb, *about, *more, *self.overrides]


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
    tasks = tuple(Task(t.asked, t.home, t.shared, t.others) for t in sweep.tasks(folder, entries))
    return Sweep(config_arg, Path(folder), tuple(overrides), tasks)


def absolute(of: Sweep) -> Sweep:
    """The same, with paths that hold wherever a process is started."""
    name, *arg = of.config.split(":", 1)
    tasks = tuple(
        dataclasses.replace(t, home=_absolute(t.home), shared=t.shared and _absolute(t.shared))
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
