"""The log of a workdir: one event per line, in JSON, in the files ``metrics/*.jsonl``.

Each process writes a file of its own, since lines that several machines append to one file on NFS overwrite each other.
"""

import contextlib
import datetime
import functools
import json
import os
import re
import socket
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lm_mia.atomic import append_line

FOLDER = "metrics"
"""Name of the folder of the log in the workdir."""

Event = dict[str, Any]


def append(workdir: Path, event: Mapping[str, Any]) -> None:
    """Appends an event, with the time, to the file of this process in the log of a workdir."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    line, path = json.dumps({"time": now, **event}), workdir / FOLDER / _file_name(os.getpid())
    try:
        append_line(path, line)
    except FileNotFoundError:  # the first event of the workdir
        path.parent.mkdir(parents=True, exist_ok=True)
        append_line(path, line)


@functools.cache
def _file_name(process_id: int) -> str:
    """Returns the name of the file of a process, which no process of any machine has chosen before."""
    host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())[:64]
    return f"{host}-{process_id}-{uuid.uuid4().hex[:12]}.jsonl"


def read(workdir: Path, is_wanted: Callable[[bytes], bool]) -> list[tuple[float, Event]]:
    """Returns events of the log of a workdir in the order of their times: (seconds since 1970, event).

    Lines that are incomplete, as after a full disk or while they are written, are left out.

    Args:
      workdir: the workdir, which need not have a log.
      is_wanted: whether a line is parsed, which takes much longer than to look for a text in it.
    """
    events: list[tuple[float, Event]] = []
    for path in sorted((workdir / FOLDER).glob("*.jsonl")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as lines:
            for line in filter(is_wanted, lines):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    event = json.loads(line)
                    time = datetime.datetime.fromisoformat(event["time"]).timestamp()
                    events.append((time, event))
    return sorted(events, key=lambda timed: timed[0])
