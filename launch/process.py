"""A job as a process of this machine: its output in a file, stopped when we are, and its last words."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch import records
from lm_mia.errors import UserError

_GRACE_SECONDS = 150  # its workers save in 120
_MOST_DEATHS = 3  # of jobs, without a row between


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


def deaths(code: int, log: Path, before: int) -> int:
    """How many jobs in a row have died, this one with it, if it did.

    Raises:
      UserError: what a job found wrong (code 2), or that this is the third to die.
    """
    if code == 2:
        raise UserError(f"{last_line(log)}\n({log} has more)")
    if code in (0, records.GIVEN_UP):
        return 0
    if before + 1 == _MOST_DEATHS:
        raise UserError(
            f"{log}: its job ended with code {code}, the third in a row; it said last: {last_line(log)}"
        )
    return before + 1


def last_line(log: Path) -> str:
    """What a job said last."""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing was said"
    return "its log is gone"
