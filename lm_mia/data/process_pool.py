"""Runs tasks in worker processes; if a process dies, its task is run again, and no process outlives the run.

Processes are spawned. Each has its own pipe, so that either end notices at once when the other exits: a worker whose
parent was killed exits after its current task, and a parent whose worker was killed starts another one.
"""

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from lm_mia import interrupts
from lm_mia.errors import UserError
from lm_mia.machine import available_cores

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[int], None]
"""``report(amount)``, called with how much of the current task is done so far, in units that the task defines."""

_MAX_DEATHS = 2  # the run fails when this many processes have died at the same task


def num_processes(requested: int) -> int:
    """Returns the requested number of processes; for 0, the number of CPU cores that this process may use."""
    return requested or available_cores()


def run_tasks(
    work: Callable[[Task, Report], Result],
    tasks: Iterable[Task],
    processes: int,
    on_report: Callable[[int, int], None] = lambda index, amount: None,
    on_death: Callable[[int], None] = lambda exit_code: None,
) -> Generator[tuple[int, Result]]:
    """Yields (index, ``work(task, report)``) of each task when it is finished, in any order.

    Args:
      work: a function at the top level of a module, whose argument and result can be pickled. A task whose process dies
        is run again from its beginning, so an incomplete first run must not prevent the second.
      tasks: taken one at a time, whenever a process is free.
      processes: number of worker processes; with 1, the tasks run in the calling process.
      on_report: ``on_report(index, amount)``, called for each report of a task; the amount is 0 if a task starts again.
      on_death: called with the exit code of each process that died.

    Raises:
      UserError: if a task raises it, or if two processes die at the same task.
      RuntimeError: with the traceback of any other exception in a worker process.
    """
    if processes == 1:
        for index, task in enumerate(tasks):
            yield index, work(task, lambda amount, index=index: on_report(index, amount))
        return
    pool = _ProcessPool(work, tasks, on_report, on_death)
    try:
        for _ in range(processes):
            pool.start_process()
        while pool.is_active:
            yield from pool.next_results()
    finally:
        pool.kill()


class _ProcessPool(Generic[Task, Result]):
    """Worker processes and the tasks that they run; the arguments are those of `run_tasks`."""

    def __init__(
        self,
        work: Callable[[Task, Report], Result],
        tasks: Iterable[Task],
        on_report: Callable[[int, int], None],
        on_death: Callable[[int], None],
    ) -> None:
        self._work, self._on_report, self._on_death = work, on_report, on_death
        self._remaining = enumerate(tasks)
        self._retries: collections.deque[tuple[int, Task]] = collections.deque()
        self._deaths: collections.Counter[int] = collections.Counter()  # by index of the task
        self._processes: dict[Connection, multiprocessing.process.BaseProcess] = {}
        self._current: dict[Connection, tuple[int, Task] | None] = {}
        """The index and task that each process is running; None for a process that is starting. Processes that have no
        task left are absent."""

    @property
    def is_active(self) -> bool:
        """Whether a process is starting or running a task."""
        return bool(self._current)

    def start_process(self) -> None:
        """Starts a process, which requests its first task when it is ready."""
        context = multiprocessing.get_context("spawn")
        connection, worker_end = context.Pipe()
        process = context.Process(target=_serve, args=(worker_end, self._work), daemon=True)
        with interrupts.blocked():
            process.start()
        worker_end.close()
        self._processes[connection], self._current[connection] = process, None

    def next_results(self) -> Iterator[tuple[int, Result]]:
        """Waits for messages of the processes and handles them; yields the results that they contain."""
        for connection in multiprocessing.connection.wait(list(self._current)):
            assert isinstance(connection, Connection)
            try:
                kind, value = connection.recv()
            except (EOFError, OSError):
                self._replace_process(connection)
                continue
            item = self._current[connection]
            if kind == "user_error":
                raise UserError(value)
            if kind == "crash":
                raise RuntimeError(f"a worker process failed:\n{value}")
            if kind == "report" and item is not None:
                self._on_report(item[0], value)
                continue
            del self._current[connection]
            self._send_next_task(connection)
            if item is not None:
                yield item[0], value

    def kill(self) -> None:
        """Kills all processes."""
        for process in self._processes.values():
            process.kill()
            process.join()

    def _send_next_task(self, connection: Connection) -> None:
        item = self._retries.popleft() if self._retries else next(self._remaining, None)
        if item is not None:
            self._current[connection] = item
            # An error means that the process is dead, which the next receive reports.
            with contextlib.suppress(OSError):
                connection.send(item[1])

    def _replace_process(self, connection: Connection) -> None:
        """Starts a process in place of one that died, and schedules its task again."""
        item, process = self._current.pop(connection), self._processes.pop(connection)
        process.join()
        connection.close()
        index = -1 if item is None else item[0]
        self._deaths[index] += 1
        if self._deaths[index] == _MAX_DEATHS:
            raise UserError(
                f"a process ended with code {process.exitcode} twice at the same task (killed, or out of memory?); "
                "finished work is kept; run the same command again, if necessary with fewer --config.corpus.processes"
            )
        self._on_death(process.exitcode or 0)
        if item is not None:
            self._on_report(index, 0)
            self._retries.append(item)
        self.start_process()


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
