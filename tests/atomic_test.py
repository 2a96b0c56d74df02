import io
import os
import time
from pathlib import Path
from typing import Any

import pytest

from lm_mia import atomic


def test_write_atomically_replaces_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    atomic.write_atomically(path, "old")
    atomic.write_atomically(path, "new")
    assert path.read_text() == "new"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        atomic.write_atomically(path, "half")
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failed_writes_leave_no_file(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "t.parquet"
    path.write_text("old")

    def half() -> None:
        with atomic.replacing(path) as temporary:
            temporary.write_text("ha")
            raise error

    with pytest.raises(error):
        half()
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "old")
    with atomic.replacing(path) as temporary:
        temporary.write_text("new")
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "new")


def test_a_line_that_a_full_disk_truncates_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "log.jsonl"
    atomic.append_line(path, "first")

    class FullDisk(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:3])

    with monkeypatch.context() as m:
        m.setattr(atomic, "open", lambda *args, **kwargs: FullDisk(args[0], args[1]), raising=False)
        with pytest.raises(OSError, match="No space left"):
            atomic.append_line(path, "second")
    atomic.append_line(path, "third")
    assert path.read_text() == "first\nthird\n"


def test_files_of_processes_that_were_killed_a_day_ago_are_abandoned(tmp_path: Path):
    old, recent, other = (tmp_path / name for name in (".new-1.csv", ".new-2.csv", "a.csv"))
    for path in (old, recent, other):
        path.write_text("half")
    for path in (old, other):
        os.utime(path, (0, time.time() - 25 * 3600))
    assert atomic.abandoned(tmp_path) == [old]
