"""The sentencepiece vocabulary, trained or given: pad 0, eos 1, bos 2, unk 3."""

import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import sentencepiece

from lm_mia import seeds
from lm_mia.data.documents import Documents, ProgressCallback, select
from lm_mia.errors import UserError

SPECIAL_IDS = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
TRAINER_THREADS = 2
"""Pinned, not the number of cores: the vocabulary depends on it."""
_CHUNK_CHARS = 16_000

_READ = 4096  # documents read at a time


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """A sentencepiece unigram model of exactly that many pieces, trained on all texts.

    The same texts give the same bytes: the number of threads is fixed, and nothing is sampled.
    Newlines count as spaces, as they do when sentencepiece encodes.

    Raises:
      UserError: if the texts support no vocabulary of that size; says which is possible.
    """
    out = io.BytesIO()
    flat = (text.replace("\n", " ") for text in texts)
    # sentencepiece would leave out "sentences" of more than 65,536 bytes.
    chunks = (
        text[k : k + _CHUNK_CHARS] for text in flat for k in range(0, len(text), _CHUNK_CHARS)
    )
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=chunks,
            model_writer=out,
            vocab_size=vocab_size,
            model_type="unigram",
            pad_id=SPECIAL_IDS["pad"],
            eos_id=SPECIAL_IDS["eos"],
            bos_id=SPECIAL_IDS["bos"],
            unk_id=SPECIAL_IDS["unk"],
            pad_piece="<pad>",
            character_coverage=0.9995,
            max_sentence_length=65_536,
            num_threads=TRAINER_THREADS,
            shuffle_input_sentence=False,
            input_sentence_size=0,
            normalization_rule_name="nmt_nfkc",
            minloglevel=2,
        )
    except RuntimeError as error:
        said = str(error)
        rule = f"sentencepiece cannot train it ({said}); try another size"
        if high := re.search(r"value <= (\d+)", said):
            rule = f"the corpus supports at most {high[1]} pieces; use at most {high[1]}"
        elif low := re.search(r"required_chars\. \d+ vs (\d+)", said):
            rule = f"the corpus has more characters than that; use at least {low[1]}"
        raise UserError(f"tokenizer.vocab_size={vocab_size}: {rule}") from None
    return out.getvalue()


def load_tokenizer(
    model: Path | bytes, vocab_size: int | None = None
) -> sentencepiece.SentencePieceProcessor:
    """The tokenizer of a .model file or its bytes, checked.

    Args:
      model: the file or its content.
      vocab_size: the number of pieces to insist on; None accepts any.

    Raises:
      UserError: if the file is missing or no sentencepiece model, if pad, eos, bos, unk are not
        0, 1, 2, 3, or if the number of pieces differs.
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
    except RuntimeError:
        raise UserError(
            f"{name}: no sentencepiece model; give a .model file, or leave it empty to train one"
        ) from None
    found = {s: getattr(spm, f"{s}_id")() for s in SPECIAL_IDS}
    if found != SPECIAL_IDS:
        told = ", ".join(f"{s} {i}" for s, i in found.items())
        raise UserError(
            f"{name}: must have pad 0, eos 1, bos 2, unk 3, but has {told}; train it with "
            "--pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3"
        )
    size = spm.get_piece_size()
    if vocab_size is not None and size != vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size}: {name} holds {size} pieces; "
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
    """A sentencepiece model, as `train_tokenizer` makes it; the same arguments give the same bytes.

    Args:
      source: the corpus.
      vocab_size: pieces.
      documents: trained on so many; 0: all.
      seed: of their draw, whose purpose is "tokenizer/documents".
      min_chars: drawn documents of fewer characters are left out, and the next ones taken.
      progress: called after every few thousand documents read.

    Raises:
      UserError: if there are too few documents, or if they support no vocabulary of that size.
    """
    if documents > len(source):
        raise UserError(
            f"tokenizer.documents={documents}: the corpus has {len(source)} documents; use at most {len(source)}, or 0 "
            "for all"
        )
    stopped: list[BaseException] = []

    def texts() -> Iterator[str]:
        try:
            if documents:
                yield from _drawn(source, documents, seed, min_chars, progress)
            else:
                yield from (source[i][0] for i in range(len(source)))
        except BaseException as error:
            stopped.append(error)  # sentencepiece would make another error of it
            raise

    progress("train tokenizer", 0, 1)
    try:
        model = train_tokenizer(texts(), vocab_size)
    except UserError:
        if stopped:
            raise stopped[0] from None
        raise
    progress("train tokenizer", 1, 1)
    return model


def _drawn(
    source: Documents, wanted: int, seed: int, min_chars: int, progress: ProgressCallback
) -> Iterator[str]:
    """The first texts of a draw that are long enough, each round of them in the order in which they lie."""
    looked = found = 0
    while found < wanted:
        if looked == len(source):
            raise UserError(
                f"tokenizer.documents={wanted}: the corpus has {found} documents of corpus.min_chars={min_chars} or "
                f"more; use at most {found}"
            )
        total = min(looked + wanted - found, len(source))
        index_K = np.sort(seeds.draw(seed, "tokenizer/documents", len(source), total)[looked:])
        looked = total
        for low in range(0, len(index_K), _READ):
            pairs = select(source, index_K[low : low + _READ])
            kept = [text for text, _ in pairs if len(text) >= min_chars]
            yield from kept
            found += len(kept)
            progress("read for the vocabulary", found, wanted)
