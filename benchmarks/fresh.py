"""Measures a workload in a separate process, so that nothing before it affects its peak memory.

A workload is a function ``work(clock, folder, **settings)`` at the top level of a module. It reads arrays from the
folder, does what is to be timed inside ``with clock:``, and returns arrays.
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
    """Adds up the wall time spent inside it, and records the peak memory so far when it is left."""

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
    """Time and memory of one run."""

    seconds: float
    peak_bytes: int
    """Resident memory of the whole process, inputs included, up to the last time its clock was left."""
    results: Results | None
    """None if the run exceeded its memory limit."""


def measure(work: Work, folder: Path, limit_bytes: int = 0, **settings: object) -> Measured:
    """Runs a workload once in a fresh process, with at most limit_bytes of memory (0: no limit)."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(_run, work, folder, limit_bytes, settings).result()
        except MemoryError:
            if not limit_bytes:
                raise
            return Measured(float("nan"), limit_bytes, None)


def median(runs: list[Measured]) -> float:
    """Returns the median of the runs' seconds."""
    return statistics.median(run.seconds for run in runs)


def _run(work: Work, folder: Path, limit_bytes: int, settings: Mapping[str, object]) -> Measured:
    # A spawned process would spawn its own children too, and import everything again in each of them.
    multiprocessing.set_start_method("fork", force=True)
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
    clock = Clock()
    results = work(clock, folder, **settings)
    return Measured(clock.seconds, clock.peak_bytes, results)


def _peak_bytes() -> int:
    """Returns the peak resident memory of this process, or of its largest child if that is more."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    # On Linux, ru_maxrss of the process itself starts from its parent's value at the fork; VmHWM does not.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return max(children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    return max(children, own)
