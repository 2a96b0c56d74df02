"""A job: makes some models of one recipe with the workers of this process; it may run anywhere and be repeated.

Exit codes. 0: the models are present or locked by another process. 2: a user's mistake. 3: some models were set
aside or diverged, and the others are present. 143: run the job again; it was stopped and has saved its models, or a
model that spans several processes failed. 200: run the job again, but only a limited number of times; its processes
were killed before they started a model, or did not find each other.
"""

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

from launch import heartbeats, jobs
from lm_mia.config import Config
from lm_mia.data.subsets import ModelSeeds
from lm_mia.errors import (
    SIGTERM_EXIT_CODE,
    DiskError,
    RendezvousError,
    UserError,
    WorkersKilledError,
)
from lm_mia.run import inventory, pipeline, progress, trackers, workdir
from lm_mia.run.sweep import Sweep, SweepRecipe

Event = dict[str, Any]

AGAIN = 200


def run(
    sweep: Sweep, task: SweepRecipe, said: str, name: str = "", log: str = "", workers: int = 0
) -> int:
    """Makes the models that ``--models`` names.

    Args:
      sweep: the recipes of the command.
      task: the recipe whose models are made.
      said: BEGIN:END, the numbers of the models.
      name: of the job, the same when it is run again; empty: a new name is chosen.
      log: where this process's output can be read.
      workers: processes that train; 0: as many as the config says.

    Returns:
      The exit code.

    Raises:
      UserError: invalid input, or workers that fail before they start a model.
      SystemExit: with code 143, when stopped.
    """
    rows = jobs.selected_models(said, task)
    trackers.check(task.config.train.trackers)
    by = this_worker(name, log)
    with progress.display(overall=False) as display:
        _, made = pipeline.build_populations(dataclasses.replace(sweep, recipes=(task,)), display)
        [(task, found)] = made
        if workers:
            # Only after config.json of the recipe was written, which keeps the number that the user requested.
            train = dataclasses.replace(task.config.train, workers=workers)
            task = dataclasses.replace(task, config=dataclasses.replace(task.config, train=train))
        c, recipe = task.config, task.folder
        about = {"job": by.job, "host": by.host, "version": by.version}
        missing = inventory.missing_models("run", c, recipe, rows)
        for line in heartbeats.reap(recipe, by.job, {str(row) for row in missing}):
            display.say(line)
        state = heartbeats.Running(recipe, by)
        with state.alive():
            while left := _left(task, recipe, rows):
                watch = _Watch(state, recipe, by)
                try:
                    pipeline.make_models(
                        "run",
                        task,
                        found,
                        display,
                        selected_models=left,
                        log_fields=about,
                        watch=watch.on_event,
                    )
                except DiskError:
                    raise
                except (RendezvousError, WorkersKilledError) as error:
                    if not watch.failed:
                        display.say(str(error))
                        return AGAIN
                except (UserError, RuntimeError):
                    if not watch.failed:
                        raise
                if not watch.failed:
                    break
                display.say("\n".join(watch.failed))
                if (
                    c.compute.sharding == "fsdp"
                ):  # its other processes cannot continue without this one
                    raise SystemExit(SIGTERM_EXIT_CODE)
        return _summary(c, recipe, rows, display)


def this_worker(name: str, log: str) -> heartbeats.WorkerInfo:
    """Describes this process; its host is named as the scheduler names it."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    rank = os.environ.get("JAX_PROCESS_ID") or os.environ.get("SLURM_PROCID") or "0"
    made_by = workdir.provenance()
    version = f"{made_by['lm_mia']} {(made_by['commit'] or '')[:9]}".strip()
    job_name = name or f"{host}-{os.getpid()}"
    return heartbeats.WorkerInfo(
        job_name + f".{rank}" * (rank != "0"), host, os.getpid(), log, version
    )


@dataclasses.dataclass
class _Watch:
    """Follows the events of workers: which model each of them is making, and whether one failed."""

    state: heartbeats.Running
    recipe: Path
    by: heartbeats.WorkerInfo
    failed: list[str] = dataclasses.field(default_factory=list)
    at_work: dict[int, str] = dataclasses.field(default_factory=dict)
    """Index of a worker -> name of the model."""

    def on_event(self, event: Event) -> None:
        kind, worker = event["event"], event.get("index", -1)
        if kind == "model_started":
            self.at_work[worker] = event["model"]
            self.state.begin(event["model"])
        elif kind == "model_diverged" or (kind == "model_scored" and event["last"]):
            self._end(worker)
        elif kind in ("crash", "user_error"):
            self._fail(worker, event["message"].strip().splitlines()[-1])
        elif kind == "worker_lost" and event["exit_code"] not in (SIGTERM_EXIT_CODE, -15):
            self._fail(worker, f"its worker ended with code {event['exit_code']} ({_CODES})")
            if self.failed:
                # All workers start again, without this model if it was set aside.
                raise RuntimeError("a worker was lost")

    def _end(self, worker: int) -> str | None:
        if row := self.at_work.pop(worker, None):
            self.state.end(row)
        return row

    def _fail(self, worker: int, reason: str) -> None:
        rows = [row] if (row := self._end(worker)) else _of_lead(self.recipe, self.by)
        for row in rows:
            heartbeats.record_failure(self.recipe, row, reason, self.by)
            self.failed.append(f"{row}: failed: {reason}")


_CODES = "killed, or out of memory?"


def _of_lead(recipe: Path, by: heartbeats.WorkerInfo) -> list[str]:
    """Returns the models that the first process of this job is working on."""
    lead, _, rank = by.job.rpartition(".")
    if not rank.isdecimal():
        return []
    return [
        row
        for _, record, _ in heartbeats.running_jobs(recipe)
        if record["job"] == lead
        for row in record["models"]
    ]


def _left(task: SweepRecipe, recipe: Path, rows: list[ModelSeeds]) -> list[ModelSeeds]:
    """Returns the models that are neither present nor diverged nor set aside."""
    missing = inventory.missing_models("run", task.config, recipe, rows)
    return [row for row in missing if not heartbeats.is_set_aside(recipe, row)]


def _summary(c: Config, recipe: Path, rows: list[ModelSeeds], display: progress.Display) -> int:
    missing = inventory.missing_models("run", c, recipe, rows)
    aside = [row for row in missing if heartbeats.is_set_aside(recipe, row)]
    for row in aside:
        reason = heartbeats.failures(recipe, row)[-1]["reason"]
        display.say(
            f"{row}: set aside after {heartbeats.MOST_FAILURES} failures: {reason}; {heartbeats.remedy(recipe, row)}"
        )
    bad = [row for row in rows if inventory.divergence_file(recipe, row).exists()]
    for row in bad:
        display.say(f"{row}: diverged; see {inventory.divergence_file(recipe, row)}")
    return heartbeats.GIVEN_UP if aside or bad else 0
