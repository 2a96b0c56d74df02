"""Work spread over processes that may die: what a dead one had in hand is done again, and nothing ever hangs.

Processes are spawned and each has a pipe of its own, so either end sees at once that the other is gone: a process whose
parent was killed ends after the task that it is at, a parent whose process was killed starts another.
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
"""``report(amount)``: how much of the task at hand is done so far, in the task's own unit."""

_LOSSES = 2  # a task whose process dies so often is not given to another


def num_processes(asked: int) -> int:
    """The number of processes to use: as asked, or for 0 one for every CPU core that this process may use."""
    if asked:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_tasks(
    work: Callable[[Task, Report], Result],
    tasks: Iterable[Task],
    processes: int,
    on_report: Callable[[int, int], None] = lambda index, amount: None,
    on_death: Callable[[int], None] = lambda exit_code: None,
) -> Generator[tuple[int, Result]]:
    """Yields (index, ``work(task, report)``) of every task as it ends, in any order.

    Args:
      work: a function of a module; what it takes and gives must be picklable. It may be begun again after a process
        died in the middle, so it must leave nothing behind that stands in its own way.
      tasks: taken one by one, when a process is free.
      count: of processes; with 1 the work is done in this one.
      on_report: ``on_report(index, amount)`` for every report; 0 when the task begins again.
      on_lost: called with the exit code of a process that died.

    Raises:
      UserError: raised by a task; or if two processes died at the same task.
      RuntimeError: with the traceback of any other exception in another process.
    """
    if processes == 1:
        for index, task in enumerate(tasks):
            yield index, work(task, lambda amount, index=index: on_report(index, amount))
        return
    left = enumerate(tasks)
    again: collections.deque[tuple[int, Task]] = collections.deque()
    losses: collections.Counter[int] = collections.Counter()
    pool: dict[Connection, multiprocessing.process.BaseProcess] = {}
    at_work: dict[Connection, tuple[int, Task] | None] = {}  # None: it is starting

    def start() -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        process.start()
        theirs.close()
        pool[ours], at_work[ours] = process, None

    def give(ours: Connection) -> None:
        """Sends the next task, if there is one, to a free process."""
        item = again.popleft() if again else next(left, None)
        if item is not None:
            at_work[ours] = item
            with contextlib.suppress(OSError):  # it is dead: its end of the pipe will say so
                ours.send(item[1])

    def bury(ours: Connection) -> None:
        """Puts another process in the place of one that died."""
        item, process = at_work.pop(ours), pool.pop(ours)
        process.join()
        ours.close()
        index = -1 if item is None else item[0]
        losses[index] += 1
        if losses[index] == _LOSSES:
            raise UserError(
                f"a process ended with code {process.exitcode} twice at the same work (killed, or out of memory?); "
                "what is finished is kept: run the same command again, perhaps with fewer --config.corpus.processes"
            )
        on_death(process.exitcode or 0)
        if item is not None:
            on_report(index, 0)
            again.append(item)
        start()

    try:
        for _ in range(processes):
            start()
        while at_work:
            for ours in multiprocessing.connection.wait(list(at_work)):
                assert isinstance(ours, Connection)
                try:
                    kind, value = ours.recv()
                except (EOFError, OSError):
                    bury(ours)
                    continue
                item = at_work[ours]
                if kind == "user_error":
                    raise UserError(value)
                if kind == "crash":
                    raise RuntimeError(f"another process failed:\n{value}")
                if kind == "report" and item is not None:
                    on_report(item[0], value)
                    continue
                del at_work[ours]
                give(ours)
                if item is not None:
                    yield item[0], value
    finally:
        for process in pool.values():
            process.kill()
            process.join()


def _serve(theirs: Connection, work: Callable[[Any, Report], Any]) -> None:
    """Does what comes through the pipe until it is closed; the life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which stops us
    try:
        theirs.send(("ready", None))
        while True:
            task = theirs.recv()
            try:
                answer = ("done", work(task, lambda amount: theirs.send(("report", amount))))
            except UserError as error:
                answer = ("user_error", str(error))
            except Exception:
                answer = ("crash", traceback.format_exc())
            theirs.send(answer)
    except (EOFError, OSError):
        pass  # the parent is gone
