"""``launch local`` and ``launch worker``: make models on this machine until none is missing.

Both verbs run the same loop and differ only in what they print: `local` shows the whole sweep, while `worker` prints a
line when something happens, which suits the log of one machine among many. File locks alone determine which process
makes which model, so any number of these commands may work on one workdir, on any machines that share it. When one of
them dies, the operating system releases its locks, and the others make its models. Each device, or each group of
devices that make one model together, has a job of its own, so that a job that runs out of memory does not disturb the
others.
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
from lm_mia.config import number
from lm_mia.errors import UserError
from lm_mia.run import devices, inventory, pipeline, progress
from lm_mia.run.sweep import Sweep, SweepRecipe

_GRACE_SECONDS = 150  # time for a job to save and exit; its own workers have 120 s
_MAX_DEATHS = 3  # consecutive jobs on a device that died without finishing a model

_POLL_SECONDS = 0.2  # between checks of our own jobs
_POLLS = 5  # checks of our own jobs per check of the workdir
_WAIT_SECONDS = 5.0  # between checks of the workdir while no job of ours runs
_RETRY_SECONDS = 60.0  # before another job for a recipe whose last job found nothing to do


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts a process in a session of its own, so that Ctrl-C does not reach it; appends its output to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    job_environment = {**os.environ, **environment, heartbeats.PARENT_VARIABLE: str(os.getpid())}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=job_environment,
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
    """A device or group of devices of this machine, and the job that runs on it."""

    number: int
    environment: dict[str, str]
    devices_per_model: int
    log: Path
    recipe: SweepRecipe | None = None
    process: subprocess.Popen[bytes] | None = None
    missing: int = 0
    """Number of the recipe's models that were missing when the job started."""
    deaths: int = 0
    """Number of consecutive jobs that died without finishing a model."""


def run(sweep: Sweep) -> int:
    """Makes every missing model of a sweep that no other process is working on, and waits for the rest.

    Shows the progress of the whole sweep.

    Returns:
      0, or 3 if models were set aside or diverged, which the summary lists.

    Raises:
      UserError: if a job reports invalid input, or three consecutive jobs die without finishing a model.
      SystemExit: if this process is stopped, after the jobs have saved.
    """
    sweep, slots = _prepare(sweep)
    with status.live_view(sweep) as refresh:
        _work(sweep, slots, lambda line: None, refresh)
    return status.print_summary(sweep)


def worker(sweep: Sweep) -> int:
    """Like `run`, but prints a line when a job starts or dies, and when it begins to wait for other machines."""
    sweep, slots = _prepare(sweep)
    _work(sweep, slots, _say, lambda: None)
    return status.print_summary(sweep)


def _prepare(sweep: Sweep) -> tuple[Sweep, list[_Slot]]:
    """Builds the missing populations; returns the sweep with its final folders, and a slot for each worker."""
    configs = [recipe.config for recipe in sweep.recipes]
    if len({c.compute.devices_per_model for c in configs}) > 1:
        raise UserError(
            "compute.devices_per_model: must be the same in all entries of a sweep, since devices are assigned to jobs "
            "once; launch the entries one after another"
        )
    with progress.display(overall=False) as display:
        sweep, _ = pipeline.build_populations(sweep, display)
    workers = max(number(recipe.config.train.workers) for recipe in sweep.recipes)
    devices_per_model = devices.choose_devices_per_model(configs)
    assigned = devices.assign(workers, devices_per_model)
    if assigned.num_idle:
        _say(devices.idle_message(assigned))
    job = model_block.this_worker("", "").job
    logs = sweep.workdir.path / "logs"
    return sweep, [
        _Slot(i, environment, devices_per_model, logs / f"{job}-{i}.log")
        for i, environment in enumerate(assigned.environments)
    ]


def _work(
    sweep: Sweep, slots: list[_Slot], say: Callable[[str], None], refresh: Callable[[], object]
) -> None:
    """Runs jobs on the devices until no model is missing; calls `refresh` after every check of the workdir."""
    not_before: dict[str, float] = {}
    is_waiting = False
    try:
        while True:
            for slot in slots:
                if slot.process is not None and slot.process.poll() is not None:
                    _handle_exit(slot, not_before, say)
            missing = {recipe.name: jobs.missing_indices(recipe) for recipe in sweep.recipes}
            if not any(missing.values()):
                return
            for slot in slots:
                if slot.process is None:
                    _start_job(slot, slots, sweep, missing, not_before, say)
            idle = all(slot.process is None for slot in slots)
            if idle and not is_waiting:
                count = sum(map(len, missing.values()))
                say(f"waiting: other processes are making all missing models ({count})")
            is_waiting = idle
            refresh()
            _sleep(slots)
    finally:
        stop([slot.process for slot in slots if slot.process is not None])


def _sleep(slots: list[_Slot]) -> None:
    """Sleeps until one of our jobs ends, or until it is time to check the workdir again."""
    if all(slot.process is None for slot in slots):
        time.sleep(_WAIT_SECONDS)
        return
    for _ in range(_POLLS):
        time.sleep(_POLL_SECONDS)
        if any(s.process is not None and s.process.poll() is not None for s in slots):
            return


def _start_job(
    slot: _Slot,
    slots: list[_Slot],
    sweep: Sweep,
    missing: Mapping[str, list[int]],
    not_before: Mapping[str, float],
    say: Callable[[str], None],
) -> None:
    """Starts a job for the first recipe with more missing models than jobs of ours, at least one of them not locked."""
    for recipe in sweep.recipes:
        indices = missing[recipe.name]
        own_jobs = sum(s.recipe == recipe for s in slots if s.process is not None)
        if len(indices) <= own_jobs or time.monotonic() < not_before.get(recipe.name, 0):
            continue
        models = recipe.models
        if all(inventory.is_locked(recipe.folder, models[i]) for i in indices):
            continue  # a job would load JAX, find nothing to do, and exit
        selection = f"--models=0:{len(models)}", f"--job={slot.log.stem}", f"--log={slot.log}"
        group = "--workers=1", f"--devices-per-model={slot.devices_per_model}"
        command = jobs.job_command(sweep, [sys.executable], recipe, *selection, *group)
        slot.recipe, slot.missing = recipe, len(indices)
        slot.process = start(command, slot.log, slot.environment)
        say(f"{recipe.name}: {len(indices)} models missing; started a job, whose log is {slot.log}")
        return


def _handle_exit(slot: _Slot, not_before: dict[str, float], say: Callable[[str], None]) -> None:
    """Handles a job that has exited; raises UserError if starting another one would not help."""
    assert slot.process is not None
    assert slot.recipe is not None
    code, recipe, log = slot.process.returncode, slot.recipe, slot.log
    slot.process = slot.recipe = None
    progressed = len(jobs.missing_indices(recipe)) < slot.missing
    if code == 2:
        raise UserError(f"{_last_line(log)}\n(see {log})")
    died = code not in (0, heartbeats.GIVEN_UP_EXIT_CODE)
    slot.deaths = (0 if progressed else slot.deaths) + 1 if died else 0
    if slot.deaths == _MAX_DEATHS:
        raise UserError(
            f"{log}: the job exited with code {code}, the third in a row that did not finish a model; the last line of "
            f"its log: {_last_line(log)}"
        )
    if died:
        say(f"{log}: the job exited with code {code}")
    elif not progressed:  # another process was faster, or holds the locks of all missing models
        not_before[recipe.name] = time.monotonic() + _RETRY_SECONDS


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "(the log is empty)"
    return "(the log cannot be read)"


def _say(line: str) -> None:
    print(f"{heartbeats.now()[:19]} UTC  {line}", flush=True)
