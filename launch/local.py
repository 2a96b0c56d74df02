"""This machine: a process a device (or core), each with a job; one that dies is started again; one view of all."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from launch import process, rows, status
from launch.sweep import Sweep, Task
from lm_mia import devices, progress, sweep_job
from lm_mia.corpus import remembering
from lm_mia.errors import UserError

_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 60.0  # before a task is tried again, all rows of which others were at work on


@dataclasses.dataclass
class _Slot:
    """A device, and who is at work on it."""

    number: int
    environment: dict[str, str]
    task: Task | None = None
    at_work: subprocess.Popen[bytes] | None = None
    missing: int = 0
    """Rows of the task when it began."""
    deaths: int = 0
    log: Path = Path()


def run(of: Sweep) -> int:
    """Makes every row of a sweep.

    Returns:
      0, or 3 if rows were set aside or diverged: the summary says which.

    Raises:
      UserError: a user's mistake that a job found, or jobs that die before they have a row.
      SystemExit: when stopped; jobs save what they are at.
    """
    span = of.tasks[0].config.compute.span
    if any(t.config.compute.span != span for t in of.tasks):
        raise UserError(
            "compute.span: must be the same in all entries of a sweep here, since devices are shared out once; "
            "launch them one after another"
        )
    with progress.display(overall=False) as display:
        opens = remembering()
        for task in of.tasks:
            sweep_job.population(task, display, opens)
        del opens  # and the texts, before hours of training
    workers = max(t.config.train.workers for t in of.tasks)
    _, environments = devices.environments(workers, span)
    slots = [_Slot(i, environment) for i, environment in enumerate(environments)]
    not_before: dict[str, float] = {}
    with status.view(of) as refresh:
        try:
            while True:
                for slot in slots:
                    if slot.at_work is not None and slot.at_work.poll() is not None:
                        _ended(slot, not_before)
                left = {t.key: len(t.missing()) for t in of.tasks}
                if not any(left.values()):
                    break
                for slot in slots:
                    if slot.at_work is None:
                        _begin(slot, slots, of, left, not_before)
                refresh()
                _sleep(slots)
        finally:
            process.stop([slot.at_work for slot in slots if slot.at_work is not None])
    return status.summary(of)


def _sleep(slots: list[_Slot]) -> None:
    """Until a job ends, or it is time to look again."""
    for _ in range(5):
        time.sleep(_LOOK_SECONDS)
        if any(s.at_work is not None and s.at_work.poll() is not None for s in slots):
            return


def _begin(
    slot: _Slot, slots: list[_Slot], of: Sweep, left: dict[str, int], not_before: dict[str, float]
) -> None:
    """Starts a job of the first task that has more rows left than jobs at work on it: each has one in hand."""
    for task in of.tasks:
        busy = sum(s.task == task for s in slots if s.at_work is not None)
        if left[task.key] > busy and time.monotonic() >= not_before.get(task.key, 0):
            name = f"{rows.who('', '').job}-{slot.number}"
            slot.log = of.folder / "logs" / f"{name}.log"
            about = [f"--recipe={task.key}", f"--rows=0:{len(task.rows)}", f"--job={name}"]
            command = of.command([sys.executable], "rows", *about, f"--log={slot.log}")
            command.append("--config.train.workers=1")
            slot.task, slot.missing = task, left[task.key]
            slot.at_work = process.start(command, slot.log, slot.environment)
            return


def _ended(slot: _Slot, not_before: dict[str, float]) -> None:
    """Takes note of a job that ended; UserError if it is not worth starting it again."""
    assert slot.at_work is not None
    assert slot.task is not None
    code, task = slot.at_work.returncode, slot.task
    slot.at_work = slot.task = None
    progressed = len(task.missing()) < slot.missing
    slot.deaths = process.deaths(code, slot.log, 0 if progressed else slot.deaths)
    if code == 0 and not progressed:  # others, that are not ours, are at work on all of its rows
        not_before[task.key] = time.monotonic() + _AGAIN_SECONDS
