"""The jobs of a sweep: their command lines, their blocks of models, and their cost."""

import argparse
import dataclasses
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rich.box
from rich.table import Table
from rich.text import Text

from launch import heartbeats
from lm_mia.config import load
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.run import plan
from lm_mia.run.plan import RecipeCost
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.workdir import Workdir


def missing_indices(task: SweepRecipe) -> list[int]:
    """Returns the numbers of the models to be made: those that are neither present, nor diverged, nor set aside."""
    rows, recipe = task.models, task.folder
    if not recipe.exists():
        return list(range(len(rows)))
    from lm_mia.run import inventory  # imported here: tensorstore takes half a second

    left = set(inventory.missing_models("run", task.config, recipe, rows))
    return [
        i for i, row in enumerate(rows) if row in left and not heartbeats.is_set_aside(recipe, row)
    ]


def command(sweep: Sweep, python: Sequence[str], verb: str, *more: str) -> list[str]:
    """Returns the arguments of a process that works on a sweep."""
    flags, overrides = sweep.flags()
    return [*python, "-m", "launch", verb, *flags, *more, *overrides]


def job_command(sweep: Sweep, python: Sequence[str], task: SweepRecipe, *more: str) -> list[str]:
    """Returns the arguments of a job that makes models of a recipe; `more` selects the models with ``--models``."""
    which = f"--recipe={task.name}", f"--recipe-hash={recipe_hash(task.config)}"
    return command(sweep, python, "make-models", *which, *more)


def with_absolute_paths(sweep: Sweep) -> Sweep:
    """Returns the same sweep with absolute paths, so that processes may start in any folder."""
    workdir = Workdir(Path(os.path.abspath(sweep.workdir.path)))
    tasks = tuple(dataclasses.replace(task, workdir=workdir) for task in sweep.recipes)
    config_arg = sweep.config_arg
    if config_arg is not None:
        name, *arg = config_arg.split(":", 1)
        file = name if load.is_config_name(name) else os.path.abspath(name)
        config_arg = ":".join([file, *arg])
    return dataclasses.replace(sweep, config_arg=config_arg, workdir=workdir, recipes=tasks)


def find_recipe(sweep: Sweep, name: str, expected_hash: str = "") -> SweepRecipe:
    """Returns the task of a recipe.

    Args:
      sweep: the recipes of the command.
      name: the recipe's folder, or another of its names.
      expected_hash: the recipe's hash when the job was written; empty: not checked.

    Raises:
      UserError: if the sweep has no such recipe, or if the recipe has changed since the job was written.
    """
    found = [task for task in sweep.recipes if name == task.name]
    found = found or [task for task in sweep.recipes if name in task.names]
    if not found:
        known = ", ".join(task.name for task in sweep.recipes)
        raise UserError(
            f"--recipe={name}: there is no such recipe; choose one of {known}, or restore the config if it has changed "
            "since the job was written"
        )
    now = recipe_hash(found[0].config)
    if expected_hash not in ("", now):
        raise UserError(
            f"--recipe-hash={expected_hash}: the config of recipe {name} has changed since this job was written (its "
            f"hash is now {now}); restore the config, or write the jobs again"
        )
    return found[0]


def blocks(missing: Sequence[int], models_per_job: int) -> list[int]:
    """Returns the numbers of the blocks that contain missing models; block k has models k n to (k + 1) n - 1."""
    return sorted({i // models_per_job for i in missing})


def block_range(block: int, models_per_job: int, rows: int) -> str:
    """Returns the range of models of a block, in the form that ``--models`` takes."""
    return f"{block * models_per_job}:{min((block + 1) * models_per_job, rows)}"


def selected_models(said: str, task: SweepRecipe) -> list[subsets.ModelSeeds]:
    """Returns the models that ``--models=BEGIN:END`` selects; raises UserError if the range is invalid."""
    rows = task.models
    found = re.fullmatch(r"(\d+):(\d+)", said)
    begin, end = map(int, found.groups()) if found else (0, 0)
    if not begin < end <= len(rows):
        raise UserError(
            f"--models={said}: must be BEGIN:END, where END is exclusive, within the {len(rows)} models; try "
            f"--models=0:{len(rows)}"
        )
    return rows[begin:end]


def recipe_as_json(task: SweepRecipe) -> dict[str, Any]:
    """Returns the fields that describe a task in JSON output."""
    return {
        "recipe": task.name,
        "names": list(task.names),
        "overrides": task.overrides,
        "entries": list(task.entries),
        "folder": str(task.folder),
    }


@dataclasses.dataclass(frozen=True)
class JobSizes:
    """Settings that determine the size of jobs."""

    chip: plan.Chip
    models_per_job: int
    """0: as many as fit in `job_hours`."""
    job_hours: float
    tokens_per_sample: float | None
    """Mean length after truncation; None: measured, or that of C4."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `sizes` reads."""
    group = parser.add_argument_group("size of jobs")
    group.add_argument(
        "--models-per-job", type=int, default=0, metavar="N", help="instead of hours"
    )
    group.add_argument(
        "--job-hours", type=float, default=4.0, metavar="H", help="about this long; 4"
    )
    plan.add_cost_flags(group)


def parse_sizes(known: argparse.Namespace) -> JobSizes:
    """Returns the values of the flags; raises UserError with one line for each invalid flag."""
    wrong, chip = [], None
    try:
        chip = plan.parse_chip(known.device, known.mfu)
    except UserError as error:
        wrong.append(str(error))
    if known.models_per_job < 0:
        wrong.append(
            f"--models-per-job={known.models_per_job}: must be 1 or larger, or 0 to use --job-hours"
        )
    if not (0 < known.job_hours < math.inf):
        wrong.append(f"--job-hours={known.job_hours:g}: must be above 0; try --job-hours=4")
    if wrong or chip is None:
        raise UserError("\n".join(wrong))
    return JobSizes(chip, known.models_per_job, known.job_hours, known.tokens_per_sample)


def recipe_cost(task: SweepRecipe, of: JobSizes, look: bool = True) -> RecipeCost:
    """Returns the cost of a task; with `look`, present models and sample lengths are read from the workdir."""
    if look:
        return plan.recipe_cost(
            task, plan.sample_lengths(task, of.tokens_per_sample), plan.count_present(task)
        )
    length_tokens = task.config.population.length_tokens
    return plan.recipe_cost(task, plan.assumed_lengths(length_tokens, of.tokens_per_sample))


def model_hours(found: RecipeCost, of: JobSizes) -> float:
    """Returns the chip-hours of one model."""
    return plan.chip_hours(found, of.chip.flops * of.chip.mfu)[0] / found.models


def models_per_job(found: RecipeCost, of: JobSizes, chips: int, sharding: str) -> int:
    """Returns how many models a job of about `job_hours` has; at least one per chip if each model runs on one chip."""
    if of.models_per_job:
        return min(of.models_per_job, found.models)
    side_by_side = chips if sharding == "none" else 1
    in_time = of.job_hours * chips / model_hours(found, of) / side_by_side
    return min(max(int(min(in_time, found.models)), 1) * side_by_side, found.models)


@dataclasses.dataclass(frozen=True)
class RecipeJobs:
    """The jobs of a task."""

    task: SweepRecipe
    cost: RecipeCost
    """Cost of all requested models."""
    models_per_job: int
    blocks: tuple[int, ...]
    """Numbers of the blocks that have missing models; each is one job."""
    missing: int
    """Number of missing models."""

    def ranges(self) -> list[str]:
        """Returns the range of models of each job, in the form that ``--models`` takes."""
        return [block_range(b, self.models_per_job, self.cost.models) for b in self.blocks]


def plan_jobs(of: Sweep, sizes: JobSizes, chips: int = 1, look: bool = True) -> list[RecipeJobs]:
    """Returns the jobs of every recipe of a sweep.

    Args:
      of: the sweep.
      sizes: settings for the size of jobs.
      chips: number of chips of a job.
      look: whether to read the workdir and leave out models that are present; otherwise all models are to be made.

    Raises:
      UserError: if ``--tokens-per-sample`` does not suit a recipe, or files in the workdir are damaged.
    """
    plan.check_tokens(sizes.tokens_per_sample, of)
    found = []
    for task in of.recipes:
        left = missing_indices(task) if look else list(range(len(task.models)))
        cost = recipe_cost(task, sizes, look)
        size = models_per_job(cost, sizes, chips, task.config.compute.sharding)
        job_blocks = tuple(blocks(left, size))
        found.append(RecipeJobs(task, cost, size, job_blocks, len(left)))
    return found


def print_plan(of: Sweep, sizes: JobSizes, *, as_json: bool, look: bool) -> None:
    """Prints the cost of a sweep, as `lm-mia plan` does, and its jobs, as tables or as JSON; writes no files."""
    found = plan_jobs(of, sizes, look=look)
    costs = [j.cost for j in found]
    numbers = [_numbers(j, sizes) for j in found]
    total = {name: sum(n[name] for n in numbers) for name in _SUMMED}
    if as_json:
        told = plan.as_json(costs, sizes.chip)
        for recipe, j, n in zip(told["recipes"], found, numbers, strict=True):
            recipe |= {"folder": str(j.task.folder) if look else None, **n}
        told["total"] |= total
        print(json.dumps(told, indent=1))
        return
    plan.print_costs(costs, sizes.chip)
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in (
        "missing\nmodels",
        "jobs",
        "models\nper job",
        "hours\nper job",
        "chip-hours\nleft",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for j, n in zip(found, numbers, strict=True):
        table.add_row(
            Text(j.task.name),  # a plain string would be read as markup
            f"{n['missing_models']:,}",
            f"{n['jobs']:,}",
            f"{n['models_per_job']:,}",
            plan.format_number(n["job_hours"]),
            plan.format_number(n["missing_chip_hours"]),
        )
    if len(found) > 1:
        table.add_section()
        left = plan.format_number(total["missing_chip_hours"])
        table.add_row("total", f"{total['missing_models']:,}", f"{total['jobs']:,}", "", "", left)
    notes = [
        "jobs    with one chip each; slurm and jobset need fewer jobs if a job has several chips"
    ]
    for j in found:
        if len(entries := j.task.entries) > 1:
            by = ", ".join(map(str, entries))
            notes.append(
                f"shared  {j.task.name}: requested by entries {by} of the sweep (0: the config)"
            )
    plan.print_table(table, notes)


_SUMMED = ("missing_models", "jobs", "missing_chip_hours")


def _numbers(j: RecipeJobs, sizes: JobSizes) -> dict[str, Any]:
    """Returns the fields that describe jobs in JSON output, with units in their names."""
    hours = model_hours(j.cost, sizes)
    return {
        "missing_models": j.missing,
        "jobs": len(j.blocks),
        "models_per_job": j.models_per_job,
        "job_hours": hours * j.models_per_job,
        "missing_chip_hours": hours * j.missing,
    }


def build_corpus(of: Sweep) -> int:
    """Builds the missing populations of a sweep."""
    # imported here: the score store takes half a second to load, and a plan does not need it
    from lm_mia.run import pipeline, progress

    with progress.display(overall=False) as display:
        _, made = pipeline.build_populations(of, display)
        for path, found in {task.population_dir: found for task, found in made}.items():
            display.say(f"{path}: {len(found)} samples, sha256 {found.sha256}")
    return 0


def multi_machine_problems(found: Sequence[RecipeJobs], machines: int, said: str) -> list[str]:
    """Returns one line if jobs have several machines, but some recipes have models that cannot span machines."""
    names = [j.task.name for j in found if j.task.config.compute.sharding == "none"]
    if machines == 1 or not names:
        return []
    return [
        f"{said}, but each model of {', '.join(names)} is made on one device; add --config.compute.sharding=fsdp, or "
        "use one machine per job and run more jobs at once"
    ]
