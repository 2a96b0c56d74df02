"""This machine: a process per device (or core), each with a job; one that dies is started again; one view of all."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import heartbeats, model_block, status
from launch.jobs import Sweep, Task
from lm_mia.data.corpus import remembering
from lm_mia.errors import UserError
from lm_mia.run import devices, progress, sweep_pipeline

_GRACE_SECONDS = 150  # its workers save in 120
_MOST_DEATHS = 3  # of jobs, without a row between

_LOOK_SECONDS = 0.2
_AGAIN_SECONDS = 60.0  # before a task is tried again, all rows of which others were at work on


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that Ctrl-C reaches it through us alone; its output is added to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = {**os.environ, **environment, heartbeats.PARENT: str(os.getpid())}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ours,
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks all to save and end, and kills those that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        process.kill()
        process.wait()


def deaths(code: int, log: Path, before: int) -> int:
    """How many jobs in a row have died, this one with it, if it did.

    Raises:
      UserError: what a job found wrong (code 2), or that this is the third to die.
    """
    if code == 2:
        raise UserError(f"{last_line(log)}\n({log} has more)")
    if code in (0, heartbeats.GIVEN_UP):
        return 0
    if before + 1 == _MOST_DEATHS:
        raise UserError(
            f"{log}: its job ended with code {code}, the third in a row; it said last: {last_line(log)}"
        )
    return before + 1


def last_line(log: Path) -> str:
    """What a job said last."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing was said"
    return "its log is gone"


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
            sweep_pipeline.population(task, display, opens)
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
            stop([slot.at_work for slot in slots if slot.at_work is not None])
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
            name = f"{model_block.who('', '').job}-{slot.number}"
            slot.log = of.folder / "logs" / f"{name}.log"
            about = [f"--recipe={task.key}", f"--rows=0:{len(task.rows)}", f"--job={name}"]
            command = of.command([sys.executable], "rows", *about, f"--log={slot.log}")
            command.append("--config.train.workers=1")
            slot.task, slot.missing = task, left[task.key]
            slot.at_work = start(command, slot.log, slot.environment)
            return


def _ended(slot: _Slot, not_before: dict[str, float]) -> None:
    """Takes note of a job that ended; UserError if it is not worth starting it again."""
    assert slot.at_work is not None
    assert slot.task is not None
    code, task = slot.at_work.returncode, slot.task
    slot.at_work = slot.task = None
    progressed = len(task.missing()) < slot.missing
    slot.deaths = deaths(code, slot.log, 0 if progressed else slot.deaths)
    if code == 0 and not progressed:  # others, that are not ours, are at work on all of its rows
        not_before[task.key] = time.monotonic() + _AGAIN_SECONDS
