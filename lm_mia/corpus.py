"""The first stage: documents of a source become a population.

Documents come from the docstrings of our dependencies, from files or from C4. Another source only has to return what
`Corpus` says: the rest asks for items, their number, a hash and the provenance, no more.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from lm_mia import c4, config, docstrings, documents, files, population, vocabulary
from lm_mia.documents import Progress, silent
from lm_mia.errors import UserError
from lm_mia.tokenizer import load_tokenizer


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


def open_corpus(corpus: config.Corpus, progress: Progress = silent) -> Corpus:
    """The documents of any source; of C4 they are looked up, not read."""
    return c4.open_records(corpus.path) if corpus.source == "c4" else read(corpus, progress)


Opens = Callable[[config.Corpus, Progress], Corpus]


def remembering() -> Opens:
    """`open_corpus` for populations of one corpus: as long as it is asked for the same one, it reads that once."""
    return functools.lru_cache(maxsize=1)(open_corpus)


def read(corpus: config.Corpus, progress: Progress = silent) -> Documents:
    """The documents of docstrings or files: stripped, short ones and duplicates left out, in a stable order.

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
    distinct = kept
    from lm_mia import (
        duplicates,
    )  # here: scipy takes half a second, and most commands find a population

    if corpus.deduplicate != "none":
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
    progress: Progress = silent,
    say: Callable[[str], None] = lambda line: None,
    opens: Opens = open_corpus,
) -> population.Population:
    """Makes sure that the folder holds the population of these settings, and opens it.

    A population that is there is checked (its own hashes, the settings and, for docstrings, the versions of the
    packages) and used as it is: it is the data set for ever, so the source files are not read again and may have
    changed or gone. Otherwise the corpus is read, all checks are made, the tokenizer is trained, and only then is
    anything written, even the folder above. Processes that build one folder at once write one after another, and the
    later ones use what the first one wrote; a killed one's vocabulary and samples are used by the next, and so is the
    vocabulary of a population beside (the sweep's others) that was trained on the same.

    Args:
      config_corpus: where the documents come from, and how many processes tokenise them.
      config_tokenizer: vocabulary, trained or given.
      config_population: 2N, seed, length, and what else is drawn or counted.
      folder: where the population is or goes; beside it lies a hidden lock file.
      progress: called often during every step.
      say: told what a killed command had left, and of processes lost.
      opens: `open_corpus`, or what `remembering` gives.

    Raises:
      UserError: bad input of any kind, a corrupt population, or one of other settings.
    """
    settings: dict[str, Any] = {
        f"{name}.{field}": value
        for name, section in (("corpus", config_corpus), ("tokenizer", config_tokenizer))
        for field, value in dataclasses.asdict(section).items()
        if f"{name}.{field}" != "corpus.processes"  # says how fast, not what
    }
    if folder.is_symlink():  # to a population that several workdirs share
        folder = folder.resolve()
    p = config_population
    expected = settings | {f"population.{k}": v for k, v in dataclasses.asdict(p).items()}
    if _occupied(folder):
        return _reuse(folder, expected)
    given = Path(config_tokenizer.path) if config_tokenizer.path else None
    if given:
        load_tokenizer(given, config_tokenizer.vocab_size)
    source = opens(config_corpus, progress)
    which = "to draw from" + _left_out(source.provenance)
    population.check_samples(p.samples, p.validation_samples, len(source), which=which)
    *_, min_chars = trained_on = _trained_on(expected)
    of_vocabulary = [source.sha256, *trained_on, metadata.version("sentencepiece")]
    saved = _saved(folder, of_vocabulary)
    if given:
        model = given.read_bytes()
    elif saved.exists():
        say("vocabulary: trained by an earlier command")
        model = saved.read_bytes()
    elif beside := _beside(folder, of_vocabulary):
        say(f"vocabulary: that of {beside.parent}, which was trained on the same documents")
        model = beside.read_bytes()
    else:
        model = vocabulary.train(source, *trained_on, progress)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if _occupied(folder):
            return _reuse(folder, expected)
        if not given:
            saved.parent.mkdir(exist_ok=True)
            saved.with_suffix(".new").write_bytes(model)
            os.replace(saved.with_suffix(".new"), saved)
        return population.write(
            folder,
            source,
            model,
            **dataclasses.asdict(p),
            min_chars=min_chars,
            processes=config_corpus.processes,
            settings=settings,
            provenance=source.provenance,
            progress=progress,
            say=say,
        )


def _left_out(provenance: Mapping[str, Any]) -> str:
    """How many documents were read, and why not all of them are drawn from; nothing if all are."""
    kinds = ("too_short", "exact_duplicates", "near_duplicates")
    lost = [f"{kind.replace('_', ' ')}: {n}" for kind in kinds if (n := provenance.get(kind, 0))]
    return f" ({provenance['documents_read']} read; {', '.join(lost)})" if lost else ""


def facts(found: population.Population) -> list[str]:
    """Lines that say what a population is and what it was made of."""
    of_corpus, model = found.manifest["provenance"], found.manifest["files"]["tokenizer.model"]
    drawn, k = of_corpus["draw"], found.manifest["settings"]["population.distinct_prefix_tokens"]
    lines = [
        f"corpus: {of_corpus['documents']} documents, sha256 {of_corpus['corpus_sha256']}",
        f"vocabulary: {found.vocab_size} pieces, sha256 {model['sha256']}",
        f"population: {len(found)} samples, sha256 {found.sha256}",
    ]
    if found.validation:
        lines.append(f"held out: {len(found.validation)} samples, sha256 {found.validation.sha256}")
    if passed_over := drawn["too_short"] + drawn["prefix_duplicates"]:
        lines.append(
            f"drawn: {drawn['documents']} documents, {passed_over} of them left out ({drawn['too_short']} too short, "
            f"{drawn['prefix_duplicates']} with the first {k} tokens of another)"
        )
    return lines


def _trained_on(settings: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """What `vocabulary.train` asks for beside documents, of a population's settings."""
    # Of other sources short documents were left out when they were read.
    min_chars = settings["corpus.min_chars"] if settings["corpus.source"] == "c4" else 0
    of_tokenizer = settings["tokenizer.vocab_size"], settings["tokenizer.documents"]
    return *of_tokenizer, settings["population.seed"], min_chars


def _saved(folder: Path, of_vocabulary: list[Any]) -> Path:
    """Where a vocabulary is kept until the population is whole; the name says what it was trained on."""
    digest = hashlib.sha256(json.dumps(of_vocabulary).encode()).hexdigest()[:16]
    return population.unfinished(folder) / f"vocabulary-{digest}.model"


def _beside(folder: Path, of_vocabulary: list[Any]) -> Path | None:
    """The vocabulary of a population beside, if one was trained on the same."""
    for path in sorted(folder.parent.glob("*/manifest.json")):
        # One that is damaged is told of where it is used; `build` made none without these settings.
        with contextlib.suppress(UserError, KeyError):
            found = population.open_population(path.parent, verify=False)
            made, sha256 = found.manifest["settings"], found.manifest["provenance"]["corpus_sha256"]
            alike = [sha256, *_trained_on(made), found.manifest["versions"]["sentencepiece"]]
            if alike == of_vocabulary and not made["tokenizer.path"]:
                population.open_population(path.parent)  # now every byte of it
                return path.with_name("tokenizer.model")
    return None


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
    # Left by a command that was killed between its last two steps.
    shutil.rmtree(population.unfinished(folder), ignore_errors=True)
    return found
