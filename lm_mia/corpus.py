"""The first stage: documents of a source become a population.

Documents come from the docstrings of our dependencies or from files. Another source only has to
return `Documents`: the rest asks for items, their number, a hash and the provenance, no more.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from lm_mia import config, docstrings, duplicates, files, population
from lm_mia.errors import UserError
from lm_mia.tokenizer import load_tokenizer, train_tokenizer


@dataclasses.dataclass(frozen=True)
class Documents:
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


def _silent(label: str, done: int, total: int) -> None:
    pass


def read(corpus: config.Corpus, progress: population.Progress = _silent) -> Documents:
    """The corpus: texts stripped, short ones and duplicates left out, in a stable order.

    Raises:
      UserError: if there is no such file, one cannot be read (names it, and the line), the column
        is missing or empty, or no document is long enough.
    """
    if corpus.source == "docstrings":
        texts, records = docstrings.read(progress=lambda *n: progress("read docstrings", *n))
        origin: dict[str, Any] = {"packages": docstrings.versions()}
    else:
        texts, records, names = files.read(
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
    distinct = [kept[i] for i in duplicates.distinct([texts[i] for i in kept])]
    final = distinct
    if corpus.deduplicate == "near":
        near = [texts[i] for i in distinct]
        label = "find near duplicates"
        final = [distinct[i] for i in duplicates.without_near(near, lambda *n: progress(label, *n))]
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
    return Documents(chosen, [records[i] for i in final], digest, provenance)


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 of the texts in order, each preceded by its length in bytes (8, little-endian)."""
    digest = hashlib.sha256()
    for text in texts:
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def build(
    config_corpus: config.Corpus,
    config_tokenizer: config.Tokenizer,
    config_population: config.Population,
    folder: Path,
    progress: population.Progress = _silent,
) -> population.Population:
    """Makes sure that the folder holds the population of these settings, and opens it.

    A population that is there is checked (its own hashes, the settings and, for docstrings, the
    versions of the packages) and used as it is: it is the data set for ever, so the source files
    are not read again and may have changed or gone. Otherwise the corpus is read, all checks are
    made, the tokenizer is trained, and only then is anything written, even the folder above.
    Processes that build one folder at once write one after another, and the later ones use what
    the first one wrote.

    Args:
      config_corpus: where the documents come from.
      config_tokenizer: vocabulary, trained or given.
      config_population: 2N, seed and length.
      folder: where the population is or goes; beside it lies a hidden lock file.
      progress: called often during every step.

    Raises:
      UserError: bad input of any kind, a corrupt population, or one of other settings.
    """
    settings: dict[str, Any] = {
        f"{name}.{field}": value
        for name, section in (("corpus", config_corpus), ("tokenizer", config_tokenizer))
        for field, value in dataclasses.asdict(section).items()
    }
    expected = settings | {
        f"population.{field}": value
        for field, value in dataclasses.asdict(config_population).items()
    }
    if _occupied(folder):
        return _reuse(folder, expected)
    model = b""
    if config_tokenizer.path:
        path = Path(config_tokenizer.path)
        load_tokenizer(path, config_tokenizer.vocab_size)
        model = path.read_bytes()
    documents = read(config_corpus, progress)
    population.check_samples(config_population.samples, len(documents))
    if not model:
        progress("train tokenizer", 0, 1)
        model = train_tokenizer(documents.texts, config_tokenizer.vocab_size)
        progress("train tokenizer", 1, 1)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if _occupied(folder):
            return _reuse(folder, expected)
        return population.write(
            folder,
            documents,
            model,
            seed=config_population.seed,
            samples=config_population.samples,
            length_tokens=config_population.length_tokens,
            settings=settings,
            provenance=documents.provenance,
            progress=progress,
        )


def _occupied(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _reuse(folder: Path, expected: dict[str, Any]) -> population.Population:
    """The population in the folder; UserError, a line for each difference, if it is another one."""
    found = population.open_population(folder)
    settings = found.manifest["settings"]
    way_out = "set it back, or use another --workdir"
    different = [
        f"{name}={expected.get(name)!r}: the population in {folder} was built with "
        f"{settings.get(name)!r}; {way_out}"
        for name in sorted(expected.keys() | settings.keys())
        if expected.get(name) != settings.get(name)
    ]
    if not different and expected["corpus.source"] == "docstrings":
        built, now = found.manifest["provenance"]["packages"], docstrings.versions()
        different = [
            f"corpus.source='docstrings': the population in {folder} was read from {package} "
            f"{built.get(package)}, but {now.get(package)} is installed; install that version, or "
            "use another --workdir"
            for package in sorted(built.keys() | now.keys())
            if built.get(package) != now.get(package)
        ]
    if different:
        raise UserError("\n".join(different))
    return found
