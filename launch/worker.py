"""A worker that takes jobs itself, for machines without a scheduler: started any number of times, anywhere.

A job is a block of rows. It is leased in a folder or a bucket that all workers see; a lease that is not renewed is
taken over. Should two workers ever be at work on one job, time is lost and nothing else: a row is written whole, and
the same bit for bit.
"""

import argparse
import dataclasses
import json
import random
import sys
import time
from pathlib import Path

from launch import heartbeats, jobs, leases, local, model_block, status
from launch.jobs import Sizes, Sweep, Task
from lm_mia.errors import UserError

_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 60.0  # before a job is tried again, whose rows others than workers were at work on


@dataclasses.dataclass(frozen=True)
class Options:
    """Where leases are, and how long they last."""

    leases: str
    """A folder, a URL or a JSON spec of tensorstore; "": ``leases`` in the sweep's folder."""
    seconds: float
    """Without a renewal, after which a lease is anybody's."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `options` reads."""
    group = parser.add_argument_group("leases")
    where = (
        "a folder, gs://BUCKET/PATH, s3://BUCKET/PATH or a kvstore spec of tensorstore; DIR/leases"
    )
    group.add_argument("--leases", default="", metavar="PLACE", help=where)
    taken = "after which a lease that is not renewed is taken over; 60"
    group.add_argument("--lease-seconds", type=float, default=60.0, metavar="S", help=taken)


def options(known: argparse.Namespace) -> Options:
    """What the flags say; UserError if it is wrong."""
    if not 1 <= known.lease_seconds <= 86_400:
        raise UserError(
            f"--lease-seconds={known.lease_seconds:g}: must lie between 1 and 86400; try --lease-seconds=60"
        )
    return Options(known.leases, known.lease_seconds)


def run(of: Sweep, sizes: Sizes, o: Options) -> int:
    """Takes jobs until no row is left.

    Returns:
      0, or 3 if rows were set aside or diverged.

    Raises:
      UserError: a user's mistake that a job found, leases that cannot be opened, or jobs that die at once.
      SystemExit: when stopped; the job saves what it is at, and its lease is given back.
    """
    name = model_block.who("", "").job
    held = leases.open_leases(o.leases or str(of.folder / "leases"), o.seconds, name)
    not_before: dict[str, float] = {}  # jobs whose rows are in other hands
    deaths, said = 0, False
    while todo := _todo(of, sizes):
        random.shuffle(todo)  # so that workers rarely ask for the same
        took = False
        for task, size, block in todo:
            key = f"{task.key}/{size}/{block}"
            if time.monotonic() < not_before.get(key, 0) or (lease := held.claim(key)) is None:
                continue
            try:
                if block not in jobs.blocks(task.missing(), size):  # any more: the list may be old
                    continue
                took, said = True, False
                code, log = _work(of, task, size, block, held, lease, name)
                if code == 0 and block in jobs.blocks(task.missing(), size):
                    not_before[key] = time.monotonic() + _AGAIN_SECONDS
            finally:
                held.release(lease)
            deaths = local.deaths(code, log, deaths)
        if not took:
            if not said:
                by = {key: holder["owner"] for key, holder in held.holders().items()}
                _say({"event": "waiting", "worker": name, "jobs": len(todo), "by": by})
            said = True
            time.sleep(min(o.seconds / 10, 5))
    return status.summary(of)


def _todo(of: Sweep, sizes: Sizes) -> list[tuple[Task, int, int]]:
    """(task, rows a job, block) of all that have rows to be made."""
    return [(j.task, j.rows_per_job, b) for j in jobs.jobs(of, sizes) for b in j.blocks]


def _work(
    of: Sweep,
    task: Task,
    size: int,
    block: int,
    held: leases.Leases,
    lease: leases.Lease,
    name: str,
) -> tuple[int, Path]:
    """A job from start to end, its lease renewed all the while; (exit code, log)."""
    said = jobs.slice_of(block, size, len(task.rows))
    log = of.folder / "logs" / f"{task.key}_{said.replace(':', '-')}.log"
    _say({"event": "job_started", "worker": name, "recipe": task.key, "rows": said})
    about = [f"--recipe={task.key}", f"--rows={said}", f"--job={name}-{said}", f"--log={log}"]
    at_work = local.start(of.command([sys.executable], "rows", *about), log, {})
    renewed = time.monotonic()
    try:
        while at_work.poll() is None:
            time.sleep(_LOOK_SECONDS)
            if time.monotonic() - renewed > held.seconds / 4:
                renewed = time.monotonic()
                if not held.renew(lease):  # we were thought dead: whoever has it now makes the rows
                    local.stop([at_work])
    except BaseException:
        local.stop([at_work])
        raise
    code = at_work.returncode
    ended = {"event": "job_ended", "worker": name, "recipe": task.key, "rows": said, "code": code}
    _say(ended)
    return code, log


def _say(event: dict[str, object]) -> None:
    """A line, for people and scripts."""
    print(json.dumps({"time": heartbeats.now(), **event}), flush=True)
