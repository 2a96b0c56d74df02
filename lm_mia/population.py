"""The population: the fixed, ordered data set of 2N samples, as token store and sample table.

A folder holds `tokens.npy` (every sample's tokens, one after another), `offsets.npy` (where each
begins), `samples.parquet` (a row a sample), `tokenizer.model` and `manifest.json` (hashes of the
others, settings, provenance). It is written once, whole or not at all; every reader checks it.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece

from lm_mia.errors import UserError
from lm_mia.seeds import rng

Progress = Callable[[str, int, int], None]
"""``progress(label, done, total)``, called often enough for a progress bar."""

FORMAT, ZLIB_LEVEL = 1, 6
FILES = ("tokens.npy", "offsets.npy", "samples.parquet", "tokenizer.model")
_BATCH = 2048
_SCHEMA = pa.schema(
    [("id", pa.int64()), ("source_record", pa.string()), ("text_sha256", pa.string())]
    + [(name, pa.int64()) for name in ("chars", "tokens", "unk", "zlib_bytes")]
)


class Documents(Protocol):
    """What a population is drawn from: item i is (text, source record); only drawn are read."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> tuple[str, str]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """An open population of 2N samples (N below counts samples, not members)."""

    folder: Path
    tokens: np.ndarray
    """All tokens, flat and memory-mapped; uint16, or uint32 for more than 65,536 pieces."""
    offsets_N1: np.ndarray
    """Sample i is ``tokens[offsets_N1[i]:offsets_N1[i + 1]]``; int64."""
    manifest: dict[str, Any]

    def __len__(self) -> int:
        """2N, the number of samples."""
        return len(self.offsets_N1) - 1

    @property
    def sha256(self) -> str:
        """Names the data set: a hash of tokens, offsets and tokenizer, wherever the folder lies."""
        return self.manifest["sha256"]

    @property
    def vocab_size(self) -> int:
        """Pieces in the vocabulary."""
        return self.manifest["vocab_size"]

    @property
    def length_tokens(self) -> int:
        """L: samples are cut at this many tokens."""
        return self.manifest["settings"]["population.length_tokens"]

    @functools.cached_property
    def lengths_N(self) -> np.ndarray:
        """Tokens of each sample, `<bos>` and `<eos>` included; int64."""
        return np.diff(self.offsets_N1)

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """The sample table, read on first use; row i is sample i.

        Columns: id, source_record, text_sha256, chars (of the whole text), tokens and unk (of the
        stored, cut sample), zlib_bytes (of the whole text in UTF-8 at level 6).
        """
        return pd.read_parquet(self.folder / "samples.parquet")

    @functools.cached_property
    def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
        """The tokenizer, loaded on first use."""
        return sentencepiece.SentencePieceProcessor(model_file=str(self.folder / "tokenizer.model"))

    def text(self, i: int) -> str:
        """Sample i as its tokens spell it: cut, spaces normalised."""
        return self.tokenizer.decode(self.sample(i).tolist())

    def sample(self, i: int) -> np.ndarray:
        """Tokens of sample i, a view; IndexError outside 0..2N-1."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return self.tokens[self.offsets_N1[i] : self.offsets_N1[i + 1]]

    def pad(self, ids_B: np.ndarray) -> np.ndarray:
        """x_BxL, int32: the samples' tokens, each row padded to ``length_tokens`` with 0."""
        starts_B = self.offsets_N1[ids_B]
        lengths_B = self.offsets_N1[np.asarray(ids_B) + 1] - starts_B
        ends_B = np.cumsum(lengths_B)
        flat = np.arange(ends_B[-1] if len(ends_B) else 0)
        flat += np.repeat(starts_B - (ends_B - lengths_B), lengths_B)
        x_BxL = np.zeros((len(lengths_B), self.length_tokens), np.int32)
        x_BxL[np.arange(self.length_tokens) < lengths_B[:, None]] = self.tokens[flat]
        return x_BxL


def write(
    folder: Path,
    documents: Documents,
    tokenizer_bytes: bytes,
    *,
    seed: int,
    samples: int,
    length_tokens: int,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Population:
    """Draws 2N documents by seed and writes them; the same arguments give the same bytes.

    Everything goes to a hidden folder beside, manifest last, and one rename makes it visible: a
    killed process leaves a whole population or none, and the next write removes what it left.
    One writer at a time: `corpus.build` takes a lock.

    Args:
      folder: must not exist, or be empty; parents are made.
      documents: a list of (text, source record) will do.
      tokenizer_bytes: a sentencepiece model with pad 0.
      seed, samples: of the draw; samples is 2N, at most len(documents).
      length_tokens: samples are `<bos> pieces <eos>`, cut at this many tokens.
      settings, provenance: recorded, the settings with ``population.*``.
      progress: called after every 2,048 samples.

    Raises:
      UserError: if there are too few documents or the folder is taken; nothing is written then.
    """
    check_samples(samples, len(documents))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; delete it and run `lm-mia corpus` again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    index_N = rng(seed, "population/draw").choice(len(documents), samples, replace=False)
    spm = sentencepiece.SentencePieceProcessor(model_proto=tokenizer_bytes)
    _write_samples(temporary, documents, index_N, spm, length_tokens, progress)
    (temporary / "tokenizer.model").write_bytes(tokenizer_bytes)
    files = {
        name: {"bytes": (temporary / name).stat().st_size, "sha256": _file_sha256(temporary / name)}
        for name in FILES
    }
    identity = "".join(files[n]["sha256"] for n in ("tokens.npy", "offsets.npy", "tokenizer.model"))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "vocab_size": spm.get_piece_size(),
        "zlib_level": ZLIB_LEVEL,
        "settings": {
            **(settings or {}),
            "population.samples": samples,
            "population.seed": seed,
            "population.length_tokens": length_tokens,
        },
        "provenance": dict(provenance or {}),
        "versions": {p: metadata.version(p) for p in ("numpy", "pyarrow", "sentencepiece")},
        "files": files,
    }
    manifest["own_sha256"] = _manifest_sha256(manifest)
    (temporary / "manifest.json").write_bytes(_dump(manifest))
    os.replace(temporary, folder)
    return open_population(folder, verify=False)


def check_samples(samples: int, documents: int) -> None:
    """UserError if a corpus of that many documents cannot give 2N samples."""
    if samples > documents:
        raise UserError(
            f"population.samples={samples}: the corpus has {documents} documents after "
            f"deduplication; use at most {documents // 2 * 2}"
        )


def open_population(folder: Path, *, verify: bool = True) -> Population:
    """The population in a folder, memory-mapped.

    Args:
      folder: as written by `write`.
      verify: compare the hash of every file (about 1 GB/s) with the manifest, not only its size.

    Raises:
      UserError: if there is none, or a file is missing or corrupt: names it and the way out.
    """
    manifest = _read_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _corrupt(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _corrupt(path, f"the file has not its {expected['bytes']} bytes")
        if verify and _file_sha256(path) != expected["sha256"]:
            raise _corrupt(path, "the content does not match the hash in manifest.json")
    return Population(
        folder=folder,
        tokens=np.load(folder / "tokens.npy", mmap_mode="r"),
        offsets_N1=np.load(folder / "offsets.npy", mmap_mode="r"),
        manifest=manifest,
    )


def _write_samples(
    folder: Path,
    documents: Documents,
    index_N: np.ndarray,
    spm: sentencepiece.SentencePieceProcessor,
    length_tokens: int,
    progress: Progress,
) -> None:
    """Streams tokens, offsets and table to the folder."""
    bos, eos, unk = spm.bos_id(), spm.eos_id(), spm.unk_id()
    dtype = np.dtype(np.uint16 if spm.get_piece_size() <= 2**16 else np.uint32)
    header = {"descr": dtype.str, "fortran_order": False, "shape": (0,)}
    lengths = np.zeros(len(index_N) + 1, np.int64)
    with (
        (folder / "tokens.npy").open("wb") as f,
        pq.ParquetWriter(folder / "samples.parquet", _SCHEMA, compression="zstd") as table,
    ):
        # numpy pads headers: this one and the true one, once the length is known, are equally long.
        np.lib.format.write_array_header_1_0(f, header)
        for start in range(0, len(index_N), _BATCH):
            picked = [documents[int(i)] for i in index_N[start : start + _BATCH]]
            encoded = spm.encode([text for text, _ in picked], out_type=int)
            rows = [[bos, *pieces, eos][:length_tokens] for pieces in encoded]
            f.write(np.concatenate([np.asarray(r, dtype) for r in rows]).tobytes())
            lengths[start + 1 : start + 1 + len(rows)] = [len(r) for r in rows]
            raws = [text.encode() for text, _ in picked]
            columns = (
                range(start, start + len(rows)),
                [record for _, record in picked],
                [hashlib.sha256(raw).hexdigest() for raw in raws],
                [len(text) for text, _ in picked],
                [len(row) for row in rows],
                [row.count(unk) for row in rows],
                [len(zlib.compress(raw, ZLIB_LEVEL)) for raw in raws],
            )
            table.write_table(pa.table([*map(pa.array, columns)], schema=_SCHEMA))
            progress("tokenise samples", start + len(rows), len(index_N))
        offsets_N1 = np.cumsum(lengths)
        f.seek(0)
        np.lib.format.write_array_header_1_0(f, header | {"shape": (int(offsets_N1[-1]),)})
    np.save(folder / "offsets.npy", offsets_N1)


def _file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _dump(manifest: dict[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, sort_keys=True) + "\n").encode()


def _manifest_sha256(manifest: dict[str, Any]) -> str:
    rest = {k: v for k, v in manifest.items() if k != "own_sha256"}
    return hashlib.sha256(_dump(rest)).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no population here; run `lm-mia corpus` first")
    if not path.is_file():
        raise _corrupt(path, "the file is missing")
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
        if raw != _dump(manifest) or manifest["own_sha256"] != _manifest_sha256(manifest):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _corrupt(path, "the content was changed or damaged") from None
    if manifest["format"] != FORMAT:
        raise _corrupt(path, f"format {manifest['format']}, this version of lm-mia reads {FORMAT}")
    return manifest


def _corrupt(path: Path, what: str) -> UserError:
    way_out = f"delete the folder {path.parent} and run `lm-mia corpus` again"
    return UserError(f"{path}: {what}; {way_out}")
