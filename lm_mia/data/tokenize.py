"""Draws documents in random order, tokenises them in parts, and selects which of them are samples.

The seed determines the order; the position of a document is its index in that order. A document is a sample if it is
long enough and no earlier such document starts with the same tokens; the first W samples are taken. The selection
depends on the seed and the corpus alone, not on how many documents were tokenised at a time, or by which process.

Each part covers a few thousand documents and is one Arrow file, with one row per document that is long enough, sorted
by position. Parts are written atomically, so that a run that was killed continues from the parts that exist.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import sentencepiece

from lm_mia import seeds
from lm_mia.data import features, process_pool
from lm_mia.data.documents import Documents, Pairs, ProgressCallback, select
from lm_mia.data.process_pool import Report

ZLIB_LEVEL = 6
_BATCH = 512  # documents between two reports

_PART = 4096
_LARGE_PART, _LARGE = 16_384, 2**22  # parts of a draw of so many documents: fewer files
_SAY_SECONDS = 30  # between lines that say how fast it goes
_ALONE = 4  # parts that one process has done before others would have started


@dataclasses.dataclass(frozen=True)
class SampleRules:
    """How documents become samples."""

    model: Path
    """The sentencepiece model file."""
    length_tokens: int
    """Samples are ``<bos> pieces <eos>``, cut at this many tokens."""
    min_chars: int = 0
    """Shorter documents are left out."""
    distinct_prefix_tokens: int = 0
    """The first so many tokens after <bos> are hashed, for `lm_mia.data.tokenize` to compare; 0: they are not."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The work of a moment: some documents and the file that their samples go to."""

    path: Path
    position_K: np.ndarray
    """Places of the documents in the draw, ascending, int64."""
    documents: Pairs = dataclasses.field(repr=False)
    """K documents in that order."""
    rules: SampleRules


def part_schema(vocab_size: int) -> pa.Schema:
    """Columns of a part; tokens are uint16, or uint32 for more than 65,536 pieces."""
    token = pa.uint16() if vocab_size <= 2**16 else pa.uint32()
    return pa.schema(
        [("position", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
        + [(name, pa.int64()) for name in ("chars", "unk", "zlib_bytes")]
        + [("prefix", pa.binary(16)), ("tokens", pa.list_(token))]
    )


def write_part(part: Part, report: Report) -> None:
    """Tokenises the documents of a part and writes its file under a name of its own, then renames it."""
    spm = _load(part.rules.model)
    bos, eos, unk = spm.bos_id(), spm.eos_id(), spm.unk_id()
    columns, k = part_schema(spm.get_piece_size()), part.rules.distinct_prefix_tokens
    # Another process, of a run that was killed a moment ago, may be at work on the same part: the same bytes.
    temporary = part.path.with_suffix(f".{os.getpid()}")
    documents = zip(part.position_K.tolist(), part.documents, strict=True)
    batches: list[pa.RecordBatch] = []
    done = 0
    while batch := [pair for _, pair in zip(range(_BATCH), documents, strict=False)]:
        done += len(batch)
        kept = [(at, text, rec) for at, (text, rec) in batch if len(text) >= part.rules.min_chars]
        texts = [text for _, text, _ in kept]
        # One thread: the processes share the cores.
        encoded = spm.encode(texts, out_type=int, num_threads=1) if texts else []
        rows = [[bos, *pieces, eos][: part.rules.length_tokens] for pieces in encoded]
        raws = [text.encode() for text in texts]
        values = (
            [position for position, _, _ in kept],
            [record for _, _, record in kept],
            [hashlib.sha256(raw).hexdigest() for raw in raws],
            [len(text) for text in texts],
            [row.count(unk) for row in rows],
            [len(zlib.compress(raw, ZLIB_LEVEL)) for raw in raws],
            [features.prefix_digest(row, k) if k else None for row in rows],
            rows,
        )
        arrays = [pa.array(v, t) for v, t in zip(values, columns.types, strict=True)]
        batches.append(pa.record_batch(arrays, schema=columns))
        report(done)
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, columns) as file:
        file.write_batch(pa.concat_batches(batches))  # one: parts are sliced often
    os.replace(temporary, part.path)


def is_complete(path: Path) -> bool:
    """Whether the part is there and can be read: a machine that lost power may leave a name without its bytes."""
    try:
        with pa.memory_map(str(path)) as source:
            pa.ipc.open_file(source).get_batch(0)
    except (OSError, pa.ArrowException, IndexError):
        return False
    return True


def read_part(path: Path, names: list[str]) -> pa.Table:
    """Columns of a part; memory-mapped, so that only what is used is read."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().select(names)


@functools.lru_cache(maxsize=1)
def _load(model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(model))


@dataclasses.dataclass(frozen=True)
class DrawnSamples:
    """The samples, and what was passed over before the last of them."""

    position_W: np.ndarray
    """Places of the samples in the draw, ascending, int64."""
    parts: list[Path]
    """Files that hold them, among others."""
    documents: int
    """Documents looked at, up to the last sample."""
    too_short: int
    prefix_duplicates: int


def draw_samples(
    documents: Documents,
    wanted: int,
    seed: int,
    rules: SampleRules,
    folder: Path,
    processes: int,
    progress: ProgressCallback,
    say: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> DrawnSamples:
    """The first samples of a draw, tokenised into parts in the folder; parts that are there are used.

    Time and memory (about 130 bytes a document) go with the documents drawn, not with the corpus.

    Args:
      documents: the corpus.
      wanted: W, the number of samples.
      seed: of the draw.
      rules: how documents become samples, and which do not.
      folder: of the parts, of this corpus and these arguments alone.
      processes: that tokenise; 0: one a core.
      progress: called after every few hundred documents.
      say: told of parts that were there, of processes that died and, now and then, of samples a second.
      clock: gives the time in seconds.

    Returns:
      The samples; fewer than wanted if the corpus has no more.
    """
    some_drop_out = rules.min_chars > 0 or rules.distinct_prefix_tokens > 0
    total = min(len(documents), wanted + (wanted // 32 + 64 if some_drop_out else 0))
    looked, parts = 0, []
    while True:
        index_K = seeds.draw(seed, "population/draw", len(documents), total)
        size = _PART if total < _LARGE else _LARGE_PART
        tasks = list(_split(index_K, looked, size, folder))
        _make(tasks, total, documents, rules, processes, progress, say, clock)
        parts += [path for path, _, _ in tasks]
        position_S, first_S = _samples(parts, rules.distinct_prefix_tokens > 0)
        position_W = position_S[first_S][:wanted]
        if len(position_W) == wanted or total == len(documents):
            last = int(position_W[-1]) if len(position_W) == wanted else total - 1
            long_enough = int(np.searchsorted(position_S, last, side="right"))
            duplicates = long_enough - len(position_W)
            return DrawnSamples(position_W, parts, last + 1, last + 1 - long_enough, duplicates)
        # As many more as the share of samples so far makes likely to do, at most four times as many.
        enough = math.ceil(1.02 * wanted * total / max(len(position_W), 1)) + 64
        looked, total = total, min(enough, 4 * total, len(documents))


_Task = tuple[Path, np.ndarray, np.ndarray]
"""File of a part; its positions, ascending, and the indices of its documents."""


def _split(index_K: np.ndarray, start: int, size: int, folder: Path) -> Iterator[_Task]:
    """The documents from position start on, in parts that lie close together in the corpus.

    So a part reads one or two shards of it, and not all.
    """
    order = start + np.argsort(index_K[start:], kind="stable")
    for number, low in enumerate(range(0, len(order), size)):
        position_P = np.sort(order[low : low + size])
        yield folder / f"{start}-{number}.arrow", position_P, index_K[position_P]


def _make(
    tasks: list[_Task],
    total: int,
    documents: Documents,
    rules: SampleRules,
    processes: int,
    progress: ProgressCallback,
    say: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    """Writes the parts that are missing."""
    missing = [task for task in tasks if not is_complete(task[0])]
    if found := len(tasks) - len(missing):
        say(f"population: {found} of {len(tasks)} parts were tokenised by an earlier command")
    done = before = total - sum(len(position_P) for _, position_P, _ in missing)
    at_work: dict[int, int] = {}
    start = said = clock()

    def show() -> None:
        nonlocal said
        so_far, now = done + sum(at_work.values()), clock()
        progress("tokenise samples", so_far, total)
        if now - said >= _SAY_SECONDS:
            said = now
            rate = (so_far - before) / (now - start)
            say(f"tokenise samples: {so_far:,} of {total:,}, {rate:,.0f} a second")

    def on_report(index: int, amount: int) -> None:
        at_work[index] = amount
        show()

    def on_lost(exit_code: int) -> None:
        say(f"a process that tokenises ended with code {exit_code}; its part is done again")

    show()
    parts = (Part(p, at, select(documents, index), rules) for p, at, index in missing)
    alone = len(missing) < _ALONE
    count = 1 if alone else min(process_pool.num_processes(processes), len(missing))
    with contextlib.closing(
        process_pool.run_tasks(write_part, parts, count, on_report, on_lost)
    ) as results:
        for index, _ in results:
            at_work.pop(index, None)
            done += len(missing[index][1])
            show()
    made, seconds = sum(len(at) for _, at, _ in missing), clock() - start
    if made:
        say(
            f"population: {made} documents tokenised in {seconds:.1f} s by {count} process(es), "
            f"{made / seconds:.0f} a second"
        )


def _samples(parts: list[Path], compare: bool) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the long enough documents, ascending; which of them begin like none before (bool)."""
    names = ["position", "prefix"] if compare else ["position"]
    tables = [read_part(part, names) for part in parts]
    position_S = np.concatenate([table["position"].to_numpy() for table in tables])
    order = np.argsort(position_S)
    if not compare:
        return position_S[order], np.ones(len(order), bool)
    prefix_Sx2 = np.concatenate([_as_numbers(table) for table in tables])[order]
    first_S = features.first_with_same_digest(prefix_Sx2) == np.arange(len(order))
    return position_S[order], first_S


def _as_numbers(table: pa.Table) -> np.ndarray:
    """The 128 bits of every prefix as two uint64."""
    chunks = [
        np.frombuffer(c.buffers()[1], np.uint64).reshape(-1, 2)
        for c in table["prefix"].chunks
        if len(c)
    ]
    return np.concatenate([*chunks, np.empty((0, 2), np.uint64)])
