"""What jobs leave in a recipe's folder beside rows: which rows each is at work on, and how rows failed.

``running/JOB.json``: while a job is alive, touched every few seconds. One that is left behind tells of a job that
vanished: killed, out of memory, or its machine lost.
``failures/ROW.jsonl``: a line a failure. After three at the same checkpoint a row is set aside.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_mia.atomic import write_atomically
from lm_mia.data import subsets

MOST_FAILURES = 3
GIVEN_UP = 3
"""The exit code of a job, or of an engine, that set rows aside, or has rows that diverged."""
BEAT_SECONDS = 5.0
LOST_SECONDS = 90.0
"""A job that did not touch its record for so long has vanished."""
PARENT = "LM_MIA_LAUNCH_PARENT"
"""The process without which a job is to stop, if any."""


@dataclasses.dataclass(frozen=True)
class WorkerInfo:
    """Who is at work."""

    job: str
    host: str
    pid: int
    log: str
    """Where its output is."""
    version: str
    """Of lm_mia, and the commit."""


_BY = tuple(field.name for field in dataclasses.fields(WorkerInfo))


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class Running:
    """The record of this job: rows that it is at work on, since when."""

    def __init__(self, recipe: Path, by: WorkerInfo):
        self._path = recipe / "running" / f"{_file_name(by.job)}.json"
        self._record: dict[str, Any] = {**dataclasses.asdict(by), "since": now(), "models": {}}
        self._changing = threading.Lock()

    def begin(self, row: str) -> None:
        """A row is being worked on from now."""
        with self._changing:
            self._record["models"][row] = now()
            self._write()

    def end(self, row: str) -> None:
        """It is no more."""
        with self._changing:
            if self._record["models"].pop(row, None):
                self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        write_atomically(self._path, json.dumps(self._record) + "\n")

    def _beat(self, over: threading.Event) -> None:
        parent, touched = int(os.environ.get(PARENT, "0")), time.monotonic()
        while not over.wait(BEAT_SECONDS / 5):
            if parent and os.getppid() != parent:  # whoever would have stopped us was killed
                os.kill(os.getpid(), signal.SIGTERM)
                return
            with self._changing, contextlib.suppress(OSError):
                if not self._path.exists():
                    self._write()  # somebody took us for lost
                elif time.monotonic() - touched > BEAT_SECONDS:
                    os.utime(self._path)
                    touched = time.monotonic()

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """The record is there while the block runs, and touched."""
        over = threading.Event()
        self._write()
        thread = threading.Thread(target=self._beat, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self._path.unlink(missing_ok=True)


def running_jobs(recipe: Path) -> Iterator[tuple[Path, dict[str, Any], float]]:
    """(file, record, when it was touched, in seconds since 1970) of every job that is at work or vanished."""
    for path in sorted(recipe.glob("running/*.json")):
        with contextlib.suppress(OSError):
            record = _record(path.read_bytes(), (*_BY, "since", "models"))
            if record is not None and isinstance(record["models"], dict):
                yield path, record, path.stat().st_mtime


def _time_there(folder: Path) -> float:
    """The time by the clock that touches the folder's files, which may be another machine's."""
    folder.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock") as file:
        return os.fstat(file.fileno()).st_mtime


def reap(recipe: Path, job: str, unfinished: set[str]) -> list[str]:
    """Takes away the records of jobs that vanished, and of an earlier life of this one; a failure for each such row.

    Args:
      recipe: folder.
      job: this one.
      unfinished: names of rows that are missing; the others were finished before the job vanished.

    Returns:
      Lines that say what was found.
    """
    said, now_seconds = [], _time_there(recipe / "running")
    for path, record, touched_seconds in list(running_jobs(recipe)):
        if record["job"] != job and abs(now_seconds - touched_seconds) < LOST_SECONDS:
            continue
        grave = path.with_suffix(f".{os.getpid()}.lost")
        try:
            path.rename(grave)  # one of those who see it takes it
        except FileNotFoundError:
            continue
        by = WorkerInfo(**{name: record[name] for name in _BY})
        reason = "its job vanished (killed, out of memory, or the machine lost?)"
        for row in record["models"]:
            if row in unfinished:
                record_failure(recipe, row, reason, by)
                said.append(f"{row}: {reason}: job {by.job} on {by.host}")
        grave.unlink()
    return said


def record_failure(recipe: Path, row: str, reason: str, by: WorkerInfo) -> None:
    """Writes down that a row failed, and why: the last line of a traceback says it best."""
    path = _failures(recipe, row)
    path.parent.mkdir(exist_ok=True)
    line = {"time": now(), "reason": reason, "saved_step": _saved_step(recipe, row)}
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(line | dataclasses.asdict(by)) + "\n").encode())


def failures(recipe: Path, row: subsets.ModelSeeds | str) -> list[dict[str, Any]]:
    """How a row failed, in order."""
    try:
        lines = _failures(recipe, row).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = [_record(line, (*_BY, "time", "reason", "saved_step")) for line in lines]
    return [failure for failure in found if failure is not None]


def _record(text: bytes, names: Sequence[str]) -> dict[str, Any] | None:
    """An object that has the names; None for another, such as one that a full disk cut short."""
    try:
        record = json.loads(text)
    except ValueError:  # of UTF-8 too
        return None
    return record if isinstance(record, dict) and record.keys() >= set(names) else None


def is_set_aside(recipe: Path, row: subsets.ModelSeeds | str) -> bool:
    """Whether a row failed three times in a row without getting further than the same checkpoint."""
    last = [f["saved_step"] for f in failures(recipe, row)[-MOST_FAILURES:]]
    return len(last) == MOST_FAILURES and len(set(last)) == 1


def remedy(recipe: Path, row: subsets.ModelSeeds | str) -> str:
    """How a row that was set aside is tried again."""
    return f"delete {_failures(recipe, row)} to try again"


def _failures(recipe: Path, row: subsets.ModelSeeds | str) -> Path:
    return recipe / "failures" / f"{row}.jsonl"


def _saved_step(recipe: Path, row: str) -> int:
    """Of its newest checkpoint; 0 if it has none."""
    folder = recipe / "checkpoints" / row
    return max((int(p.name) for p in folder.glob("*") if p.name.isdecimal()), default=0)


def _file_name(job: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", job)
    if plain == job and len(job) <= 120:
        return job
    return f"{plain[:100]}-{hashlib.sha256(job.encode()).hexdigest()[:8]}"
