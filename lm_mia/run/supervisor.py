"""Starts worker processes that make the missing models of a recipe, and passes on their events.

Any number of workers, of this command or of others, may work on one workdir; they communicate only through files. Each
model is locked while it is made, and the operating system releases the lock when its holder exits for any reason. A
worker takes any model that is missing and not locked.
"""

import dataclasses
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from lm_mia import interrupts
from lm_mia.config import number
from lm_mia.data import subsets
from lm_mia.errors import (
    SIGTERM_EXIT_CODE,
    DiskError,
    RendezvousError,
    UserError,
    WorkersKilledError,
)
from lm_mia.events import Event
from lm_mia.run import devices, inventory, worker
from lm_mia.run.worker_task import WorkerTask

# exit codes of a worker that was terminated by SIGTERM while it was not training
_STOPPED_EXIT_CODES = (SIGTERM_EXIT_CODE, -signal.SIGTERM)
_ERROR_TYPES = {"user_error": UserError, "disk": DiskError, "rendezvous": RendezvousError}
_FATAL_EVENTS = (*_ERROR_TYPES, "crash", "preempted")  # after these, all workers are stopped
_GRACE_SECONDS = 120  # for workers to save their states, which takes long if the disk is slow


def run(task: WorkerTask, on_event: Callable[[Event], None]) -> bool:
    """Starts the workers, and returns when no model is missing.

    If a worker is killed, the others make its models. If this process is asked to stop, it asks its workers to stop;
    they save the models that they are training.

    Args:
      task: the models to make; the index of each worker and their number are filled in.
      on_event: called in this process with each event of each worker; "index" is the number of the worker.

    Returns:
      Whether this process runs the stages that follow: in a job of several processes, only the first one does.

    Raises:
      UserError: if a worker reports invalid input; finished models are kept. DiskError if the disk is full or not
        writable, RendezvousError if the processes of a job could not connect to each other, WorkersKilledError if all
        workers were killed.
      RuntimeError: if a worker crashed.
      SystemExit: with code 143, if a worker was terminated from outside.
    """
    c, recipe_dir = task.config, task.recipe_dir
    devices_per_model = devices.choose_devices_per_model([c])
    assigned = devices.assign(number(c.train.workers), devices_per_model)
    environments = assigned.environments
    selected_models = task.selected_models
    models = list(subsets.models_of_config(c) if selected_models is None else selected_models)
    is_primary = True
    if devices_per_model:
        num_missing = len(inventory.missing_models(task.verb, c, recipe_dir, models))
        environments = environments[:num_missing]
    context = multiprocessing.get_context("spawn")
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess] = {}
    try:
        if assigned.num_idle:
            on_event({"event": "idle_devices", "message": devices.idle_message(assigned)})
        for index, environment in enumerate(environments):
            receiver, sender = context.Pipe(duplex=False)
            own_task = dataclasses.replace(
                task,
                worker_index=index,
                num_workers=len(environments),
                devices_per_model=devices_per_model,
            )
            process = context.Process(
                target=worker.main, args=(sender, own_task, environment), daemon=True
            )
            with interrupts.blocked():
                process.start()
            sender.close()  # else the pipe would not end with the worker
            processes[receiver] = process
        for event in _events(processes):
            if event["event"] in _FATAL_EVENTS:
                on_event(event)
            _raise_failure(event)
            is_primary = event.get("is_primary", is_primary)
            on_event(event)
        were_all_killed = all(process.exitcode for process in processes.values())
        if were_all_killed and (
            missing := inventory.missing_models(task.verb, c, recipe_dir, models)
        ):
            raise WorkersKilledError(
                f"all workers were killed (out of memory?) with {len(missing)} models missing; run the same command "
                "again to continue: finished models are kept"
            )
    except (KeyboardInterrupt, SystemExit):
        on_event({"event": "stopping"})
        raise
    finally:
        _stop(list(processes.values()))
    return is_primary


def _raise_failure(event: Event) -> None:
    if error := _ERROR_TYPES.get(event["event"]):
        raise error(event["message"])
    if event["event"] == "crash":
        raise RuntimeError(f"a worker crashed:\n{event['message']}")
    if event["event"] == "preempted":
        raise SystemExit(SIGTERM_EXIT_CODE)
    if event["event"] == "worker_lost" and event["exit_code"] in _STOPPED_EXIT_CODES:
        raise SystemExit(SIGTERM_EXIT_CODE)


def check_diverged(recipe_dir: Path, models: list[subsets.ModelSeeds]) -> None:
    """Raises UserError if models diverged, now or in an earlier command; they are not retried automatically."""
    diverged = [model for model in models if inventory.divergence_file(recipe_dir, model).exists()]
    if diverged:
        names = ", ".join(map(str, diverged[:3])) + (", ..." if diverged[3:] else "")
        folder = inventory.divergence_file(recipe_dir, diverged[0]).parent
        raise UserError(
            f"{len(diverged)} of {len(models)} models diverged ({names}): see {folder}; lower "
            "optimizer.peak_learning_rate in a new workdir, or delete the files of that folder to try again"
        )


def _stop(processes: list[multiprocessing.process.BaseProcess]) -> None:
    """Asks the running workers to save and exit, and kills those that do not exit in time."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _GRACE_SECONDS
    try:
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0))
    finally:  # even if this process receives a second signal
        for process in processes:
            process.kill()
            process.join()


def _events(
    processes: dict[multiprocessing.connection.Connection, multiprocessing.process.BaseProcess],
) -> Iterator[Event]:
    """Yields the events of all workers until all have exited, and "worker_lost" for each that exits with an error."""
    index_by_pipe = {pipe: index for index, pipe in enumerate(processes)}
    while index_by_pipe:
        for pipe in multiprocessing.connection.wait(index_by_pipe):
            assert isinstance(pipe, multiprocessing.connection.Connection)
            try:
                event = pipe.recv()
            except (EOFError, ConnectionResetError):
                index = index_by_pipe.pop(pipe)
                processes[pipe].join()
                if exit_code := processes[pipe].exitcode:
                    lost = {"event": "worker_lost", "index": index, "exit_code": exit_code}
                    yield lost | {"left": len(index_by_pipe)}
            else:
                yield {**event, "index": index_by_pipe[pipe]}
