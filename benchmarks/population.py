"""Builds a population of synthetic records shaped like C4, undisturbed and with a kill -9; reports speed and memory.

    python -m benchmarks population [--samples 1048576] [--scale 4] [--processes 0] [--deduplicate near] [--scratch DIR]

The lengths of the records are lognormal, as in C4: 400 / scale tokens on average, cut at 1,024 / scale. A scale of 1
gives the lengths of C4, and takes 2 GB of text for 2^20 samples; time and disk space are inversely proportional to it.
Some records are shorter than corpus.min_chars = 200 / scale, some have a common prefix, one in 25 is an edited copy of
the record before it, and there is one quarter more of them than samples. They are written as json.gz files like those
of Hugging Face and converted as by `lm-mia corpus --from-hf-shards`, and a vocabulary is trained on 20,000 of them.
Then the population is built in new processes, twice: undisturbed, and killed with all its processes when half of its
parts exist, then run again by one process. All bytes must be equal. With --deduplicate near, the digests of 2^22
documents are also compared with each other, as if that many documents were drawn.

Peaks are the resident memory of a process and its children together, sampled every 0.1 s. Pages that they share, and
pages of memory-mapped files, are counted for each of them. CPU seconds are those of all processes together.
"""

import argparse
import contextlib
import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lm_mia import config
from lm_mia.data import build, hf_c4, minhash
from lm_mia.data.documents import no_progress
from lm_mia.machine import available_cores

WORDS, SHARDS, PREFIXES = 30_000, 16, 200
_PIECES = 16_000
_BUILD_FLAG = "--build"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=2**20, help="2N")
    parser.add_argument(
        "--scale", type=float, default=4.0, help="lengths are those of C4, divided by this"
    )
    parser.add_argument(
        "--processes", type=int, default=0, help="number of processes; 0: one per CPU core"
    )
    parser.add_argument(
        "--deduplicate", choices=("near", "none"), default="none", help="corpus.deduplicate"
    )
    parser.add_argument("--scratch", type=Path, help="folder for files; default: a temporary one")
    c = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if c.scratch is None:
            c.scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _measure(c)


def _measure(c: argparse.Namespace) -> None:
    records = c.samples * 5 // 4
    length = round(1024 / c.scale)
    print(
        f"{records} records, lengths of C4 / {c.scale:g}, samples cut at {length} tokens; {available_cores()} cores\n"
    )
    _say(
        f"written: {records / _seconds(lambda: _write_records(c.scratch / 'hf', records, c.scale)):.0f} records/s"
    )
    pattern, tfds = str(c.scratch / "hf" / "c4-*.json.gz"), c.scratch / "tfds"
    seconds = _seconds(lambda: hf_c4.convert(pattern, str(tfds), c.processes, no_progress, _say))
    _say(f"converted: {records / seconds:.0f} records/s")
    min_chars = round(200 / c.scale)
    source = config.Corpus(
        "c4", str(tfds), "text", min_chars, "none", processes=c.processes or "auto"
    )
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
        "deduplicate": c.deduplicate,
    }
    print(
        "\n| run | seconds | samples/s | CPU seconds | peak GB, all processes | largest process |"
        "\n|---|---|---|---|---|---|"
    )
    undisturbed = c.scratch / "undisturbed" / "population"
    resumed = c.scratch / "resumed" / "population"
    _print_row("undisturbed", c.samples, *_build(settings, undisturbed, lambda: False))
    half = c.samples // 2 // 4096
    unfinished = build.unfinished_folder(resumed)
    _print_row(
        "killed in the middle",
        0,
        *_build(settings, resumed, lambda: len(list(unfinished.glob("*/*.arrow"))) >= half),
    )
    reused = len(list(unfinished.glob("*/*.arrow"))) * 4096
    _print_row(
        f"run again (reusing {reused} documents)",
        c.samples,
        *_build(settings | {"processes": 1}, resumed, lambda: False),
    )
    files = sorted(p.name for p in undisturbed.iterdir())
    assert files == sorted(p.name for p in resumed.iterdir())
    is_equal = all(
        (undisturbed / name).read_bytes() == (resumed / name).read_bytes() for name in files
    )
    manifest = json.loads((undisturbed / "manifest.json").read_text())
    tokens = (undisturbed / "tokens.npy").stat().st_size // 2
    print(
        f"\nall bytes equal: {is_equal}; {tokens / c.samples:.0f} tokens per sample; {manifest['provenance']['draw']}"
    )
    if c.deduplicate == "near":
        _compare_digests(2**22)
    sys.exit(not is_equal)


def _print_row(
    name: str, samples: int, seconds: float, cpu_seconds: float, peak: int, largest: int
) -> None:
    rate = f"{samples / seconds:.0f}" if samples else ""
    print(
        f"| {name} | {seconds:.1f} | {rate} | {cpu_seconds:.1f} | {peak / 2**30:.2f} | {largest / 2**30:.2f} |",
        flush=True,
    )


def _build(
    settings: dict[str, Any], folder: Path, should_kill: Callable[[], bool]
) -> tuple[float, float, int, int]:
    """Builds the population in a new process, which is killed with its children once ``should_kill`` returns True.

    Returns:
      Seconds from the start of the process to its end; CPU seconds of all processes, without those that were killed;
      peak memory in bytes of all processes, and of the largest one.
    """
    start, start_cpu = time.perf_counter(), _cpu_seconds_of_children()
    argv = [sys.executable, __file__, _BUILD_FLAG, json.dumps(settings), str(folder)]
    run = subprocess.Popen(argv, start_new_session=True)
    peak = largest = 0
    while run.poll() is None:
        sizes = [_resident(pid) for pid in [run.pid, *_children(run.pid)]]
        peak, largest = max(peak, sum(sizes)), max(largest, *sizes)
        if should_kill():
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            break
        time.sleep(0.1)
    if run.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(run.returncode)
    cpu_seconds = _cpu_seconds_of_children() - start_cpu
    return time.perf_counter() - start, cpu_seconds, peak, largest


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _compare_digests(documents: int) -> None:
    """Compares random digests of this many documents, and prints the time and the memory."""
    draw = np.random.default_rng(7)
    tracemalloc.start()
    start = time.process_time()
    bands = (draw.integers(2**63, size=documents, dtype=np.uint64) for _ in range(minhash.BANDS))
    minhash.follows_near_duplicate(bands)
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    print(
        f"\ncomparing the digests of {documents} documents: {seconds:.1f} CPU seconds, "
        f"{peak / documents:.0f} bytes of memory per document"
    )


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _build_here(settings: dict[str, Any], folder: Path) -> None:
    source = config.Corpus(
        "c4",
        settings["tfds"],
        min_chars=settings["min_chars"],
        deduplicate=settings["deduplicate"],
        processes=settings["processes"] or "auto",
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


def _write_records(folder: Path, records: int, scale: float) -> None:
    folder.mkdir(parents=True)
    bounds = [k * records // SHARDS for k in range(SHARDS + 1)]
    work = [(folder, k, bounds[k + 1] - bounds[k], scale) for k in range(SHARDS)]
    with get_context("spawn").Pool() as pool:
        pool.starmap(_write_shard, work)


def _write_shard(folder: Path, shard: int, records: int, scale: float) -> None:
    """Writes a json.gz file of random words with Zipf's frequencies.

    One record in 50 shares its prefix with others, and one in 25 is a copy of the record before it, with other words at
    its beginning.
    """
    draw = np.random.default_rng([7, shard])
    letters = np.random.default_rng(7)
    words = [
        "".join(letters.choice(list("etaoinshrdlucmfwypvbgkjq"), letters.integers(2, 9)))
        for _ in range(WORDS)
    ]
    share = 1 / np.arange(1, WORDS + 1)
    cumulative = np.cumsum(share / share.sum())
    # Lognormal with a mean of 400 tokens, at 1.25 tokens per word; the standard deviation of the logarithm is 1.
    mean_words = 400 / 1.25 / scale
    count_N = np.maximum(draw.lognormal(np.log(mean_words) - 0.5, 1, records).astype(int), 1)
    with gzip.open(
        folder / f"c4-train.{shard:05d}-of-01024.json.gz", "wt", compresslevel=1
    ) as lines:
        before = ""
        for i, count in enumerate(count_N.tolist()):
            word_ids = np.searchsorted(cumulative, draw.random(count))
            text = " ".join([words[w] for w in word_ids])
            if i % 25 == 24:
                text = " ".join([words[w] for w in word_ids[:10]]) + " " + before
            before = text
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
    if sys.argv[1:2] == [_BUILD_FLAG]:
        _build_here(json.loads(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
