"""Launched jobs that run inside the test's process, for tests of the engines that start them.

The command line of a job is parsed and run as in a separate process. Only training is replaced: the scores of a model
are copied from the tiny run. Also helpers for tests of real jobs.
"""

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny_run import Tiny, recipe_of

from launch import cli, heartbeats, local
from lm_mia.data import subsets
from lm_mia.run import inventory, supervisor
from lm_mia.run.sweep import Sweep
from lm_mia.run.worker_task import WorkerTask
from lm_mia.store.store import Store, open_store


class Job:
    """The result of `launch.local.start`: a job that has ended, or one that runs until it is stopped."""

    def __init__(self, exit_code: int | None) -> None:
        self.returncode = exit_code

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        if self.returncode is None:
            self.returncode = 143

    def kill(self) -> None:
        assert self.returncode is not None, "the job ends when it is terminated"

    def wait(self, timeout: float | None = None) -> int:
        assert self.returncode is not None, "the job has neither ended nor been stopped"
        return self.returncode


@dataclasses.dataclass
class FakeJobs:
    """The jobs that an engine started, in order, and how they behave."""

    started: list[dict[str, str]] = dataclasses.field(default_factory=list)
    """The flags of every job by name, such as ``{"models": "0:2", "recipe": "epochs=2", ...}``."""
    not_made: set[subsets.ModelSeeds] = dataclasses.field(default_factory=set)
    """Models that jobs leave missing, as if another process held their locks."""
    before: Callable[[dict[str, str]], Job | None] = lambda flags: None
    """Called with the flags of a job before it starts; a Job that it returns replaces the real one."""

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> Any:
        """Replaces `launch.local.start`."""
        assert list(command[:5]) == [sys.executable, "-m", "lm_mia", "launch", "make-models"]
        flags = dict(argument.removeprefix("--").split("=", 1) for argument in command[5:])
        assert Path(flags["log"]) == log
        self.started.append(flags)
        return self.before(flags) or Job(cli.main(command[4:]))


@pytest.fixture
def jobs(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    """Runs jobs inside this process, with models copied from the tiny run."""
    fake = FakeJobs()
    store = Store(recipe_of(tiny.workdir) / "scores.zarr")
    loss_MxN, member_MxN = store.read(store.models())
    scores = dict(zip(store.models(), zip(loss_MxN, member_MxN, strict=True), strict=True))

    def run(task: WorkerTask, on_event: Callable[[dict[str, Any]], None]) -> bool:
        c, recipe = task.config, task.recipe_dir
        models = list(task.selected_models or ())
        for model in inventory.missing_models(task.verb, c, recipe, models):
            if model in fake.not_made:
                continue
            fields = {"model": str(model), "role": model.role, "index": 0}
            on_event({"event": "model_started", **fields})
            open_store(c, recipe).write_model(model, *scores[model])
            ended = {"event": "model_scored", "step": inventory.total_steps(c, model), "last": True}
            means = dict.fromkeys(("seconds", "member_loss_nats", "nonmember_loss_nats"), 0.0)
            on_event(ended | fields | means)
        return True

    monkeypatch.setattr(supervisor, "run", run)
    monkeypatch.setattr(local, "start", fake.start)
    return fake


def running(sweep: Sweep) -> list[dict[str, Any]]:
    """Returns the records of all jobs of a sweep that are working on a model."""
    records = [
        record for task in sweep.recipes for _, record, _ in heartbeats.running_jobs(task.folder)
    ]
    return [record for record in records if record["models"]]


def wait_for(sweep: Sweep, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for a job of this command to work on a model, and returns its record."""
    while process.poll() is None:
        with contextlib.suppress(OSError):
            for record in running(sweep):
                if f"-{process.pid}-" in record["job"]:
                    return record
        time.sleep(0.01)
    raise AssertionError(process.communicate())


class Clock:
    """Replaces the module `time`; only sleeping advances the clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.on_sleep: Callable[[], None] = lambda: None
        """Called after every sleep."""

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.on_sleep()
