"""A few thousand documents -> a part: a file of their tokens and measures, whole or not there.

Parts are what a killed run goes on from. One is an Arrow file of a row a document, ordered by position, which is the
place of the document in the draw; documents that are too short have no row.
"""

import dataclasses
import functools
import hashlib
import os
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import sentencepiece

from lm_mia import prefixes
from lm_mia.documents import Pairs
from lm_mia.parallel import Report

ZLIB_LEVEL = 6
_BATCH = 512  # documents between two reports


@dataclasses.dataclass(frozen=True)
class Rules:
    """How documents become samples."""

    model: Path
    """The sentencepiece model file."""
    length_tokens: int
    """Samples are ``<bos> pieces <eos>``, cut at this many tokens."""
    min_chars: int = 0
    """Shorter documents are left out."""
    prefix_tokens: int = 0
    """The first so many tokens after <bos> are hashed, for `lm_mia.draw` to compare; 0: they are not."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The work of a moment: some documents and the file that their samples go to."""

    path: Path
    position_K: np.ndarray
    """Places of the documents in the draw, ascending, int64."""
    documents: Pairs = dataclasses.field(repr=False)
    """K documents in that order."""
    rules: Rules


def schema(vocab_size: int) -> pa.Schema:
    """Columns of a part; tokens are uint16, or uint32 for more than 65,536 pieces."""
    token = pa.uint16() if vocab_size <= 2**16 else pa.uint32()
    return pa.schema(
        [("position", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
        + [(name, pa.int64()) for name in ("chars", "unk", "zlib_bytes")]
        + [("prefix", pa.binary(16)), ("tokens", pa.list_(token))]
    )


def write(part: Part, report: Report) -> None:
    """Tokenises the documents of a part and writes its file under a name of its own, then renames it."""
    spm = _load(part.rules.model)
    bos, eos, unk = spm.bos_id(), spm.eos_id(), spm.unk_id()
    columns, k = schema(spm.get_piece_size()), part.rules.prefix_tokens
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
            [prefixes.digest(row, k) if k else None for row in rows],
            rows,
        )
        arrays = [pa.array(v, t) for v, t in zip(values, columns.types, strict=True)]
        batches.append(pa.record_batch(arrays, schema=columns))
        report(done)
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, columns) as file:
        file.write_batch(pa.concat_batches(batches))  # one: parts are sliced often
    os.replace(temporary, part.path)


def whole(path: Path) -> bool:
    """Whether the part is there and can be read: a machine that lost power may leave a name without its bytes."""
    try:
        with pa.memory_map(str(path)) as source:
            pa.ipc.open_file(source).get_batch(0)
    except (OSError, pa.ArrowException, IndexError):
        return False
    return True


def read(path: Path, names: list[str]) -> pa.Table:
    """Columns of a part; memory-mapped, so that only what is used is read."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all().select(names)


@functools.lru_cache(maxsize=1)
def _load(model: Path) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(model))
