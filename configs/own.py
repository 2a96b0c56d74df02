"""An audit of your own texts, whose sizes are chosen from the texts.

    lm-mia run --config=own:texts --workdir=runs/own
    lm-mia run --config=own:data.jsonl,column=body --workdir=runs/own
    lm-mia run --config=own:texts,fig05,cpu --workdir=runs/own-figures

The argument is PATH[,column=NAME][,[FIGURE,]SETTING]. PATH is a folder of .txt files, one document each; or a .jsonl,
.jsonl.gz or .parquet file (or a glob of them) with a column of texts, which is called text unless column=NAME names
another. A relative path is relative to the current folder.

Without SETTING, the number of samples, the vocabulary, the batch size, the false positive rates and whether samples are
extracted follow from the documents. The choices are printed. With fewer than 100 documents, each document is split
into many samples. Flags override all of this, such as --config.population.samples=500.

With SETTING, which is cpu, gpu or paper, the figures of strongmia.py are drawn from the texts, with its numbers of
samples. --config.compare_with_papers=True shows the numbers of the paper beside them. Requirements at cpu: 7,168
documents of 20 characters or more for all figures, 3,328 for fig01, and 2,304 for fig05 and for tab01 to tab06. At gpu,
fig05 requires 33,792 documents of any length. Exact duplicates are dropped, and the tokenizer is trained on all
documents.

Cost: 48 models with 0.1M parameters on at most 2,000 samples: about a minute for 300 documents on 2 cores. Comparing
30,000 documents with each other takes another 40 seconds. With SETTING, as for strongmia.py.

Expect a report page like that of quickstart.py. The numbers depend on the texts.
"""

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import quickstart
import strongmia

from lm_mia.config import Config, Corpus, Extract, Population, Tokenizer
from lm_mia.errors import UserError

MIN_SAMPLES, MAX_SAMPLES = 100, 2_000
LENGTH_TOKENS = 64
MIN_CHARS = 20
LONG_PIECE_CHARS = 6
"""A token has at most this many characters on average, so that texts of 6 x 64 characters have 64 tokens or more."""
MAX_VOCABULARY = 1_000
VOCABULARY_CHARS = 4_000_000
"""Characters of the documents that the vocabulary is trained on, which takes half a minute."""


def get_config(arg: str = "") -> Config:
    corpus, setting = _parse(arg)
    if setting:
        config = strongmia.get_config(setting)
        corpus = dataclasses.replace(
            config.corpus,
            source=corpus.source,
            path=corpus.path,
            column=corpus.column,
            deduplicate="exact",
        )
        tokenizer = dataclasses.replace(config.tokenizer, documents=0)
        return dataclasses.replace(
            config, corpus=corpus, tokenizer=tokenizer, compare_with_papers=False
        )
    return _sized(corpus)


def sweep(arg: str = "") -> Iterator[dict[str, Any]]:
    _, setting = _parse(arg)
    return strongmia.sweep(setting) if setting else iter(())


def _parse(arg: str) -> tuple[Corpus, str]:
    """Returns the corpus, and the argument of strongmia.py; the latter is empty if there is none."""
    path, *rest = arg.split(",")
    if not path:
        raise UserError(
            "--config=own: the path of the texts is missing; write it after a colon, as in --config=own:texts"
        )
    column = "text"
    if rest and rest[0].startswith("column="):
        column = rest.pop(0).removeprefix("column=")
    suffixes = {"parquet": (".parquet",), "jsonl": (".jsonl", ".jsonl.gz")}
    source: Any = next((name for name, ends in suffixes.items() if path.endswith(ends)), "text")
    # An absolute path, so that later commands and jobs may start in another folder.
    path = os.path.abspath(Path(path).expanduser())
    return Corpus(source, path, column, min_chars=MIN_CHARS), ",".join(rest)


def _sized(corpus: Corpus) -> Config:
    """Returns the config of an audit, and prints what it was chosen from."""
    # Imported here because it loads scipy, which the figures of strongmia.py do not need.
    from lm_mia.data.corpus import read

    documents = read(corpus)
    texts = documents.texts
    _say(f"{_counted(documents.provenance)} in {corpus.path}")
    # Samples with the same tokens would be one sample, and each token has one character or more.
    samples = len({" ".join(text.split())[: LENGTH_TOKENS - 1] for text in texts})
    long_texts = sum(len(text) >= LONG_PIECE_CHARS * LENGTH_TOKENS for text in texts)
    if is_split := samples < MIN_SAMPLES:
        pieces = {piece for text in texts for piece in _long_pieces(text)}
        if len(pieces) < MIN_SAMPLES:
            raise UserError(
                f"--config=own: {corpus.path} has {samples} distinct documents with about {len(pieces)} pieces of "
                f"{LENGTH_TOKENS} tokens; an audit needs {MIN_SAMPLES} documents or pieces, so add texts"
            )
        _say(
            f"fewer than {MIN_SAMPLES} distinct documents, so each is split into samples of {LENGTH_TOKENS} tokens; "
            "members are then pieces, and a document usually has pieces of both kinds"
        )
        samples = long_texts = len(pieces)
    samples = min(_round_down(samples), MAX_SAMPLES)
    vocabulary, trained_documents = _vocabulary(texts)
    fprs, focus = _rates(samples // 2)
    extracted = min(long_texts, samples) // 2 if long_texts >= MIN_SAMPLES else 0
    _say(
        f"{samples:,} samples, a vocabulary of {vocabulary:,} pieces, and false positive rates from {fprs[0]:.3g} on; "
        + (
            f"the {extracted:,} samples with the highest scores are extracted"
            if extracted
            else f"no extraction, since too few documents have {LENGTH_TOKENS} tokens"
        )
    )
    usual = quickstart.get_config()
    return dataclasses.replace(
        usual,
        name="own",
        corpus=dataclasses.replace(corpus, split_documents=is_split),
        tokenizer=Tokenizer(vocab_size=vocabulary, documents=trained_documents),
        population=Population(samples=samples, length_tokens=LENGTH_TOKENS),
        # About as many steps for few samples as for many.
        train=dataclasses.replace(usual.train, batch_size=max(min(samples // 60, 16), 1)),
        attack=dataclasses.replace(usual.attack, fprs=fprs, focus_fpr=focus),
        extract=Extract(
            samples=extracted, prefix_tokens=LENGTH_TOKENS // 2, suffix_tokens=LENGTH_TOKENS // 2
        ),
    )


def _say(text: str) -> None:
    print(f"own: {text}", file=sys.stderr)


def _counted(provenance: dict[str, Any]) -> str:
    """Returns the number of documents, and of those that were left out for each reason."""
    reasons = {
        "not UTF-8": len(provenance.get("files_not_utf8", ())),
        f"shorter than {MIN_CHARS} characters": provenance["too_short"],
        "exact duplicates": provenance["exact_duplicates"],
        "near duplicates": provenance["near_duplicates"],
    }
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items() if count)
    return f"{provenance['documents']:,} documents" + (
        f" (left out: {left_out})" if left_out else ""
    )


def _long_pieces(text: str) -> Iterator[str]:
    """Yields consecutive pieces of a text that certainly have the tokens of a sample."""
    size = LONG_PIECE_CHARS * LENGTH_TOKENS
    return (text[low : low + size] for low in range(0, len(text) - size + 1, size))


def _round_down(samples: int) -> int:
    """Returns a number with two digits that are not 0, so that a few new files do not change it."""
    unit = 10 ** (len(str(samples)) - 2)
    return samples // unit * unit


def _vocabulary(texts: Sequence[str]) -> tuple[int, int]:
    """Returns the number of pieces, and the number of documents to train on; 0 documents: all.

    A sentencepiece model has a piece for each frequent character, and the texts support one for most repeated words.
    Texts with many characters, such as Chinese, have at least as many pieces as characters.
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


def _rates(nonmembers: int) -> tuple[tuple[float, ...], float]:
    """Returns the false positive rates that this many non-members show, and the lowest one that ten of them show."""
    rates = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    shown = tuple(rate for rate in rates if rate * nonmembers >= 1)
    return shown, next(rate for rate in (0.05, 0.1, 0.2) if rate * nonmembers >= 10)
