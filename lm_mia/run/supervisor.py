"""Making sure that rows exist: worker processes that share a recipe's rows, and nothing but files between them.

Any number of workers, of this command or of others, may be at work on one workdir. A row is worked on under a lock
that the operating system frees when its holder dies, however it dies; whoever finds a row missing and its lock free
takes it.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_mia import config
from lm_mia.data import subsets
from lm_mia.errors import (
    SIGTERM_EXIT_CODE,
    DiskError,
    RendezvousError,
    UserError,
    WorkersKilledError,
)
from lm_mia.run import devices, inventory, worker
from lm_mia.run.stages import ModelVerb

Event = dict[str, Any]

_ASKED = (
    SIGTERM_EXIT_CODE,
    -signal.SIGTERM,
)  # exit codes of a worker that SIGTERM ended outside of training
_RAISED = {"user_error": UserError, "disk": DiskError, "apart": RendezvousError}
_BAD = (*_RAISED, "crash", "preempted")  # after which all workers are stopped
_GRACE_SECONDS = 120  # in which a worker saves, also a large state to a slow disk


def run(
    verb: ModelVerb,
    c: config.Config,
    population: Path,
    recipe: Path,
    on_event: Callable[[Event], None],
    selected_models: Sequence[subsets.ModelSeeds] | None = None,
) -> bool:
    """Starts the workers, passes on what they report, returns when no row is missing.

    Args:
      todo: "train", "score", or "run" for both.
      c: the whole config.
      population: folder of the samples.
      recipe: folder of the recipe.
      on_event: called in this process with every event of every worker, whose number is its "index".
      only: the rows to make, but for those that others are at work on; None: all, waiting for others' too.

    A worker that is killed is lost: the others make its rows. When this process is asked to stop, it asks its workers,
    which save the rows that they are at.

    Returns:
      Whether to go on with what comes after the rows: not so in processes of a job other than the first.

    Raises:
      UserError: what a worker found wrong; finished rows stay. DiskError, if the disk is full or cannot be written;
        RendezvousError, if the processes of a job did not find each other; WorkersKilledError, if all workers
        were killed.
      SystemExit: with code 143, if a worker was asked to stop from outside.
    """
    _, environments = devices.environments(c.train.workers, c.compute.sharding)
    rows, lead = (
        list(subsets.models_of_config(c) if selected_models is None else selected_models),
        True,
    )
    if c.compute.sharding == "none":
        environments = environments[: len(inventory.missing_models(verb, c, recipe, rows))]
    context = multiprocessing.get_context("spawn")
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess] = {}
    try:
        for index, environment in enumerate(environments):
            ours, theirs = context.Pipe(duplex=False)
            place = (index, len(environments))
            process = context.Process(
                target=worker.main,
                args=(theirs, verb, c, population, recipe, place, environment, selected_models),
                daemon=True,
            )
            process.start()
            theirs.close()
            processes[ours] = process
        for event in _events(processes):
            if event["event"] in _BAD:
                on_event(event)
            if raised := _RAISED.get(event["event"]):
                raise raised(event["message"])
            if event["event"] == "crash":
                raise RuntimeError(f"a worker failed:\n{event['message']}")
            if event["event"] == "preempted":
                raise SystemExit(SIGTERM_EXIT_CODE)
            if event["event"] == "worker_lost" and event["exit_code"] in _ASKED:
                raise SystemExit(SIGTERM_EXIT_CODE)
            lead = event.get("lead", lead)
            on_event(event)
        lost = all(process.exitcode for process in processes.values())
        if lost and (left := inventory.missing_models(verb, c, recipe, rows)):
            raise WorkersKilledError(
                f"all workers were lost (killed, or out of memory?) with {len(left)} models missing; "
                "finished models are kept: run the same command again to continue"
            )
    except (KeyboardInterrupt, SystemExit):
        on_event({"event": "stopping"})
        raise
    finally:
        _stop(list(processes.values()))
    return lead


def check_diverged(recipe: Path, rows: list[subsets.ModelSeeds]) -> None:
    """Raises UserError if models have diverged, now or in an earlier command; they are not retried automatically."""
    if bad := [row for row in rows if inventory.divergence_file(recipe, row).exists()]:
        raise UserError(
            f"{len(bad)} of {len(rows)} models diverged ({', '.join(map(str, bad[:3]))}{', ...' if bad[3:] else ''}): "
            f"{inventory.divergence_file(recipe, bad[0]).parent} says where; lower optimizer.peak_learning_rate in a "
            "new workdir, or delete those files to try again"
        )


def _stop(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """Asks workers that are still there to save and end, and kills those that do not."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    try:
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
    finally:  # also when this process is told to stop once more
        for process in processes:
            process.kill()
            process.join()


def _events(
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess],
) -> Iterator[Event]:
    """Events of all workers as they come, until every worker has ended; a killed one makes an event of its own."""
    pipes = {pipe: index for index, pipe in enumerate(processes)}
    while pipes:
        for pipe in multiprocessing.connection.wait(pipes):
            assert isinstance(pipe, multiprocessing.connection.Connection)
            try:
                event = pipe.recv()
            except (EOFError, ConnectionResetError):
                index = pipes.pop(pipe)
                processes[pipe].join()
                if code := processes[pipe].exitcode:
                    about = {"event": "worker_lost", "index": index}
                    yield about | {"exit_code": code, "left": len(pipes)}
            else:
                yield {**event, "index": pipes[pipe]}
