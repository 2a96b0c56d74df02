import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lm_mia import parallel
from lm_mia.errors import UserError

Report = Callable[[int], None]


def square(task: int, report: Report) -> int:
    report(task)
    return task * task


def die_once(task: Path, report: Report) -> str:
    """Kills its process, and leaves word so that it does not the next time."""
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
        raise UserError("path=x: broken; mend it")
    if task == 2:
        raise ZeroDivisionError("by nought")
    return task


def wait(task: Path, report: Report) -> None:
    (task / str(os.getpid())).touch()
    time.sleep(600)


@pytest.mark.parametrize("count", [1, 3])
def test_every_task_is_done_once(count: int):
    reports: list[tuple[int, int]] = []
    found = list(parallel.run(square, range(4), count, lambda *r: reports.append(r)))
    assert sorted(found) == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert sorted(reports) == [(0, 0), (1, 1), (2, 2), (3, 3)]
    if count == 1:
        assert found == sorted(found)


@pytest.mark.parametrize("count", [1, 2])
def test_no_tasks(count: int):
    assert list(parallel.run(square, [], count)) == []


def test_tasks_are_taken_when_a_process_is_free():
    taken: list[int] = []

    def tasks():
        for task in range(20):
            taken.append(task)
            yield task

    with contextlib.closing(parallel.run(square, tasks(), 2)) as results:
        next(results)
        assert len(taken) <= 4


def test_what_a_dead_process_had_in_hand_is_done_again(tmp_path: Path):
    tasks = [tmp_path / name for name in ("a", "dies", "b", "dies too", "c")]
    reports: list[tuple[int, int]] = []
    lost: list[int] = []
    found = list(parallel.run(die_once, tasks, 2, lambda *r: reports.append(r), lost.append))
    assert sorted(found) == [(i, task.name) for i, task in enumerate(tasks)]
    assert lost == [-9, -9]
    assert [amount for index, amount in reports if index == 1] == [5, 0, 5]


def test_a_task_that_kills_every_process_is_given_up():
    with pytest.raises(UserError, match=r"ended with code -9 twice at the same work .*again"):
        list(parallel.run(die, range(6), 2))


def test_errors_are_passed_on():
    with pytest.raises(UserError, match=r"^path=x: broken; mend it$"):
        list(parallel.run(fail, [0, 1], 2))
    with pytest.raises(RuntimeError, match=r"(?s)in fail\n.*ZeroDivisionError: by nought"):
        list(parallel.run(fail, [0, 2], 2))
    with pytest.raises(UserError, match=r"^path=x: broken; mend it$"):
        list(parallel.run(fail, [0, 1], 1))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)


RUN = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
import parallel_test
from lm_mia import parallel
if __name__ == "__main__":
    list(parallel.run(parallel_test.wait, [pathlib.Path(sys.argv[1])] * 2, 2))
"""


@pytest.mark.parametrize("how", ["closed", "interrupted"])
def test_no_process_outlives_the_end_of_a_run(tmp_path: Path, how: str):
    (tmp_path / "seen").mkdir()
    script = tmp_path / "run.py"
    script.write_text(RUN)

    def pids() -> list[int]:
        return [int(p.name) for p in (tmp_path / "seen").iterdir()]

    if how == "closed":
        with contextlib.closing(parallel.run(wait_or_not, [None, tmp_path / "seen"], 2)) as results:
            next(results)
            until(lambda: len(pids()) == 1)
    else:
        argv = [sys.executable, str(script), str(tmp_path / "seen"), str(Path(__file__).parent)]
        run = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
        until(lambda: len(pids()) == 2)
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does, to all of them
        assert run.wait(60) != 0
    until(lambda: not any(alive(pid) for pid in pids()))


def wait_or_not(task: Path | None, report: Report) -> None:
    if task:
        wait(task, report)


KILLED_PARENT = """
import pathlib, sys
sys.path.insert(0, sys.argv[2])
import parallel_test
from lm_mia import parallel
if __name__ == "__main__":
    list(parallel.run(parallel_test.nap, [pathlib.Path(sys.argv[1])] * 100, 2))
"""


def nap(task: Path, report: Report) -> None:
    (task / str(os.getpid())).touch()
    time.sleep(0.5)


def test_processes_end_after_their_task_when_the_parent_is_killed(tmp_path: Path):
    (tmp_path / "seen").mkdir()
    script = tmp_path / "run.py"
    script.write_text(KILLED_PARENT)
    argv = [sys.executable, str(script), str(tmp_path / "seen"), str(Path(__file__).parent)]
    run = subprocess.Popen(argv)
    until(lambda: len(list((tmp_path / "seen").iterdir())) == 2)
    run.kill()
    run.wait()
    pids = [int(p.name) for p in (tmp_path / "seen").iterdir()]
    until(lambda: not any(alive(pid) for pid in pids))


def test_number_of_processes():
    assert parallel.processes(7) == 7
    assert 1 <= parallel.processes(0) <= (os.cpu_count() or 1)
