"""An audit of models on your own texts, with sizes that are chosen to fit the texts.

    lm-mia run --config=own:texts --workdir=runs/own
    lm-mia run --config=own:data.jsonl,column=body --workdir=runs/own
    lm-mia run --config=own:texts,fig05,cpu --workdir=runs/own-figures

The argument is PATH[,column=NAME][,[FIGURE,]SETTING]. PATH is a file, a folder or a glob. Each .txt or .md file is one
document; .jsonl, .json (one object per line), .csv and .parquet files have a column of texts, which is called text
unless column=NAME gives another name. All but .parquet files may be compressed by gzip or zstd. A glob must match files
of one of these kinds; of a folder, those of one kind are read, preferably .txt files, and the others are counted. A
relative path is relative to the current folder.

Without SETTING, the number of samples, the vocabulary, the batch size, the false positive rates and whether samples are
extracted are chosen to fit the documents, and are printed. With fewer than 100 documents, each document is split into
many samples. Flags override these choices, for example --config.population.samples=500. Later commands and jobs need
not read the documents again to make the same choices, unless a file was added, removed or changed.

With SETTING, which is cpu, gpu or paper, the figures of strongmia.py are drawn from the texts, with its numbers of
samples; recipes are named by layers and width. --config.compare_with_papers=True shows the numbers of the
paper beside them. Requirements at cpu: 7,168 documents of 20 characters or more for all figures, 3,328 for fig01, and
2,304 for fig05 and for tab01 to tab06. At gpu, fig05 requires 33,792 documents of any length. Exact duplicates are
dropped, and the vocabulary is trained on all documents.

Cost: 48 models with 0.1M parameters on at most 2,000 samples: about a minute for 300 documents on 2 cores. Comparing
30,000 documents with each other takes another 40 seconds. With SETTING, the cost is that of strongmia.py.

Expect a report page like that of quickstart.py. The numbers depend on the texts.
"""

import dataclasses
import glob
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import quickstart
import strongmia

from lm_mia.config import (
    MODEL_SIZES,
    Config,
    Corpus,
    Extract,
    Population,
    Tokenizer,
)
from lm_mia.data import texts as text_reader
from lm_mia.data.documents import no_progress
from lm_mia.errors import UserError

MIN_SAMPLES, MAX_SAMPLES = 100, 2_000
LENGTH_TOKENS = 64
MIN_CHARS = 20
LONG_CHARS = 6 * LENGTH_TOKENS
"""Characters of a text that is taken to have 64 tokens: a token rarely has more than 6 characters on average."""
MAX_VOCABULARY = 1_000
VOCABULARY_CHARS = 4_000_000
"""Characters of the documents that the vocabulary is trained on, which takes half a minute."""


def get_config(arg: str = "") -> Config:
    corpus, setting = parse(arg)
    if setting:
        config = strongmia.get_config(setting)
        config = dataclasses.replace(config, name=_own_name(config))
        corpus = dataclasses.replace(
            config.corpus,
            source=corpus.source,
            path=corpus.path,
            column=corpus.column,
            deduplicate="exact",
        )
        tokenizer = dataclasses.replace(config.tokenizer, documents="all")
        return dataclasses.replace(
            config, corpus=corpus, tokenizer=tokenizer, compare_with_papers=False
        )
    return sized(corpus)


def sweep(arg: str = "") -> Iterator[dict[str, Any]]:
    """Yields the recipes of strongmia.py under names with their own model sizes, and again under their original names.

    Figures find the recipes by the original names, such as flip-140M for flip-2x64; report pages do not show these.
    """
    _, setting = parse(arg)
    if not setting:
        return
    first, setting_name = strongmia.get_config(setting), cast(Any, setting.rpartition(",")[2])
    if _own_name(first) != first.name:
        yield {"name": first.name}
    for entry in strongmia.sweep(setting):
        own_name = _own_name(strongmia.recipe(setting_name, entry["name"]))
        if own_name != entry["name"]:
            yield entry | {"name": own_name}
        yield entry


def _own_name(c: Config) -> str:
    """Returns the name of a recipe with layers x width of its models instead of the size of the paper's models."""
    model = c.model
    size = f"{model.layers}x{model.width}" if model.size == "custom" else model.size
    return "-".join(size if part in MODEL_SIZES else part for part in c.name.split("-"))


def parse(arg: str) -> tuple[Corpus, str]:
    """Returns the corpus, and the argument for strongmia.py, which is empty if there is none."""
    path, *rest = arg.split(",")
    if not path:
        raise UserError(
            "--config=own: the path of the texts is missing; write it after a colon, as in --config=own:texts"
        )
    names = [",".join([path, *rest[:count]]) for count in range(1, len(rest) + 1)]
    if not _exists(path) and any(map(_exists, names)):
        raise UserError(
            f"--config=own:{arg}: the path ends at the first comma, and {path} does not exist; rename the file or "
            "folder, or make a symbolic link whose name has no comma"
        )
    column = "text"
    if rest and rest[0].startswith("column="):
        column = rest.pop(0).removeprefix("column=")
    # Absolute, so that later commands and jobs may start in another folder.
    path = os.path.abspath(Path(path).expanduser())
    source: Any = _source(path, is_required=not rest)
    return Corpus(source, path, column, min_chars=MIN_CHARS), ",".join(rest)


def _source(path: str, *, is_required: bool) -> str:
    """Returns the source that reads a path; raises UserError if there is none, or no file is there but is required."""
    try:
        text_reader.find_files(None, path)
    except UserError:
        if is_required:
            raise
        return text_reader.FORMATS.get(text_reader.suffix(path), "text")
    return text_reader.source_of(path)


def _exists(path: str) -> bool:
    """Returns whether a path exists, or a glob has matches."""
    path = os.path.expanduser(path)
    return os.path.exists(path) or bool(glob.glob(path, recursive=True))


def sized(corpus: Corpus, *, trains_vocabulary: bool = True) -> Config:
    """Returns the config of an audit, and prints which sizes were chosen and why."""
    # Imported here because it loads pyarrow, which the figures of strongmia.py do not need.
    from lm_mia.data.reading_cache import load_or_compute

    facts = _Facts(**load_or_compute(corpus, Path(__file__), lambda: _read_facts(corpus)))
    _say(f"{facts.documents} in {corpus.path}")
    if others := facts.files_not_read:
        readable = [suffix for suffix in text_reader.FORMATS if suffix in others]
        _say(
            f"not read: {text_reader.describe_suffixes(others)} in the folder"
            + "".join(
                f"; --config=own:'{corpus.path}/**/*{suffix}' reads those instead"
                for suffix in readable[:1]
            )
        )
    is_split = facts.samples < MIN_SAMPLES
    if is_split and facts.pieces < MIN_SAMPLES:
        raise UserError(
            f"--config=own: {corpus.path} has {facts.samples} distinct documents with {facts.pieces} pieces of "
            f"{LONG_CHARS} characters (about {LENGTH_TOKENS} tokens); an audit needs {MIN_SAMPLES} documents or "
            "pieces; add texts"
        )
    if is_split:
        _say(
            f"fewer than {MIN_SAMPLES} distinct documents, so each is split into samples of {LENGTH_TOKENS} tokens; "
            "members are then drawn among the pieces, and a document usually has pieces of both kinds"
        )
    available, long_texts = (
        (facts.pieces, facts.pieces) if is_split else (facts.samples, facts.long_texts)
    )
    samples = min(_round_down(available), MAX_SAMPLES)
    if is_split:
        _say(
            f"documents are drawn in random order until there are {samples:,} pieces, so not all may be used; "
            "a larger --config.population.samples uses more of them"
        )
    fprs = _rates(samples // 2)
    extracted = min(long_texts, samples) // 2 if long_texts >= MIN_SAMPLES else 0
    vocabulary = f"a vocabulary of {facts.vocabulary:,} pieces, " if trains_vocabulary else ""
    _say(
        f"{samples:,} samples, {vocabulary}and false positive rates of {fprs[0]:.3g} and more; "
        + (
            f"the {extracted:,} samples with the highest scores are extracted"
            if extracted
            else f"no extraction, since {long_texts:,} documents have {LONG_CHARS} characters (about {LENGTH_TOKENS} "
            f"tokens) or more, and {MIN_SAMPLES} are needed"
        )
    )
    quickstart_config = quickstart.get_config()
    return dataclasses.replace(
        quickstart_config,
        name="own",
        corpus=dataclasses.replace(corpus, split_documents=is_split),
        tokenizer=Tokenizer(
            vocab_size=facts.vocabulary, documents=facts.vocabulary_documents or "all"
        ),
        population=Population(samples=samples, length_tokens=LENGTH_TOKENS),
        # So that few samples are trained on for about as many steps as many samples.
        train=dataclasses.replace(
            quickstart_config.train, batch_size=max(min(samples // 60, 16), 1)
        ),
        attack=dataclasses.replace(quickstart_config.attack, fprs=fprs),
        extract=Extract(
            samples=extracted, prefix_tokens=LENGTH_TOKENS // 2, suffix_tokens=LENGTH_TOKENS // 2
        ),
    )


@dataclasses.dataclass(frozen=True)
class _Facts:
    """The numbers from which the sizes of an audit are chosen."""

    documents: str
    """The numbers of documents that were kept and left out, in words."""
    files_not_read: dict[str, int]
    """The numbers of other files in the folder, by suffix."""
    samples: int
    """Number of documents that are certainly different samples."""
    long_texts: int
    """Number of documents with `LONG_CHARS` characters or more."""
    pieces: int
    """Number of different pieces of `LONG_CHARS` characters of which at least half have an effect on the tokens; 0 if
    there are enough documents."""
    vocabulary: int
    vocabulary_documents: int
    """Number of documents that the vocabulary is trained on; 0: all."""


def _read_facts(corpus: Corpus) -> dict[str, Any]:
    """Reads the documents, so that the corpus stage of the same command need not read them again."""
    # Imported here because it loads scipy, which later commands do not need.
    from lm_mia.data import tokenizer
    from lm_mia.data.corpus import read_ahead

    documents = read_ahead(corpus)
    texts = documents.texts
    vocabulary, vocabulary_documents = _vocabulary(texts)
    seed = quickstart.get_config().population.seed
    covered = tokenizer.covered_characters(
        tokenizer.training_texts(documents, vocabulary_documents, seed, 0, no_progress)
    )
    # Samples with the same tokens would be one sample.
    samples = len({tokenizer.beginning(text, covered, LENGTH_TOKENS - 1) for text in texts})
    pieces: set[str] = set()
    if samples < MIN_SAMPLES:
        long_pieces = (piece for text in texts for piece in _long_pieces(text))
        pieces = {tokenizer.beginning(piece, covered, LONG_CHARS) for piece in long_pieces}
    facts = _Facts(
        _describe_counts(documents.provenance),
        documents.provenance.get("files_not_read", {}),
        samples,
        sum(len(text) >= LONG_CHARS for text in texts),
        sum(len(piece) >= LONG_CHARS // 2 for piece in pieces),
        vocabulary,
        vocabulary_documents,
    )
    return dataclasses.asdict(facts)


def _say(text: str) -> None:
    print(f"own: {text}", file=sys.stderr)


def _describe_counts(provenance: dict[str, Any]) -> str:
    """Describes how many documents were kept, and how many were left out for each reason."""
    reasons = {
        "not UTF-8": len(provenance.get("files_not_utf8", ())),
        f"shorter than {MIN_CHARS} characters": provenance["too_short"],
        "without visible characters": provenance.get("without_visible_characters", 0),
        "exact duplicates": provenance["exact_duplicates"],
        "near duplicates": provenance["near_duplicates"],
    }
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"{provenance['documents']:,} documents" + (
        f" (left out: {left_out})" if left_out else ""
    )


def _long_pieces(text: str) -> Iterator[str]:
    """Yields consecutive pieces of a text with `LONG_CHARS` characters."""
    begins = range(0, len(text) - LONG_CHARS + 1, LONG_CHARS)
    return (text[low : low + LONG_CHARS] for low in begins)


def _round_down(samples: int) -> int:
    """Rounds down to two significant digits, so that a few new files usually do not change the number."""
    unit = 10 ** (len(str(samples)) - 2)
    return samples // unit * unit


def _vocabulary(texts: Sequence[str]) -> tuple[int, int]:
    """Returns the number of pieces of the vocabulary, and the number of documents to train it on; 0: all.

    A sentencepiece model has a piece for each frequent character, and texts support a further piece for most repeated
    words. For texts with many different characters, such as Chinese, there are at least as many pieces as characters.
    """
    mean_chars = sum(map(len, texts)) / len(texts)
    documents = max(int(VOCABULARY_CHARS / mean_chars), 20)
    counted = texts[:documents]
    characters = set().union(*counted)
    words = Counter(word for text in counted for word in text.split())
    supported = 4 + len(characters) + 3 * sum(count > 1 for count in words.values()) // 4
    pieces = min(max(MAX_VOCABULARY, 2 * len(characters)), supported)
    rounded = _round_down(pieces)
    return (
        rounded if rounded > 4 + len(characters) else pieces,
        0 if documents >= len(texts) else documents,
    )


def _rates(nonmembers: int) -> tuple[float, ...]:
    """Returns the rates at which this many non-members allow a false positive."""
    rates = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    return tuple(rate for rate in rates if rate * nonmembers >= 1)
