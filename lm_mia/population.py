"""The population: the fixed, ordered data set of 2N samples, as token store and sample table.

A folder holds `tokens.npy` (every sample's tokens, one after another), `offsets.npy` (where each begins),
`samples.parquet` (a row a sample), `document_frequency.npy`, `tokenizer.model` and `manifest.json` (hashes of the
others, settings, provenance); if asked for, the first three of held-out samples, whose names begin with `validation_`.
It is written once, whole or not at all; every reader checks it.
"""

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import sentencepiece

from lm_mia import assemble, draw, frequencies, manifest, prefixes, tokenise
from lm_mia.documents import Documents, Progress, silent
from lm_mia.errors import UserError

FILES = ("tokens.npy", "offsets.npy", "samples.parquet")
MEASURES = ("tokens", "unk", "zlib_bytes", "tfidf", "prefix_group")
"""Columns of the sample table that attacks and figures ask for."""
VALIDATION, FREQUENCY = "validation_", "document_frequency.npy"


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
        return manifest.identity(self.manifest["files"], self.prefix)

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
        held-out samples: tfidf (mean over the distinct pieces, of `frequencies.mean_tfidf`; NaN without any).
        """
        file = self.folder / f"{self.prefix}samples.parquet"
        return pq.read_table(file, columns=[name])[name].to_numpy()

    @functools.cached_property
    def validation(self) -> "Population | None":
        """Held-out samples, drawn after the 2N, which no row trains on; None if there are none."""
        if self.prefix or f"{VALIDATION}tokens.npy" not in self.manifest["files"]:
            return None
        return _load(self.folder, self.manifest, VALIDATION)

    @functools.cached_property
    def document_frequency_V(self) -> np.ndarray:
        """In how many of ``population.frequency_samples`` samples (or of all) each piece occurs, int64."""
        return np.load(self.folder / FREQUENCY)

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
    min_chars: int = 0,
    distinct_prefix_tokens: int = 0,
    validation_samples: int = 0,
    frequency_samples: int = 2**16,
    group_prefix_tokens: int = 50,
    processes: int = 1,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
) -> Population:
    """Draws 2N documents by seed and writes them; the same arguments give the same bytes, however often interrupted.

    Everything goes to a hidden folder beside, manifest last, and one rename makes it visible: a killed process leaves a
    whole population or none. What it had tokenised is used by the next one with the same arguments, and removed by one
    with others. One writer at a time: `corpus.build` takes a lock.

    Args:
      folder: must not exist, or be empty; parents are made.
      documents: a list of (text, source record) will do.
      tokenizer_bytes: a sentencepiece model with pad 0.
      seed, samples: of the draw; samples is 2N.
      length_tokens: samples are `<bos> pieces <eos>`, cut at this many tokens.
      min_chars: documents of fewer characters are left out, and the next ones of the draw taken.
      distinct_prefix_tokens: so are, if not 0, documents whose first so many tokens an earlier one has.
      validation_samples: held-out samples, which come next in the draw.
      frequency_samples: samples over which document frequencies are counted; all, if there are fewer.
      group_prefix_tokens: samples that share so many first tokens are of one group.
      processes: that tokenise; 0: one a core. Few documents are tokenised in this one.
      settings, provenance: recorded, the settings with ``population.*``, the provenance with counts of the draw. What a
        killed process left is used only if the provenance has "corpus_sha256", which tells one corpus from another.
      progress: called after every few hundred documents.
      say: told of parts found and of processes lost.

    Raises:
      UserError: if there are too few documents or the folder is taken; no population is written then.
    """
    wanted = samples + validation_samples
    check_samples(samples, validation_samples, len(documents))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: exists already; delete it and run `lm-mia corpus` again")
    spm = sentencepiece.SentencePieceProcessor(model_proto=tokenizer_bytes)
    facts: dict[str, Any] = {
        "format": manifest.FORMAT,
        "vocab_size": spm.get_piece_size(),
        "zlib_level": tokenise.ZLIB_LEVEL,
        "settings": {
            **(settings or {}),
            "population.samples": samples,
            "population.seed": seed,
            "population.length_tokens": length_tokens,
            "population.distinct_prefix_tokens": distinct_prefix_tokens,
            "population.validation_samples": validation_samples,
            "population.frequency_samples": frequency_samples,
            "population.group_prefix_tokens": group_prefix_tokens,
        },
        "provenance": dict(provenance or {}),
        "versions": {p: metadata.version(p) for p in ("numpy", "pyarrow", "sentencepiece")},
    }
    parts = _parts_folder(folder, [facts, min_chars, len(documents), tokenizer_bytes.hex()])
    model = parts / "tokenizer.model"
    if not model.exists():
        model.with_suffix(".new").write_bytes(tokenizer_bytes)
        model.with_suffix(".new").rename(model)
    rules = tokenise.Rules(model, length_tokens, min_chars, distinct_prefix_tokens)
    drawn = draw.draw(documents, wanted, seed, rules, parts, processes, progress, say)
    if len(drawn.position_W) < wanted:
        shutil.rmtree(unfinished(folder))
        check_samples(samples, validation_samples, len(drawn.position_W), drawn)
    new = unfinished(folder) / "population"
    new.mkdir()
    (new / "tokenizer.model").write_bytes(tokenizer_bytes)
    names = ["tokenizer.model", *FILES, FREQUENCY]
    sizes = length_tokens, spm.get_piece_size(), progress
    assemble.write(new, "", drawn.parts, drawn.position_W[:samples], *sizes)
    if validation_samples:
        names += [VALIDATION + name for name in FILES]
        assemble.write(new, VALIDATION, drawn.parts, drawn.position_W[samples:], *sizes)
    made, counted = _load(new, {}), min(frequency_samples, samples)
    flat = made.tokens, made.offsets_N1
    frequency_V = frequencies.count(*flat, spm.get_piece_size(), counted, seed, progress)
    np.save(new / FREQUENCY, frequency_V)
    columns = {
        "tfidf": frequencies.mean_tfidf(
            *flat, frequency_V, counted, (spm.bos_id(), spm.eos_id()), progress
        ),
        "prefix_group": prefixes.groups(*flat, group_prefix_tokens, progress),
    }
    assemble.add_columns(new / "samples.parquet", columns)
    facts["files"] = manifest.of_files(new, names)
    facts["sha256"] = manifest.identity(facts["files"])
    facts["provenance"]["draw"] = {
        "documents": drawn.documents,
        "too_short": drawn.too_short,
        "prefix_duplicates": drawn.prefix_duplicates,
    }
    (new / "manifest.json").write_bytes(manifest.dump(facts))
    os.replace(new, folder)
    shutil.rmtree(unfinished(folder), ignore_errors=True)  # whoever finds the population does too
    return open_population(folder, verify=False)


def unfinished(folder: Path) -> Path:
    """The hidden folder in which a population is made."""
    return folder.with_name(f".{folder.name}.unfinished")


def check_samples(
    samples: int,
    held_out: int,
    documents: int,
    drawn: draw.Drawn | None = None,
    which: str = "to draw from",
) -> None:
    """UserError if a corpus of that many documents, which are said to be so, cannot give 2N samples and the others."""
    if samples + held_out > documents:
        also = f" beside population.validation_samples={held_out}" if held_out else ""
        if drawn:
            which = (
                f"that can be samples ({drawn.documents} read, {drawn.too_short} too short, {drawn.prefix_duplicates} "
                "that begin like another)"
            )
        if held_out and documents - held_out < 2 <= documents:
            beside = samples if samples <= documents else 2
            raise UserError(
                f"population.validation_samples={held_out}: the corpus has {documents} documents {which}; use at most "
                f"{documents - beside} beside population.samples={beside}"
            )
        way_out = f"use at most {max(documents - held_out, 0) // 2 * 2}{also}"
        raise UserError(
            f"population.samples={samples}: the corpus has {documents} documents {which}; {way_out}"
        )


def open_population(folder: Path, *, verify: bool = True) -> Population:
    """The population in a folder, memory-mapped.

    Args:
      folder: as written by `write`.
      verify: compare the hash of every file (about 1 GB/s) with the manifest, not only its size.

    Raises:
      UserError: if there is none, or a file is missing or corrupt: names it and the way out.
    """
    return _load(folder, manifest.read(folder, verify))


def _load(folder: Path, facts: dict[str, Any], prefix: str = "") -> Population:
    tokens, offsets_N1 = (
        np.load(folder / f"{prefix}{name}.npy", mmap_mode="r") for name in ("tokens", "offsets")
    )
    return Population(folder, tokens, offsets_N1, facts, prefix)


def _parts_folder(folder: Path, identity: list[Any]) -> Path:
    """The folder of the parts of one population: of this identity, whatever was there of another is removed."""
    name = "parts-" + hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    resumable = "corpus_sha256" in identity[0]["provenance"]
    if unfinished(folder).exists():
        for path in unfinished(folder).iterdir():
            if path.is_dir() and not (resumable and path.name == name):
                shutil.rmtree(path)
    parts = unfinished(folder) / name
    parts.mkdir(parents=True, exist_ok=True)
    return parts
