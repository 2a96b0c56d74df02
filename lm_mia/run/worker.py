"""A worker process, which trains and scores models and reports events to the command that started it.

The command itself never loads JAX: `lm_mia.run.model_maker`, which does, is imported only in the worker.
"""

import functools
import multiprocessing.connection
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from lm_mia import errors
from lm_mia.errors import UserError
from lm_mia.run.worker_task import Event, Report, WorkerTask


def main(
    pipe: multiprocessing.connection.Connection, task: WorkerTask, environment: dict[str, str]
) -> None:
    """Runs a worker process. If the command that started it dies, the worker exits at its next report.

    Args:
      pipe: receives the events.
      task: the models to make.
      environment: environment variables to be set before JAX is loaded.
    """
    os.environ |= environment
    _hide_closed_event_loops()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command handles Ctrl-C and sends SIGTERM
    try:
        failure = _failure_event(functools.partial(work, task, pipe.send), task.recipe_dir)
        if failure is None:
            return
        pipe.send(failure)
    except BrokenPipeError:
        pass
    # Exit at once: a normal exit would wait for a save that failed, or for processes of the job that wait for this one.
    os._exit(1)


def _hide_closed_event_loops() -> None:
    """Hides what Python prints after a save that failed, hundreds of lines for a full disk.

    The callbacks of TensorStore that are still running then fail, because their event loop is closed.
    """
    show = sys.unraisablehook

    def show_unless_loop_is_closed(failure: "sys.UnraisableHookArgs") -> None:
        if str(failure.exc_value) != "Event loop is closed":
            show(failure)

    sys.unraisablehook = show_unless_loop_is_closed


def work(task: WorkerTask, report: Report) -> None:
    """Makes the missing models of a task in this process, and calls `report` with each event."""
    # Imported here because it loads JAX, and the environment variables must be set first.
    from lm_mia.run.model_maker import ModelMaker

    ModelMaker(task, report).run()


def _failure_event(action: Callable[[], None], recipe_dir: Path) -> Event | None:
    """Runs an action; returns the event that describes its failure, or None if it succeeded."""
    try:
        try:
            action()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the process is about to exit
    except UserError as error:
        kind = "rendezvous" if isinstance(error, errors.RendezvousError) else "user_error"
        return {"event": kind, "message": str(error)}
    except BrokenPipeError:
        raise
    except Exception as error:
        if message := errors.file_problem(error):
            return {"event": "disk", "message": message}
        if problem := errors.disk_problem(error):
            message = f"{recipe_dir}: {problem}; {errors.DISK_REMEDY}"
            return {"event": "disk", "message": message}
        return {"event": "crash", "message": traceback.format_exc()}
    return None
