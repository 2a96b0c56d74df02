"""Runs tasks in worker processes; the task of a process that dies is run again, and no process is left behind.

Processes are spawned, and each has its own pipe, so that both ends notice at once if the other is gone: a worker whose
parent was killed exits after its current task, and a parent whose worker was killed starts another one.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from lm_mia.errors import UserError

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[int], None]
"""``report(amount)``, called with the amount of the current task that is done so far, in a unit of the task's own."""

_MAX_DEATHS = 2  # number of processes that may die at one task before the run fails


def num_processes(requested: int) -> int:
    """Returns the requested number of processes; for 0, the number of CPU cores that this process may use."""
    if requested:
        return requested
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    work: Callable[[Task, Report], Result],
    tasks: Iterable[Task],
    processes: int,
    on_report: Callable[[int, int], None] = lambda index, amount: None,
    on_death: Callable[[int], None] = lambda exit_code: None,
) -> Generator[tuple[int, Result]]:
    """Yields (index, ``work(task, report)``) for each task when it is finished, in any order.

    Args:
      work: a function at the top level of a module, whose argument and result can be pickled. A task whose process dies
        is run again from its beginning, so an incomplete run must not prevent another one.
      tasks: taken one at a time, whenever a process is free.
      processes: number of worker processes; with 1, the tasks run in the calling process.
      on_report: ``on_report(index, amount)``, called for each report of a task; with 0 if the task starts again.
      on_death: called with the exit code of each process that died.

    Raises:
      UserError: if a task raises it, or if two processes die at the same task.
      RuntimeError: with the traceback of any other exception in a worker process.
    """
    if processes == 1:
        for index, task in enumerate(tasks):
            yield index, work(task, lambda amount, index=index: on_report(index, amount))
        return
    remaining = enumerate(tasks)
    retries: collections.deque[tuple[int, Task]] = collections.deque()
    deaths: collections.Counter[int] = collections.Counter()
    pool: dict[Connection, multiprocessing.process.BaseProcess] = {}
    current: dict[Connection, tuple[int, Task] | None] = {}  # None: the process is starting

    def start_process() -> None:
        context = multiprocessing.get_context("spawn")
        connection, worker_end = context.Pipe()
        process = context.Process(target=_serve, args=(worker_end, work), daemon=True)
        process.start()
        worker_end.close()
        pool[connection], current[connection] = process, None

    def send_next_task(connection: Connection) -> None:
        item = retries.popleft() if retries else next(remaining, None)
        if item is not None:
            current[connection] = item
            with contextlib.suppress(
                OSError
            ):  # the process is dead, which the next receive reports
                connection.send(item[1])

    def replace_process(connection: Connection) -> None:
        """Starts a process in place of one that died, and schedules its task again."""
        item, process = current.pop(connection), pool.pop(connection)
        process.join()
        connection.close()
        index = -1 if item is None else item[0]
        deaths[index] += 1
        if deaths[index] == _MAX_DEATHS:
            raise UserError(
                f"a process ended with code {process.exitcode} twice at the same task (killed, or out of memory?); "
                "finished work is kept; run the same command again, if necessary with fewer --config.corpus.processes"
            )
        on_death(process.exitcode or 0)
        if item is not None:
            on_report(index, 0)
            retries.append(item)
        start_process()

    try:
        for _ in range(processes):
            start_process()
        while current:
            for connection in multiprocessing.connection.wait(list(current)):
                assert isinstance(connection, Connection)
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    replace_process(connection)
                    continue
                item = current[connection]
                if kind == "user_error":
                    raise UserError(value)
                if kind == "crash":
                    raise RuntimeError(f"a worker process failed:\n{value}")
                if kind == "report" and item is not None:
                    on_report(item[0], value)
                    continue
                del current[connection]
                send_next_task(connection)
                if item is not None:
                    yield item[0], value
    finally:
        for process in pool.values():
            process.kill()
            process.join()


def _serve(connection: Connection, work: Callable[[Any, Report], Any]) -> None:
    """Main function of a worker process: runs the tasks from its pipe until the pipe is closed."""
    # The parent handles Ctrl-C and then kills its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(("ready", None))
        while True:
            task = connection.recv()
            try:
                answer = ("done", work(task, lambda amount: connection.send(("report", amount))))
            except UserError as error:
                answer = ("user_error", str(error))
            except Exception:
                answer = ("crash", traceback.format_exc())
            connection.send(answer)
    except (EOFError, OSError):
        pass  # the parent is gone
