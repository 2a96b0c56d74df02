import dataclasses
import importlib.metadata
import importlib.util
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_run

from lm_mia import config, parse, subsets, workers
from lm_mia.errors import UserError
from lm_mia.store import Store

C = config.Config(
    population=config.Population(samples=20, length_tokens=8),
    train=config.Train(batch_size=4, epochs=3),
    attack=config.Attack(references=4, replicas=2),
)
ROWS = subsets.rows(4, 2)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tiny_run.Tiny:
    return tiny_run.finished(tmp_path_factory)


@pytest.fixture
def _on_cpu(tiny: tiny_run.Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in tiny.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("NPROC", "1")  # so that run(), which sets it, leaves nothing behind


def recipe_of(workdir: Path, like: Path) -> Path:
    """The folder of a recipe whose store knows the rows, as `lm_mia.cli` makes it."""
    [made] = like.glob("recipe_*")
    recipe = workdir / made.name
    recipe.mkdir(exist_ok=True)
    known = Store(made / "scores.zarr").rows()
    Store(recipe / "scores.zarr").ensure(known, {"tokens": np.arange(32)}, {})
    return recipe


@pytest.mark.parametrize(
    ("platforms", "plugins", "workers_", "cores", "expected"),
    [
        ("cpu", 1, 0, 8, (8, True)),
        ("cpu", 0, 2, 8, (2, True)),
        ("cpu", 0, 3, 8, (3, True)),
        ("cpu", 0, 9, 8, (9, True)),
        ("cpu", 0, 0, 1, (1, True)),
        ("", 0, 0, 4, (4, True)),
        ("", 1, 0, 8, (1, False)),
        ("", 1, 3, 8, (3, False)),
        ("cuda", 0, 0, 8, (1, False)),
        ("cuda,cpu", 1, 2, 8, (2, False)),
    ],
)
def test_worker_count(
    monkeypatch: pytest.MonkeyPatch,
    platforms: str,
    plugins: int,
    workers_: int,
    cores: int,
    expected: tuple[int, bool],
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: ["plugin"] * plugins)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert workers.worker_count(workers_) == expected


def test_a_tpu_has_no_plugin_entry_but_its_library(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    assert workers.worker_count(5) == (5, True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    assert workers.worker_count(0) == (1, False)


def test_total_steps_counts_short_batches_and_real_members():
    assert workers.total_steps(C, ROWS[0]) == 3 * 3  # 10 members in batches of 4
    bernoulli = dataclasses.replace(C, train=dataclasses.replace(C.train, subset="bernoulli"))
    for row in subsets.rows(20, 2):
        members = sum(subsets.member(row.subset_seed, 20, "bernoulli"))
        assert workers.total_steps(bernoulli, row) == 3 * -(-members // 4)


def test_missing_rows_of_each_stage(tmp_path: Path):
    assert workers.missing("train", C, tmp_path, ROWS) == ROWS
    store = Store(tmp_path / "scores.zarr")
    store.ensure(ROWS, {"tokens": np.arange(20)}, {})
    store.write_row(ROWS[1], np.zeros(20, np.float32), np.zeros(20, bool))
    (tmp_path / "checkpoints" / str(ROWS[3]) / "9").mkdir(parents=True)
    (tmp_path / "checkpoints" / str(ROWS[4]) / "8").mkdir(parents=True)  # not the last step
    assert [workers.trained(C, tmp_path, row) for row in ROWS] == [False] * 3 + [True] + [False] * 2
    unscored = [ROWS[i] for i in (0, 2, 3, 4, 5)]
    assert workers.missing("score", C, tmp_path, ROWS) == unscored
    assert workers.missing("run", C, tmp_path, ROWS) == unscored
    assert workers.missing("train", C, tmp_path, ROWS) == [ROWS[i] for i in (0, 2, 4, 5)]
    assert workers.missing("run", C, tmp_path, [ROWS[5], ROWS[1]]) == [ROWS[5]]


def test_a_row_without_a_statistic_is_missing_where_it_is_asked_for(tmp_path: Path):
    """Trained rows are only scored; one whose checkpoint is gone must be trained once more."""
    c = dataclasses.replace(C, score=config.Score(statistics=("min_k",)))
    plain, store = Store(tmp_path / "scores.zarr"), workers.scores_of(c, tmp_path)
    plain.ensure(ROWS, {"tokens": np.arange(20)}, {})
    zeros = np.zeros(20, np.float32)
    for row in ROWS[:3]:
        plain.write_row(row, zeros, zeros > 0)
    (tmp_path / "checkpoints" / str(ROWS[0]) / "9").mkdir(parents=True)
    store.ensure(ROWS, {"tokens": np.arange(20)}, {})
    store.write_row(ROWS[2], zeros, zeros > 0, {"min_k": zeros})
    assert workers.missing("run", C, tmp_path, ROWS) == ROWS[3:]
    assert workers.missing("run", c, tmp_path, ROWS) == [*ROWS[:2], *ROWS[3:]]
    assert workers.missing("score", c, tmp_path, ROWS) == [*ROWS[:2], *ROWS[3:]]
    assert workers.missing("train", c, tmp_path, ROWS) == [ROWS[1], *ROWS[3:]]


class Pipe:
    """The worker's end of a pipe, here or broken."""

    def __init__(self, broken: bool = False):
        self.sent: list[dict[str, Any]] = []
        self._broken = broken

    def send(self, event: dict[str, Any]) -> None:
        if self._broken:
            raise BrokenPipeError
        self.sent.append(event)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("field=1: rule"), {"event": "user_error", "message": "field=1: rule"}),
        (KeyboardInterrupt(), None),
        (BrokenPipeError(), None),
        (None, None),
    ],
)
def test_how_a_worker_ends(monkeypatch: pytest.MonkeyPatch, error: Any, said: Any):
    def work(*_: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(workers, "_work", work)
    pipe: Any = Pipe()
    workers._main(pipe, "run", C, Path(), Path(), 0)
    assert pipe.sent == ([] if said is None else [said])


def test_a_crash_is_told_with_its_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "_work", lambda *_: 1 / 0)
    pipe: Any = Pipe()
    workers._main(pipe, "run", C, Path(), Path(), 0)
    [event] = pipe.sent
    assert event["event"] == "crash"
    assert "ZeroDivisionError" in event["message"]
    broken: Any = Pipe(broken=True)
    workers._main(broken, "run", C, Path(), Path(), 0)  # whoever started it is gone: nobody to tell


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
    assert lost["exit_code"] == -9
    assert sorted((e["from"], e["n"]) for e in found if e is not lost) == [(1, 0), (2, 0), (2, 1)]
    for ours, _ in ends:
        ours.close()


@pytest.mark.usefixtures("_on_cpu")
def test_a_killed_worker_is_one_line_and_the_next_run_goes_on(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = recipe_of(workdir, tiny.workdir)
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
    assert lost == [{"event": "worker_lost", "exit_code": -9, "left": 0}]
    assert multiprocessing.active_children() == []
    store, rows = Store(recipe / "scores.zarr"), subsets.rows(4, 2)
    left = store.missing(rows)
    workers.run("run", c, workdir, recipe, seen.append)
    assert store.missing(rows) == []
    assert sorted(e["row"] for e in seen if e["event"] == "row_scored") == sorted(map(str, left))
    assert [e["index"] for e in seen if e["event"] == "worker"] == [0]
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_the_others_make_the_rows_of_a_killed_worker(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=2"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = recipe_of(workdir, tiny.workdir)
    lost: list[workers.Event] = []

    def kill_one(event: workers.Event) -> None:
        lost.extend([event] if event["event"] == "worker_lost" else [])
        if event["event"] == "train" and len(multiprocessing.active_children()) == 2 and not lost:
            pid = multiprocessing.active_children()[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)

    workers.run("run", c, workdir, recipe, kill_one)
    assert lost == [{"event": "worker_lost", "exit_code": -9, "left": 1}]
    assert Store(recipe / "scores.zarr").missing(subsets.rows(4, 2)) == []
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_what_a_worker_finds_wrong_is_a_user_error(tiny: tiny_run.Tiny, tmp_path: Path):
    c = parse.parse(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = recipe_of(workdir, tiny.workdir)
    (workdir / "population" / "tokens.npy").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"tokens.npy: .*; delete the folder .* run `lm-mia corpus`"
    ):
        workers.run("run", c, workdir, recipe, print)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("_on_cpu")
def test_untrained_rows_are_not_scored(tiny: tiny_run.Tiny, tmp_path: Path):
    """In this process: what `_work` does is the same here as in a worker."""
    c = parse.parse(tiny.config)
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe = recipe_of(workdir, tiny.workdir)
    with pytest.raises(
        UserError, match=r"row reference_0_0_0: not trained yet; run `lm-mia train`"
    ):
        workers._work("score", c, workdir, recipe, 0, lambda event: None)


@pytest.mark.usefixtures("_on_cpu")
def test_present_rows_are_left_alone(tiny: tiny_run.Tiny, tmp_path: Path):
    c, seen = parse.parse(tiny.config), []
    workdir = tiny.copy(tmp_path / "w")
    [recipe] = workdir.glob("recipe_*")
    workers._work("run", c, workdir, recipe, 0, seen.append)
    assert [event["event"] for event in seen] == ["worker"]
