"""A job as a process of this machine: its output in a file, stopped when we are, and its last words."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import records
from lm_mia.errors import STOPPED

_GRACE_SECONDS = 150  # its workers save in 120


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that Ctrl-C reaches it through us alone; its output is added to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    ours = {**os.environ, **environment, records.PARENT: str(os.getpid())}
    with open(log, "ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ours,
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks all to save and end, and kills those that do not."""
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
        process.kill()
        process.wait()


def stopped(code: int) -> bool:
    """Whether a job ended since it was asked to."""
    return code in (STOPPED, -15)


def last_line(log: Path) -> str:
    """What a job said last."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing was said"
    return "its log is gone"
