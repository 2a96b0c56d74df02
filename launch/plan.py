"""``launch plan``: the jobs that are missing and what they cost, told before anything is submitted."""

import dataclasses
import json
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch import estimate, sweep
from launch.estimate import Sizes
from launch.sweep import Sweep, Task
from lm_mia import costs, plan


@dataclasses.dataclass(frozen=True)
class Jobs:
    """The jobs of a task."""

    task: Task
    cost: costs.Recipe
    """Of all rows that are wanted."""
    rows_per_job: int
    blocks: tuple[int, ...]
    """Numbers of the blocks that have rows to be made, a job each."""
    missing: int
    """Rows to be made."""

    def slices(self) -> list[str]:
        """The rows of each job, as ``--rows`` takes them."""
        return [sweep.slice_of(b, self.rows_per_job, self.cost.rows) for b in self.blocks]


def jobs(of: Sweep, sizes: Sizes, chips: int = 1, there: bool = True) -> list[Jobs]:
    """The jobs of every task of a sweep, on so many chips each; of all rows, if no folder is there to be looked into.

    Raises:
      UserError: if a workdir belongs to another config, or its files are damaged.
    """
    estimate.check_tokens(sizes, of)
    found = []
    for task in of.tasks:
        missing = task.missing() if there else list(range(len(task.rows)))
        cost = estimate.cost(task, sizes, len(task.rows) - len(missing), there)
        size = estimate.rows_per_job(cost, sizes, chips, task.config.compute.span)
        blocks = tuple(sweep.blocks(missing, size))
        found.append(Jobs(task, cost, size, blocks, len(missing)))
    return found


def show(of: Sweep, sizes: Sizes, as_json: bool, there: bool) -> None:
    """Prints the jobs, as a table or as JSON; writes nothing."""
    found = jobs(of, sizes, there=there)
    told = [_numbers(j, sizes) for j in found]
    total = costs.totals([j.cost for j in found])
    names = ("missing_rows", "jobs", "missing_chip_hours", "chip_hours")
    total |= {name: sum(t[name] for t in told) for name in names}
    if as_json:
        chip = dataclasses.asdict(sizes.chip)
        print(json.dumps({"chip": chip, "recipes": told, "total": total}, indent=1))
        return
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for name in (
        *("model", "rows", "missing", "jobs", "rows\na job", "hours\na job", "chip-hours\nleft"),
        *("of all", "bytes:\ncheckpoints", "\nscores", "\npopulation"),
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for j, t in zip(found, told, strict=True):
        r = j.cost
        table.add_row(
            Text(j.task.label),  # a plain string would be read as markup
            r.size if r.size != "custom" else f"{r.layers}x{r.width}",
            *(f"{r.rows:,}", f"{j.missing:,}", f"{len(j.blocks):,}", f"{j.rows_per_job:,}"),
            *map(plan.three_digits, (t["job_hours"], t["missing_chip_hours"], t["chip_hours"])),
            *map(plan.in_bytes, (r.checkpoint_bytes, r.store_bytes, r.population_bytes)),
        )
    if len(found) > 1:
        table.add_section()
        table.add_row(
            *(
                "total",
                "",
                f"{total['rows']:,}",
                f"{total['missing_rows']:,}",
                f"{total['jobs']:,}",
            ),
            *("", ""),
            *(plan.three_digits(total[name]) for name in ("missing_chip_hours", "chip_hours")),
            *(
                plan.in_bytes(total[f"{name}_bytes"])
                for name in ("checkpoint", "store", "population")
            ),
        )
    console = Console()
    needed = console.measure(table, options=console.options.update(width=400)).maximum
    console = Console(width=max(console.width, needed))  # a figure cut short would be worse
    console.print(table)
    chip, lengths = sizes.chip, {(j.cost.mean_sample_tokens, j.cost.lengths) for j in found}
    samples = "; ".join(f"{mean:.0f} a sample, {said}" for mean, said in sorted(lengths))
    shared = [
        f"shared  {j.task.label}: asked for by entries {', '.join(map(str, j.task.asked.entries))} (0: the config)"
        for j in found
        if len(j.task.asked.entries) > 1
    ]
    for line in (
        f"hours   of {chip.name}, {chip.flops / 1e12:g} TFLOP/s of dense bfloat16, at an MFU of {chip.mfu:g}; "
        "a job has one of it here",
        f"tokens  useful ones, {samples}",
        *shared,
    ):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _numbers(j: Jobs, sizes: Sizes) -> dict[str, Any]:
    """What scripts are told, units in names."""
    hours = estimate.row_hours(j.cost, sizes)
    return {
        "recipe": j.task.key,
        "workdir": str(j.task.folder),
        **dataclasses.asdict(j.cost),
        "missing_rows": j.missing,
        "jobs": len(j.blocks),
        "rows_per_job": j.rows_per_job,
        "job_hours": hours * j.rows_per_job,
        "missing_chip_hours": hours * j.missing,
        "chip_hours": hours * j.cost.rows,
    }
