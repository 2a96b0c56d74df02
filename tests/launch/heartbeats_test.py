import dataclasses
import json
import os
import re
import time
from pathlib import Path

import pytest

from launch import heartbeats

WORKER = heartbeats.WorkerInfo("job-1", "node-1", 7, "logs/job-1.log", "0.1.0 abc")
MODEL = "reference-00"


def saved(recipe: Path, step: int) -> None:
    (recipe / "checkpoints" / MODEL / str(step)).mkdir(parents=True)


def test_failure_record_has_reason_job_and_step(tmp_path: Path):
    saved(tmp_path, 8)
    saved(tmp_path, 16)
    (tmp_path / "checkpoints" / MODEL / "24.orbax-tmp").mkdir()
    heartbeats.record_failure(tmp_path, MODEL, "out of memory", WORKER)
    [failure] = heartbeats.failures(tmp_path, MODEL)
    assert failure.pop("time").endswith("+00:00")
    assert failure == {"reason": "out of memory", "saved_step": 16, **dataclasses.asdict(WORKER)}


def test_three_failures_set_a_model_aside(tmp_path: Path):
    for n in range(3):
        assert not heartbeats.is_set_aside(tmp_path, MODEL), n
        heartbeats.record_failure(tmp_path, MODEL, "x", WORKER)
    assert heartbeats.is_set_aside(tmp_path, MODEL)
    assert not heartbeats.is_set_aside(tmp_path, "reference-01")
    [_, path, *_] = heartbeats.remedy(tmp_path, MODEL).split()
    Path(path).unlink()
    assert not heartbeats.is_set_aside(tmp_path, MODEL)


def test_model_with_progress_between_failures_is_not_set_aside(tmp_path: Path):
    for step in (1, 2, 3, 4):
        heartbeats.record_failure(tmp_path, MODEL, "killed", WORKER)
        saved(tmp_path, step)
    assert not heartbeats.is_set_aside(tmp_path, MODEL)
    for _ in range(3):
        heartbeats.record_failure(tmp_path, MODEL, "killed", WORKER)
    assert heartbeats.is_set_aside(tmp_path, MODEL)


def test_truncated_line_is_not_a_failure(tmp_path: Path):
    heartbeats.record_failure(tmp_path, MODEL, "x", WORKER)
    with open(tmp_path / "failures" / f"{MODEL}.jsonl", "a") as file:
        file.write('{"time": "20')
    assert len(heartbeats.failures(tmp_path, MODEL)) == 1


def test_record_exists_while_the_job_is_alive(tmp_path: Path):
    state, began = heartbeats.RunningRecord(tmp_path, WORKER), time.time()
    with state.alive():
        state.begin(MODEL)
        [(path, record, touched_seconds)] = heartbeats.running_jobs(tmp_path)
        assert record["models"].keys() == {MODEL}
        assert (record["job"], record["host"], record["pid"]) == ("job-1", "node-1", 7)
        assert began - 1 < touched_seconds < time.time() + 1  # file systems round times
        state.end(MODEL)
        assert json.loads(path.read_text())["models"] == {}
    assert list(heartbeats.running_jobs(tmp_path)) == []


def test_record_is_touched_and_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heartbeats, "BEAT_SECONDS", 0.05)
    with heartbeats.RunningRecord(tmp_path, WORKER).alive():
        [path] = (tmp_path / "running").iterdir()
        os.utime(path, (0, 0))
        while path.stat().st_mtime == 0:
            time.sleep(0.01)
        assert path.stat().st_mtime > 0
        path.unlink()  # another job has deleted it as lost
        while not path.exists():
            time.sleep(0.01)
        assert json.loads(path.read_text())["job"] == WORKER.job


def test_unusual_job_names_become_plain_file_names(tmp_path: Path):
    with heartbeats.RunningRecord(
        tmp_path, dataclasses.replace(WORKER, job="../a b$(c)/7_[1]")
    ).alive():
        [path] = (tmp_path / "running").iterdir()
        assert path.name.startswith(".._a_b__c__7__1_-")
    with heartbeats.RunningRecord(tmp_path, dataclasses.replace(WORKER, job="x" * 300)).alive():
        assert len(list(heartbeats.running_jobs(tmp_path))) == 1


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"null", b"[1]", b"\xff", b'{"job": "x"', b'{"models": 1}']
)
def test_invalid_records_are_ignored(tmp_path: Path, text: bytes):
    for folder, name in (("running", "x.json"), ("failures", f"{MODEL}.jsonl")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_bytes(text)
    assert list(heartbeats.running_jobs(tmp_path)) == []
    assert heartbeats.failures(tmp_path, MODEL) == []
    assert heartbeats.reap(tmp_path, "me", {MODEL}) == []


def test_record_from_the_future_is_reaped(tmp_path: Path):
    left_behind(tmp_path, "old", {MODEL: "x"}, -86_400)
    assert len(heartbeats.reap(tmp_path, "me", {MODEL})) == 1


def left_behind(recipe: Path, job: str, models: dict[str, str], age_seconds: float) -> Path:
    path = recipe / "running" / f"{job}.json"
    path.parent.mkdir(exist_ok=True)
    worker = dataclasses.asdict(dataclasses.replace(WORKER, job=job))
    path.write_text(json.dumps({**worker, "since": "x", "models": models}))
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    return path


def test_vanished_jobs_are_failures_of_their_unfinished_models(tmp_path: Path):
    left_behind(tmp_path, "old", {MODEL: "x", "reference-01": "x"}, 1000)
    live = left_behind(tmp_path, "live", {"reference-02": "x"}, 1)
    [message] = heartbeats.reap(tmp_path, "me", {MODEL, "reference-02"})
    assert re.match(rf"{MODEL}: .*vanished\b.*: job old on node-1$", message)
    assert [f["job"] for f in heartbeats.failures(tmp_path, MODEL)] == ["old"]
    assert heartbeats.failures(tmp_path, "reference-01") == []
    assert [path for path, *_ in heartbeats.running_jobs(tmp_path)] == [live]
    assert heartbeats.reap(tmp_path, "me", {MODEL}) == []  # counted once


def test_earlier_run_of_the_same_job_is_reaped_at_once(tmp_path: Path):
    left_behind(tmp_path, "me", {MODEL: "x"}, 1)
    assert len(heartbeats.reap(tmp_path, "me", {MODEL})) == 1
    assert list(heartbeats.running_jobs(tmp_path)) == []
