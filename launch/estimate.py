"""What the rows of a sweep cost, and how many of them make a job that suits the device and the queue."""

import argparse
import dataclasses
import math

from launch.sweep import Sweep, Task
from lm_mia import costs, plan
from lm_mia.costs import Recipe
from lm_mia.errors import UserError


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How jobs are made."""

    chip: plan.Chip
    rows_per_job: int
    """0: as many as take `job_hours`."""
    job_hours: float
    tokens_per_sample: float | None
    """Mean after the cut; None: measured, or that of C4."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `sizes` reads."""
    group = parser.add_argument_group("size of jobs")
    group.add_argument("--rows-per-job", type=int, default=0, metavar="N", help="instead of hours")
    group.add_argument("--job-hours", type=float, default=4.0, metavar="H", help="about; 4")
    group.add_argument("--device", metavar="NAME", help="such as h100 or 'tpu v5p', or TFLOP/s")
    group.add_argument("--mfu", type=float, help="useful share of its dense bfloat16 FLOP/s; 0.4")
    group.add_argument("--tokens-per-sample", type=float, metavar="N", help="mean after the cut")


def sizes(known: argparse.Namespace) -> Sizes:
    """What the flags say; UserError with a line for each that is wrong."""
    wrong, chip = [], None
    try:
        chip = plan.chip_of(known.device, known.mfu)
    except UserError as error:
        wrong.append(str(error))
    if known.rows_per_job < 0:
        wrong.append(f"--rows-per-job={known.rows_per_job}: must be 1 or larger; or 0, by hours")
    if not (0 < known.job_hours < math.inf):
        wrong.append(f"--job-hours={known.job_hours:g}: must be above 0; try --job-hours=4")
    if wrong or chip is None:
        raise UserError("\n".join(wrong))
    return Sizes(chip, known.rows_per_job, known.job_hours, known.tokens_per_sample)


def check_tokens(of: Sizes, sweep: Sweep) -> None:
    """UserError if samples of a recipe cannot have so many tokens on average."""
    plan.check_tokens(of.tokens_per_sample, [(t.asked.sets, t.config) for t in sweep.tasks])


def cost(task: Task, of: Sizes, present_rows: int, there: bool) -> Recipe:
    """What all rows of a task come to, of which so many are there; samples are measured, if there is such a folder."""
    c, mean = task.config, of.tokens_per_sample
    lengths = costs.assumed(c.population.length_tokens, mean)
    if there and mean is None and task.population.exists():
        lengths = plan.lengths_of(task.population)
    return costs.recipe(task.asked, lengths, present_rows)


def row_hours(found: Recipe, of: Sizes) -> float:
    """Chip-hours of one row."""
    return costs.chip_hours(found, of.chip.flops * of.chip.mfu)[0] / found.rows


def rows_per_job(found: Recipe, of: Sizes, chips: int, span: str) -> int:
    """Rows of a job of about `job_hours` on so many chips; where rows run side by side, a row a chip at least."""
    if of.rows_per_job:
        return min(of.rows_per_job, found.rows)
    side_by_side = chips if span == "device" else 1
    in_time = of.job_hours * chips / row_hours(found, of) / side_by_side
    return min(max(int(min(in_time, found.rows)), 1) * side_by_side, found.rows)
