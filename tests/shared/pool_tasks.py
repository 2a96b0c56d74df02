"""Functions for the processes of `lm_mia.data.process_pool`, which import this module by name; it imports little."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from lm_mia.errors import UserError

Report = Callable[[int], None]


def square(task: int, report: Report) -> int:
    report(task)
    return task * task


def die_once(task: Path, report: Report) -> str:
    """Kills its process the first time, and leaves a file so that the next call succeeds."""
    report(5)
    if task.name.startswith("dies") and not task.exists():
        task.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.name


def die(task: int, report: Report) -> int:
    if task == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def fail(task: int, report: Report) -> int:
    if task == 1:
        raise UserError("path=x: broken; mend")
    if task == 2:
        raise ZeroDivisionError("by nought")
    return task


def wait(task: Path | None, report: Report) -> None:
    """Writes its process id to a folder and never ends by itself; without a folder it returns at once."""
    if task:
        (task / str(os.getpid())).touch()
        time.sleep(600)


def wait_for_file(task: Path, report: Report) -> None:
    """Writes its process id to a folder, and returns once the folder has a file named `end`."""
    (task / str(os.getpid())).touch()
    while not (task / "end").exists():
        time.sleep(0.02)


if __name__ == "__main__":  # python pool_tasks.py WORK FOLDER
    import sys

    from lm_mia.data import process_pool

    list(process_pool.run_tasks(globals()[sys.argv[1]], [Path(sys.argv[2])] * 100, 2))
