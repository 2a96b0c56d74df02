import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import filelock
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia import config, parse, presence, subsets, workers
from lm_mia.errors import DiskError, UserError
from lm_mia.store import Store

__all__ = ["_on_cpu", "tiny"]  # fixtures

ROWS = subsets.rows(4, 2)


class Ended:
    """A process that has ended with a code."""

    def __init__(self, exitcode: int):
        self.exitcode = exitcode

    def join(self) -> None:
        pass


def test_events_of_all_workers_until_the_last_has_closed():
    ends = [multiprocessing.Pipe(duplex=False) for _ in range(3)]
    for i, (_, theirs) in enumerate(ends):
        for n in range(i):
            theirs.send({"event": "x", "from": i, "n": n})
        theirs.close()
    processes: Any = {ours: Ended(-9 if i == 1 else 0) for i, (ours, _) in enumerate(ends)}
    found = list(workers._events(processes))
    [lost] = [e for e in found if e["event"] == "worker_lost"]
    assert (lost["exit_code"], lost["index"]) == (-9, 1)
    others = [e for e in found if e is not lost]
    assert sorted((e["from"], e["n"]) for e in others) == [(1, 0), (2, 0), (2, 1)]
    assert all(e["index"] == e["from"] for e in others)
    for ours, _ in ends:
        ours.close()


def stubborn(pipe: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send({})
    time.sleep(60)


def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_GRACE_SECONDS", 0.3)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=stubborn, args=(theirs,), daemon=True)
    process.start()
    ours.recv()
    began = time.monotonic()
    workers._stop([process])
    assert process.exitcode == -signal.SIGKILL
    assert time.monotonic() - began < 5


@pytest.mark.usefixtures("_on_cpu")
def test_a_killed_worker_is_one_line_and_the_next_run_goes_on(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = tiny.recipe(workdir)
    lost: list[workers.Event] = []
    seen: list[workers.Event] = []

    def kill(event: workers.Event) -> None:
        lost.extend([event] if event["event"] == "worker_lost" else [])
        if event["event"] == "train":  # in the middle of the first row
            for process in multiprocessing.active_children():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(UserError) as caught:
        workers.run("run", c, workdir, recipe, kill)
    assert str(caught.value) == (
        "all workers were lost (killed, or out of memory?) with 6 rows missing; finished rows are kept: "
        "run the same command again to go on"
    )
    assert lost == [{"event": "worker_lost", "index": 0, "exit_code": -9, "left": 0}]
    assert multiprocessing.active_children() == []
    store = Store(recipe / "scores.zarr")
    left = store.missing(ROWS)
    assert workers.run("run", c, workdir, recipe, seen.append)
    assert store.missing(ROWS) == []
    assert sorted(e["row"] for e in seen if e["event"] == "row_scored") == sorted(map(str, left))
    assert [e["index"] for e in seen if e["event"] == "worker"] == [0]
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_the_others_make_the_rows_of_a_killed_worker(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=2"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = tiny.recipe(workdir)
    lost: list[workers.Event] = []

    def kill_one(event: workers.Event) -> None:
        lost.extend([event] if event["event"] == "worker_lost" else [])
        if event["event"] == "train" and len(multiprocessing.active_children()) == 2 and not lost:
            pid = multiprocessing.active_children()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    workers.run("run", c, workdir, recipe, kill_one)
    [one] = lost
    assert (one["exit_code"], one["left"]) == (-9, 1)
    assert one["index"] in (0, 1)
    assert Store(recipe / "scores.zarr").missing(ROWS) == []
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_some_rows_only_and_those_in_other_hands_are_left(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = tiny.recipe(workdir)
    seen: list[workers.Event] = []
    (recipe / "locks").mkdir(exist_ok=True)
    with filelock.FileLock(recipe / "locks" / f"{ROWS[2]}.lock"):
        assert workers.run("run", c, workdir, recipe, seen.append, only=ROWS[1:3])
    scored = [(e["row"], e["index"]) for e in seen if e["event"] == "row_scored"]
    assert scored == [(str(ROWS[1]), 0)]
    assert Store(recipe / "scores.zarr").missing(ROWS) == [*ROWS[:1], *ROWS[2:]]


@pytest.mark.usefixtures("_on_cpu")
def test_a_full_disk_is_a_line_of_its_own_kind(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)

    def full(processes: Any):
        yield {"event": "disk", "message": "w: No space left on device; make room", "index": 0}

    monkeypatch.setattr(workers, "_events", full)
    seen: list[workers.Event] = []
    with pytest.raises(DiskError, match="w: No space left on device; make room"):
        workers.run("run", c, workdir, tiny.recipe(workdir), seen.append)
    assert [e["event"] for e in seen] == ["disk"]


@pytest.mark.parametrize("moment", ["worker", "row_scored", "before it is up"])
@pytest.mark.usefixtures("_on_cpu")
def test_sigterm_to_a_worker_outside_of_training_stops_the_command_too(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    """Whether it ends with a code of its own, or is too young to know of signals."""
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = tiny.recipe(workdir)

    def ask() -> None:
        [process] = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)

    if moment == "before it is up":
        events = workers._events
        monkeypatch.setattr(workers, "_events", lambda processes: (ask(), events(processes))[1])
    with pytest.raises(SystemExit) as ended:
        workers.run(
            *("run", c, workdir, recipe),
            lambda event: ask() if event["event"] == moment else None,
        )
    assert ended.value.code == 143
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("_on_cpu")
def test_what_a_worker_finds_wrong_is_a_user_error(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = tiny.recipe(workdir)
    (workdir / "population" / "tokens.npy").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"tokens.npy: .*; delete the folder .* run `lm-mia corpus`"
    ):
        workers.run("run", c, workdir, recipe, print)
    assert multiprocessing.active_children() == []


def test_rows_that_diverged_are_told(tmp_path: Path):
    workers.check_diverged(tmp_path, ROWS)
    for row in ROWS[1:]:
        presence.diverged(tmp_path, row).parent.mkdir(exist_ok=True)
        presence.diverged(tmp_path, row).write_text(json.dumps({}))
    with pytest.raises(UserError) as caught:
        workers.check_diverged(tmp_path, ROWS[:2])
    tail = (
        f": {tmp_path}/diverged says where; lower optimizer.peak_learning_rate in a new workdir, or delete those "
        "files to try again"
    )
    assert str(caught.value) == f"1 of 2 rows diverged (reference_1_1_1){tail}"
    with pytest.raises(UserError) as caught:
        workers.check_diverged(tmp_path, ROWS)
    names = ", ".join(map(str, ROWS[1:4]))
    assert str(caught.value) == f"5 of 6 rows diverged ({names}, ...){tail}"


def test_no_worker_starts_where_nothing_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(presence, "missing", lambda *_: [])
    assert workers.run("run", config.Config(), tmp_path, tmp_path, print)
