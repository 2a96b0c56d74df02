"""A population of synthetic C4-shaped records: samples/s and memory, and the same after a kill -9 in the middle.

    python benchmarks/population.py [--samples 1048576] [--scale 4] [--processes 0] [--scratch DIR]

Records have lognormal lengths like C4's, in English letters: a mean of 400 / scale tokens, cut at 1,024 / scale (a
scale of 1 is C4's own lengths and takes about scale times as long and as much disk, 2 GB of text at 2^20). Some are
shorter than corpus.min_chars = 200 / scale, some begin alike, and there are an eighth more than the samples. They are
written as the json.gz files of Hugging Face, converted by the code of `lm-mia corpus --from-hf-shards`, and a
vocabulary is trained on 20,000 of them; then the population is prepared in fresh processes, twice: undisturbed, and
killed with all its processes when half of its parts are there, then run again. Both must be equal in every byte.

Peaks are the resident memory of a process and its children together, sampled every 0.1 s: pages that they share, and
pages of files that are mapped into memory, count in each.
"""

import argparse
import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lm_mia import config
from lm_mia.data import build, hf_c4
from lm_mia.data.documents import no_progress

WORDS, SHARDS, PREFIXES = 30_000, 16, 200
_PIECES = 16_000
_SENTINEL = "--prepare"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2**20, help="2N")
    parser.add_argument("--scale", type=float, default=4.0, help="lengths are C4's divided by this")
    parser.add_argument("--processes", type=int, default=0, help="corpus.processes; 0: one a core")
    parser.add_argument("--scratch", type=Path, help="for files; default: a temporary folder")
    c = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if c.scratch is None:
            c.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _measure(c)


def _measure(c: argparse.Namespace) -> None:
    records = c.samples * 9 // 8
    length = round(1024 / c.scale)
    print(
        f"{records} records of C4's lengths / {c.scale:g}, samples cut at {length} tokens; {os.cpu_count()} cores\n"
    )
    _say(
        f"made: {records / _seconds(lambda: _make(c.scratch / 'hf', records, c.scale)):.0f} records/s"
    )
    pattern, tfds = str(c.scratch / "hf" / "c4-*.json.gz"), c.scratch / "tfds"
    took = _seconds(lambda: hf_c4.convert(pattern, str(tfds), c.processes, no_progress, _say))
    _say(f"converted: {records / took:.0f} records/s")
    min_chars = round(200 / c.scale)
    source = config.Corpus("c4", str(tfds), "text", min_chars, "none", c.processes)
    pieces = config.Tokenizer(vocab_size=_PIECES, documents=20_000)
    sizes = config.Population(1000, 0, length)
    small = build.build_population(source, pieces, sizes, c.scratch / "vocabulary" / "population")
    settings = {
        "tfds": str(tfds),
        "model": str(small.folder / "tokenizer.model"),
        "samples": c.samples,
        "length": length,
        "min_chars": min_chars,
        "processes": c.processes,
    }
    print(
        "\n| run | seconds | samples/s | peak GB, all processes | largest process |\n|---|---|---|---|---|"
    )
    whole, broken = c.scratch / "whole" / "population", c.scratch / "broken" / "population"
    _row("undisturbed", c.samples, *_prepare(settings, whole, lambda: False))
    half = c.samples // 2 // 4096
    parts = broken.with_name(".population.unfinished")
    _row(
        "killed in the middle",
        0,
        *_prepare(settings, broken, lambda: len(list(parts.glob("*/*.arrow"))) >= half),
    )
    there = len(list(parts.glob("*/*.arrow"))) * 4096
    _row(
        f"run again ({there} documents were there)",
        c.samples,
        *_prepare(settings, broken, lambda: False),
    )
    files = sorted(p.name for p in whole.iterdir())
    assert files == sorted(p.name for p in broken.iterdir())
    equal = all((whole / name).read_bytes() == (broken / name).read_bytes() for name in files)
    manifest = json.loads((whole / "manifest.json").read_text())
    size = (whole / "tokens.npy").stat().st_size
    print(
        f"\nequal in every byte: {equal}; {size // 2 / c.samples:.0f} tokens a sample; {manifest['provenance']['draw']}"
    )
    sys.exit(not equal)


def _row(name: str, samples: int, seconds: float, peak: int, largest: int) -> None:
    rate = f"{samples / seconds:.0f}" if samples else ""
    print(
        f"| {name} | {seconds:.1f} | {rate} | {peak / 2**30:.2f} | {largest / 2**30:.2f} |",
        flush=True,
    )


def _prepare(
    settings: dict[str, Any], folder: Path, kill: Callable[[], bool]
) -> tuple[float, int, int]:
    """Seconds from process start to end (or kill); peak bytes of all processes, and of the largest."""
    start = time.perf_counter()
    argv = [sys.executable, __file__, _SENTINEL, json.dumps(settings), str(folder)]
    run = subprocess.Popen(argv, start_new_session=True)
    peak = largest = 0
    while run.poll() is None:
        sizes = [_resident(pid) for pid in [run.pid, *_children(run.pid)]]
        peak, largest = max(peak, sum(sizes)), max(largest, *sizes)
        if kill():
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            return time.perf_counter() - start, peak, largest
        time.sleep(0.1)
    if run.returncode:
        raise SystemExit(run.returncode)
    return time.perf_counter() - start, peak, largest


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _prepare_here(settings: dict[str, Any], folder: Path) -> None:
    """What the fresh process does."""
    source = config.Corpus(
        "c4", settings["tfds"], "text", settings["min_chars"], "none", settings["processes"]
    )
    sizes = config.Population(
        samples=settings["samples"],
        length_tokens=settings["length"],
        distinct_prefix_tokens=8,
        validation_samples=1024,
        frequency_samples=min(2**16, settings["samples"]),
    )
    build.build_population(
        source, config.Tokenizer(settings["model"], _PIECES), sizes, folder, log=_say
    )


def _make(folder: Path, records: int, scale: float) -> None:
    folder.mkdir(parents=True)
    bounds = [k * records // SHARDS for k in range(SHARDS + 1)]
    work = [(folder, k, bounds[k + 1] - bounds[k], scale) for k in range(SHARDS)]
    with get_context("spawn").Pool() as pool:
        pool.starmap(_make_shard, work)


def _make_shard(folder: Path, shard: int, records: int, scale: float) -> None:
    """One json.gz file: words of Zipf's frequencies; one record in 50 begins like others."""
    draw = np.random.default_rng([7, shard])
    letters = np.random.default_rng(7)
    words = [
        "".join(letters.choice(list("etaoinshrdlucmfwypvbgkjq"), letters.integers(2, 9)))
        for _ in range(WORDS)
    ]
    share = 1 / np.arange(1, WORDS + 1)
    cumulative = np.cumsum(share / share.sum())
    # A mean of 400 tokens at 1.25 tokens a word; lognormal with a standard deviation of the logarithm of 1.
    mean_words = 400 / 1.25 / scale
    count_N = np.maximum(draw.lognormal(np.log(mean_words) - 0.5, 1, records).astype(int), 1)
    with gzip.open(
        folder / f"c4-train.{shard:05d}-of-01024.json.gz", "wt", compresslevel=1
    ) as lines:
        for i, count in enumerate(count_N.tolist()):
            picked = np.searchsorted(cumulative, draw.random(count))
            text = " ".join([words[w] for w in picked])
            if i % 50 == 0:
                text = " ".join(words[i % PREFIXES * 10 : i % PREFIXES * 10 + 12]) + " " + text
            url = f"https://example.org/{shard}/{i}"
            record = {"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": url}
            lines.write(json.dumps(record) + "\n")


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == [_SENTINEL]:
        _prepare_here(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
