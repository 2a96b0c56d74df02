"""The population: the fixed, ordered data set of 2N samples, as token store and sample table.

A folder holds `tokens.npy` (every sample's tokens, one after another), `offsets.npy` (where each begins),
`samples.parquet` (a row a sample), `document_frequency.npy` (int64: in how many of ``population.frequency_samples``
samples, or of all, each piece occurs), `tokenizer.model` and `manifest.json` (hashes of the others, settings,
provenance); if asked for, the first three of held-out samples, whose names begin with `validation_`.
It is written once, whole or not at all; every reader checks it against the hashes of the manifest.

S: chosen samples, T: their tokens, one sample after another.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import sentencepiece

from lm_mia.errors import UserError

SAMPLE_FILES = ("tokens.npy", "offsets.npy", "samples.parquet")
SAMPLE_COLUMNS = ("tokens", "unk", "zlib_bytes", "tfidf", "prefix_group")
"""Columns of the sample table that attacks and figures ask for."""
VALIDATION_PREFIX, FREQUENCY_FILE = "validation_", "document_frequency.npy"

FORMAT = 2  # of the files of a population, as its manifest says

_BATCH = 2048  # samples that `lowercase` tokenises at once


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """An open population of 2N samples (N below counts samples, not members)."""

    folder: Path
    tokens: np.ndarray
    """All tokens, flat and memory-mapped; uint16, or uint32 for more than 65,536 pieces."""
    offsets_N1: np.ndarray
    """Sample i is ``tokens[offsets_N1[i]:offsets_N1[i + 1]]``; int64."""
    manifest: dict[str, Any]
    prefix: str = ""
    """Begins the names of its files; "validation_" for held-out samples."""

    def __len__(self) -> int:
        """2N, the number of samples."""
        return len(self.offsets_N1) - 1

    @property
    def sha256(self) -> str:
        """Names the data set: a hash of tokens, offsets and tokenizer, wherever the folder lies."""
        return dataset_sha256(self.manifest["files"], self.prefix)

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

    def column(self, name: str) -> np.ndarray:
        """column_N: one column of the sample table (samples.parquet), read alone.

        Texts: source_record, text_sha256. int64: id, chars (of the whole text), tokens and unk (of the stored, cut
        sample), zlib_bytes (of the whole text in UTF-8 at level 6); and, but of held-out samples, prefix_group (the id
        of the first sample that begins with the same ``population.group_prefix_tokens`` tokens). float64, but of
        held-out samples: tfidf (mean over the distinct pieces, of `features.mean_tfidf`; NaN without any).
        """
        file = self.folder / f"{self.prefix}samples.parquet"
        return pq.read_table(file, columns=[name])[name].to_numpy()

    @functools.cached_property
    def validation(self) -> "Population | None":
        """Held-out samples, drawn after the 2N, which no row trains on; None if there are none."""
        if self.prefix or f"{VALIDATION_PREFIX}tokens.npy" not in self.manifest["files"]:
            return None
        return map_files(self.folder, self.manifest, VALIDATION_PREFIX)

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


def open_population(folder: Path, *, verify: bool = True) -> Population:
    """The population in a folder, memory-mapped.

    Args:
      folder: as written by `write`.
      verify: compare the hash of every file (about 1 GB/s) with the manifest, not only its size.

    Raises:
      UserError: if there is none, or a file is missing or corrupt: names it and the way out.
    """
    return map_files(folder, read_manifest(folder, verify))


def map_files(folder: Path, facts: dict[str, Any], prefix: str = "") -> Population:
    """The population of a folder whose manifest holds these facts; nothing is checked."""
    tokens, offsets_N1 = (
        np.load(folder / f"{prefix}{name}.npy", mmap_mode="r") for name in ("tokens", "offsets")
    )
    return Population(folder, tokens, offsets_N1, facts, prefix)


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Bytes and SHA-256 of each file."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _file_sha256(folder / name)}
        for name in names
    }


def dataset_sha256(files: Mapping[str, Mapping[str, Any]], prefix: str = "") -> str:
    """SHA-256 that names a data set: of the hashes of its tokens, offsets and tokenizer."""
    names = (f"{prefix}tokens.npy", f"{prefix}offsets.npy", "tokenizer.model")
    return hashlib.sha256("".join(files[name]["sha256"] for name in names).encode()).hexdigest()


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """The manifest's bytes, with a hash of its own in it."""
    return _bytes({**content, "own_sha256": _own_sha256(content)})


def read_manifest(folder: Path, verify: bool) -> dict[str, Any]:
    """The manifest of a folder whose files are there and whole.

    Args:
      folder: of the population.
      verify: compare the hash of every file (about 1 GB/s), not only its size.

    Raises:
      UserError: if there is no population, or a file is missing or corrupt: names it and the way out.
    """
    found = _read_manifest(folder)
    for name, expected in found["files"].items():
        path = folder / name
        if not path.is_file():
            raise _corrupt(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _corrupt(path, f"the file has not its {expected['bytes']} bytes")
        if verify and _file_sha256(path) != expected["sha256"]:
            raise _corrupt(path, "the content does not match the hash in manifest.json")
    return found


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no population here; run `lm-mia corpus` first")
    if not path.is_file():
        raise _corrupt(path, "the file is missing")
    raw = path.read_bytes()
    try:
        found = json.loads(raw)
        if raw != _bytes(found) or found["own_sha256"] != _own_sha256(found):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _corrupt(path, "the content was changed or damaged") from None
    if found["format"] != FORMAT:
        raise _corrupt(path, f"format {found['format']}, this version of lm-mia reads {FORMAT}")
    return found


def _file_sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _own_sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        _bytes({k: v for k, v in content.items() if k != "own_sha256"})
    ).hexdigest()


def _corrupt(path: Path, what: str) -> UserError:
    way_out = f"delete the folder {path.parent} and run `lm-mia corpus` again"
    return UserError(f"{path}: {what}; {way_out}")


def take_samples(population: Population, ids_S: Sequence[int]) -> Population:
    """Those samples, in that order, in memory; table and hashes stay those of the original."""
    samples = [population.sample(i) for i in ids_S]
    return dataclasses.replace(
        population,
        tokens=np.concatenate(samples),
        offsets_N1=np.append(0, np.cumsum([len(sample) for sample in samples])),
    )


def token_columns(population: Population, ids_S: Sequence[int]) -> dict[str, np.ndarray]:
    """{name: value_T, int64}: what every token of those samples is; nothing if there are none.

    token_sample (the sample's id), token_position (0: <bos>) and token_piece (of the vocabulary).
    """
    if not ids_S:
        return {}
    some = take_samples(population, ids_S)
    length_S = some.lengths_N
    return {
        "token_sample": np.repeat(np.array(ids_S, np.int64), length_S),
        "token_position": np.arange(len(some.tokens))
        - np.repeat(np.cumsum(length_S) - length_S, length_S),
        "token_piece": some.tokens.astype(np.int64),
    }


def lowercase(population: Population) -> Population:
    """The same samples in lower case, in memory: for every sample, its text in lower case, tokenised again.

    The text is what the sample's tokens spell, so nothing behind the cut comes back. A sample that ended in <eos> still
    does, unless it has become too long, and all are cut at the same length as before. A token that is unknown (<unk>)
    stays unknown. A sample without capitals keeps its tokens, but for a space right at the cut.

    About 50,000 samples of 128 tokens a second; 2 bytes a token. Table and hashes stay those of the original.

    Source: Carlini et al. 2021, Extracting Training Data from Large Language Models, Section 5.2.
    """
    spm = population.tokenizer
    bos, eos, unk = spm.bos_id(), spm.eos_id(), spm.unk_id()
    # Decoded, an unknown token reads " ⁇ ", which would be tokenised as question marks: spell it as unknown again.
    unknown = next(c for c in map(chr, range(0xE000, 0xF900)) if spm.piece_to_id(c) == unk)
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for low in range(0, len(population), _BATCH):
        samples = [population.sample(i) for i in range(low, min(low + _BATCH, len(population)))]
        texts = spm.decode([sample.tolist() for sample in samples])
        encoded = spm.encode([text.replace(" ⁇ ", unknown).lower() for text in texts])
        # A text of nothing must have something to predict.
        ends = [
            sample[-1] == eos or not pieces for sample, pieces in zip(samples, encoded, strict=True)
        ]
        rows = [
            [bos, *pieces, *([eos] if end else [])][: population.length_tokens]
            for pieces, end in zip(encoded, ends, strict=True)
        ]
        parts.append(np.concatenate([np.array(row, population.tokens.dtype) for row in rows]))
        lengths += [len(row) for row in rows]
    return dataclasses.replace(
        population,
        tokens=np.concatenate(parts),
        offsets_N1=np.append(0, np.cumsum(lengths)).astype(np.int64),
    )
