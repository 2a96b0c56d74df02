"""Opens a corpus: the docstrings of installed packages, text files, or C4.

Documents come from the docstrings of our dependencies, from files or from C4. Another source only has to return what
`Corpus` says: the rest asks for items, their number, a hash and the provenance, no more.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from lm_mia import config
from lm_mia.data import c4, docstrings, documents, text_files
from lm_mia.data.documents import ProgressCallback, no_progress
from lm_mia.errors import UserError


class Corpus(documents.Documents, Protocol):
    """Documents that know what they are."""

    @property
    def sha256(self) -> str:
        """Tells one corpus from another."""
        ...

    @property
    def provenance(self) -> dict[str, Any]:
        """What a manifest says of the corpus; "corpus_sha256" and "documents" at least."""
        ...


@dataclasses.dataclass(frozen=True)
class InMemoryCorpus:
    """A corpus in a fixed order, in memory; item i is (text, source record)."""

    texts: Sequence[str] = dataclasses.field(repr=False)
    records: Sequence[str] = dataclasses.field(repr=False)
    """Where each text stands: ``FILE:LINE`` (docstrings, jsonl), ``FILE:ROW`` or ``FILE``."""
    sha256: str
    """Of all texts in order."""
    provenance: dict[str, Any]
    """Package versions or file names; numbers of documents read, left out and why, and kept."""

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> tuple[str, str]:
        return self.texts[i], self.records[i]


def open_corpus(corpus: config.Corpus, progress: ProgressCallback = no_progress) -> Corpus:
    """The documents of any source; of C4 they are looked up, not read."""
    return c4.open_records(corpus.path) if corpus.source == "c4" else read(corpus, progress)


CorpusOpener = Callable[[config.Corpus, ProgressCallback], Corpus]


def caching_opener() -> CorpusOpener:
    """`open_corpus` for populations of one corpus: as long as it is asked for the same one, it reads that once."""
    return functools.lru_cache(maxsize=1)(open_corpus)


def read(corpus: config.Corpus, progress: ProgressCallback = no_progress) -> InMemoryCorpus:
    """The documents of docstrings or files: stripped, short ones and duplicates left out, in a stable order.

    Raises:
      UserError: if there is no such file, one cannot be read (names it, and the line), the column
        is missing or empty, or no document is long enough.
    """
    if corpus.source == "docstrings":
        texts, records = docstrings.read(progress=lambda *n: progress("read docstrings", *n))
        origin: dict[str, Any] = {"packages": docstrings.versions()}
    else:
        texts, records, names = text_files.read(
            corpus.source, corpus.path, corpus.column, lambda *n: progress("read files", *n)
        )
        origin = {"files": names}
    texts = [text.strip() for text in texts]
    kept = [i for i, text in enumerate(texts) if len(text) >= corpus.min_chars]
    if not kept:
        raise UserError(
            f"corpus.min_chars={corpus.min_chars}: none of the {len(texts)} documents is that "
            f"long; the longest has {max(map(len, texts), default=0)} characters"
        )
    distinct = kept
    from lm_mia.data import (
        dedup,  # here: scipy takes half a second, and most commands find a population
    )

    if corpus.deduplicate != "none":
        distinct = [kept[i] for i in dedup.without_exact_duplicates([texts[i] for i in kept])]
    final = distinct
    if corpus.deduplicate == "near":
        near = [texts[i] for i in distinct]
        label = "find near duplicates"
        final = [
            distinct[i] for i in dedup.without_near_duplicates(near, lambda *n: progress(label, *n))
        ]
    chosen = [texts[i] for i in final]
    digest = hash_texts(chosen)
    provenance = {
        "source": corpus.source,
        "corpus_sha256": digest,
        "documents_read": len(texts),
        "too_short": len(texts) - len(kept),
        "exact_duplicates": len(kept) - len(distinct),
        "near_duplicates": len(distinct) - len(final),
        "documents": len(final),
        **origin,
    }
    return InMemoryCorpus(chosen, [records[i] for i in final], digest, provenance)


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in order, each preceded by its length in bytes (8, little-endian)."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
