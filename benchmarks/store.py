"""Compares the speed and memory of the score store with those of plain files of the same bytes.

    python -m benchmarks store [--models 256] [--samples 2**20] [--rounds 5] [--scratch DIR]

The data are losses (float32) and membership of all models and samples, 1.25 GiB by default. The scratch folder needs
three times that.

Writing, by one process, and by four processes that share the models:

- store: `Store.write_model`, which writes each shard to a temporary file, syncs it, renames it and syncs the folder.
- plain files: the same bytes in the same number of files, written, synced and renamed in the same way from Python.
- one file: the same bytes in one file, one model after another, synced once at the end.

Reading, by one process, in blocks of 2^16 samples of all models, which are discarded:

- store: `Store.blocks`.
- plain files: a piece of each file after another.
- one file: the same number of bytes, read sequentially, which is the easiest access pattern for a disk.

Cold: after the kernel was told to drop these files from its page cache (posix_fadvise; needs no root), although the
host of a virtual disk may still cache them. Warm: after all files were read once.

Each measurement is made by a new process; the methods take turns in a varying order. Peaks are resident memory, of the
largest process; "before" is measured after loading Python, the libraries and the values to write or to compare. After
the measurement, the store is read once more and compared with the written values, and the bytes of the plain files are
counted. Exits with status 1 if a value differs.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fresh
import numpy as np
from fresh import Clock, Results
from numpy.lib.stride_tricks import sliding_window_view

from lm_mia.data import subsets
from lm_mia.machine import available_cores
from lm_mia.store.schema import CHUNK_SAMPLES
from lm_mia.store.store import Store

WRITERS = 4
_SHIFT = 61  # number of values between the beginnings of two models

Method = Callable[[], fresh.Measured]
Part = tuple[int, int]  # of the models: index of the part, number of parts


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", type=_whole, default=256)
    add("--samples", type=_whole, default=2**20)
    add("--rounds", type=_whole, default=5)
    add("--scratch", type=Path, help="folder for the files, which are deleted at the end")
    c = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=c.scratch, prefix="lm_mia_store_") as name:
        folder, size = Path(name), {"models": c.models, "samples": c.samples}
        total = _bytes(**size)
        print(f"{c.models} models x {c.samples:,} samples, {total / 2**30:.2f} GiB", end="; ")
        print(
            f"{available_cores()} cores; medians of {c.rounds} rounds, and their range", flush=True
        )
        measurements: dict[str, dict[str, list[fresh.Measured]]] = {}
        for turn in range(c.rounds):
            for title, methods in _sections(folder, size).items():
                for name in [*methods, *methods][turn % len(methods) :][: len(methods)]:
                    measurements.setdefault(title, {}).setdefault(name, []).append(methods[name]())
        for title, runs in measurements.items():
            print(f"\n### {title}\n\n{table(runs, total)}", flush=True)
        two_blocks = 2 * _bytes(c.models, min(CHUNK_SAMPLES, c.samples))
        print(f"\nTwo blocks: {two_blocks / 2**20:.1f} MiB", end="; ")
        print(f"one shard of each variable: {_bytes(1, min(2**22, c.samples)) / 2**20:.1f} MiB")


def _sections(folder: Path, size: dict[str, int]) -> dict[str, dict[str, Method]]:
    """Returns {title of a table: {name: method}}; the files that are read are written before."""
    writes = {"store": write_store, "plain files": write_files, "one file": write_one}
    reads = {"store": read_store, "plain files": read_files, "one file": read_one}

    def one_process(work: fresh.Work, **cold: bool) -> Method:
        return lambda: fresh.measure(work, folder, 0, **size, **cold)

    return {
        "Writing, 1 process": {name: one_process(work) for name, work in writes.items()},
        f"Writing, {WRITERS} processes at once": {
            name: lambda work=writes[name]: at_once(work, folder, size)
            for name in ("store", "plain files")
        },
        "Reading blocks, cold": {n: one_process(work, cold=True) for n, work in reads.items()},
        "Reading blocks, warm": {n: one_process(work, cold=False) for n, work in reads.items()},
    }


def at_once(work: fresh.Work, folder: Path, size: dict[str, int]) -> fresh.Measured:
    """Runs several processes with a part of the models each; measures from the first start to the last end."""
    for path in folder.glob("ready_*"):
        path.unlink()

    def part(index: int) -> fresh.Measured:
        return fresh.measure(work, folder, **size, part=(index, WRITERS))

    with ThreadPoolExecutor(WRITERS) as threads:
        parts = list(threads.map(part, range(WRITERS)))
    times = {name: [_result(run, name) for run in parts] for name in ("start", "end", "cpu")}
    largest = max(parts, key=lambda run: run.peak_bytes)
    results = {**(largest.results or {}), "cpu": np.array(sum(times["cpu"]))}
    return fresh.Measured(max(times["end"]) - min(times["start"]), largest.peak_bytes, results)


def table(runs_by_method: dict[str, list[fresh.Measured]], total: int) -> str:
    """Returns a table in Markdown; ratios are of runs of the same round."""
    others = ("plain files", "one file")
    header = "method | GB/s | range | to plain files | range | to one file | range"
    header += " | CPU s | peak MiB | before"
    lines = [f"| {header} |", "|---" * (header.count("|") + 1) + "|"]
    for name, runs in runs_by_method.items():
        cells = [name, *_spread([total / run.seconds / 1e9 for run in runs])]
        for other in others:
            pairs = zip(runs, runs_by_method.get(other, []), strict=False)
            ratios = [b.seconds / a.seconds for a, b in pairs]
            cells += _spread(ratios) if ratios and other != name else ("", "")
        cells.append(f"{statistics.median(_result(run, 'cpu') for run in runs):.2f}")
        for peaks in ([r.peak_bytes for r in runs], [_result(r, "before_bytes") for r in runs]):
            cells.append(f"{max(peaks) / 2**20:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"


def _result(run: fresh.Measured, name: str) -> float:
    assert run.results is not None
    return float(run.results[name])


def write_store(
    clock: Clock, folder: Path, *, models: int, samples: int, part: Part = (0, 1)
) -> Results:
    """Writes a part of the models of a store, which the first process creates."""
    path, stored_models, values = (
        folder / "scores.zarr",
        subsets.requested_seeds(models - 1, 1),
        drawn(models, samples),
    )
    if part[0] == 0:
        shutil.rmtree(path, ignore_errors=True)
        Store(path).create_or_extend(stored_models, {"tokens": np.full(samples, 128)}, {})
    with _together(clock, folder, part) as results:
        for index in _share(models, part):
            Store(path).write_model(
                stored_models[index], values["loss"][index], values["member"][index]
            )
    return results


def write_files(
    clock: Clock, folder: Path, *, models: int, samples: int, part: Part = (0, 1)
) -> Results:
    """Writes a part of the models, each as two files, as safely as the store."""
    values = drawn(models, samples)
    if part[0] == 0:
        shutil.rmtree(folder / "plain", ignore_errors=True)
        (folder / "plain").mkdir()
    with _together(clock, folder, part) as results:
        for index in _share(models, part):
            for name, value_MxN2 in values.items():
                path = folder / "plain" / str(index) / name
                path.parent.mkdir(exist_ok=True)
                with path.with_suffix(".new").open("wb", buffering=0) as file:
                    _write(file.fileno(), value_MxN2[index])
                    os.fsync(file.fileno())
                path.with_suffix(".new").rename(path)
                above = os.open(path.parent, os.O_RDONLY)
                os.fsync(above)
                os.close(above)
    return results


def write_one(clock: Clock, folder: Path, *, models: int, samples: int) -> Results:
    """Writes all models into one file."""
    values, path = drawn(models, samples), folder / "one"
    path.unlink(missing_ok=True)
    with _together(clock, folder) as results, path.open("wb", buffering=0) as file:
        for index in range(models):
            for value_MxN2 in values.values():
                _write(file.fileno(), value_MxN2[index])
        os.fsync(file.fileno())
    return results


def read_store(clock: Clock, folder: Path, *, models: int, samples: int, cold: bool) -> Results:
    """Reads all blocks of the store, and a second time to compare them with the written values."""
    path, stored_models, values = (
        folder / "scores.zarr",
        subsets.requested_seeds(models - 1, 1),
        drawn(models, samples),
    )
    parts = {name: (name, stored_models) for name in ("loss", "member")}
    _prepare((p for p in path.rglob("*") if p.is_file()), cold)
    with _together(clock, folder) as results:
        for _, block in Store(path).blocks(parts):
            del block  # as a consumer would before the next block
    seen = 0
    for sample_slice, block in Store(path).blocks(parts):
        for name, value_MxN2 in values.items():
            if not np.array_equal(block[name], value_MxN2[:, sample_slice]):
                raise SystemExit(
                    f"{name} of samples {sample_slice.start} to {sample_slice.stop}: differs from the written values"
                )
        seen += sample_slice.stop - sample_slice.start
    _check(seen, samples)
    return results


def read_files(clock: Clock, folder: Path, *, models: int, samples: int, cold: bool) -> Results:
    """Reads blocks of the plain files, a piece of each file after another, into one array."""
    paths = {n: [folder / "plain" / str(i) / n for i in range(models)] for n in ("member", "loss")}
    _prepare(itertools.chain(*paths.values()), cold)
    seen = 0
    with _together(clock, folder) as results, contextlib.ExitStack() as stack:
        files = {
            name: [stack.enter_context(path.open("rb", 0)) for path in named]
            for name, named in paths.items()
        }
        for low in range(0, samples, CHUNK_SAMPLES):
            count = min(CHUNK_SAMPLES, samples - low)
            for name, dtype in (("member", np.dtype(bool)), ("loss", np.dtype(np.float32))):
                block_RxC = np.empty((models, count), dtype)
                for file, row_C in zip(files[name], block_RxC, strict=True):
                    seen += os.preadv(file.fileno(), [row_C.data], low * dtype.itemsize)
    _check(seen, _bytes(models, samples))
    return results


def read_one(clock: Clock, folder: Path, *, models: int, samples: int, cold: bool) -> Results:
    """Reads the one file in pieces of the size of a block."""
    path, size = folder / "one", _bytes(models, min(CHUNK_SAMPLES, samples))
    _prepare([path], cold)
    seen = 0
    with _together(clock, folder) as results, path.open("rb", 0) as file:
        while count := os.readv(file.fileno(), [np.empty(size, np.uint8).data]):
            seen += count
    _check(seen, _bytes(models, samples))
    return results


def drawn(models: int, samples: int) -> dict[str, np.ndarray]:
    """Returns {name: value_MxN2}: overlapping windows of one draw, so that creating models takes no time."""
    draw = np.random.default_rng(0).random(samples + _SHIFT * models, np.float32)
    windows = {"member": draw < 0.5, "loss": 8 * draw}
    return {n: sliding_window_view(v, samples)[::_SHIFT][:models] for n, v in windows.items()}


@contextlib.contextmanager
def _together(clock: Clock, folder: Path, part: Part = (0, 1)) -> Iterator[Results]:
    """Starts the clock when all processes are ready; adds times and the memory before the start to the results."""
    (folder / f"ready_{part[0]}_{part[1]}").touch()
    while len(list(folder.glob(f"ready_*_{part[1]}"))) < part[1]:
        time.sleep(0.001)
    results: Results = {"before_bytes": np.array(fresh._peak_bytes())}
    results["start"], cpu = np.array(time.monotonic()), time.process_time()
    with clock:
        yield results
    results["end"], results["cpu"] = np.array(time.monotonic()), np.array(time.process_time() - cpu)


def _prepare(paths: Iterable[Path], cold: bool) -> None:
    """Drops files, which have been synced, from the page cache, or reads them into it."""
    for path in paths:
        with path.open("rb", 0) as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(2**20):
                    pass


def _check(seen: int, expected: int) -> None:
    if seen != expected:
        raise SystemExit(f"read or wrote {seen}, expected {expected}")


def _write(file: int, value_N2: np.ndarray) -> None:
    _check(os.write(file, value_N2.data), value_N2.nbytes)


def _share(models: int, part: Part) -> range:
    return range(models * part[0] // part[1], models * (part[0] + 1) // part[1])


def _bytes(models: int, samples: int) -> int:
    return models * samples * 5


def _whole(text: str) -> int:
    """Parses a number such as 1000 or 2**18."""
    base, _, exponent = text.partition("**")
    return int(base) ** int(exponent or 1)


if __name__ == "__main__":
    sys.exit(main())
