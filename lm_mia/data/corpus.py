"""Opens a corpus: the docstrings of installed packages, text files, or C4.

A new source only has to provide an object that satisfies `Corpus`: items, their number, a hash, and the provenance.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from lm_mia import config
from lm_mia.data import c4, docstrings, documents, reading_cache
from lm_mia.data import texts as text_reader
from lm_mia.data.documents import ProgressCallback, no_progress
from lm_mia.errors import UserError


class Corpus(documents.Documents, Protocol):
    """Documents with a hash and a provenance."""

    @property
    def sha256(self) -> str:
        """A hash that identifies the corpus."""
        ...

    @property
    def provenance(self) -> dict[str, Any]:
        """The origin of the corpus, as recorded in manifests; contains at least "corpus_sha256" and "documents"."""
        ...


@dataclasses.dataclass(frozen=True)
class InMemoryCorpus:
    """A corpus in memory; item i is (text, name, source)."""

    texts: Sequence[str] = dataclasses.field(repr=False)
    names: Sequence[str] = dataclasses.field(repr=False)
    """The name of each text: ``FILE:LINE`` (docstrings, jsonl, csv), ``FILE:ROW`` (parquet) or ``FILE`` (text)."""
    sources: Sequence[str] = dataclasses.field(repr=False)
    """What each text comes from: the package (docstrings), the file (jsonl, csv, parquet), or the file's top folder
    (text)."""
    sha256: str
    """Hash of all texts in order."""
    provenance: dict[str, Any]
    """Package versions or file names, and the numbers of documents read, left out for each reason, and kept."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> documents.Document:
        return self.texts[i], self.names[i], self.sources[i]


def open_corpus(corpus: config.Corpus, progress: ProgressCallback = no_progress) -> Corpus:
    """Opens a corpus; C4 is opened without reading its documents, the other sources are read into memory."""
    return c4.open_records(corpus.path) if corpus.source == "c4" else read(corpus, progress)


CorpusOpener = Callable[[config.Corpus, ProgressCallback], Corpus]
"""A function such as `open_corpus`."""


def caching_opener() -> CorpusOpener:
    """Returns an `open_corpus` that caches the last corpus, so that several populations of one corpus read it once."""
    return functools.lru_cache(maxsize=1)(open_corpus)


def read(corpus: config.Corpus, progress: ProgressCallback = no_progress) -> InMemoryCorpus:
    """Reads the documents of docstrings or files in a stable order.

    Whitespace at both ends of the documents is removed. Short documents, documents without visible characters,
    duplicates and text files that are not UTF-8 are left out; the provenance says how many.

    Raises:
      UserError: if there is no matching file, a file cannot be read (the message names the file and the line), the
        column is missing or empty, or no document is long enough and has a visible character.
    """
    if _read_ahead and corpus.source in text_reader.SOURCES:
        ahead = _read_ahead.pop(reading_cache.files_digest(corpus), None)
        if ahead is not None:
            return ahead
    if corpus.source == "docstrings":
        texts, names = docstrings.read(
            progress=lambda done, total: progress("read docstrings", done, total)
        )
        sources = [name.rpartition(":")[0].partition("/")[0] for name in names]
        origin: dict[str, Any] = {"packages": docstrings.versions()}
    else:
        files = text_reader.read(
            corpus.source,
            corpus.path,
            corpus.column,
            lambda done, total: progress("read files", done, total),
        )
        texts, names, sources = files.texts, files.names, files.sources
        origin = {"files": files.files}
        if files.not_utf8:
            origin["files_not_utf8"] = files.not_utf8
        if files.other_files:
            origin["files_not_read"] = files.other_files
    texts = [text.strip() for text in texts]
    long_enough = [i for i, text in enumerate(texts) if len(text) >= corpus.min_chars]
    if not long_enough:
        longest = max(map(len, texts), default=0)
        raise UserError(
            f"corpus.min_chars={corpus.min_chars}: none of the {len(texts)} documents is that long; the longest has "
            f"{longest} characters, so use at most {longest}"
        )
    # Imported here because scipy takes half a second to load, and most commands reuse a population.
    from lm_mia.data import dedup, tokenizer

    visible = [i for i in long_enough if tokenizer.has_visible_characters(texts[i])]
    if not visible:
        raise UserError(
            f"corpus.path={corpus.path!r}: none of the {len(long_enough)} documents that are long enough has a visible "
            "character; choose another path"
        )
    if invisible := len(long_enough) - len(visible):
        origin["without_visible_characters"] = invisible
    distinct = visible
    if corpus.deduplicate != "none":
        kept = dedup.without_exact_duplicates([texts[i] for i in visible])
        distinct = [visible[k] for k in kept]
    final = distinct
    if corpus.deduplicate == "near":
        kept = dedup.without_near_duplicates(
            [texts[i] for i in distinct],
            lambda done, total: progress("find near duplicates", done, total),
        )
        final = [distinct[k] for k in kept]
    final_texts = [texts[i] for i in final]
    digest = hash_texts(final_texts)
    provenance = {
        "source": corpus.source,
        "corpus_sha256": digest,
        "documents_read": len(texts),
        "too_short": len(texts) - len(long_enough),
        "exact_duplicates": len(visible) - len(distinct),
        "near_duplicates": len(distinct) - len(final),
        "documents": len(final),
        **origin,
    }
    return InMemoryCorpus(
        final_texts, [names[i] for i in final], [sources[i] for i in final], digest, provenance
    )


_read_ahead: dict[str, InMemoryCorpus] = {}
"""Digest of the files -> their documents, which `read_ahead` has read."""


def read_ahead(corpus: config.Corpus) -> InMemoryCorpus:
    """Reads the documents of files like `read`, and keeps them in memory for its next call on the same files."""
    documents = read(corpus)
    _read_ahead.clear()
    _read_ahead[reading_cache.files_digest(corpus)] = documents
    return documents


def hash_texts(texts: Iterable[str]) -> str:
    """Returns the SHA-256 of the texts in order, each preceded by its length in bytes (8 bytes, little-endian)."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
