"""The sentencepiece vocabulary, trained or given: pad 0, eos 1, bos 2, unk 3."""

import io
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from lm_mia.errors import UserError

SPECIAL = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
TRAINER_THREADS = 2
"""Pinned, not the number of cores: the vocabulary depends on it."""
_CHUNK_CHARS = 16_000


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
            pad_id=SPECIAL["pad"],
            eos_id=SPECIAL["eos"],
            bos_id=SPECIAL["bos"],
            unk_id=SPECIAL["unk"],
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
    found = {s: getattr(spm, f"{s}_id")() for s in SPECIAL}
    if found != SPECIAL:
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
