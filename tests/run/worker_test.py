import dataclasses
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
import tiny_run
from tiny_run import _on_cpu, tiny, work

from lm_mia import config
from lm_mia.config import load
from lm_mia.data import subsets
from lm_mia.errors import DISK_REMEDY, RendezvousError, UserError
from lm_mia.run import inventory, model_maker, preemption, worker
from lm_mia.run.worker_task import Event, WorkerTask
from lm_mia.store import schema
from lm_mia.store.store import Store, open_store
from lm_mia.train import checkpoint
from lm_mia.train.loop import DivergedError, PreemptedError

__all__ = ["_on_cpu", "tiny"]  # fixtures

C = config.Config()
TASK = WorkerTask("run", C, Path(), Path())
MODELS = subsets.requested_seeds(4, 2)
NAMES = [str(model) for model in MODELS]


class Pipe:
    """Records what a worker sends, or raises BrokenPipeError."""

    def __init__(self, broken: bool = False):
        self.sent: list[Event] = []
        self._broken = broken

    def send(self, event: Event) -> None:
        if self._broken:
            raise BrokenPipeError
        self.sent.append(event)


def test_closed_event_loops_are_hidden_but_not_errors_of_libraries(
    monkeypatch: pytest.MonkeyPatch,
):
    shown: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: shown.append(str(failure.exc_value)))
    monkeypatch.setattr(worker, "work", lambda *_: None)
    logger = logging.getLogger("absl")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(os, "environ", dict(os.environ))
    pipe: Any = Pipe()
    worker.main(pipe, TASK, {})
    for message in ("Event loop is closed", "another error"):
        sys.unraisablehook(types.SimpleNamespace(exc_value=RuntimeError(message)))  # pyright: ignore
    assert shown == ["another error"]
    assert logger.filter(logger.makeRecord("absl", logging.ERROR, "", 0, "", (), None))


@pytest.mark.parametrize(
    ("error", "expected_event"),
    [
        (UserError("field=1: rule"), {"event": "user_error", "message": "field=1: rule"}),
        (RendezvousError("not found"), {"event": "rendezvous", "message": "not found"}),
        (
            OSError(28, "No space left on device"),
            {"event": "disk", "message": f".: No space left on device; {DISK_REMEDY}"},
        ),
        (BrokenPipeError(), None),
        (None, None),
    ],
)
@pytest.mark.usefixtures("_on_cpu")
def test_failures_become_events_and_exit_codes(
    monkeypatch: pytest.MonkeyPatch, error: Any, expected_event: Any
):
    def failing(*_: Any) -> None:
        assert os.environ["LM_MIA_TEST"] == "seen"
        if error is not None:
            raise error

    monkeypatch.setenv("LM_MIA_TEST", "unseen")
    monkeypatch.setattr(worker, "work", failing)
    pipe: Any = Pipe()
    exit_codes: list[int] = []
    # os._exit does not wait for threads.
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    worker.main(pipe, TASK, {"LM_MIA_TEST": "seen"})
    assert pipe.sent == ([] if expected_event is None else [expected_event])
    assert exit_codes == ([] if error is None else [1])


@pytest.mark.usefixtures("_on_cpu")
def test_crash_event_has_the_traceback(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker, "work", lambda *_: 1 / 0)
    exit_codes: list[int] = []
    monkeypatch.setattr(os, "_exit", exit_codes.append)
    pipe: Any = Pipe()
    worker.main(pipe, TASK, {})
    [event] = pipe.sent
    assert event["event"] == "crash"
    assert "ZeroDivisionError" in event["message"]
    assert exit_codes == [1]
    broken: Any = Pipe(broken=True)
    worker.main(broken, TASK, {})  # no process reads the event
    assert exit_codes == [1, 1]


@pytest.mark.usefixtures("_on_cpu")
def test_untrained_models_are_not_scored(tiny: tiny_run.Tiny, tmp_path: Path):
    c = load.load_config(tiny.config)
    workdir = tiny.copy(tmp_path / "w", models=False)
    tiny.recipe(workdir)
    with pytest.raises(UserError, match=r"model reference-00: .* run `lm-mia train`"):
        work("score", c, workdir, lambda event: None)


@pytest.mark.usefixtures("_on_cpu")
def test_sigterm_outside_training_exits_with_143(monkeypatch: pytest.MonkeyPatch):
    """A second SIGTERM has no effect."""

    def terminate(*_: Any) -> None:
        stop = preemption.Stop()
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(worker, "work", terminate)
    pipe: Any = Pipe()
    with pytest.raises(SystemExit) as ended:
        worker.main(pipe, TASK, {})
    assert ended.value.code == 143
    os.kill(os.getpid(), signal.SIGTERM)
    assert pipe.sent == []


@pytest.mark.usefixtures("_on_cpu")
def test_only_selected_unlocked_models_are_made(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", models=False)
    recipe, seen = tiny.recipe(workdir), list[Event]()
    (recipe / "locks").mkdir(exist_ok=True)
    with filelock.FileLock(recipe / "locks" / f"{MODELS[2]}.lock"):
        work(
            "run", load.load_config(tiny.config), workdir, seen.append, selected_models=MODELS[1:3]
        )
    assert [event["model"] for event in seen if event["event"] == "model_scored"] == NAMES[1:2]
    assert Store(recipe / "scores.zarr").missing_models(MODELS) == [*MODELS[:1], *MODELS[2:]]


@pytest.mark.usefixtures("_on_cpu")
def test_a_model_that_lacks_only_its_digest_is_not_made_again(tiny: tiny_run.Tiny, tmp_path: Path):
    """A process was killed before it wrote the digest, and the checkpoints were deleted since then."""
    workdir, seen = tiny.copy(tmp_path / "w"), list[Event]()
    store = Store(tiny.recipe(workdir) / "scores.zarr")
    before = store.digests(MODELS)
    shutil.rmtree(tiny.recipe(workdir) / "checkpoints")
    schema.digest_file(store.path, 2).unlink()
    assert store.missing_models(MODELS) == [store.models()[2]]
    work("run", load.load_config(tiny.config), workdir, seen.append)
    assert store.digests(MODELS) == before
    assert not [event for event in seen if event["event"] in ("model_started", "model_scored")]


@pytest.mark.usefixtures("_on_cpu")
def test_scoring_again_gives_the_same_digests(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    store = Store(tiny.recipe(workdir) / "scores.zarr")
    before = store.digests(MODELS)
    shutil.rmtree(store.path / "loss/c/1")
    work("score", load.load_config(tiny.config), workdir, lambda event: None)
    assert store.digests(MODELS) == before
    assert len({*before}) == len(MODELS)


@pytest.mark.usefixtures("_on_cpu")
def test_model_finished_by_another_worker_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was missing when the worker listed the models, but is present once the worker holds its lock."""
    models = subsets.models_of_config(C)
    answers = iter([models[:1], [], []])
    monkeypatch.setattr(inventory, "missing_models", lambda *_: next(answers))
    (tmp_path / "locks").mkdir()
    events: list[Any] = []
    locked = model_maker.locked_models(
        dataclasses.replace(TASK, recipe_dir=tmp_path), events.append
    )
    assert list(locked) == [model_maker.WAIT]


def test_damaged_population_is_reported(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", models=False)
    tiny.recipe(workdir)
    (tiny_run.population_of(workdir) / "tokens.npy").write_bytes(b"")
    with pytest.raises(UserError, match=r"tokens.npy: .*; delete .* run `lm-mia corpus`"):
        work("run", load.load_config(tiny.config), workdir, print)


@pytest.mark.usefixtures("_on_cpu")
def test_present_models_are_not_repeated(tiny: tiny_run.Tiny, tmp_path: Path):
    seen: list[Event] = []
    work("run", load.load_config(tiny.config), tiny.copy(tmp_path / "w"), seen.append)
    assert [event["event"] for event in seen] == ["worker"]
    assert seen[0]["is_primary"] is True
    assert (seen[0]["index"], seen[0]["devices"], seen[0]["processes"]) == (0, 1, 1)
    assert re.match(r"attention xla \(.*\), layers unrolled", seen[0]["execution_plan"])


@pytest.mark.usefixtures("_on_cpu")
def test_locked_models_are_waited_for(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """They are made once their locks are free, if they are still missing."""
    c, seen = load.load_config(tiny.config), []
    workdir = tiny.copy(tmp_path / "w")
    recipe = tiny_run.recipe_of(workdir)
    for index in (1, 4):
        (recipe / "scores.zarr" / "loss" / "c" / str(index) / "0").unlink()
    lock = filelock.FileLock(recipe / "locks" / f"{NAMES[1]}.lock")
    lock.acquire()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            lock.release()

    clock = types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    # Only the worker gets this clock, since threads of orbax sleep, too.
    monkeypatch.setattr(model_maker, "time", clock)
    work("run", c, workdir, seen.append)
    # functions compiled by an earlier test are reused
    reported = [event for event in seen[1:] if event["event"] not in ("scoring", "compiled")]
    assert [(event["event"], event.get("model") or event.get("models")) for event in reported] == [
        ("model_started", NAMES[4]), ("model_scored", NAMES[4]),
        ("waiting", [NAMES[1]]), ("waiting", [NAMES[1]]),
        ("model_started", NAMES[1]), ("model_scored", NAMES[1]),
    ]  # fmt: skip
    assert len(slept) == 2
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_divergence_is_recorded_and_other_models_are_made(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    c = load.load_config(tiny.config)
    workdir = tiny.copy(tmp_path / "w", models=False)
    recipe = tiny.recipe(workdir)
    init_state, seen = checkpoint.init_state, []

    def corrupted_state(init_seed: int, *args: Any) -> checkpoint.TrainState:
        state = init_state(init_seed, *args)
        if init_seed == 2:
            embed = state.params["token_embed"]
            embed["embedding"] = embed["embedding"].at[5, 1].set(np.inf)
        return state

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "init_state", corrupted_state)
        work("run", c, workdir, seen.append)
    [reported] = [event for event in seen if event["event"] == "model_diverged"]
    assert reported["message"].startswith("model reference-02: loss=nan at step 0; ")
    evidence = json.loads(inventory.divergence_file(recipe, MODELS[2]).read_text())
    assert {k: v for k, v in reported.items() if k not in ("event", "message")} == evidence
    assert (evidence["step"], evidence["loss_nats"]) == (0, "nan")
    members = set(np.flatnonzero(subsets.members(MODELS, 32, "balanced")[2]))
    assert len(evidence["samples"]) == 4
    assert set(evidence["samples"]) <= members
    others = [name for name in NAMES if name != "reference-02"]
    assert [event["model"] for event in seen if event["event"] == "model_scored"] == others
    work("run", c, workdir, lambda event: pytest.fail(str(event)) if "model" in event else None)
    inventory.divergence_file(recipe, MODELS[2]).unlink()
    seen.clear()
    work("run", c, workdir, seen.append)
    assert [event["model"] for event in seen if event["event"] == "model_trained"] == [NAMES[2]]
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)


@pytest.mark.usefixtures("_on_cpu")
def test_models_are_scored_at_every_score_point(tiny: tiny_run.Tiny, tmp_path: Path):
    """Score points do not change the final scores, and a deleted score point is computed again."""
    c = load.load_config(tiny.config, ["--config.score.at_steps=1,3", "--config.attack.step=3"])
    workdir = tiny.copy(tmp_path / "w", models=False)
    finished_recipe, recipe, seen = (
        tiny_run.recipe_of(tiny.workdir),
        tiny_run.recipe_of(workdir),
        [],
    )
    store = open_store(c, recipe)
    store.create_or_extend(MODELS, {"tokens": np.arange(32)}, {})
    work("run", c, workdir, seen.append)
    scored = [event for event in seen if event["event"] == "model_scored"]
    assert [(e["model"], e["step"], e["last"]) for e in scored] == [
        (name, step, step == 4) for name in NAMES for step in (1, 3, 4)
    ]
    for name in NAMES:
        kept = sorted(p.name for p in (recipe / "checkpoints" / name).iterdir())
        assert kept == ["1", "3", "4"]
    assert store.missing_models(MODELS) == []
    end, _ = store.read(MODELS)
    expected, _ = open_store(load.load_config(tiny.config), finished_recipe).read(MODELS)
    np.testing.assert_array_equal(end, expected)
    losses = [dataclasses.replace(store, step=step).read(MODELS)[0] for step in (1, 3)]
    assert (losses[0].mean(), losses[1].mean()) != (end.mean(), end.mean())
    assert len({values.tobytes() for values in (*losses, end)}) == 3
    means = {(e["model"], e["step"]): e["nonmember_loss_nats"] for e in scored}
    _, member_MxN = store.read(MODELS)
    for values, step in ((losses[0], 1), (losses[1], 3), (end, 4)):
        for m, name in enumerate(NAMES):
            assert means[name, step] == pytest.approx(values[m][~member_MxN[m]].mean(), rel=1e-6)
    [shard] = (recipe / "scores.zarr" / "loss" / "c" / "1" / "1").iterdir()
    before = shard.read_bytes()
    shard.unlink()
    seen.clear()
    work("run", c, workdir, seen.append)
    assert [(e["event"], e.get("step", e.get("share"))) for e in seen[1:4]] == [
        ("model_started", None),
        ("scoring", 2 / 3),  # the second of three points
        ("model_scored", 3),
    ]
    assert shard.read_bytes() == before


@pytest.mark.parametrize("moment", ["while the last step is done", "while a model is scored"])
@pytest.mark.usefixtures("_on_cpu")
def test_stop_request_after_the_last_step(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
):
    """If SIGTERM comes too late for `train_model`, the worker stops before the next model or score point."""
    from lm_mia.train import loop

    c, seen = load.load_config(tiny.config), []
    workdir = tiny.copy(tmp_path / "w", models=False)
    recipe = tiny.recipe(workdir)
    stops: list[preemption.Stop] = []
    install, trained = preemption.Stop.install, loop.train_model
    monkeypatch.setattr(
        preemption.Stop, "install", lambda self: stops.append(self) or install(self)
    )

    def train_with_sigterm(*args: Any) -> None:
        trained(*args)
        if moment == "while the last step is done":
            stops[0].is_requested = True

    def report(event: Event) -> None:
        seen.append(event)
        if event["event"] == "model_scored" and moment == "while a model is scored":
            stops[0].is_requested = True

    monkeypatch.setattr(loop, "train_model", train_with_sigterm)
    work("run", c, workdir, report)
    last = [event["event"] for event in seen if event["event"] not in ("train", "step", "scoring")]
    scored = ["model_scored"] if moment == "while a model is scored" else []
    assert last == ["worker", "model_started", "model_trained", *scored, "preempted"]
    assert inventory.is_trained(c, recipe, MODELS[0])
    assert bool(inventory.missing_models("run", c, recipe, MODELS[:1])) == (not scored)


def test_divergence_is_a_user_error_and_preemption_is_not():
    assert issubclass(DivergedError, UserError)
    assert not issubclass(PreemptedError, UserError)
