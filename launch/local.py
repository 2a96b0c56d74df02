"""``launch local`` and ``launch worker``: make models on this machine, one process per device, until none is missing.

Both verbs run the same loop and differ in what they print: `local` shows the whole sweep, while `worker` prints a line
when something happens, which suits the log of one machine among many. File locks alone decide which process makes which
model, so any number of these commands may work on one workdir, on any machines that share it. When one of them dies,
the operating system releases its locks and the others make its models. There is one process per device, rather than one
job over all of them, so that a job that runs out of memory does not disturb those on the other devices.
"""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launch import heartbeats, jobs, model_block, status
from lm_mia.errors import UserError
from lm_mia.run import devices, inventory, pipeline, progress
from lm_mia.run.sweep import Sweep, SweepRecipe

_GRACE_SECONDS = 150  # for a job to save; its own workers have 120
_MOST_DEATHS = 3  # consecutive ones on a device without a new model

_LOOK_SECONDS = 0.2  # between checks of our jobs
_LOOKS = 5  # checks of our jobs per check of the workdir
_WAIT_SECONDS = 5.0  # between checks of the workdir while no job of ours runs
_AGAIN_SECONDS = 60.0  # before another job for a recipe whose last job found nothing to do


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a process in its own session, so that Ctrl-C reaches only this one; appends its output to the log."""
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
    """Asks all processes to save and exit, and kills those that do not exit in time."""
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        process.kill()
        process.wait()


@dataclasses.dataclass
class _Slot:
    """A device of this machine, and the job that runs on it."""

    number: int
    environment: dict[str, str]
    log: Path
    task: SweepRecipe | None = None
    process: subprocess.Popen[bytes] | None = None
    missing: int = 0
    """Number of models of the recipe that were missing when the job started."""
    deaths: int = 0
    """Number of consecutive jobs that died without a new model."""


def run(of: Sweep) -> int:
    """Makes every missing model of a sweep that no other process is working on, and waits for the rest.

    Shows the progress of the whole sweep.

    Returns:
      0, or 3 if models were set aside or diverged, which the summary lists.

    Raises:
      UserError: a user's mistake that a job reported, or three consecutive jobs that died without a new model.
      SystemExit: when this process was stopped, after the jobs have saved.
    """
    of, slots = _prepare(of)
    with status.live_view(of) as refresh:
        _work(of, slots, lambda line: None, refresh)
    return status.print_summary(of)


def worker(of: Sweep) -> int:
    """Like `run`, but prints a line when a job starts or dies, and when it begins to wait for other machines."""
    of, slots = _prepare(of)
    _work(of, slots, _say, lambda: None)
    return status.print_summary(of)


def _prepare(of: Sweep) -> tuple[Sweep, list[_Slot]]:
    """Builds the missing populations; returns the sweep with its final folders, and a slot for each device."""
    sharding = of.recipes[0].config.compute.sharding
    if any(t.config.compute.sharding != sharding for t in of.recipes):
        raise UserError(
            "compute.sharding: must be the same in all entries of a sweep, since devices are assigned to jobs once; "
            "launch the entries one after another"
        )
    with progress.display(overall=False) as display:
        of, _ = pipeline.build_populations(of, display)
    workers = max(t.config.train.workers for t in of.recipes)
    _, environments = devices.environments(workers, sharding)
    by = model_block.this_worker("", "").job
    logs = of.workdir.path / "logs"
    return of, [_Slot(i, e, logs / f"{by}-{i}.log") for i, e in enumerate(environments)]


def _work(
    of: Sweep, slots: list[_Slot], say: Callable[[str], None], refresh: Callable[[], object]
) -> None:
    """Runs jobs on the devices until no model is missing; calls `refresh` after every check of the workdir."""
    not_before: dict[str, float] = {}
    waiting = False
    try:
        while True:
            for slot in slots:
                if slot.process is not None and slot.process.poll() is not None:
                    _ended(slot, not_before, say)
            missing = {task.name: jobs.missing_indices(task) for task in of.recipes}
            if not any(missing.values()):
                return
            for slot in slots:
                if slot.process is None:
                    _begin(slot, slots, of, missing, not_before, say)
            idle = all(slot.process is None for slot in slots)
            if idle and not waiting:
                count = sum(map(len, missing.values()))
                say(f"waiting: other processes are making all missing models ({count})")
            waiting = idle
            refresh()
            _sleep(slots)
    finally:
        stop([slot.process for slot in slots if slot.process is not None])


def _sleep(slots: list[_Slot]) -> None:
    """Returns when a job of ours ends, or when it is time to check the workdir again."""
    if all(slot.process is None for slot in slots):
        time.sleep(_WAIT_SECONDS)
        return
    for _ in range(_LOOKS):
        time.sleep(_LOOK_SECONDS)
        if any(s.process is not None and s.process.poll() is not None for s in slots):
            return


def _begin(
    slot: _Slot,
    slots: list[_Slot],
    of: Sweep,
    missing: Mapping[str, list[int]],
    not_before: Mapping[str, float],
    say: Callable[[str], None],
) -> None:
    """Starts a job for the first recipe that has more missing models than our jobs, one of them not locked."""
    for task in of.recipes:
        numbers = missing[task.name]
        ours = sum(s.task == task for s in slots if s.process is not None)
        if len(numbers) <= ours or time.monotonic() < not_before.get(task.name, 0):
            continue
        rows = task.models
        if all(inventory.is_locked(task.folder, rows[i]) for i in numbers):
            continue  # a job would only load JAX and end
        about = f"--models=0:{len(rows)}", f"--job={slot.log.stem}", f"--log={slot.log}"
        command = jobs.job_command(of, [sys.executable], task, *about, "--workers=1")
        slot.task, slot.missing = task, len(numbers)
        slot.process = start(command, slot.log, slot.environment)
        say(f"{task.name}: {len(numbers)} models missing; started a job, whose log is {slot.log}")
        return


def _ended(slot: _Slot, not_before: dict[str, float], say: Callable[[str], None]) -> None:
    """Handles a job that has ended; raises UserError if starting another one would not help."""
    assert slot.process is not None
    assert slot.task is not None
    code, task, log = slot.process.returncode, slot.task, slot.log
    slot.process = slot.task = None
    progressed = len(jobs.missing_indices(task)) < slot.missing
    if code == 2:
        raise UserError(f"{_last_line(log)}\n({log} has more)")
    died = code not in (0, heartbeats.GIVEN_UP)
    slot.deaths = (0 if progressed else slot.deaths) + 1 if died else 0
    if slot.deaths == _MOST_DEATHS:
        raise UserError(
            f"{log}: its job ended with code {code}, the third in a row without a new model; its last line: "
            f"{_last_line(log)}"
        )
    if died:
        say(f"{log}: its job ended with code {code}")
    elif not progressed:  # another process was faster, or holds the locks of all missing models
        not_before[task.name] = time.monotonic() + _AGAIN_SECONDS


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(the log is empty)"
    return "(the log cannot be read)"


def _say(line: str) -> None:
    """Prints a line with the time, for the log of this machine."""
    print(f"{heartbeats.now()[:19]} UTC  {line}", flush=True)
