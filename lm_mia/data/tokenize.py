"""Draws documents in random order, tokenizes them in parts, and selects the samples of a population.

The seed determines the order of the documents. The beginning of a document is its only piece or, if documents are
split, all of it is divided into consecutive pieces. A piece is a sample if it is long enough and no earlier such piece
has the same tokens. If this is requested, it must also have other first tokens than all earlier ones, and its document
must not be a near duplicate of an earlier one. The first samples are the population, and the next ones, from the next
document on, are held out. The selection depends only on the seed and the corpus, not on the number of documents that
are tokenized at a time, or on the processes that do so.

Each part covers a few thousand documents and is one Arrow file, with one row per piece, sorted by position. Parts are
written atomically, so that a run that was killed continues from the parts that exist.

D: documents of the draw, P: documents of a part, R: pieces (rows of the parts), S: pieces that are long enough, W:
samples.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from lm_mia import seeds
from lm_mia.atomic import replacing
from lm_mia.data import features, minhash, process_pool
from lm_mia.data.documents import Document, Documents, Log, ProgressCallback, select
from lm_mia.data.process_pool import Report
from lm_mia.data.tokenizer import SpecialTokens, Tokenizer, load_tokenizer
from lm_mia.errors import raise_failed_read
from lm_mia.printing import format_duration

ZLIB_LEVEL = 6
MAX_PIECES = 2**31
"""The position of a piece is the index of its document in the order of the draw, times this number, plus the index of
the piece in the document."""

# Limits of a batch, after each of which progress is reported, and of the tokens in memory before they are written.
_BATCH, _BATCH_CHARS = 512, 2**22
_RECORD_TOKENS = 2**26

_PART = 4096  # documents per part
_LARGE_DRAW, _LARGE_PART = 2**22, 16_384  # larger draws have larger parts, and so fewer files
_LOG_SECONDS = 30  # time between log lines about the speed
_MIN_PARALLEL_PARTS = 4  # fewer parts are tokenized before other processes would have started


@dataclasses.dataclass(frozen=True)
class SampleRules:
    """How documents become samples."""

    tokenizer: Path
    """The file of the tokenizer."""
    length_tokens: int
    """Maximum length of a sample. A document is ``<bos> text <eos>``, truncated to this number of tokens."""
    min_chars: int = 0
    """Documents with fewer characters, or without a token, are left out and, if documents are split, last pieces that
    have fewer characters of the document."""
    distinct_prefix_tokens: int = 0
    """Number of tokens after <bos> that are compared: a piece is left out if an earlier one begins with the same
    tokens. 0: they are not compared."""
    split_documents: bool = False
    """Whether the rest of a document is divided into more pieces. Each starts with <bos>, and the last one ends with
    <eos>."""
    leave_out_near_duplicates: bool = False
    """Whether documents are left out that are near duplicates of an earlier document that is long enough; see
    `lm_mia.data.minhash`. Whole documents are compared."""
    special_tokens: SpecialTokens = "sample"
    """Which special tokens samples have, as for `load_tokenizer`."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Documents that are tokenized together, and the file for their samples."""

    path: Path
    position_P: np.ndarray
    """Positions of the documents in the draw, ascending, int64."""
    documents: Sequence[Document] = dataclasses.field(repr=False)
    """The P documents, in the same order."""
    rules: SampleRules


def part_schema(vocab_size: int, with_bands: bool = False) -> pa.Schema:
    """Returns the columns of a part; tokens are uint16, or uint32 if the vocabulary has more than 65,536 pieces.

    text_sha256, chars, unk and zlib_bytes are of the text of the sample, which is decoded from its tokens, and not of
    the document; document_tokens is the length of the whole document, without <bos> and <eos>. A piece that is too
    short has no tokens, and its text is not measured. If near duplicates are left out, band_digests are those of the
    document, in the row of its first piece.
    """
    bands = [("band_digests", pa.binary(minhash.BANDS * minhash.DIGEST_BYTES))]
    token = pa.uint16() if vocab_size <= 2**16 else pa.uint32()
    return pa.schema(
        [("position", pa.int64())]
        + [(name, pa.string()) for name in ("name", "source", "text_sha256")]
        + [(name, pa.int64()) for name in ("chars", "unk", "zlib_bytes", "document_tokens")]
        + [("sequence_digest", pa.binary(16)), ("prefix_digest", pa.binary(16))]
        + (bands if with_bands else [])
        + [("tokens", pa.list_(token))]
    )


def write_part(part: Part, report: Report) -> None:
    """Tokenizes the documents of a part and replaces its file atomically."""
    tokenizer = _load_tokenizer(part.rules.tokenizer, part.rules.special_tokens)
    schema = part_schema(tokenizer.vocab_size, part.rules.leave_out_near_duplicates)
    documents = zip(part.position_P.tolist(), part.documents, strict=True)
    done = 0
    # A process of a command that was just killed may still be writing the same part, with the same content.
    with (
        replacing(part.path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_file(sink, schema) as file,
    ):
        # Few record batches, because parts are sliced often.
        pending: list[pa.RecordBatch] = []
        for batch in _batches(documents):
            done += len(batch)
            pending.append(_tokenize(batch, part.rules, tokenizer, schema))
            report(done)
            if sum(len(rows["tokens"].values) for rows in pending) >= _RECORD_TOKENS:
                file.write_batch(pa.concat_batches(pending))
                pending = []
        if pending:
            file.write_batch(pa.concat_batches(pending))


def _batches(documents: Iterable[tuple[int, Document]]) -> Iterator[list[tuple[int, Document]]]:
    """Divides documents into batches of limited numbers of documents and characters."""
    batch: list[tuple[int, Document]] = []
    chars = 0
    for position, document in documents:
        batch.append((position, document))
        chars += len(document[0])
        if len(batch) == _BATCH or chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a document, or a whole document."""

    position: int
    name: str
    """The name of the document."""
    source: str
    tokens: list[int]
    """Tokens of the sample; empty if it is too short."""
    document_tokens: int


def _tokenize(
    batch: Sequence[tuple[int, Document]],
    rules: SampleRules,
    tokenizer: Tokenizer,
    schema: pa.Schema,
) -> pa.RecordBatch:
    """Returns the rows of a batch of documents, each of which comes with its position in the draw."""
    pieces = list(_cut(batch, rules, tokenizer))
    unk = tokenizer.unk_id
    tokens = pa.array([piece.tokens for piece in pieces], schema.field("tokens").type)
    # What is too short is only counted.
    texts = iter(tokenizer.decode_batch([p.tokens for p in pieces if p.tokens], num_threads=1))
    raws = [next(texts).encode() if piece.tokens else None for piece in pieces]
    values = {
        "position": [piece.position for piece in pieces],
        "name": [piece.name for piece in pieces],
        "source": [piece.source for piece in pieces],
        "text_sha256": [None if raw is None else hashlib.sha256(raw).hexdigest() for raw in raws],
        "chars": [None if raw is None else len(raw.decode()) for raw in raws],
        "unk": [0 if unk is None else piece.tokens.count(unk) for piece in pieces],
        "zlib_bytes": [None if r is None else len(zlib.compress(r, ZLIB_LEVEL)) for r in raws],
        "document_tokens": [piece.document_tokens for piece in pieces],
        "sequence_digest": _digests(tokens, rules.length_tokens),
        "prefix_digest": _digests(tokens, rules.distinct_prefix_tokens),
        "tokens": tokens,
    }
    if rules.leave_out_near_duplicates:
        texts = {at * MAX_PIECES: text for at, (text, *_) in batch if len(text) >= rules.min_chars}
        digests = dict(zip(texts, minhash.band_digests(list(texts.values())), strict=True))
        values["band_digests"] = [digests.get(piece.position) for piece in pieces]
    columns = [
        values[field.name]
        if isinstance(values[field.name], pa.Array)
        else pa.array(values[field.name], field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


def _cut(
    batch: Sequence[tuple[int, Document]],
    rules: SampleRules,
    tokenizer: Tokenizer,
) -> Iterator[_Piece]:
    """Yields the pieces of documents in their order; a document that is left out is one piece without tokens."""
    before, after = tokenizer.before, tokenizer.after
    step = rules.length_tokens - len(before)
    texts = [text for _, (text, *_) in batch if len(text) >= rules.min_chars]
    # A single thread, because the processes share the cores.
    encoded = iter(tokenizer.encode_batch(texts, num_threads=1))
    for at, (text, name, source) in batch:
        position = at * MAX_PIECES
        ids = next(encoded) if len(text) >= rules.min_chars else []
        if not ids:
            yield _Piece(position, name, source, [], 0)
            continue
        body = [*ids, *after]
        if not rules.split_documents:
            yield _Piece(position, name, source, [*before, *body[:step]], len(ids))
            continue
        for piece, low in enumerate(range(0, len(body), step)):
            tokens = [*before, *body[low : low + step]]
            # Only the last piece may be shorter than length_tokens.
            is_short = low > 0 and len(tokens) < rules.length_tokens
            if is_short and tokenizer.chars_from(text, low) < rules.min_chars:
                tokens = []
            yield _Piece(position + piece, name, source, tokens, len(ids))


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
    except (OSError, pa.ArrowException, IndexError) as error:
        raise_failed_read(error, path)
        return False
    return True


def read_part(path: Path, names: list[str]) -> pa.Table:
    """Returns columns of a part, memory-mapped, so that only the values that are used are read."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().select(names)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(path: Path, special_tokens: SpecialTokens) -> Tokenizer:
    return load_tokenizer(path, special_tokens=special_tokens)


@dataclasses.dataclass(frozen=True)
class DrawnSamples:
    """The selected samples, and the numbers of pieces that were left out before the last of them.

    Unless documents are split, a document has one piece, and pieces are counted like documents.
    """

    position_W: np.ndarray
    """Positions of the samples in the draw, ascending, int64; see `MAX_PIECES`."""
    parts: list[Path]
    """Files that contain the samples, among other pieces."""
    documents: int
    """Number of documents of the draw up to the last sample."""
    pieces: int
    """Number of their pieces up to the last sample."""
    too_short: int
    """Documents, and last pieces of documents that are split, with fewer than ``min_chars`` characters or no token."""
    identical_token_sequences: int
    """Pieces whose tokens equal those of an earlier piece."""
    prefix_duplicates: int
    """Other pieces whose first tokens equal those of an earlier piece."""
    near_duplicates: int
    """Other pieces whose document is a near duplicate of an earlier one."""

    @property
    def candidates(self) -> int:
        """Number of these pieces that can be samples."""
        duplicates = self.identical_token_sequences + self.prefix_duplicates + self.near_duplicates
        return self.pieces - self.too_short - duplicates


def draw_samples(
    documents: Documents,
    num_samples: int,
    num_held_out: int,
    seed: int,
    rules: SampleRules,
    folder: Path,
    processes: int,
    progress: ProgressCallback,
    log: Log,
    clock: Callable[[], float] = time.perf_counter,
) -> DrawnSamples:
    """Selects the first samples of a draw, and tokenizes its documents into parts; existing parts are reused.

    Time and memory (about 130 bytes per piece) grow with the number of documents drawn, not with the corpus. If near
    duplicates are left out, parts are larger by 200 bytes per document; one band of 8 bytes is compared at a time.

    Args:
      documents: the corpus.
      num_samples: number of samples of the population.
      num_held_out: number of further samples, from documents that have no sample in the population.
      seed: seed of the draw.
      rules: how documents become samples.
      folder: folder of the parts, which is used only for this corpus and these arguments.
      processes: number of processes that tokenize; 0: one per CPU core.
      progress: called after every few hundred documents.
      log: called with lines about reused parts, processes that died, and the speed.
      clock: returns the time in seconds.

    Returns:
      The samples of the population and, after them, the held-out samples; fewer than requested if the corpus has no
      more.
    """
    requested = num_samples + num_held_out
    is_selective = (
        rules.min_chars > 0 or rules.distinct_prefix_tokens > 0 or rules.leave_out_near_duplicates
    )
    spare = requested // 32 + 64 if is_selective else 0
    # The number of pieces of a document is not known before it is tokenized.
    first_round = requested // 16 + 64 if rules.split_documents else requested + spare
    tokenized, total = 0, min(len(documents), first_round)
    parts: list[Path] = []
    while True:
        index_D = seeds.draw(seed, "population/draw", len(documents), total)
        size = _PART if total < _LARGE_DRAW else _LARGE_PART
        plans = list(_plan_parts(index_D, tokenized, size, folder))
        _write_missing_parts(plans, total, documents, rules, processes, progress, log, clock)
        parts += [path for path, _, _ in plans]
        pieces = _compare(parts, rules)
        position_W = _select(pieces.position_S[pieces.is_sample_S], num_samples, num_held_out)
        missing = requested - len(position_W)
        if not missing or total == len(documents):
            end = total * MAX_PIECES if missing else int(position_W[-1]) + 1
            before_S = pieces.position_S < end
            long_enough = int(before_S.sum())
            too_short = int(np.sum(pieces.too_short_position < end))
            return DrawnSamples(
                position_W,
                parts,
                documents=-(-end // MAX_PIECES),
                pieces=long_enough + too_short,
                too_short=too_short,
                identical_token_sequences=int(np.sum(pieces.is_repeated_S & before_S)),
                prefix_duplicates=int(np.sum(pieces.has_same_prefix_S & before_S)),
                near_duplicates=int(np.sum(pieces.is_near_duplicate_S & before_S)),
            )
        # Enough documents if the fraction that are samples stays the same, and some spare ones.
        num_more = math.ceil(1.1 * missing * total / max(len(position_W), 1)) + 64
        tokenized, total = total, min(total + num_more, 4 * total, len(documents))


def _select(position_S: np.ndarray, num_samples: int, num_held_out: int) -> np.ndarray:
    """Returns the first samples, and held-out samples from documents after those of the first samples."""
    first, rest = position_S[:num_samples], position_S[num_samples:]
    if len(first):
        rest = rest[rest // MAX_PIECES > first[-1] // MAX_PIECES]
    return np.concatenate([first, rest[:num_held_out]])


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
            f"population: {num_tokenized:,} documents tokenized in {format_duration(seconds)} by {count} process(es), "
            f"{num_tokenized / seconds:,.0f} per second"
        )


@dataclasses.dataclass(frozen=True)
class _Pieces:
    """The pieces of all parts: those that are long enough, in the order of the draw, and those that are too short."""

    position_S: np.ndarray
    """Ascending, int64."""
    is_repeated_S: np.ndarray
    """Whether an earlier piece has the same tokens, bool."""
    has_same_prefix_S: np.ndarray
    """Whether another piece is left out since an earlier one has the same prefix, bool."""
    is_near_duplicate_S: np.ndarray
    """Whether another piece is left out since its document is a near duplicate of an earlier one, bool."""
    too_short_position: np.ndarray
    """Positions of the pieces that are too short, in any order, int64."""

    @property
    def is_sample_S(self) -> np.ndarray:
        """Whether a piece is not left out, bool."""
        return ~(self.is_repeated_S | self.has_same_prefix_S | self.is_near_duplicate_S)


def _compare(parts: list[Path], rules: SampleRules) -> _Pieces:
    """Compares the pieces that are long enough with each other."""
    tables = [read_part(part, ["position", "tokens"]) for part in parts]
    position_R = np.concatenate([table["position"].to_numpy() for table in tables])
    is_long_R = np.concatenate(
        [np.diff(rows.offsets.to_numpy()) > 0 for t in tables for rows in t["tokens"].chunks]
    )
    order = np.argsort(position_R)
    order = order[is_long_R[order]]
    position_S = position_R[order]
    is_repeated_S = ~_is_first(parts, "sequence_digest", order)
    has_same_prefix_S = is_near_duplicate_S = np.zeros(len(order), bool)
    if rules.distinct_prefix_tokens:
        has_same_prefix_S = ~_is_first(parts, "prefix_digest", order) & ~is_repeated_S
    if rules.leave_out_near_duplicates:
        is_near_duplicate_S = _is_near_duplicate(parts, order, position_S)
        is_near_duplicate_S &= ~is_repeated_S & ~has_same_prefix_S
    return _Pieces(
        position_S, is_repeated_S, has_same_prefix_S, is_near_duplicate_S, position_R[~is_long_R]
    )


def _is_near_duplicate(parts: list[Path], order: np.ndarray, position_S: np.ndarray) -> np.ndarray:
    """Returns is_near_duplicate_S, bool: whether the document of a piece is a near duplicate of an earlier one."""
    columns = [read_part(part, ["band_digests"])["band_digests"] for part in parts]
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint64).reshape(-1, minhash.BANDS)
        for column in columns
        for chunk in column.chunks
        if len(chunk)
    ]
    # Only the first piece of a document, which is long enough if any of its pieces is, has the digests.
    is_document_S = position_S % MAX_PIECES == 0
    document_D = order[is_document_S]
    is_duplicate_D = minhash.follows_near_duplicate(
        np.concatenate([digest_RxB[:, band] for digest_RxB in chunks])[document_D]
        for band in range(minhash.BANDS)
    )
    return is_duplicate_D[np.cumsum(is_document_S) - 1]


def _is_first(parts: list[Path], column: str, order: np.ndarray) -> np.ndarray:
    """Returns is_first_S, bool: whether each piece's digest differs from those of all earlier ones."""
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
