import importlib.util
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lm_mia.errors import UserError
from lm_mia.run import trackers

Events = list[dict[str, Any]]


def train(model: str, step: int, loss: float, **more: Any) -> dict[str, Any]:
    event = {"event": "train", "model": model, "role": "reference", "steps": 8, "epoch": 0}
    rates = {"learning_rate": 0.1, "tokens_per_second": None, "mfu": None, "memory_bytes": 5}
    return event | {"step": step, "loss_nats": loss} | rates | more


def scored(model: str, step: int, last: bool) -> dict[str, Any]:
    losses = {"member_loss_nats": 1.0, "nonmember_loss_nats": 2.0, "seconds": 3.0}
    return {
        "event": "model_scored",
        "model": model,
        "role": "replica",
        "step": step,
        "last": last,
    } | losses


EVENTS: Events = [
    {"event": "worker", "index": 0},
    {"event": "model_started", "model": "a", "role": "reference"},
    train("a", 0, 3.5),
    train("b", 0, 4.5),
    {"event": "step", "model": "a", "step": 3, "steps": 8},
    train("a", 7, 2.5, mfu=0.25),
    {"event": "validation", "model": "a", "role": "reference", "step": 8, "validation_loss_nats": 2.75},
    scored("a", 4, last=False),
    scored("a", 8, last=True),
    {"event": "model_diverged", "model": "b", "role": "reference", "step": 3, "what": "loss=nan", "loss_nats": "nan"},
    {"event": "waiting", "models": []},
]  # fmt: skip
EXPECTED = {  # of model a: metric -> (step, value)
    "loss_nats": [(0, 3.5), (7, 2.5)],
    "learning_rate": [(0, 0.1), (7, 0.1)],
    "memory_bytes": [(0, 5), (7, 5)],
    "mfu": [(7, 0.25)],
    "validation_loss_nats": [(8, 2.75)],
    "member_loss_nats": [(4, 1.0), (8, 1.0)],
    "nonmember_loss_nats": [(4, 2.0), (8, 2.0)],
}


def tracked(names: list[str], folder: Path, events: Events) -> list[str]:
    """Tracks events; returns the messages to the user."""
    messages: list[str] = []
    with trackers.open_trackers(
        names, folder, "recipe_x", {"train": {"epochs": 1}}, messages.append
    ) as track:
        for event in events:
            track(event)
    return messages


def read_tensorboard(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(e.step, pytest.approx(e.tensor_proto.float_val[0])) for e in events.Tensors(name)]
        for name in events.Tags()["tensors"]
    }


def records(file: Path) -> Iterator[bytes]:
    """Yields the records of W&B's log: after 7 bytes, (checksum, length, kind, data) in blocks of 32 kB."""
    data, offset, parts = file.read_bytes(), 7, []
    while offset + 7 <= len(data):
        if (left := 2**15 - offset % 2**15) < 7:  # too short for a header, so it is padding
            offset += left
            continue
        length, kind = struct.unpack("<HB", data[offset + 4 : offset + 7])
        parts.append(data[offset + 7 : offset + 7 + length])
        offset += 7 + length
        if kind in (1, 4):  # a complete record or its last part
            yield b"".join(parts)
            parts = []


def read_wandb(run: Path) -> tuple[Any, dict[str, list[tuple[int, float]]]]:
    """Returns the record of an offline run, and the history of each metric by step."""
    import wandb
    from wandb.proto import wandb_internal_pb2

    wandb.teardown()  # ends the service process, which writes the file
    run_record, history, metrics = None, {}, []
    [path] = run.glob("*.wandb")
    for data in records(path):
        record = getattr(wandb_internal_pb2, "Record")()  # noqa: B009 (made at run time: pyright sees none)
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        run_record = record.run if kind == "run" else run_record
        metrics += [record.metric.glob_name, record.metric.step_metric] if kind == "metric" else []
        items = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
        for name in items.keys() - {"step", "_step", "_runtime", "_timestamp"}:
            history.setdefault(name, []).append((items["step"], items[name]))
    # W&B's own step would reject earlier steps of a resumed model.
    assert metrics == ["*", "step"]
    return run_record, history


def test_tensorboard_logs_metrics(tmp_path: Path):
    assert tracked(["tensorboard"], tmp_path, EVENTS) == []
    folder = tmp_path / "tensorboard" / "recipe_x"
    assert read_tensorboard(folder / "a") == EXPECTED
    assert read_tensorboard(folder / "b")["loss_nats"] == [(0, 4.5)]
    assert {path.name for path in folder.iterdir()} == {"a", "b"}


def test_resumed_model_continues_its_tensorboard_log(tmp_path: Path):
    tracked(["tensorboard"], tmp_path, EVENTS[:4])
    tracked(["tensorboard"], tmp_path, EVENTS[4:])
    assert read_tensorboard(tmp_path / "tensorboard" / "recipe_x" / "a") == EXPECTED


@pytest.mark.process
def test_tensorboard_log_survives_a_kill(tmp_path: Path):
    code = f"""
import os, signal, pathlib
from lm_mia.run import trackers
folder = pathlib.Path({str(tmp_path)!r})
with trackers.open_trackers(["tensorboard"], folder, "recipe_x", {{}}, print) as track:
    for step in range(3):
        track({{"event": "validation", "model": "a", "role": "replica", "step": step, "validation_loss_nats": 1.5}})
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    metrics = read_tensorboard(tmp_path / "tensorboard" / "recipe_x" / "a")
    assert metrics == {"validation_loss_nats": [(0, 1.5), (1, 1.5), (2, 1.5)]}


@pytest.mark.slow
@pytest.mark.process
def test_wandb_logs_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """W&B runs offline, so it needs no login. Its service is a separate process."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # so that no login of this machine is used
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    assert tracked(["wandb"], tmp_path, EVENTS) == []
    runs = {
        path.name.rpartition("recipe_x-")[2][0]: path
        for path in (tmp_path / "wandb").glob("*-run-*")
    }
    assert set(runs) == {"a", "b"}
    run_record, history = read_wandb(runs["a"])
    assert history == EXPECTED
    assert (run_record.run_group, run_record.display_name, run_record.job_type) == (
        "recipe_x",
        "a",
        "reference",
    )
    assert run_record.project == "lm-mia"
    stored_config = {item.key: item.value_json for item in run_record.config.update}
    assert (stored_config["model_name"], stored_config["train"]) == ('"a"', '{"epochs":1}')
    again, _ = read_wandb(runs["b"])
    assert again.run_id != run_record.run_id
    tracked(["wandb"], tmp_path, EVENTS[3:4])  # a resumed model continues its run
    assert {read_wandb(path)[0].run_id for path in (tmp_path / "wandb").glob("*recipe_x-b*")} == {
        again.run_id
    }


def test_number_of_open_runs_is_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    log: list[str] = []

    def fake(*_: Any) -> Callable[[str, str], trackers.TrackedModel]:
        def begin(model: str, role: str) -> trackers.TrackedModel:
            log.append(f"+{model}")
            return trackers.TrackedModel(lambda step, values: None, lambda: log.append(f"-{model}"))

        return begin

    monkeypatch.setattr(trackers, "_tensorboard", fake)
    monkeypatch.setattr(trackers, "_MAX_OPEN", 2)
    events = [train(model, 0, 1.0) for model in "abacba"]
    tracked(["tensorboard"], tmp_path, [*events, scored("b", 8, last=True)])
    # When c is opened, b is closed, since a has had a later event; and so on.
    assert " ".join(log) == "+a +b -b +c -a +b -c +a -b -a"


def test_failing_tracker_is_disabled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def broken(*_: Any) -> Callable[[str, str], trackers.TrackedModel]:
        def begin(model: str, role: str) -> trackers.TrackedModel:
            raise OSError("no space\nleft")

        return begin

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(trackers, "_wandb", broken)
    [message] = tracked(["wandb", "tensorboard"], tmp_path, EVENTS)
    assert re.match(r"wandb .*\(OSError: no space left\); .*\bmetrics\b", message)
    assert read_tensorboard(tmp_path / "tensorboard" / "recipe_x" / "a") == EXPECTED


def test_other_errors_are_raised(tmp_path: Path):
    def fails() -> None:
        with trackers.open_trackers(["tensorboard"], tmp_path, "recipe_x", {}, print) as track:
            track(EVENTS[2])
            raise KeyError("of the work")

    with pytest.raises(KeyError):
        fails()
    assert "loss_nats" in read_tensorboard(tmp_path / "tensorboard" / "recipe_x" / "a")


def test_missing_extra_is_reported_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as caught:
        tracked(["tensorboard", "wandb"], tmp_path, EVENTS)
    for line, name in zip(str(caught.value).split("\n"), ("tensorboard", "wandb"), strict=True):
        assert re.match(
            rf"train\.trackers='{name}': not installed; .*`uv run --extra {name} ", line
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_wandb_online_needs_a_login(tmp_path: Path):
    """Uses a separate process and home folder, so that no login of this machine is used."""
    code = "from lm_mia.run import trackers\ntry: trackers.check_trackers(['wandb'])\nexcept Exception as e: print(e)"
    environment = {
        "HOME": str(tmp_path),
        "WANDB_MODE": "online",
        "PATH": "",
        "WANDB_SILENT": "true",
    }
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("train.trackers='wandb': not logged ")


@pytest.mark.process
def test_no_tracker_loads_nothing(tmp_path: Path):
    code = (
        "from lm_mia.run import trackers\nfrom pathlib import Path\nimport sys\n"
        f"with trackers.open_trackers((), Path({str(tmp_path)!r}), 'x', {{}}, print) as track:\n"
        "    track({'event': 'worker'})\n"
        "sys.exit(len({'tensorboard', 'wandb', 'tensorflow', 'jax'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert list(tmp_path.iterdir()) == []
