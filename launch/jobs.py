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
from lm_mia.plan import plan, speed
from lm_mia.printing import format_duration, print_table
from lm_mia.run import costs
from lm_mia.run.costs import RecipeCost
from lm_mia.run.sweep import Sweep, SweepRecipe
from lm_mia.run.workdir import Workdir


def missing_indices(recipe: SweepRecipe) -> list[int]:
    """Returns the indices of the models to be made: those that are neither present, nor diverged, nor set aside."""
    models, recipe_dir = recipe.models, recipe.folder
    if not recipe_dir.exists():
        return list(range(len(models)))
    from lm_mia.run import inventory  # imported here because tensorstore takes half a second

    missing = set(inventory.missing_models("run", recipe.config, recipe_dir, models))
    return [
        i
        for i, model in enumerate(models)
        if model in missing and not heartbeats.is_set_aside(recipe_dir, model)
    ]


def command(sweep: Sweep, python: Sequence[str], verb: str, *verb_flags: str) -> list[str]:
    """Returns the command line of a process that works on a sweep."""
    flags, overrides = sweep.flags()
    # Not "-m launch", which would run a package of this name in the folder where the job starts.
    return [*python, "-m", "lm_mia", "launch", verb, *flags, *verb_flags, *overrides]


def job_command(
    sweep: Sweep, python: Sequence[str], recipe: SweepRecipe, *job_flags: str
) -> list[str]:
    """Returns the command line of a job that makes models of a recipe; the flags include ``--models``."""
    recipe_flags = f"--recipe={recipe.name}", f"--recipe-hash={recipe_hash(recipe.config)}"
    return command(sweep, python, "make-models", *recipe_flags, *job_flags)


def with_absolute_paths(sweep: Sweep) -> Sweep:
    """Returns the same sweep with absolute paths, so that processes may start in any folder."""
    workdir = Workdir(Path(os.path.abspath(sweep.workdir.path)))
    recipes = tuple(dataclasses.replace(recipe, workdir=workdir) for recipe in sweep.recipes)
    config_arg = sweep.config_arg
    if config_arg is not None:
        name, *args = config_arg.split(":", 1)
        file = name if load.is_config_name(name) else os.path.abspath(name)
        # The argument of configs/own.py begins with the path of the texts.
        texts = {recipe.config.corpus.path for recipe in recipes}
        paths = [[(os.path.abspath(part), part) for part in arg.split(",")] for arg in args]
        args = [",".join(path if path in texts else part for path, part in p) for p in paths]
        config_arg = ":".join([file, *args])
    return dataclasses.replace(sweep, config_arg=config_arg, workdir=workdir, recipes=recipes)


def find_recipe(sweep: Sweep, name: str, expected_hash: str = "") -> SweepRecipe:
    """Returns a recipe of the sweep.

    Args:
      sweep: the recipes of the command.
      name: the recipe's folder, or another of its names.
      expected_hash: the recipe's hash when the job was written; empty: not checked.

    Raises:
      UserError: if the sweep has no such recipe, or if the recipe has changed since the job was written.
    """
    matches = [recipe for recipe in sweep.recipes if name == recipe.name]
    matches = matches or [recipe for recipe in sweep.recipes if name in recipe.names]
    if not matches:
        names = ", ".join(recipe.name for recipe in sweep.recipes)
        raise UserError(
            f"--recipe={name}: no such recipe; choose one of {names}, or restore the config if it changed after the "
            "job was written"
        )
    current_hash = recipe_hash(matches[0].config)
    if expected_hash not in ("", current_hash):
        raise UserError(
            f"--recipe-hash={expected_hash}: the config of recipe {name} has changed since this job was written (its "
            f"hash is now {current_hash}); restore the config, or write the jobs again"
        )
    return matches[0]


def blocks(missing: Sequence[int], models_per_job: int) -> list[int]:
    """Returns the numbers of the blocks that contain missing models; block k has models k n to (k + 1) n - 1."""
    return sorted({i // models_per_job for i in missing})


def block_range(block: int, models_per_job: int, num_models: int) -> str:
    """Returns the range of models of a block, in the form that ``--models`` takes."""
    return f"{block * models_per_job}:{min((block + 1) * models_per_job, num_models)}"


def selected_models(block: str, recipe: SweepRecipe) -> list[subsets.ModelSeeds]:
    """Returns the models that ``--models=BEGIN:END`` selects; raises UserError if the range is invalid."""
    models = recipe.models
    match = re.fullmatch(r"(\d+):(\d+)", block)
    begin, end = map(int, match.groups()) if match else (0, 0)
    if not begin < end <= len(models):
        raise UserError(
            f"--models={block}: must be BEGIN:END, where END is exclusive, within the {len(models)} models; try "
            f"--models=0:{len(models)}"
        )
    return models[begin:end]


def recipe_as_json(recipe: SweepRecipe) -> dict[str, Any]:
    """Returns the fields that describe a recipe in JSON output."""
    return {
        "recipe": recipe.name,
        "names": list(recipe.names),
        "overrides": recipe.overrides,
        "entries": list(recipe.entries),
        "folder": str(recipe.folder),
    }


@dataclasses.dataclass(frozen=True)
class JobSizes:
    """Settings that determine the size of jobs."""

    chip: plan.Chip
    models_per_job: int
    """0: as many as take about `job_hours`."""
    job_hours: float
    tokens_per_sample: float | None
    """Mean tokens per sample after truncation; None: measured if the population exists, else that of C4."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `parse_sizes` reads."""
    group = parser.add_argument_group("job size")
    group.add_argument(
        "--models-per-job",
        type=int,
        default=0,
        metavar="N",
        help="number of models per job (default: as many as take about --job-hours)",
    )
    group.add_argument(
        "--job-hours",
        type=float,
        default=4.0,
        metavar="H",
        help="approximate duration of a job, in hours (default: 4)",
    )
    plan.add_cost_flags(group)


def parse_sizes(flags: argparse.Namespace) -> JobSizes:
    """Returns the values of the flags; raises UserError with one line for each invalid flag."""
    problems, chip = [], None
    try:
        chip = plan.parse_chip(flags.device or _device_of_nodes(flags), flags.mfu)
    except UserError as error:
        problems.append(str(error))
    if flags.models_per_job < 0:
        problems.append(
            f"--models-per-job={flags.models_per_job}: must be 1 or larger, or 0 to use --job-hours"
        )
    if not (0 < flags.job_hours < math.inf):
        problems.append(f"--job-hours={flags.job_hours:g}: must be above 0; try --job-hours=4")
    if problems or chip is None:
        raise UserError("\n".join(problems))
    return JobSizes(chip, flags.models_per_job, flags.job_hours, flags.tokens_per_sample)


def _device_of_nodes(flags: argparse.Namespace) -> str | None:
    """Returns the device that the label of the nodes of a JobSet names; None without a label.

    Raises:
      UserError: the speed of the device is not known.
    """
    for flag in ("tpu_type", "gpu_type"):
        label = getattr(flags, flag, "")
        if not label:
            continue
        if (name := plan.chip_of_nodes(label)) is not None:
            return name
        raise UserError(
            f"--{flag.replace('_', '-')}={label}: the speed of these chips is not known, and with it the number of "
            "models per job; add --device with the name of a similar one or its dense bfloat16 rate in TFLOP/s"
        )
    return None


def recipe_cost(recipe: SweepRecipe, sizes: JobSizes, read_workdir: bool = True) -> RecipeCost:
    """Returns the cost of a recipe, by default with the present models and sample lengths of the workdir."""
    if read_workdir:
        return costs.recipe_cost(
            recipe,
            costs.sample_lengths(recipe, sizes.tokens_per_sample),
            costs.count_present(recipe),
        )
    return costs.recipe_cost(recipe, costs.assumed_lengths(recipe.config, sizes.tokens_per_sample))


def model_hours(cost: RecipeCost, sizes: JobSizes) -> float:
    """Returns the chip-hours of one model."""
    return plan.chip_hours(cost, speed.speed(cost.batches, sizes.chip))[0] / cost.models


def chips_per_model(cost: RecipeCost, sizes: JobSizes) -> int:
    """Returns the number of chips that a plan assumes to make one model together."""
    return speed.resolve_devices_per_model(cost.batches, sizes.chip)


def models_per_job(cost: RecipeCost, sizes: JobSizes, chips_per_machine: int, machines: int) -> int:
    """Returns the number of models in a job of about `job_hours`; at least one for each group of chips.

    With "auto", the number of chips of a group follows from the memory of the chip of `sizes`.
    """
    if sizes.models_per_job:
        return min(sizes.models_per_job, cost.models)
    count = speed.planned_devices_per_model(cost.batches, sizes.chip, chips_per_machine)
    if count == 0:  # all chips of the job
        chips_per_group, num_groups = chips_per_machine * machines, 1
    else:
        chips_per_group, num_groups = count, max(chips_per_machine // count, 1) * machines
    num_rounds = sizes.job_hours * chips_per_group / model_hours(cost, sizes)
    return min(max(int(min(num_rounds, cost.models)), 1) * num_groups, cost.models)


@dataclasses.dataclass(frozen=True)
class RecipeJobs:
    """The jobs of a recipe."""

    recipe: SweepRecipe
    cost: RecipeCost
    """Cost of all requested models."""
    models_per_job: int
    blocks: tuple[int, ...]
    """Numbers of the blocks that have missing models; each is one job."""
    num_missing: int
    """Number of missing models."""

    def ranges(self) -> list[str]:
        """Returns the range of models of each job, in the form that ``--models`` takes."""
        return [block_range(b, self.models_per_job, self.cost.models) for b in self.blocks]


def plan_jobs(
    sweep: Sweep,
    sizes: JobSizes,
    chips_per_machine: int = 0,
    machines: int = 1,
    read_workdir: bool = True,
) -> list[RecipeJobs]:
    """Returns the jobs of every recipe of a sweep.

    Args:
      sweep: the sweep.
      sizes: settings for the size of jobs.
      chips_per_machine: number of chips of each machine of a job; 0: as many as make one model.
      machines: number of machines of a job.
      read_workdir: whether to read the workdir and leave out models that are present; otherwise all models are
        assumed to be missing.

    Raises:
      UserError: if ``--tokens-per-sample`` does not suit a recipe, or files in the workdir are damaged.
    """
    plan.check_tokens(sizes.tokens_per_sample, sweep)
    jobs = []
    for recipe in sweep.recipes:
        missing = missing_indices(recipe) if read_workdir else list(range(len(recipe.models)))
        cost = recipe_cost(recipe, sizes, read_workdir)
        chips = chips_per_machine or chips_per_model(cost, sizes)
        size = models_per_job(cost, sizes, chips, machines)
        job_blocks = tuple(blocks(missing, size))
        jobs.append(RecipeJobs(recipe, cost, size, job_blocks, len(missing)))
    return jobs


def print_plan(sweep: Sweep, sizes: JobSizes, *, as_json: bool, read_workdir: bool) -> None:
    """Prints the cost of a sweep, as `lm-mia plan` does, and its jobs, as tables or as JSON; writes no files."""
    jobs = plan_jobs(sweep, sizes, read_workdir=read_workdir)
    costs = [j.cost for j in jobs]
    numbers = [_numbers(j, sizes) for j in jobs]
    total = {name: sum(n[name] for n in numbers) for name in _SUMMED}
    finished = plan.finished_models(sweep, costs) if read_workdir else plan.FinishedModels()
    if as_json:
        values = plan.as_json(costs, sizes.chip, finished)
        for recipe, j, n in zip(values["recipes"], jobs, numbers, strict=True):
            recipe |= {"folder": str(j.recipe.folder) if read_workdir else None, **n}
        values["total"] |= total
        print(json.dumps(values, indent=1))
        return
    plan.print_costs(costs, sizes.chip, finished)
    if not costs:
        return
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in (
        "missing\nmodels",
        "jobs",
        "chips\nper job",
        "models\nper job",
        "time\nper job",
        "chip time\nleft",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for j, n in zip(jobs, numbers, strict=True):
        table.add_row(
            Text(j.recipe.name),  # a plain string would be parsed as markup
            f"{n['missing_models']:,}",
            f"{n['jobs']:,}",
            f"{n['chips_per_job']:,}",
            f"{n['models_per_job']:,}",
            format_duration(3600 * n["job_hours"]),
            format_duration(3600 * n["missing_chip_hours"]),
        )
    if len(jobs) > 1:
        table.add_section()
        missing_time = format_duration(3600 * total["missing_chip_hours"])
        table.add_row(
            "total", f"{total['missing_models']:,}", f"{total['jobs']:,}", "", "", "", missing_time
        )
    notes = [
        "jobs    each with the chips of one model; slurm and jobset write fewer jobs if each has more chips"
    ]
    for j in jobs:
        if len(entries := j.recipe.entries) > 1:
            indices = ", ".join(map(str, entries))
            notes.append(
                f"shared  {j.recipe.name}: requested by entries {indices} of the sweep (0 is the config)"
            )
    print_table(table, notes)


_SUMMED = ("missing_models", "jobs", "missing_chip_hours")


def _numbers(j: RecipeJobs, sizes: JobSizes) -> dict[str, Any]:
    """Returns the fields that describe jobs in JSON output, with units in their names."""
    hours, chips = model_hours(j.cost, sizes), chips_per_model(j.cost, sizes)
    return {
        "missing_models": j.num_missing,
        "jobs": len(j.blocks),
        "chips_per_job": chips,
        "models_per_job": j.models_per_job,
        "job_hours": hours * j.models_per_job / chips,
        "missing_chip_hours": hours * j.num_missing,
    }


def build_corpus(sweep: Sweep) -> int:
    """Builds the missing populations of a sweep."""
    # Imported here because the score store takes half a second to load, and plans do not need it.
    from lm_mia.run import pipeline, progress

    with progress.display(overall=False) as display:
        _, recipe_populations = pipeline.build_populations(sweep, display)
        for folder in dict.fromkeys(recipe.population_dir for recipe, _ in recipe_populations):
            display.say(f"population: {folder}")
    return 0


def machine_problems(jobs: Sequence[RecipeJobs], chips_per_machine: int) -> list[str]:
    """Returns an error message for each recipe whose groups of devices need more chips than a machine has.

    Args:
      jobs: the jobs.
      chips_per_machine: number of chips of each machine of a job; 0: unknown, so there are no messages.
    """
    problems = []
    for j in jobs:
        count = j.recipe.config.compute.devices_per_model
        if not isinstance(count, str) and count > chips_per_machine > 0:
            problems.append(
                f"compute.devices_per_model={count}: must be at most {chips_per_machine}, the number of chips of a "
                f"machine, in recipe {j.recipe.name}; set --config.compute.devices_per_model={chips_per_machine}, or "
                f"all and request {count} chips per job, all of which then make each model"
            )
    return problems
