"""Records of jobs in a recipe's folder: which models each job is making, and how models failed.

``running/JOB.json`` exists while a job is alive, and is touched every few seconds. A file that is left behind belongs
to a job that vanished: it was killed, ran out of memory, or its machine was lost.
``failures/MODEL.jsonl`` has a line for each failure. After three failures at the same checkpoint, a model is set aside.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_mia.atomic import append_line, write_atomically
from lm_mia.data import subsets

MAX_FAILURES = 3
"""Number of failures at the same checkpoint after which a model is set aside."""
GIVEN_UP_EXIT_CODE = 3
"""The exit code of a job or command with models that were set aside or diverged."""
BEAT_SECONDS = 5.0
"""Interval at which a job touches its record."""
LOST_SECONDS = 90.0
"""A job that has not touched its record for this long is considered to have vanished."""
PARENT_VARIABLE = "LM_MIA_LAUNCH_PARENT"
"""Environment variable with the id of the process that started the job; the job stops if that process exits."""


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """Describes a worker process."""

    job: str
    host: str
    pid: int
    log: str
    """Where the output of the process can be read."""
    version: str
    """Version of lm_mia, and the commit."""


_INFO_FIELDS = tuple(field.name for field in dataclasses.fields(WorkerInfo))


def now() -> str:
    """Returns the current time in UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class RunningRecord:
    """The record of this job, which lists the models that it is making."""

    def __init__(self, recipe_dir: Path, worker_info: WorkerInfo):
        self._path = recipe_dir / "running" / f"{file_name(worker_info.job)}.json"
        self._record: dict[str, Any] = {
            **dataclasses.asdict(worker_info),
            "since": now(),
            "models": {},
        }
        self._lock = threading.Lock()

    def begin(self, model: str) -> None:
        """Records that this job has started to make a model."""
        with self._lock:
            self._record["models"][model] = now()
            self._write()

    def end(self, model: str) -> None:
        """Records that this job no longer makes a model."""
        with self._lock:
            if self._record["models"].pop(model, None):
                self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        write_atomically(self._path, json.dumps(self._record) + "\n")

    def _beat(self, is_over: threading.Event) -> None:
        parent, last_touch = int(os.environ.get(PARENT_VARIABLE, "0")), time.monotonic()
        while not is_over.wait(BEAT_SECONDS / 5):
            if parent and os.getppid() != parent:  # the launcher was killed
                os.kill(os.getpid(), signal.SIGTERM)
                return
            with self._lock, contextlib.suppress(OSError):
                if not self._path.exists():
                    self._write()  # another job considered this one lost
                elif time.monotonic() - last_touch > BEAT_SECONDS:
                    os.utime(self._path)
                    last_touch = time.monotonic()

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Keeps the record up to date during the block, and removes it afterwards."""
        is_over = threading.Event()
        self._write()
        thread = threading.Thread(target=self._beat, args=(is_over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._path.unlink(missing_ok=True)


def running_jobs(recipe_dir: Path) -> Iterator[tuple[Path, dict[str, Any], float]]:
    """Yields (file, record, modification time in seconds since 1970) of each job that is running or vanished."""
    for path in sorted(recipe_dir.glob("running/*.json")):
        with contextlib.suppress(OSError):
            record = _record(path.read_bytes(), (*_INFO_FIELDS, "since", "models"))
            if record is not None and isinstance(record["models"], dict):
                yield path, record, path.stat().st_mtime


def _file_system_time(folder: Path) -> float:
    """Returns the time according to the clock of the folder's file system, which may be on another machine."""
    folder.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock") as file:
        return os.fstat(file.fileno()).st_mtime


def reap(recipe_dir: Path, job: str, unfinished: set[str]) -> list[str]:
    """Removes the records of vanished jobs and of earlier runs of this job, and records their models as failed.

    Args:
      recipe_dir: folder of the recipe.
      job: name of this job.
      unfinished: names of the missing models; only these are recorded as failed.

    Returns:
      A message for each failure.
    """
    messages, now_seconds = [], _file_system_time(recipe_dir / "running")
    for path, record, touched_seconds in list(running_jobs(recipe_dir)):
        if record["job"] != job and abs(now_seconds - touched_seconds) < LOST_SECONDS:
            continue
        # A process id would not be unique on all hosts that share the folder.
        claimed_path = path.with_suffix(f".{uuid.uuid4().hex}.lost")
        try:
            path.rename(claimed_path)  # only one of several concurrent jobs succeeds
        except FileNotFoundError:
            continue
        worker_info = WorkerInfo(**{name: record[name] for name in _INFO_FIELDS})
        reason = "its job vanished (killed, out of memory, or machine lost?)"
        for model in record["models"]:
            if model in unfinished:
                record_failure(recipe_dir, model, reason, worker_info)
                messages.append(f"{model}: {reason}: job {worker_info.job} on {worker_info.host}")
        claimed_path.unlink()
    return messages


def record_failure(recipe_dir: Path, model: str, reason: str, worker_info: WorkerInfo) -> None:
    """Records that a model failed, and why."""
    path = _failures_file(recipe_dir, model)
    path.parent.mkdir(exist_ok=True)
    line = {"time": now(), "reason": reason, "saved_step": saved_step(recipe_dir, model)}
    append_line(path, json.dumps(line | dataclasses.asdict(worker_info)))


def failures(recipe_dir: Path, model: subsets.ModelSeeds | str) -> list[dict[str, Any]]:
    """Returns the failures of a model, in order."""
    try:
        lines = _failures_file(recipe_dir, model).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    records = [_record(line, (*_INFO_FIELDS, "time", "reason", "saved_step")) for line in lines]
    return [failure for failure in records if failure is not None]


def _record(text: bytes, names: Sequence[str]) -> dict[str, Any] | None:
    """Parses a JSON object; returns None if it lacks a field or is invalid, for example truncated by a full disk."""
    try:
        record = json.loads(text)
    except ValueError:  # not JSON, or not UTF-8
        return None
    return record if isinstance(record, dict) and record.keys() >= set(names) else None


def is_set_aside(recipe_dir: Path, model: subsets.ModelSeeds | str) -> bool:
    """Returns whether a model failed three times in succession at the same checkpoint."""
    last_steps = [f["saved_step"] for f in failures(recipe_dir, model)[-MAX_FAILURES:]]
    return len(last_steps) == MAX_FAILURES and len(set(last_steps)) == 1


def remedy(recipe_dir: Path, model: subsets.ModelSeeds | str) -> str:
    """Returns the instruction for retrying a model that was set aside."""
    return f"delete {_failures_file(recipe_dir, model)} to try again"


def _failures_file(recipe_dir: Path, model: subsets.ModelSeeds | str) -> Path:
    return recipe_dir / "failures" / f"{model}.jsonl"


def saved_step(recipe_dir: Path, model: str) -> int:
    """Returns the step of the newest checkpoint, or 0 if there is none."""
    folder = recipe_dir / "checkpoints" / model
    return max((int(p.name) for p in folder.glob("*") if p.name.isdecimal()), default=0)


def file_name(job: str) -> str:
    """Returns the name of a job in a form that is valid and unique as a file name."""
    safe_name = re.sub(r"[^A-Za-z0-9._-]", "_", job)
    if safe_name == job and len(job) <= 120:
        return job
    return f"{safe_name[:100]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
