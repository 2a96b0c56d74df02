"""Draws documents in random order, tokenizes them in parts, and selects the samples of a population.

The seed determines the order; the position of a document is its index in that order. A document becomes a sample if it
is long enough and its truncated token sequence, and on request its first tokens, differ from those of all earlier
documents that are long enough. The first W samples are selected. The selection depends only on the seed and the corpus,
not on the number of documents that are tokenized at a time, or on the processes that do so.

Each part covers a few thousand documents and is one Arrow file, with one row per document that is long enough, sorted
by position. Parts are written atomically, so that a run that was killed continues from the parts that exist.

D: documents of the draw, P: documents of a part, S: documents that are long enough, W: samples.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import sentencepiece

from lm_mia import seeds
from lm_mia.data import features, process_pool
from lm_mia.data.documents import Document, Documents, Log, ProgressCallback, select
from lm_mia.data.process_pool import Report

ZLIB_LEVEL = 6
_BATCH = 512  # documents between two progress reports

_PART = 4096  # documents per part
_LARGE_DRAW, _LARGE_PART = 2**22, 16_384  # larger draws have larger parts, and so fewer files
_LOG_SECONDS = 30  # time between log lines about the speed
_MIN_PARALLEL_PARTS = 4  # fewer parts are tokenized before other processes would have started


@dataclasses.dataclass(frozen=True)
class SampleRules:
    """How documents become samples."""

    tokenizer: Path
    """The sentencepiece model file."""
    length_tokens: int
    """Samples are ``<bos> pieces <eos>``, truncated to this number of tokens."""
    min_chars: int = 0
    """Documents with fewer characters are left out."""
    distinct_prefix_tokens: int = 0
    """Number of tokens after <bos> that are compared: a document is left out if an earlier one begins with the same
    tokens. 0: they are not compared."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Documents that are tokenized together, and the file for their samples."""

    path: Path
    position_P: np.ndarray
    """Positions of the documents in the draw, ascending, int64."""
    documents: Sequence[Document] = dataclasses.field(repr=False)
    """The P documents, in the same order."""
    rules: SampleRules


def part_schema(vocab_size: int) -> pa.Schema:
    """Returns the columns of a part; tokens are uint16, or uint32 if the vocabulary has more than 65,536 pieces."""
    token = pa.uint16() if vocab_size <= 2**16 else pa.uint32()
    return pa.schema(
        [("position", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
        + [(name, pa.int64()) for name in ("chars", "unk", "zlib_bytes")]
        + [("sequence_digest", pa.binary(16)), ("prefix_digest", pa.binary(16))]
        + [("tokens", pa.list_(token))]
    )


def write_part(part: Part, report: Report) -> None:
    """Tokenizes the documents of a part, and writes its file atomically."""
    tokenizer = _load_tokenizer(part.rules.tokenizer)
    schema = part_schema(tokenizer.get_piece_size())
    # A process of a command that was just killed may still be writing the same part, with the same content.
    temporary = part.path.with_suffix(f".{os.getpid()}")
    documents = zip(part.position_P.tolist(), part.documents, strict=True)
    batches: list[pa.RecordBatch] = []
    done = 0
    while batch := [pair for _, pair in zip(range(_BATCH), documents, strict=False)]:
        done += len(batch)
        batches.append(_tokenize(batch, part.rules, tokenizer, schema))
        report(done)
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as file:
        # A single batch, because parts are sliced often.
        file.write_batch(pa.concat_batches(batches))
    os.replace(temporary, part.path)


def _tokenize(
    batch: Sequence[tuple[int, Document]],
    rules: SampleRules,
    tokenizer: sentencepiece.SentencePieceProcessor,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Returns the rows of those documents of a batch, each with its position, that are long enough."""
    bos, eos, unk = tokenizer.bos_id(), tokenizer.eos_id(), tokenizer.unk_id()
    long_enough = [
        (position, text, record)
        for position, (text, record) in batch
        if len(text) >= rules.min_chars
    ]
    texts = [text for _, text, _ in long_enough]
    # A single thread, because the processes share the cores.
    pieces_by_text = tokenizer.encode(texts, out_type=int, num_threads=1) if texts else []
    samples = [[bos, *pieces, eos][: rules.length_tokens] for pieces in pieces_by_text]
    raws = [text.encode() for text in texts]
    tokens = pa.array(samples, schema.field("tokens").type)
    values = {
        "position": [position for position, _, _ in long_enough],
        "source_record": [record for _, _, record in long_enough],
        "text_sha256": [hashlib.sha256(raw).hexdigest() for raw in raws],
        "chars": [len(text) for text in texts],
        "unk": [sample.count(unk) for sample in samples],
        "zlib_bytes": [len(zlib.compress(raw, ZLIB_LEVEL)) for raw in raws],
        "sequence_digest": _digests(tokens, rules.length_tokens),
        "prefix_digest": _digests(tokens, rules.distinct_prefix_tokens),
        "tokens": tokens,
    }
    columns = [
        values[field.name]
        if isinstance(values[field.name], pa.Array)
        else pa.array(values[field.name], field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _digests(tokens: pa.ListArray, prefix_tokens: int) -> list[bytes | None]:
    """Returns the digest of the first tokens of each sample; None for each if ``prefix_tokens`` is 0."""
    if prefix_tokens == 0:
        return [None] * len(tokens)
    flat, offsets = tokens.values.to_numpy(), tokens.offsets.to_numpy().tolist()
    return [
        features.prefix_digest(flat[begin:end], prefix_tokens)
        for begin, end in itertools.pairwise(offsets)
    ]


def is_complete(path: Path) -> bool:
    """Returns whether a part exists and can be read; after a power failure a file may have a name but no content."""
    try:
        with pa.memory_map(str(path)) as source:
            pa.ipc.open_file(source).get_batch(0)
    except (OSError, pa.ArrowException, IndexError):
        return False
    return True


def read_part(path: Path, names: list[str]) -> pa.Table:
    """Returns columns of a part, memory-mapped, so that only the values that are used are read."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().select(names)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(path: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


@dataclasses.dataclass(frozen=True)
class DrawnSamples:
    """The selected samples, and the numbers of documents that were left out before the last of them."""

    position_W: np.ndarray
    """Positions of the samples in the draw, ascending, int64."""
    parts: list[Path]
    """Files that contain the samples, among other documents."""
    documents: int
    """Number of documents of the draw up to the last sample."""
    too_short: int
    """Documents with fewer than ``min_chars`` characters."""
    identical_token_sequences: int
    """Documents whose truncated token sequence equals that of an earlier document."""
    prefix_duplicates: int
    """Other documents whose first tokens equal those of an earlier document."""


def draw_samples(
    documents: Documents,
    num_samples: int,
    seed: int,
    rules: SampleRules,
    folder: Path,
    processes: int,
    progress: ProgressCallback,
    log: Log,
    clock: Callable[[], float] = time.perf_counter,
) -> DrawnSamples:
    """Selects the first samples of a draw, and tokenizes its documents into parts; existing parts are reused.

    Time and memory (about 130 bytes per document) grow with the number of documents drawn, not with the corpus.

    Args:
      documents: the corpus.
      num_samples: W.
      seed: seed of the draw.
      rules: how documents become samples.
      folder: folder of the parts, which is used only for this corpus and these arguments.
      processes: number of processes that tokenize; 0: one per CPU core.
      progress: called after every few hundred documents.
      log: called with lines about reused parts, processes that died, and the speed.
      clock: returns the time in seconds.

    Returns:
      The samples; fewer than requested if the corpus has no more.
    """
    is_selective = rules.min_chars > 0 or rules.distinct_prefix_tokens > 0
    spare = num_samples // 32 + 64 if is_selective else 0
    tokenized, total = 0, min(len(documents), num_samples + spare)
    parts: list[Path] = []
    while True:
        index_D = seeds.draw(seed, "population/draw", len(documents), total)
        size = _PART if total < _LARGE_DRAW else _LARGE_PART
        plans = list(_plan_parts(index_D, tokenized, size, folder))
        _write_missing_parts(plans, total, documents, rules, processes, progress, log, clock)
        parts += [path for path, _, _ in plans]
        position_S, is_repeated_S, is_sample_S = _compare(parts, rules)
        position_W = position_S[is_sample_S][:num_samples]
        missing = num_samples - len(position_W)
        if not missing or total == len(documents):
            last_position = total - 1 if missing else int(position_W[-1])
            long_enough = int(np.searchsorted(position_S, last_position, side="right"))
            identical = int(is_repeated_S[:long_enough].sum())
            return DrawnSamples(
                position_W,
                parts,
                documents=last_position + 1,
                too_short=last_position + 1 - long_enough,
                identical_token_sequences=identical,
                prefix_duplicates=long_enough - len(position_W) - identical,
            )
        # Enough documents if the fraction that are samples stays the same, and some spare ones.
        num_more = math.ceil(1.1 * missing * total / max(len(position_W), 1)) + 64
        tokenized, total = total, min(total + num_more, 4 * total, len(documents))


_PartPlan = tuple[Path, np.ndarray, np.ndarray]
"""The file of a part, the ascending positions of its documents in the draw, and their indices in the corpus."""


def _plan_parts(index_D: np.ndarray, start: int, size: int, folder: Path) -> Iterator[_PartPlan]:
    """Divides the documents of a draw, from position ``start`` on, into parts.

    The documents of a part are close together in the corpus, so that tokenizing it reads one or two shards of the
    corpus instead of all of them.
    """
    order = start + np.argsort(index_D[start:], kind="stable")
    for number, low in enumerate(range(0, len(order), size)):
        position_P = np.sort(order[low : low + size])
        yield folder / f"{start}-{number}.arrow", position_P, index_D[position_P]


def _write_missing_parts(
    plans: list[_PartPlan],
    total: int,
    documents: Documents,
    rules: SampleRules,
    processes: int,
    progress: ProgressCallback,
    log: Log,
    clock: Callable[[], float],
) -> None:
    """Tokenizes the parts that do not exist yet, in several processes if there are enough of them."""
    missing = [plan for plan in plans if not is_complete(plan[0])]
    if existing := len(plans) - len(missing):
        log(
            f"population: reusing {existing} of {len(plans)} parts, tokenized by an earlier command"
        )
    finished = reused = total - sum(len(position_P) for _, position_P, _ in missing)
    running: dict[int, int] = {}
    start = last_log = clock()

    def show() -> None:
        nonlocal last_log
        done, now = finished + sum(running.values()), clock()
        progress("tokenize samples", done, total)
        if now - last_log >= _LOG_SECONDS:
            last_log = now
            rate = (done - reused) / (now - start)
            log(f"tokenize samples: {done:,} of {total:,} documents, {rate:,.0f} per second")

    def on_report(index: int, amount: int) -> None:
        running[index] = amount
        show()

    def on_death(exit_code: int) -> None:
        log(
            f"a process ended with code {exit_code}; the part that it was tokenizing will be tokenized again"
        )

    show()
    parts = (
        Part(path, position_P, select(documents, index_P), rules)
        for path, position_P, index_P in missing
    )
    is_small = len(missing) < _MIN_PARALLEL_PARTS
    count = 1 if is_small else min(process_pool.num_processes(processes), len(missing))
    with contextlib.closing(
        process_pool.run_tasks(write_part, parts, count, on_report, on_death)
    ) as results:
        for index, _ in results:
            running.pop(index, None)
            finished += len(missing[index][1])
            show()
    num_tokenized, seconds = finished - reused, clock() - start
    if num_tokenized:
        log(
            f"population: {num_tokenized:,} documents tokenized in {seconds:.1f} s by {count} process(es), "
            f"{num_tokenized / seconds:,.0f} per second"
        )


def _compare(parts: list[Path], rules: SampleRules) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compares the documents that are long enough with all earlier ones.

    Returns:
      position_S, int64, ascending; is_repeated_S, bool: whether an earlier document has the same tokens; and
      is_sample_S, bool: whether no earlier document has the same tokens or, if prefixes must be distinct, the same
      prefix.
    """
    position_S = np.concatenate([read_part(p, ["position"])["position"].to_numpy() for p in parts])
    order = np.argsort(position_S)
    is_first_S = is_sample_S = _is_first(parts, "sequence_digest", order)
    if rules.distinct_prefix_tokens:  # distinct prefixes imply distinct sequences
        is_sample_S = _is_first(parts, "prefix_digest", order)
    return position_S[order], ~is_first_S, is_sample_S


def _is_first(parts: list[Path], column: str, order: np.ndarray) -> np.ndarray:
    """Returns is_first_S, bool: whether each document's digest differs from those of all earlier ones."""
    digest_Sx2 = np.concatenate(
        [_digest_pairs(read_part(part, [column])[column]) for part in parts]
    )
    return features.first_with_same_digest(digest_Sx2[order]) == np.arange(len(order))


def _digest_pairs(column: pa.ChunkedArray) -> np.ndarray:
    """Returns the 128 bits of each digest as two uint64."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint64).reshape(-1, 2)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate([*chunks, np.empty((0, 2), np.uint64)])
