import json
import multiprocessing
import os
import signal
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from tiny_run import _on_cpu, tiny

from lm_mia import config
from lm_mia.config import load
from lm_mia.data import subsets
from lm_mia.errors import DiskError, RendezvousError, UserError, WorkersKilledError
from lm_mia.run import inventory, supervisor, worker
from lm_mia.run.worker_task import WorkerTask

__all__ = ["_on_cpu", "tiny"]  # fixtures

MODELS = subsets.requested_seeds(4, 2)


class Ended:
    """A process that has exited."""

    def __init__(self, exitcode: int):
        self.exitcode = exitcode

    def join(self) -> None:
        pass


def test_events_of_all_workers_are_yielded():
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(3)]
    for i, (_, theirs) in enumerate(pipes):
        for n in range(i):
            theirs.send({"event": "x", "from": i, "n": n})
        theirs.close()
    processes: Any = {ours: Ended(-9 if i == 1 else 0) for i, (ours, _) in enumerate(pipes)}
    events = list(supervisor._events(processes))
    [lost] = [e for e in events if e["event"] == "worker_lost"]
    assert (lost["exit_code"], lost["index"]) == (-9, 1)
    others = [e for e in events if e is not lost]
    assert sorted((e["from"], e["n"]) for e in others) == [(1, 0), (2, 0), (2, 1)]
    assert all(e["index"] == e["from"] for e in others)
    for ours, _ in pipes:
        ours.close()


class Scripted:
    """A worker process that sends given events and exits with a given code; it records the calls of its methods."""

    def __init__(self, args: tuple[Any, ...], events: Sequence[supervisor.Event], exitcode: int):
        self.args = args
        self.exitcode = exitcode
        self.done: list[str] = []
        self._events = events

    def start(self) -> None:
        pipe, *_ = self.args
        for event in self._events:
            pipe.send(event)

    def terminate(self) -> None:
        self.done.append("terminate")

    def join(self, timeout: float | None = None) -> None:
        self.done.append("join" if timeout is None else f"join for {timeout:g} s")

    def kill(self) -> None:
        self.done.append("kill")


def scripted(
    monkeypatch: pytest.MonkeyPatch, *scripts: tuple[Sequence[supervisor.Event], int]
) -> list[Scripted]:
    """Replaces the processes of `supervisor.run` by scripted ones, with these events and exit codes in order."""
    processes: list[Scripted] = []

    def process(target: Any, args: tuple[Any, ...], daemon: bool) -> Scripted:
        assert (target, daemon) == (worker.main, True)
        processes.append(Scripted(args, *scripts[len(processes)]))
        return processes[-1]

    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: 0.0))
    context = types.SimpleNamespace(Pipe=multiprocessing.Pipe, Process=process)
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: context)
    return processes


def run_here(
    folder: Path, seen: list[supervisor.Event], count: int = 1, selected_models: Any = None
) -> tuple[bool, config.Config]:
    """Calls `supervisor.run` with all models missing; returns its result and the config."""
    c = config.Config(
        population=config.Population(samples=32, length_tokens=8),
        train=config.Train(batch_size=4, workers=count),
        attack=config.Attack(references=4, replicas=2),
    )
    return supervisor.run(WorkerTask("run", c, folder, folder, selected_models), seen.append), c


# A worker has time to save its model and exit, and is killed if it does not.
STOPPED_GENTLY = ["terminate", "join for 120 s", "kill", "join"]


def test_workers_that_do_not_exit_in_time_are_killed(monkeypatch: pytest.MonkeyPatch):
    """All workers are asked to stop first, and share the time for saving."""
    now = [100.0]
    monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    class Slow(Scripted):
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            now[0] += 50

    three: list[Any] = [Slow((), [], 0) for _ in range(3)]
    supervisor._stop(three)
    assert [process.done for process in three] == [
        ["terminate", f"join for {left} s", "kill", "join"] for left in (120, 70, 20)
    ]


def test_second_signal_kills_the_workers(monkeypatch: pytest.MonkeyPatch):
    class Interrupted(Scripted):
        def join(self, timeout: float | None = None) -> None:
            super().join(timeout)
            if timeout is not None:
                raise KeyboardInterrupt

    processes: list[Any] = [Interrupted((), [], 0), Scripted((), [], 0)]
    with pytest.raises(KeyboardInterrupt):
        supervisor._stop(processes)
    assert [process.done[-2:] for process in processes] == [["kill", "join"]] * 2


def test_error_if_all_workers_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    processes, seen = scripted(monkeypatch, ([{"event": "step"}], -9)), list[supervisor.Event]()
    with pytest.raises(WorkersKilledError) as caught:
        run_here(tmp_path, seen)
    assert "6 models missing" in str(caught.value)
    assert "finished models are kept" in str(caught.value)
    lost = {"event": "worker_lost", "index": 0, "exit_code": -9, "left": 0}
    assert seen == [{"event": "step", "index": 0}, lost]
    assert processes[0].done == ["join", *STOPPED_GENTLY]


@pytest.mark.parametrize(
    ("event", "error", "expected_message"),
    [
        ({"event": "user_error", "message": "a=1: bad"}, UserError, r"^a=1: bad$"),
        ({"event": "rendezvous", "message": "not found"}, RendezvousError, r"^not found$"),
        ({"event": "crash", "message": "Traceback: x"}, RuntimeError, r"a worker crashed:\nTraceback"),
        ({"event": "disk", "message": "w: No space left; make room"}, DiskError, r"^w: No space left; make room$"),
    ],
)  # fmt: skip
def test_failure_of_one_worker_stops_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: supervisor.Event,
    error: Any,
    expected_message: str,
):
    processes, seen = scripted(monkeypatch, ([], 0), ([event], 1)), list[supervisor.Event]()
    with pytest.raises(error, match=expected_message):
        run_here(tmp_path, seen, count=2)
    assert seen == [event | {"index": 1}]
    assert ["terminate" in process.done for process in processes] == [True, True]


@pytest.mark.parametrize("exit_code", [143, -signal.SIGTERM, None])
def test_terminated_worker_stops_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exit_code: int | None
):
    """The worker exits with 143, is killed by SIGTERM before it handles signals, or saves its model first."""
    script = ([], exit_code) if exit_code else ([{"event": "preempted"}], 0)
    processes, seen = scripted(monkeypatch, script), list[supervisor.Event]()
    with pytest.raises(SystemExit) as ended:
        run_here(tmp_path, seen)
    assert ended.value.code == 143
    own_event = [] if exit_code else ["preempted"]
    assert [event["event"] for event in seen] == [*own_event, "stopping"]
    assert processes[0].done[-4:] == STOPPED_GENTLY


def test_ctrl_c_stops_the_workers_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    processes, seen = scripted(monkeypatch, ([{"event": "step"}], 0)), list[str]()

    def on_event(event: supervisor.Event) -> None:
        seen.append(event["event"])
        if event["event"] == "step":
            raise KeyboardInterrupt

    monkeypatch.setattr(inventory, "missing_models", lambda *_: MODELS)
    c = config.Config(train=config.Train(workers=1))
    with pytest.raises(KeyboardInterrupt):
        supervisor.run(WorkerTask("run", c, tmp_path, tmp_path), on_event)
    assert seen == ["step", "stopping"]
    assert processes[0].done == STOPPED_GENTLY


def test_arguments_of_workers_and_primary_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There are at most as many workers as missing models. Only the primary process of a job runs later stages."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    processes = scripted(monkeypatch, ([{"event": "worker", "is_primary": True}], 0), ([], 0))
    seen: list[supervisor.Event] = []
    is_primary, c = run_here(tmp_path, seen, count=9, selected_models=MODELS[1:3])
    assert is_primary
    assert [process.args[1:] for process in processes] == [
        (WorkerTask("run", c, tmp_path, tmp_path, MODELS[1:3], index, 2), {"NPROC": "1"})
        for index in (0, 1)
    ]
    assert seen == [{"event": "worker", "is_primary": True, "index": 0}]
    scripted(monkeypatch, ([{"event": "worker", "is_primary": False}], 0))
    assert run_here(tmp_path, seen)[0] is False


@pytest.mark.process
@pytest.mark.usefixtures("_on_cpu")
def test_sigterm_to_a_worker_that_is_starting(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    c = load.load_config(tiny.config, ["--config.train.workers=1"])
    workdir = tiny.copy(tmp_path / "w", models=False)
    recipe, events = tiny.recipe(workdir), supervisor._events

    def ask(processes: Any) -> Iterator[supervisor.Event]:
        [process] = multiprocessing.active_children()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGTERM)
        return events(processes)

    monkeypatch.setattr(supervisor, "_events", ask)
    task = WorkerTask("run", c, tiny_run.population_of(workdir), recipe)
    with pytest.raises(SystemExit) as ended:
        supervisor.run(task, lambda event: None)
    assert ended.value.code == 143
    assert multiprocessing.active_children() == []


def test_diverged_models_are_reported(tmp_path: Path):
    supervisor.check_diverged(tmp_path, MODELS)
    for model in MODELS[1:]:
        inventory.divergence_file(tmp_path, model).parent.mkdir(exist_ok=True)
        inventory.divergence_file(tmp_path, model).write_text(json.dumps({}))
    with pytest.raises(UserError) as caught:
        supervisor.check_diverged(tmp_path, MODELS[:2])
    tail = (
        f": see {tmp_path}/diverged; lower optimizer.peak_learning_rate in a new workdir, or delete the files of "
        "that folder to try again"
    )
    assert str(caught.value).startswith(f"1 of 2 models diverged (reference-01){tail}")
    with pytest.raises(UserError) as caught:
        supervisor.check_diverged(tmp_path, MODELS)
    names = ", ".join(map(str, MODELS[1:4]))
    assert str(caught.value) == f"5 of 6 models diverged ({names}, ...){tail}"


def test_no_worker_starts_if_no_model_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inventory, "missing_models", lambda *_: [])
    assert supervisor.run(WorkerTask("run", config.Config(), tmp_path, tmp_path), print)
