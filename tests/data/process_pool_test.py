import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pool_tasks
import pytest

from lm_mia.data import process_pool
from lm_mia.errors import UserError


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.process)])
def test_each_task_runs_once(count: int):
    reports: list[tuple[int, int]] = []
    results = list(
        process_pool.run_tasks(pool_tasks.square, range(4), count, lambda *r: reports.append(r))
    )
    assert sorted(results) == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert sorted(reports) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    if count == 1:
        assert results == sorted(results)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.process)])
def test_no_tasks(count: int):
    assert list(process_pool.run_tasks(pool_tasks.square, [], count)) == []


@pytest.mark.process
def test_tasks_are_taken_lazily():
    taken: list[int] = []

    def tasks():
        for task in range(20):
            taken.append(task)
            yield task

    with contextlib.closing(process_pool.run_tasks(pool_tasks.square, tasks(), 2)) as results:
        next(results)
        assert len(taken) <= 4


@pytest.mark.process
def test_tasks_of_dead_processes_run_again(tmp_path: Path):
    tasks = [tmp_path / name for name in ("a", "dies", "b", "dies too", "c")]
    reports: list[tuple[int, int]] = []
    lost: list[int] = []
    results = list(
        process_pool.run_tasks(
            pool_tasks.die_once, tasks, 2, lambda *r: reports.append(r), lost.append
        )
    )
    assert sorted(results) == [(i, task.name) for i, task in enumerate(tasks)]
    assert lost == [-9, -9]
    assert [amount for index, amount in reports if index == 1] == [5, 0, 5]


@pytest.mark.process
def test_a_task_that_kills_two_processes_fails():
    with pytest.raises(UserError, match=r"code -9 twice\b.*again"):
        list(process_pool.run_tasks(pool_tasks.die, range(6), 2))


@pytest.mark.process
def test_errors_of_tasks_are_raised():
    with pytest.raises(UserError, match=r"^path=x: broken; mend$"):
        list(process_pool.run_tasks(pool_tasks.fail, [0, 1], 2))
    with pytest.raises(RuntimeError, match=r"(?s)in fail\n.*ZeroDivisionError: "):
        list(process_pool.run_tasks(pool_tasks.fail, [0, 2], 2))
    with pytest.raises(UserError, match=r"^path=x: broken; mend$"):
        list(process_pool.run_tasks(pool_tasks.fail, [0, 1], 1))


@pytest.mark.process
def test_processes_that_die_at_the_start_are_replaced(monkeypatch: pytest.MonkeyPatch):
    spawn = multiprocessing.get_context("spawn")
    dead = SimpleNamespace(start=lambda: None, join=lambda: None, kill=lambda: None, exitcode=7)
    first = iter([SimpleNamespace(Pipe=spawn.Pipe, Process=lambda **_: dead)])
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: next(first, spawn))
    lost: list[int] = []
    squares = process_pool.run_tasks(pool_tasks.square, range(3), 2, on_death=lost.append)
    assert sorted(squares) == [(0, 0), (1, 1), (2, 4)]
    assert lost == [7]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)


def pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


def start_pool(work: str, folder: Path) -> subprocess.Popen[bytes]:
    """Starts a process that distributes work to two others, and waits until both have begun."""
    folder.mkdir()
    argv = [sys.executable, pool_tasks.__file__, work, str(folder)]
    run = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: len(pids(folder)) == 2 or run.poll() is not None)
    assert run.poll() is None
    return run


@pytest.mark.process
def test_closing_a_run_ends_its_processes(tmp_path: Path):
    tasks = [None, tmp_path]
    with contextlib.closing(process_pool.run_tasks(pool_tasks.wait, tasks, 2)) as results:
        next(results)
        wait_until(lambda: len(pids(tmp_path)) == 1)
    wait_until(lambda: not any(alive(pid) for pid in pids(tmp_path)))


@pytest.mark.process
def test_interrupts_end_all_processes(tmp_path: Path):
    run = start_pool("wait", tmp_path / "seen")
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does, to all of them
    assert run.wait() != 0
    wait_until(lambda: not any(alive(pid) for pid in pids(tmp_path / "seen")))


@pytest.mark.process
def test_workers_of_a_killed_parent_exit(tmp_path: Path):
    folder = tmp_path / "seen"
    run = start_pool("wait_for_file", folder)
    run.kill()
    run.wait()
    (folder / "end").touch()
    wait_until(lambda: not any(alive(pid) for pid in pids(folder)))


def test_number_of_processes_defaults_to_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert process_pool.num_processes(7) == 7
    assert process_pool.num_processes(0) == 3
