import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm_mia import events


def read(workdir: Path, text: bytes = b"") -> list[events.Event]:
    return [event for _, event in events.read(workdir, lambda line: text in line)]


def test_events_have_a_time(tmp_path: Path):
    events.append(tmp_path, {"event": "a", "loss": 1.5})
    events.append(tmp_path, {"event": "b\nc"})
    first, second = read(tmp_path)
    assert (first["event"], first["loss"], second["event"]) == ("a", 1.5, "b\nc")
    assert first["time"] <= second["time"]
    assert first["time"].endswith("+00:00")
    [file] = (tmp_path / events.FOLDER).iterdir()
    assert str(os.getpid()) in file.name


def test_a_workdir_without_a_log_has_no_events(tmp_path: Path):
    assert read(tmp_path) == read(tmp_path / "missing") == []
    (tmp_path / "metrics.jsonl").write_text('{"event": "a"}\n')  # that of an earlier version
    assert read(tmp_path) == []


def test_events_of_all_files_are_in_the_order_of_their_times(tmp_path: Path):
    (tmp_path / events.FOLDER).mkdir()
    for name, seconds in (("a", (1, 4, 5)), ("b", (0, 2, 3))):
        lines = [json.dumps({"time": f"2026-01-01T00:00:0{s}.000+00:00", "s": s}) for s in seconds]
        damaged = ["", "3", '{"s": 1}', '{"time": 3}', '{"time": "2026-01-01T00:00:00.000+00:00"']
        path = tmp_path / events.FOLDER / f"{name}.jsonl"
        path.write_text("\n".join([*lines[:2], *damaged, "\x00", *lines[2:], damaged[-1]]))
    assert [event["s"] for event in read(tmp_path)] == [0, 1, 2, 3, 4, 5]
    assert [event["s"] for event in read(tmp_path, b'"s": 4')] == [4]


APPEND = """
import pathlib, sys
from lm_mia import events
for i in range(300):
    events.append(pathlib.Path(sys.argv[1]), {"who": sys.argv[2], "i": i, "long": sys.argv[2] * 5000})
"""


@pytest.mark.process
def test_each_process_has_a_file(tmp_path: Path):
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path), name]) for name in "abc"
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len([*(tmp_path / events.FOLDER).iterdir()]) == 3
    for name in "abc":
        own = [event for event in read(tmp_path) if event["who"] == name]
        assert [event["i"] for event in own] == list(range(300))
        assert {event["long"] for event in own} == {name * 5000}
