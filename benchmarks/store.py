"""How fast the score store writes and reads, beside plain files of the same bytes, and in how much memory.

    python benchmarks/store.py [--rows 256] [--samples 2**20] [--rounds 5] [--scratch DIR]

Losses (float32) and membership of all rows and samples, 1.25 GiB by default; the scratch folder takes three times that.

Written by one process, and by four at once, each with a part of the rows:

- store: Store.write_model. It writes a shard to a file beside, syncs it, renames it and syncs the folder.
- plain files: the same bytes in as many files, written, synced and renamed just so, from Python.
- one file: the same bytes one after another, a row at a time, synced once at the end.

Read by one process, a block of 2^16 samples of all rows at a time, by a consumer that does nothing with them:

- store: Store.blocks.
- plain files: the plain files, a piece of each after another.
- one file: as many bytes at a time, one after another, the easiest that a disk is ever asked for.

Cold: after the kernel was told to drop these files from its page cache (posix_fadvise; no root needed), though what is
below it (a virtual disk's host) may still have them. Warm: after they were all read once.

Each number is of a fresh process; the ways take turns, and who begins changes. Peaks are of resident memory, of the
largest process; "before" is with Python, libraries and the values to write or to compare. After the clock has stopped,
the store is read once more and compared with what was written, and the plain files' bytes are counted. Exits 1 if a
value differs.
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
from lm_mia.store.schema import CHUNK_SAMPLES
from lm_mia.store.store import Store

WRITERS = 4
_SHIFT = 61  # samples between what two rows begin with

Way = Callable[[], fresh.Measured]
Part = tuple[int, int]  # of the rows: which, of how many


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--rows", type=_whole, default=256)
    add("--samples", type=_whole, default=2**20)
    add("--rounds", type=_whole, default=5)
    add("--scratch", type=Path, help="folder for the files, which are deleted at the end")
    c = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=c.scratch, prefix="lm_mia_store_") as name:
        folder, size = Path(name), {"rows": c.rows, "samples": c.samples}
        total = _bytes(**size)
        print(f"{c.rows} rows x {c.samples:,} samples, {total / 2**30:.2f} GiB", end="; ")
        print(f"{os.cpu_count()} cores; medians of {c.rounds} rounds, and their range", flush=True)
        found: dict[str, dict[str, list[fresh.Measured]]] = {}
        for turn in range(c.rounds):
            for title, ways in _sections(folder, size).items():
                for name in [*ways, *ways][turn % len(ways) :][: len(ways)]:
                    found.setdefault(title, {}).setdefault(name, []).append(ways[name]())
        for title, runs in found.items():
            print(f"\n### {title}\n\n{table(runs, total)}", flush=True)
        two = 2 * _bytes(c.rows, min(CHUNK_SAMPLES, c.samples))
        print(f"\nTwo blocks: {two / 2**20:.1f} MiB", end="; ")
        print(f"one shard of each variable: {_bytes(1, min(2**22, c.samples)) / 2**20:.1f} MiB")


def _sections(folder: Path, size: dict[str, int]) -> dict[str, dict[str, Way]]:
    """What is compared with what; reading follows writing, so that the files are there."""
    writes = {"store": write_store, "plain files": write_files, "one file": write_one}
    reads = {"store": read_store, "plain files": read_files, "one file": read_one}

    def one(work: fresh.Work, **cold: bool) -> Way:
        return lambda: fresh.measure(work, folder, 0, **size, **cold)

    return {
        "Writing, 1 process": {name: one(work) for name, work in writes.items()},
        f"Writing, {WRITERS} processes at once": {
            name: lambda work=writes[name]: at_once(work, folder, size)
            for name in ("store", "plain files")
        },
        "Reading blocks, cold": {n: one(work, cold=True) for n, work in reads.items()},
        "Reading blocks, warm": {n: one(work, cold=False) for n, work in reads.items()},
    }


def at_once(work: fresh.Work, folder: Path, size: dict[str, int]) -> fresh.Measured:
    """Several processes with a part of the rows each: from the first one's start to the last one's end."""
    for path in folder.glob("ready_*"):
        path.unlink()

    def part(index: int) -> fresh.Measured:
        return fresh.measure(work, folder, **size, part=(index, WRITERS))

    with ThreadPoolExecutor(WRITERS) as threads:
        parts = list(threads.map(part, range(WRITERS)))
    of = {name: [_result(run, name) for run in parts] for name in ("start", "end", "cpu")}
    largest = max(parts, key=lambda run: run.peak_bytes)
    results = {**(largest.results or {}), "cpu": np.array(sum(of["cpu"]))}
    return fresh.Measured(max(of["end"]) - min(of["start"]), largest.peak_bytes, results)


def table(found: dict[str, list[fresh.Measured]], total: int) -> str:
    """In Markdown; ratios are of runs of the same round."""
    others = ("plain files", "one file")
    header = "way | GB/s | range | to plain files | range | to one file | range"
    header += " | CPU s | peak MiB | before"
    lines = [f"| {header} |", "|---" * (header.count("|") + 1) + "|"]
    for name, runs in found.items():
        cells = [name, *_spread([total / run.seconds / 1e9 for run in runs])]
        for other in others:
            pairs = zip(runs, found.get(other, []), strict=False)
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
    clock: Clock, folder: Path, *, rows: int, samples: int, part: Part = (0, 1)
) -> Results:
    """Writes a part of the rows of a store that knows them; the first process makes it anew."""
    path, wanted, values = (
        folder / "scores.zarr",
        subsets.requested_seeds(rows - 1, 1),
        drawn(rows, samples),
    )
    if part[0] == 0:
        shutil.rmtree(path, ignore_errors=True)
        Store(path).create_or_extend(wanted, {"tokens": np.full(samples, 128)}, {})
    with _together(clock, folder, part) as results:
        for index in _share(rows, part):
            Store(path).write_model(wanted[index], values["loss"][index], values["member"][index])
    return results


def write_files(
    clock: Clock, folder: Path, *, rows: int, samples: int, part: Part = (0, 1)
) -> Results:
    """Writes a part of the rows as two files each, as safely as the store does."""
    values = drawn(rows, samples)
    if part[0] == 0:
        shutil.rmtree(folder / "plain", ignore_errors=True)
        (folder / "plain").mkdir()
    with _together(clock, folder, part) as results:
        for index in _share(rows, part):
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


def write_one(clock: Clock, folder: Path, *, rows: int, samples: int) -> Results:
    """Writes all rows into one file."""
    values, path = drawn(rows, samples), folder / "one"
    path.unlink(missing_ok=True)
    with _together(clock, folder) as results, path.open("wb", buffering=0) as file:
        for index in range(rows):
            for value_MxN2 in values.values():
                _write(file.fileno(), value_MxN2[index])
        os.fsync(file.fileno())
    return results


def read_store(clock: Clock, folder: Path, *, rows: int, samples: int, cold: bool) -> Results:
    """Reads all blocks of the store; a second time, to compare them with what was written."""
    path, wanted, values = (
        folder / "scores.zarr",
        subsets.requested_seeds(rows - 1, 1),
        drawn(rows, samples),
    )
    parts = {name: (name, wanted) for name in ("loss", "member")}
    _prepare((p for p in path.rglob("*") if p.is_file()), cold)
    with _together(clock, folder) as results:
        for _, block in Store(path).blocks(parts):
            del block  # as a consumer would before it asks for the next
    seen = 0
    for of, block in Store(path).blocks(parts):
        for name, value_MxN2 in values.items():
            if not np.array_equal(block[name], value_MxN2[:, of]):
                raise SystemExit(f"{name} of samples {of.start} to {of.stop}: not as written")
        seen += of.stop - of.start
    _check(seen, samples)
    return results


def read_files(clock: Clock, folder: Path, *, rows: int, samples: int, cold: bool) -> Results:
    """Reads blocks of the plain files: a piece of each file after another, into one array."""
    paths = {n: [folder / "plain" / str(i) / n for i in range(rows)] for n in ("member", "loss")}
    _prepare(itertools.chain(*paths.values()), cold)
    seen = 0
    with _together(clock, folder) as results, contextlib.ExitStack() as stack:
        files = {n: [stack.enter_context(p.open("rb", 0)) for p in of] for n, of in paths.items()}
        for low in range(0, samples, CHUNK_SAMPLES):
            count = min(CHUNK_SAMPLES, samples - low)
            for name, dtype in (("member", np.dtype(bool)), ("loss", np.dtype(np.float32))):
                block_RxC = np.empty((rows, count), dtype)
                for file, row_C in zip(files[name], block_RxC, strict=True):
                    seen += os.preadv(file.fileno(), [row_C.data], low * dtype.itemsize)
    _check(seen, _bytes(rows, samples))
    return results


def read_one(clock: Clock, folder: Path, *, rows: int, samples: int, cold: bool) -> Results:
    """Reads the one file in pieces of a block's size."""
    path, size = folder / "one", _bytes(rows, min(CHUNK_SAMPLES, samples))
    _prepare([path], cold)
    seen = 0
    with _together(clock, folder) as results, path.open("rb", 0) as file:
        while count := os.readv(file.fileno(), [np.empty(size, np.uint8).data]):
            seen += count
    _check(seen, _bytes(rows, samples))
    return results


def drawn(rows: int, samples: int) -> dict[str, np.ndarray]:
    """{name: value_MxN2}: windows of one draw, each row beginning elsewhere in it, so that rows take no time."""
    draw = np.random.default_rng(0).random(samples + _SHIFT * rows, np.float32)
    whole = {"member": draw < 0.5, "loss": 8 * draw}
    return {n: sliding_window_view(v, samples)[::_SHIFT][:rows] for n, v in whole.items()}


@contextlib.contextmanager
def _together(clock: Clock, folder: Path, part: Part = (0, 1)) -> Iterator[Results]:
    """The clock, started once all processes are ready; the results get times and what was there before."""
    (folder / f"ready_{part[0]}_{part[1]}").touch()
    while len(list(folder.glob(f"ready_*_{part[1]}"))) < part[1]:
        time.sleep(0.001)
    results: Results = {"before_bytes": np.array(fresh._peak_bytes())}
    results["start"], cpu = np.array(time.monotonic()), time.process_time()
    with clock:
        yield results
    results["end"], results["cpu"] = np.array(time.monotonic()), np.array(time.process_time() - cpu)


def _prepare(paths: Iterable[Path], cold: bool) -> None:
    """Drops files from the page cache, which have been synced, or reads them into it."""
    for path in paths:
        with path.open("rb", 0) as file:
            if cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while file.read(2**20):
                    pass


def _check(seen: int, there: int) -> None:
    if seen != there:
        raise SystemExit(f"{seen} instead of {there}")


def _write(file: int, value_N2: np.ndarray) -> None:
    _check(os.write(file, value_N2.data), value_N2.nbytes)


def _share(rows: int, part: Part) -> range:
    return range(rows * part[0] // part[1], rows * (part[0] + 1) // part[1])


def _bytes(rows: int, samples: int) -> int:
    """Of losses and membership."""
    return rows * samples * 5


def _whole(text: str) -> int:
    """A number such as 1000 or 2**18."""
    base, _, exponent = text.partition("**")
    return int(base) ** int(exponent or 1)


if __name__ == "__main__":
    sys.exit(main())
