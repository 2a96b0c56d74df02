"""Measuring a piece of work in a process of its own, so that nothing before it shows in its peak.

A work is a function ``work(clock, folder, **settings)`` at the top level of a module: it reads
arrays from the folder, does what is to be timed inside ``with clock:`` and returns arrays.
"""

import dataclasses
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType

import numpy as np

Results = dict[str, np.ndarray]


class Clock:
    """Adds up the wall time spent inside it, and notes the memory's peak so far."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.peak_bytes = 0
        self._start = 0.0

    def __enter__(self) -> "Clock":
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds += time.perf_counter() - self._start
        self.peak_bytes = _peak_bytes()


Work = Callable[..., Results]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run took; no results if it ran out of the memory it may have."""

    seconds: float
    peak_bytes: int
    """Resident, of the whole process with its inputs up to the last tick of its clock."""
    results: Results | None


def measure(work: Work, folder: Path, limit_bytes: int = 0, **settings: object) -> Measured:
    """Runs the work once in a fresh process, which may have limit_bytes of memory (0: any)."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(_run, work, folder, limit_bytes, settings).result()
        except MemoryError:
            if not limit_bytes:
                raise
            return Measured(float("nan"), limit_bytes, None)


def median(runs: list[Measured]) -> float:
    """Median of the seconds."""
    return statistics.median(run.seconds for run in runs)


def _run(work: Work, folder: Path, limit_bytes: int, settings: Mapping[str, object]) -> Measured:
    # A spawned process would spawn its own children too, and import everything again in each.
    multiprocessing.set_start_method("fork", force=True)
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    clock = Clock()
    results = work(clock, folder, **settings)
    return Measured(clock.seconds, clock.peak_bytes, results)


def _peak_bytes() -> int:
    """Of this process, or of its largest child if that is more."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    # Linux: ru_maxrss of the process itself starts from its parent's at the fork, VmHWM does not.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return max(children, own)
