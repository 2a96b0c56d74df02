"""A job: some rows of one recipe, made by this process's workers; any number of times, anywhere, in any order.

Exit codes. 0: the rows are present, or in other hands. 2: a user's mistake. 3: some were set aside, or diverged, and
the others are present. 143: run me again: it was stopped and has saved what it was at, or a row that spans several
processes failed. 200: the same, but not for ever: its processes were killed before they had a row, or did not find each
other.
"""

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

from launch import heartbeats, jobs
from lm_mia.config import Config
from lm_mia.data.subsets import Row
from lm_mia.errors import STOPPED, ApartError, DiskError, LostError, UserError
from lm_mia.run import inventory, pipeline, progress, trackers, workdir
from lm_mia.run.sweep import Sweep, Task

Event = dict[str, Any]

AGAIN = 200


def run(
    sweep: Sweep, task: Task, said: str, name: str = "", log: str = "", workers: int = 0
) -> int:
    """Makes the models that ``--rows`` names.

    Args:
      sweep: the recipes of the command.
      task: the one of them whose models are made.
      said: BEGIN:END, the numbers of the models.
      name: of the job, the same when it is run again; "": one is made up.
      log: where this process's output can be read.
      workers: processes that train; 0: as many as the config says.

    Returns:
      The exit code.

    Raises:
      UserError: bad input, or workers that fail before they begin a row.
      SystemExit: with code 143, when stopped.
    """
    rows = jobs.rows_of(said, task)
    trackers.check(task.config.train.trackers)
    by = who(name, log)
    with progress.display(overall=False) as display:
        _, made = pipeline.populations(dataclasses.replace(sweep, tasks=(task,)), display)
        [(task, found)] = made
        if workers:
            # After the recipe's config.json was written, which has the number that the user asked for.
            train = dataclasses.replace(task.config.train, workers=workers)
            task = dataclasses.replace(task, config=dataclasses.replace(task.config, train=train))
        c, recipe = task.config, task.folder
        about = {"job": by.job, "host": by.host, "version": by.version}
        missing = inventory.missing("run", c, recipe, rows)
        for line in heartbeats.bury(recipe, by.job, {str(row) for row in missing}):
            display.say(line)
        state = heartbeats.Running(recipe, by)
        with state.alive():
            while left := _left(task, recipe, rows):
                watch = _Watch(state, recipe, by)
                try:
                    pipeline.make_models(
                        "run", task, found, display, only=left, about=about, watch=watch.on_event
                    )
                except DiskError:
                    raise
                except (ApartError, LostError) as error:
                    if not watch.failed:
                        display.say(str(error))
                        return AGAIN
                except (UserError, RuntimeError):
                    if not watch.failed:
                        raise
                if not watch.failed:
                    break
                display.say("\n".join(watch.failed))
                if c.compute.span == "job":  # its other processes cannot go on without this one
                    raise SystemExit(STOPPED)
        return _summary(c, recipe, rows, display)


def who(name: str, log: str) -> heartbeats.By:
    """This process, on the node as its scheduler calls it."""
    host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    rank = os.environ.get("JAX_PROCESS_ID") or os.environ.get("SLURM_PROCID") or "0"
    made_by = workdir.provenance()
    version = f"{made_by['lm_mia']} {(made_by['commit'] or '')[:9]}".strip()
    job_name = name or f"{host}-{os.getpid()}"
    return heartbeats.By(job_name + f".{rank}" * (rank != "0"), host, os.getpid(), log, version)


@dataclasses.dataclass
class _Watch:
    """Follows the events of workers: which row each is at work on, and whether one failed."""

    state: heartbeats.Running
    recipe: Path
    by: heartbeats.By
    failed: list[str] = dataclasses.field(default_factory=list)
    at_work: dict[int, str] = dataclasses.field(default_factory=dict)
    """Worker -> row."""

    def on_event(self, event: Event) -> None:
        kind, worker = event["event"], event.get("index", -1)
        if kind == "row_started":
            self.at_work[worker] = event["row"]
            self.state.begin(event["row"])
        elif kind == "row_diverged" or (kind == "row_scored" and event["last"]):
            self._end(worker)
        elif kind in ("crash", "user_error"):
            self._fail(worker, event["message"].strip().splitlines()[-1])
        elif kind == "worker_lost" and event["exit_code"] not in (STOPPED, -15):
            self._fail(worker, f"its worker ended with code {event['exit_code']} ({_CODES})")
            if self.failed:
                # All begin anew, without the row if it is set aside.
                raise RuntimeError("a worker was lost")

    def _end(self, worker: int) -> str | None:
        if row := self.at_work.pop(worker, None):
            self.state.end(row)
        return row

    def _fail(self, worker: int, reason: str) -> None:
        rows = [row] if (row := self._end(worker)) else _of_lead(self.recipe, self.by)
        for row in rows:
            heartbeats.failed(self.recipe, row, reason, self.by)
            self.failed.append(f"{row}: failed: {reason}")


_CODES = "killed, or out of memory?"


def _of_lead(recipe: Path, by: heartbeats.By) -> list[str]:
    """Rows that the first process of this one's job is at work on."""
    lead, _, rank = by.job.rpartition(".")
    if not rank.isdecimal():
        return []
    return [
        row
        for _, record, _ in heartbeats.running(recipe)
        if record["job"] == lead
        for row in record["rows"]
    ]


def _left(task: Task, recipe: Path, rows: list[Row]) -> list[Row]:
    """Rows that are neither present nor diverged nor set aside."""
    missing = inventory.missing("run", task.config, recipe, rows)
    return [row for row in missing if not heartbeats.set_aside(recipe, row)]


def _summary(c: Config, recipe: Path, rows: list[Row], display: progress.Display) -> int:
    missing = inventory.missing("run", c, recipe, rows)
    aside = [row for row in missing if heartbeats.set_aside(recipe, row)]
    for row in aside:
        reason = heartbeats.failures(recipe, row)[-1]["reason"]
        display.say(
            f"{row}: set aside after {heartbeats.MOST_FAILURES} failures: {reason}; {heartbeats.way_out(recipe, row)}"
        )
    bad = [row for row in rows if inventory.diverged(recipe, row).exists()]
    for row in bad:
        display.say(f"{row}: diverged; {inventory.diverged(recipe, row)} says where")
    return heartbeats.GIVEN_UP if aside or bad else 0
