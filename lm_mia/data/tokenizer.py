"""Trains a sentencepiece vocabulary, or loads one, whose special pieces may have any IDs."""

import functools
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from lm_mia import seeds
from lm_mia.data.documents import Documents, ProgressCallback, select
from lm_mia.errors import UserError

SPECIAL_IDS = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
"""Special IDs of vocabularies that are trained here. Those of a given model are read from it and may differ. <pad> is
never used, since padding has no effect."""
TRAINER_THREADS = 2
"""A constant, because the vocabulary depends on the number of threads."""
_NORMALIZATION = "nmt_nfkc"
_COVERAGE = (
    0.9995  # of the characters of the texts, by the most frequent ones; the others are <unk>
)
_CHUNK_CHARS = 16_000  # longer texts are split
_READ_DOCUMENTS = 4096  # documents read at a time


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """Trains a sentencepiece unigram model with exactly ``vocab_size`` pieces on all texts.

    The same texts give the same bytes, since the number of threads is fixed and all texts are used. Newlines are
    treated as spaces, as in encoding.

    Returns:
      The serialized model.

    Raises:
      UserError: if the texts do not support a vocabulary of this size; the message names a possible one.
    """
    out = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_chunks(texts),
            model_writer=out,
            vocab_size=vocab_size,
            model_type="unigram",
            pad_id=SPECIAL_IDS["pad"],
            eos_id=SPECIAL_IDS["eos"],
            bos_id=SPECIAL_IDS["bos"],
            unk_id=SPECIAL_IDS["unk"],
            pad_piece="<pad>",
            character_coverage=_COVERAGE,
            max_sentence_length=65_536,
            num_threads=TRAINER_THREADS,
            shuffle_input_sentence=False,
            input_sentence_size=0,
            normalization_rule_name=_NORMALIZATION,
            minloglevel=2,
        )
    except RuntimeError as error:
        message = str(error)
        rule = f"sentencepiece cannot train it ({message}); try another size"
        if high := re.search(r"value <= (\d+)", message):
            rule = f"the corpus supports at most {high[1]} pieces; use at most {high[1]}"
        elif low := re.search(r"required_chars\. \d+ vs (\d+)", message):
            rule = f"the corpus has more distinct characters than that; use at least {low[1]}"
        raise UserError(f"tokenizer.vocab_size={vocab_size}: {rule}") from None
    return out.getvalue()


def _chunks(texts: Iterable[str]) -> Iterator[str]:
    # sentencepiece ignores "sentences" of more than 65,536 bytes.
    flat = (text.replace("\n", " ") for text in texts)
    return (text[k : k + _CHUNK_CHARS] for text in flat for k in range(0, len(text), _CHUNK_CHARS))


def normalize(text: str) -> str:
    """Returns what the vocabularies that are trained here are made for: a text in NFKC, with U+2581 for white space.

    Control characters and zero-width spaces are removed, and the text begins with U+2581 unless nothing is left.
    """
    return _normalizer().Normalize(text)


@functools.cache
def _normalizer() -> Any:
    return sentencepiece.SentencePieceNormalizer(rule_name=_NORMALIZATION)


def has_visible_characters(text: str) -> bool:
    """Returns whether a text has more than white space, U+2581, control and format characters such as U+200D.

    Other texts have no token, or only <unk>.
    """
    if re.search(r"[!-~]", text):
        return True
    rest = normalize(text).replace("\u2581", "")
    return any(unicodedata.category(character) not in ("Cc", "Cf") for character in rest)


def covered_characters(texts: Iterable[str]) -> frozenset[str]:
    """Returns the characters that a vocabulary of any size has as pieces if it is trained on these texts."""
    # sentencepiece ignores texts with U+2585, which it uses itself, and does not count NUL characters.
    counts = Counter[str]()
    for chunk in _chunks(texts):
        if "\u2585" not in chunk:
            counts.update(normalize(chunk))
    counts.pop("\0", None)
    total, covered, characters = counts.total(), 0, set[str]()
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered / total >= _COVERAGE:
            break
        covered += count
        characters.add(character)
    return frozenset(characters)


def beginning(text: str, covered: Container[str], length: int) -> str:
    """Returns the first characters of a normalized text in which each run of characters that are not covered is a NUL.

    Such a run is a single <unk>, and every token stands for one or more of these characters. If they differ, the first
    ``length`` tokens of the texts therefore differ, too, whatever the size of the vocabulary.

    Args:
      text: any text.
      covered: the characters that the vocabulary has; see `covered_characters`.
      length: the maximum number of characters.
    """
    characters: list[str] = []
    for character in normalize(text):
        if character in covered:
            characters.append(character)
        elif characters[-1:] != ["\0"]:
            characters.append("\0")
        if len(characters) == length:
            break
    return "".join(characters)


def load_tokenizer(
    model: Path | bytes, vocab_size: int | None = None
) -> sentencepiece.SentencePieceProcessor:
    """Loads and checks a tokenizer.

    Args:
      model: a .model file, or its content.
      vocab_size: the required number of pieces; None accepts any number.

    Raises:
      UserError: if the file is missing or is not a sentencepiece model, if it has no <bos> or no <eos>, or if the
        number of pieces differs from ``vocab_size``.
    """
    name = "tokenizer.path" if isinstance(model, bytes) else f"tokenizer.path={str(model)!r}"
    try:
        raw = model if isinstance(model, bytes) else model.read_bytes()
    except OSError as error:
        raise UserError(
            f"{name}: cannot be read ({error.strerror}); give a sentencepiece .model file, or "
            "leave it empty to train one"
        ) from None
    try:
        if not raw:
            raise RuntimeError("it is empty")
        spm = sentencepiece.SentencePieceProcessor(model_proto=raw)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name}: sentencepiece cannot read it ({reason}); give a .model file, or leave it empty to train one"
        ) from None
    missing = [f"<{s}>" for s, i in (("bos", spm.bos_id()), ("eos", spm.eos_id())) if i < 0]
    if missing:
        raise UserError(
            f"{name}: the model has no {' and no '.join(missing)}, but each sample begins with <bos> and ends with "
            "<eos>; give a model that has both, or leave tokenizer.path empty to train one"
        )
    size = spm.get_piece_size()
    if vocab_size is not None and size != vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size}: {name} has {size} pieces; "
            f"set --config.tokenizer.vocab_size={size}"
        )
    return spm


def train_on_corpus(
    source: Documents,
    vocab_size: int,
    documents: int,
    seed: int,
    min_chars: int,
    progress: ProgressCallback,
) -> bytes:
    """Trains a sentencepiece model on documents of a corpus; the same arguments give the same bytes.

    Args:
      source: the corpus.
      vocab_size: number of pieces.
      documents: number of documents to train on, drawn at random; 0, or more than the corpus has: all.
      seed: seed of the draw, whose purpose is "tokenizer/documents".
      min_chars: drawn documents with fewer characters are replaced by the next ones of the draw.
      progress: called after every few thousand documents.

    Returns:
      The serialized model.

    Raises:
      UserError: if no document is long enough, or if the documents do not support a vocabulary of this size.
    """
    reading_errors: list[BaseException] = []

    def texts() -> Iterator[str]:
        try:
            yield from training_texts(source, documents, seed, min_chars, progress)
        except BaseException as error:
            reading_errors.append(error)  # sentencepiece would raise another error instead
            raise

    progress("train tokenizer", 0, 1)
    try:
        model = train_tokenizer(texts(), vocab_size)
    except UserError:
        if reading_errors:
            raise reading_errors[0] from None
        raise
    progress("train tokenizer", 1, 1)
    return model


def training_texts(
    source: Documents, num_documents: int, seed: int, min_chars: int, progress: ProgressCallback
) -> Iterator[str]:
    """Yields the texts that `train_on_corpus`, which has the same arguments, trains on.

    They are the first texts of a draw that are long enough, those of each round in the order of the corpus; fewer than
    ``num_documents`` if the corpus has fewer. K: documents of a round.
    """
    if not num_documents:
        yield from (source[i][0] for i in range(len(source)))
        return
    drawn = num_found = 0
    while num_found < num_documents and drawn < len(source):
        total = min(drawn + num_documents - num_found, len(source))
        index_K = np.sort(seeds.draw(seed, "tokenizer/documents", len(source), total)[drawn:])
        drawn = total
        for low in range(0, len(index_K), _READ_DOCUMENTS):
            batch = select(source, index_K[low : low + _READ_DOCUMENTS])
            long_enough = [text for text, *_ in batch if len(text) >= min_chars]
            yield from long_enough
            num_found += len(long_enough)
            progress("read documents for the vocabulary", num_found, num_documents)
    if not num_found:
        raise UserError(
            f"corpus.min_chars={min_chars}: all documents of the corpus have fewer characters; use a smaller number"
        )
