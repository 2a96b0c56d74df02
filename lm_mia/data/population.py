"""The population: the fixed, ordered dataset of 2N samples, as stored tokens and a sample table.

The folder of a population contains:

- `tokens.npy`: the tokens of all samples, concatenated; no two samples have the same tokens.
- `offsets.npy`: the index in `tokens.npy` at which each sample starts, and the end of the last one.
- `samples.parquet`: the sample table, with one row per sample.
- `document_frequency.npy`: int64, for each piece, the number of samples that contain it, among
  ``population.frequency_samples`` samples or all of them.
- `tokenizer.model` or `tokenizer.json`: the tokenizer, a SentencePiece model or a file of the package `tokenizers`.
- `manifest.json`: hashes of the other files, settings, and provenance.
- `validation_tokens.npy`, `validation_offsets.npy` and `validation_samples.parquet`, if the settings request held-out
  samples.

The population of losses that were imported has only a sample table and a manifest (see `lm_mia.data.imported`).

It is written once, as a whole, and every reader checks it against the hashes of the manifest.

N: samples (2N in `Population`), S: selected samples, W: their tokens, concatenated, B: samples of a batch, L:
positions.
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

from lm_mia.atomic import file_sha256
from lm_mia.config.recipe import POPULATION_FORMAT
from lm_mia.data.tokenizer import TOKENIZER_FILES, Tokenizer, load_tokenizer
from lm_mia.errors import UserError

SAMPLE_FILES = ("tokens.npy", "offsets.npy", "samples.parquet")
SAMPLE_COLUMNS = ("tokens", "unk", "zlib_bytes", "tfidf", "prefix_group")
"""Columns of the sample table that attacks and figures use; they are copied to the score store."""
RECORD_COLUMNS = ("name", "source", "user")
"""Columns of the sample table that say where a sample is from, as strings; empty where it is unknown. `name` is the
name of the record in the corpus, `source` what the record comes from (package, file or folder), and `user` the person
or the group of documents to which it belongs, which only imported losses may have."""
PIECE_COLUMNS = ("document", "piece")
"""More of these columns, if documents are split: the document of a sample, counted from 0 in the order of the
population, and its position among the pieces of the document, counted from 0."""
SPLIT_DOCUMENTS = "corpus.split_documents"
"""Name of the setting that determines whether documents are split into pieces."""
IMPORTED = "imported"
"""Value of `corpus.source` for losses of models that were trained elsewhere."""
VALIDATION_PREFIX, FREQUENCY_FILE = "validation_", "document_frequency.npy"

_BATCH = 2048  # samples that `lowercase` tokenizes at a time


@dataclasses.dataclass(frozen=True)
class TextUse:
    """How much of the text of the drawn documents is in the 2N samples, counted in tokens without <bos> and <eos>."""

    documents: int
    """Number of documents to which the samples belong."""
    document_tokens: int
    """Tokens of these documents before they are cut."""
    sample_tokens: int
    """Tokens of the samples."""

    @property
    def share(self) -> float:
        """The fraction of the tokens of the documents that is in the samples."""
        return self.sample_tokens / self.document_tokens if self.document_tokens else 1.0

    def describe(self) -> str:
        """Returns a sentence about the share, for logs and pages."""
        return (
            f"the samples contain {100 * self.share:.3g}% of the text of their documents "
            f"({self.sample_tokens:,} of {self.document_tokens:,} tokens)"
        )


def text_use(manifest: Mapping[str, Any]) -> TextUse | None:
    """Returns how much of the text is in the samples of the population with this manifest, as `Population.text_use`."""
    counts = manifest.get("provenance", {}).get("text")
    return TextUse(**counts) if counts else None


def has_split_documents(manifest: Mapping[str, Any]) -> bool:
    """Returns whether samples are pieces of documents in the population with this manifest."""
    return bool(manifest.get("settings", {}).get(SPLIT_DOCUMENTS))


def is_imported(manifest: Mapping[str, Any]) -> bool:
    """Returns whether the population with this manifest belongs to imported losses, so that it has no tokens."""
    return manifest.get("settings", {}).get("corpus.source") == IMPORTED


def describe_text_use(manifest: Mapping[str, Any]) -> str:
    """Returns a sentence about the share of the text that is used, and where the rest is; empty if it is unknown."""
    used = text_use(manifest)
    if used is None or used.sample_tokens == used.document_tokens:
        return used.describe() if used else ""
    rest = (
        "the rest is in last pieces that are too short, in pieces equal to others, or not needed"
        if has_split_documents(manifest)
        else f"the rest is cut off at population.length_tokens={manifest['settings']['population.length_tokens']}; "
        f"{SPLIT_DOCUMENTS}=True would make it samples too"
    )
    return f"{used.describe()}; {rest}"


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """An open population of 2N samples; N in the names of arrays counts samples, not members."""

    folder: Path
    tokens: np.ndarray
    """Tokens of all samples, memory-mapped; uint16, or uint32 if the vocabulary has more than 65,536 pieces."""
    offsets_N1: np.ndarray
    """Sample i is ``tokens[offsets_N1[i]:offsets_N1[i + 1]]``; int64."""
    manifest: dict[str, Any]
    prefix: str = ""
    """Prefix of the names of its files; "validation_" for held-out samples."""
    first_id: int = 0
    """Id of the first sample, which is larger than 0 after `from_sample`."""

    def __len__(self) -> int:
        """The number of samples, 2N."""
        return len(self.offsets_N1) - 1

    @property
    def sha256(self) -> str:
        """A hash of tokens, offsets and tokenizer, which identifies the dataset independently of its folder."""
        return dataset_sha256(self.manifest["files"], self.prefix)

    @property
    def vocab_size(self) -> int:
        """Number of pieces of the vocabulary."""
        return self.manifest["vocab_size"]

    @property
    def length_tokens(self) -> int:
        """L: the number of tokens to which samples are truncated."""
        return self.manifest["settings"]["population.length_tokens"]

    @property
    def text_use(self) -> TextUse | None:
        """How much of the text is in the samples; None if an earlier version of lm_mia, which did not count it, built
        the population."""
        return text_use(self.manifest)

    @property
    def has_split_documents(self) -> bool:
        """Whether samples are pieces of documents, several of which belong to the same document."""
        return has_split_documents(self.manifest)

    @functools.cached_property
    def document_N(self) -> np.ndarray:
        """The document of each sample, int64, from 0; unless documents are split, each sample has its own."""
        return self.column("document") if self.has_split_documents else np.arange(len(self))

    @property
    def is_imported(self) -> bool:
        """Whether the population belongs to imported losses, so that it has no tokens."""
        return is_imported(self.manifest)

    @property
    def is_shuffled(self) -> bool:
        """Whether the sources of the samples are files of a corpus in random order, so that they do not differ."""
        return self.manifest["settings"].get("corpus.source") == "c4"

    def sample_columns(self) -> dict[str, np.ndarray]:
        """Returns the columns of the sample table that attacks and figures use: name -> column_N."""
        names = SAMPLE_COLUMNS + (PIECE_COLUMNS if self.has_split_documents else ())
        return {name: self.column(name) for name in names}

    @functools.cached_property
    def lengths_N(self) -> np.ndarray:
        """Number of tokens of each sample, including `<bos>` and `<eos>`; int64."""
        return np.diff(self.offsets_N1)

    def column(self, name: str) -> np.ndarray:
        """Reads one column of the sample table (samples.parquet).

        All are properties of the sample, not of the document that it is cut from; its text is that of `text`.
        Columns of text: name (of the record in the corpus), source (what the record comes from), user (empty, except
        for imported losses) and text_sha256. Columns of type int64: id, chars, tokens, unk, zlib_bytes (of the text in
        UTF-8, at level 6) and prefix_group (the ID of the first sample that starts with the same
        ``population.group_prefix_tokens`` tokens). Column of type float64: tfidf (see `features.mean_tfidf`). Held-out
        samples do not have prefix_group and tfidf. If documents are split, there are `PIECE_COLUMNS` too. Imported
        samples have the columns of `lm_mia.data.imported.sample_table`.

        Returns:
          column_N.
        """
        file = self.folder / f"{self.prefix}samples.parquet"
        return pq.read_table(file, columns=[name])[name].to_numpy()[self.first_id :]

    @functools.cached_property
    def column_names(self) -> frozenset[str]:
        """Names of the columns of the sample table."""
        return frozenset(pq.read_schema(self.folder / f"{self.prefix}samples.parquet").names)

    @functools.cached_property
    def validation(self) -> "Population | None":
        """Held-out samples, drawn after the 2N samples, on which no model is trained; None if there are none."""
        if self.prefix or f"{VALIDATION_PREFIX}tokens.npy" not in self.manifest["files"]:
            return None
        return map_files(self.folder, self.manifest, VALIDATION_PREFIX)

    def from_sample(self, first: int) -> "Population":
        """Returns the population without the samples before one of them, such as the canaries of a recipe.

        Positions in its arrays count from that sample.

        Args:
          first: id of the first sample that is kept.
        """
        return dataclasses.replace(
            self, offsets_N1=self.offsets_N1[first:], first_id=self.first_id + first
        )

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which is loaded on first use."""
        special_tokens = self.manifest["settings"].get("tokenizer.special_tokens", "sample")
        file = self.folder / tokenizer_file(self.manifest["files"])
        return load_tokenizer(file, special_tokens=special_tokens)

    @functools.cached_property
    def has_texts(self) -> bool:
        """Whether the texts of the samples are known; those of imported losses may not be."""
        names = pq.read_schema(self.folder / "samples.parquet").names
        return not self.is_imported or "text" in names

    def text(self, i: int) -> str:
        """Returns the text of sample i, decoded from its tokens; it is truncated and has normalized whitespace.

        For imported losses, it is the text that was imported, or "" if there was none.
        """
        return self.texts(np.array([i]))[0]

    def texts(self, i_S: np.ndarray) -> list[str]:
        """Returns the texts of several samples, ascending, as `text`."""
        if not self.is_imported:
            return self.tokenizer.decode_batch([self.sample(i).tolist() for i in i_S])
        if not self.has_texts:
            return [""] * len(i_S)
        file = pq.ParquetFile(self.folder / "samples.parquet")
        group_S, row_S = np.divmod(i_S, file.metadata.row_group(0).num_rows)
        texts: list[str] = []
        for group in np.unique(group_S):
            column = file.read_row_group(group, columns=["text"])["text"]
            texts += column.take(row_S[group_S == group]).to_pylist()
        return texts

    def sample(self, i: int) -> np.ndarray:
        """Returns the tokens of sample i, as a view; raises IndexError unless 0 <= i < 2N."""
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} of {len(self)}")
        return self.tokens[self.offsets_N1[i] : self.offsets_N1[i + 1]]

    def pad(self, ids_B: np.ndarray) -> np.ndarray:
        """Returns x_BxL, int32: the tokens of the samples, each padded with 0 to ``length_tokens``."""
        starts_B = self.offsets_N1[ids_B]
        lengths_B = self.offsets_N1[np.asarray(ids_B) + 1] - starts_B
        ends_B = np.cumsum(lengths_B)
        flat = np.arange(ends_B[-1] if len(ends_B) else 0)
        flat += np.repeat(starts_B - (ends_B - lengths_B), lengths_B)
        x_BxL = np.zeros((len(lengths_B), self.length_tokens), np.int32)
        x_BxL[np.arange(self.length_tokens) < lengths_B[:, None]] = self.tokens[flat]
        return x_BxL


def open_population(folder: Path, *, verify: bool = True) -> Population:
    """Opens the population in a folder, memory-mapped.

    Args:
      folder: folder that `lm_mia.data.build` wrote.
      verify: whether to compare not only the size of each file with the manifest, but also its hash (about 1 GB/s).

    Raises:
      UserError: if there is no population, or a file is missing or corrupt; the message names the file.
    """
    return map_files(folder, read_manifest(folder, verify))


def map_files(folder: Path, manifest: dict[str, Any], prefix: str = "") -> Population:
    """Opens the files of a population, memory-mapped, without any check."""
    if is_imported(manifest):
        return Population(
            folder, np.zeros(0, np.uint16), np.zeros(manifest["samples"] + 1, np.int64), manifest
        )
    tokens, offsets_N1 = (
        _map_file(folder / f"{prefix}{name}.npy") for name in ("tokens", "offsets")
    )
    return Population(folder, tokens, offsets_N1, manifest, prefix)


def _map_file(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r")
    except OSError:
        raise
    # NumPy parses the header as Python code, which raises many kinds of errors.
    except Exception as error:
        raise UserError(
            f"{path}: damaged; delete the folder {path.parent} and run `lm-mia corpus` again"
        ) from error


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the size in bytes and the SHA-256 of each file."""
    return {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_sha256(folder / name)}
        for name in names
    }


def dataset_sha256(files: Mapping[str, Mapping[str, Any]], prefix: str = "") -> str:
    """Returns the SHA-256 that identifies a dataset: a hash of the hashes of its tokens, offsets and tokenizer.

    The samples of imported losses, which have none of these, are identified by their table.
    """
    names = [f"{prefix}tokens.npy", f"{prefix}offsets.npy", *TOKENIZER_FILES]
    names = [name for name in names if name in files] or ["samples.parquet"]
    return hashlib.sha256("".join(files[name]["sha256"] for name in names).encode()).hexdigest()


def tokenizer_file(files: Iterable[str]) -> str:
    """Returns the name of the file of the tokenizer among the files of a population."""
    return next(name for name in TOKENIZER_FILES if name in files)


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """Returns the content of the manifest file, which includes a hash of itself."""
    return _to_bytes({**content, "own_sha256": _own_sha256(content)})


def read_manifest(folder: Path, verify: bool) -> dict[str, Any]:
    """Reads the manifest of a folder, and checks that its files are complete.

    Args:
      folder: folder of the population.
      verify: whether to compare not only the size of each file, but also its hash (about 1 GB/s).

    Raises:
      UserError: if there is no population, or a file is missing or corrupt; the message names the file.
    """
    manifest = _load_manifest(folder)
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            raise _corrupt(path, "the file is missing")
        if path.stat().st_size != expected["bytes"]:
            raise _corrupt(path, f"the size of the file is not {expected['bytes']} bytes")
        if verify and file_sha256(path) != expected["sha256"]:
            raise _corrupt(path, "the content does not match the hash in manifest.json")
    return manifest


def _load_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise UserError(f"{folder}: no population found; run `lm-mia corpus` first")
    if not path.is_file():
        raise _corrupt(path, "the file is missing")
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
        if raw != _to_bytes(manifest) or manifest["own_sha256"] != _own_sha256(manifest):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise _corrupt(path, "the content has been changed or damaged") from None
    if manifest["format"] != POPULATION_FORMAT:
        raise _corrupt(
            path,
            f"the format is {manifest['format']}, but this version of lm-mia reads {POPULATION_FORMAT}",
        )
    return manifest


def _to_bytes(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def _own_sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(
        _to_bytes({k: v for k, v in content.items() if k != "own_sha256"})
    ).hexdigest()


def _corrupt(path: Path, problem: str) -> UserError:
    return UserError(
        f"{path}: {problem}; delete the folder {path.parent} and run `lm-mia corpus` again"
    )


def take_samples(population: Population, ids_S: Sequence[int]) -> Population:
    """Returns the selected samples, in this order, in memory; sample table and hashes are those of the original."""
    samples = [population.sample(i) for i in ids_S]
    return dataclasses.replace(
        population,
        tokens=np.concatenate(samples),
        offsets_N1=np.append(0, np.cumsum([len(sample) for sample in samples])),
    )


def token_columns(population: Population, ids_S: Sequence[int]) -> dict[str, np.ndarray]:
    """Returns columns that describe each token of the selected samples.

    Returns:
      ``{name: column_W}``, int64, for token_sample (ID of the sample), token_position (0 for <bos>) and token_piece (ID
      in the vocabulary); an empty dict if no samples are selected.
    """
    if not ids_S:
        return {}
    selected = take_samples(population, ids_S)
    length_S = selected.lengths_N
    return {
        "token_sample": np.repeat(np.array(ids_S, np.int64), length_S),
        "token_position": np.arange(len(selected.tokens))
        - np.repeat(np.cumsum(length_S) - length_S, length_S),
        "token_piece": selected.tokens.astype(np.int64),
    }


def lowercase(population: Population) -> Population:
    """Returns the same samples in lower case, in memory: the text of each is converted and tokenized again.

    The text is decoded from the sample's tokens, so it does not include truncated text. A sample that ended with <eos>
    still does, unless it has become too long, and all are truncated to the same length as before. An unknown token
    (<unk>) stays unknown. A sample without capital letters keeps its tokens, except for a space where it was truncated.

    This processes about 50,000 samples of 128 tokens per second and takes 2 bytes per token. Sample table and hashes
    are those of the original.

    Source: Carlini et al. 2021, Extracting Training Data from Large Language Models, Section 5.2.
    """
    tokenizer = population.tokenizer
    before, after = tokenizer.before, tokenizer.after
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for low in range(0, len(population), _BATCH):
        samples = [population.sample(i) for i in range(low, min(low + _BATCH, len(population)))]
        texts = tokenizer.decode_with_unknown([sample.tolist() for sample in samples])
        encoded = tokenizer.encode_batch([text.lower() for text in texts])
        # An empty text gets <eos>, so that there is a token to predict.
        ends_with_eos = [
            sample[-1] == tokenizer.eos_id or not pieces
            for sample, pieces in zip(samples, encoded, strict=True)
        ]
        lowered = [
            [*before, *pieces, *(after if ends else [])][: population.length_tokens]
            for pieces, ends in zip(encoded, ends_with_eos, strict=True)
        ]
        parts.append(
            np.concatenate([np.array(tokens, population.tokens.dtype) for tokens in lowered])
        )
        lengths += [len(tokens) for tokens in lowered]
    return dataclasses.replace(
        population,
        tokens=np.concatenate(parts),
        offsets_N1=np.append(0, np.cumsum(lengths)).astype(np.int64),
    )
