"""Trains a SentencePiece vocabulary, or loads a given one: a SentencePiece model or a tokenizer.json.

The special tokens of a given vocabulary may have any ids. `normalize`, `covered_characters` and `beginning` are about
vocabularies that are trained here; a given one is taken as it is.

V: pieces of the vocabulary.
"""

import abc
import contextlib
import dataclasses
import functools
import io
import itertools
import json
import multiprocessing
import re
import signal
import traceback
import unicodedata
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import sentencepiece

from lm_mia import interrupts, seeds
from lm_mia.data.documents import Documents, ProgressCallback, select
from lm_mia.errors import UserError

if TYPE_CHECKING:  # loaded only for a tokenizer.json
    import tokenizers

SPECIAL_IDS = {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
"""Special IDs of vocabularies that are trained here. Those of a given model are read from it and may differ. <pad> is
never used, since padding has no effect."""
SPECIAL_PAIRS = (
    ("<s>", "</s>"),  # Llama 2, Mistral, BLOOM, Phi-3
    ("<bos>", "<eos>"),  # Gemma
    ("<|begin_of_text|>", "<|end_of_text|>"),  # Llama 3
    ("<|startoftext|>", "<|endoftext|>"),  # CLIP, Japanese GPT-NeoX
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),  # DeepSeek
    ("[BOS]", "[EOS]"),  # Perceiver
    ("[CLS]", "[SEP]"),  # BERT
    ("<|endoftext|>", "<|endoftext|>"),  # GPT-2, GPT-NeoX, Qwen, SmolLM
)
"""Names of the tokens for the beginning and the end of a text in a tokenizer.json whose post-processor does not add
both; the first pair that the file has is taken. They are those of the tokenizers of Transformers 5.24, and those in the
files of Llama 3 and DeepSeek. Names that only chat templates use, such as <|im_end|>, do not end a text."""
TRAINER_THREADS = 2
"""A constant, because the vocabulary depends on the number of threads."""
_NORMALIZATION = "nmt_nfkc"
_COVERAGE = (
    0.9995  # of the characters of the texts, by the most frequent ones; the others are <unk>
)
_CHUNK_CHARS = 16_000  # longer texts are split
_BATCH_CHARS = 250_000
"""Number of characters that are sent to the process that trains a vocabulary at once; so many take half a second."""
_READ_DOCUMENTS = 4096  # documents read at a time
_UNUSUAL_CHARACTERS = [*map(chr, range(0xE000, 0xF900)), *map(chr, range(0x20000, 0x20100))]
"""Characters for private use, which some normalizers remove, and rare Chinese ones."""
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")


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


def train_apart(texts: Iterable[str], vocab_size: int) -> bytes:
    """As `train_tokenizer`, in a process of its own, so that Ctrl-C need not wait for sentencepiece.

    The texts are read in this process. If they are so few that sentencepiece takes less than a second, it runs here.
    """
    batches = _batches(_chunks(texts))
    first = list(itertools.islice(batches, 2))
    if len(first) < 2:
        return train_tokenizer([text for batch in first for text in batch], vocab_size)
    context = multiprocessing.get_context("spawn")
    connection, trainer_end = context.Pipe()
    process = context.Process(target=_serve_training, args=(trainer_end, vocab_size), daemon=True)
    with interrupts.blocked():
        process.start()
    trainer_end.close()
    try:
        for batch in itertools.chain(first, batches, [None]):
            try:
                connection.send(batch)
            except OSError:  # the process has ended, perhaps with an answer
                break
        try:
            kind, value = connection.recv()
        except (EOFError, OSError) as error:
            process.join()
            raise UserError(
                f"tokenizer.vocab_size={vocab_size}: the process that trains the vocabulary ended with code "
                f"{process.exitcode} (killed, or out of memory?); use fewer --config.tokenizer.documents, or run the "
                "same command again"
            ) from error
    finally:
        process.kill()
        process.join()
        connection.close()
    if kind == "user_error":
        raise UserError(value)
    if kind == "crash":
        raise RuntimeError(f"the process that trains the vocabulary failed:\n{value}")
    return value


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yields the texts in lists of about `_BATCH_CHARS` characters."""
    batch, chars = list[str](), 0
    for text in texts:
        batch.append(text)
        chars += len(text)
        if chars >= _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


def _serve_training(connection: Connection, vocab_size: int) -> None:
    """Main function of the process of `train_apart`: receives lists of texts, and sends the model or an error."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the command handles Ctrl-C, and kills this process

    def texts() -> Iterator[str]:
        while (batch := connection.recv()) is not None:
            yield from batch

    answer: tuple[str, Any]
    try:
        answer = "model", train_tokenizer(texts(), vocab_size)
    except UserError as error:
        answer = "user_error", str(error)
    except Exception:
        answer = "crash", traceback.format_exc()
    with contextlib.suppress(OSError):  # the command is gone
        connection.send(answer)


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


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer(abc.ABC):
    """What turns texts into tokens and tokens into texts: a SentencePiece model or a tokenizer.json."""

    file_name: ClassVar[str]
    """Name of its file in the folder of a population."""
    package: ClassVar[str]
    """The package that reads the file."""

    vocab_size: int
    """The largest id of a token, plus one."""
    bos_id: int | None
    """The token that each sample begins with; None if there is none."""
    eos_id: int | None
    """The token that each sample ends with unless it is cut; GPT-2 uses one token for both. None if there is none."""
    unk_id: int | None
    """The token of unknown characters; None if there is none, as in byte-level vocabularies."""

    @property
    def before(self) -> list[int]:
        """The tokens that each sample begins with: <bos>, or none."""
        return [] if self.bos_id is None else [self.bos_id]

    @property
    def after(self) -> list[int]:
        """The tokens that each sample ends with unless it is cut: <eos>, or none."""
        return [] if self.eos_id is None else [self.eos_id]

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text, without those for the beginning and the end of a sample."""
        return self.encode_batch([text])[0]

    @abc.abstractmethod
    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        """Returns the tokens of each text, as `encode`; -1 allows as many threads as there are cores."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of tokens, without special tokens; a character of which bytes are missing is U+FFFD."""
        return self.decode_batch([ids])[0]

    @abc.abstractmethod
    def decode_batch(self, samples: Sequence[Sequence[int]], num_threads: int = -1) -> list[str]:
        """Returns the text of each sample, as `decode`; -1 allows as many threads as there are cores."""

    @abc.abstractmethod
    def decode_with_unknown(self, samples: Sequence[Sequence[int]]) -> list[str]:
        """Returns the text of each sample, in which an unknown token is a character that has no other token."""

    @abc.abstractmethod
    def piece(self, token: int) -> str:
        """Returns the text that a token stands for, with U+2581 for a space, or the name of a special token."""

    @abc.abstractmethod
    def text_tokens(self) -> list[int]:
        """Returns the tokens that stand for text: no special tokens, and no bytes of characters."""

    @abc.abstractmethod
    def chars_from(self, text: str, token: int) -> int:
        """Returns the number of characters of a text from one of its tokens on; 0 behind the last token."""


@dataclasses.dataclass(frozen=True, eq=False)
class SentencePieceTokenizer(Tokenizer):
    """A SentencePiece model."""

    file_name: ClassVar[str] = "tokenizer.model"
    package: ClassVar[str] = "sentencepiece"

    spm: sentencepiece.SentencePieceProcessor

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        """See `Tokenizer`."""
        return self.spm.encode([*texts], out_type=int, num_threads=num_threads) if texts else []

    def decode_batch(self, samples: Sequence[Sequence[int]], num_threads: int = -1) -> list[str]:
        """See `Tokenizer`."""
        ids = [[*sample] for sample in samples]
        return [*map(str, self.spm.decode(ids, num_threads=num_threads))] if ids else []

    def decode_with_unknown(self, samples: Sequence[Sequence[int]]) -> list[str]:
        """See `Tokenizer`."""
        return [*map(str, self.spm.decode([self._piece_V[[*s]].tolist() for s in samples]))]

    @functools.cached_property
    def _piece_V(self) -> np.ndarray:
        """The pieces, with a character that has no piece instead of the unknown one.

        That is usually decoded as " ⁇ ", which would be tokenized as question marks, and in some models as an
        empty text.
        """
        piece_V = np.array([self.piece(i) for i in range(self.vocab_size)], object)
        unknown = (c for c in _UNUSUAL_CHARACTERS if self.spm.piece_to_id(c) == self.unk_id)
        piece_V[self.unk_id] = next(unknown)
        return piece_V

    def piece(self, token: int) -> str:
        """See `Tokenizer`."""
        return self.spm.id_to_piece(token)

    def text_tokens(self) -> list[int]:
        """See `Tokenizer`."""
        spm = self.spm
        return [
            i
            for i in range(self.vocab_size)
            if not (spm.is_control(i) or spm.is_unknown(i) or spm.is_unused(i) or spm.is_byte(i))
        ]

    def chars_from(self, text: str, token: int) -> int:
        """See `Tokenizer`."""
        raw = text.encode()
        mapping = self.spm.encode(text, return_type="offset_mapping", return_bytes=True)
        begins = [*(begin for begin, _ in mapping["offsets"]), len(raw)]
        return len(raw[begins[token] :].decode())


@dataclasses.dataclass(frozen=True, eq=False)
class JsonTokenizer(Tokenizer):
    """A tokenizer.json, as the package `tokenizers` writes and reads it.

    Texts are tokenized one at a time in the calling thread: the threads of the package would compete with the processes
    that tokenize a corpus, and a process that has started them must not fork.
    """

    file_name: ClassVar[str] = "tokenizer.json"
    package: ClassVar[str] = "tokenizers"

    tokenizer: "tokenizers.Tokenizer"
    is_byte_level: bool
    """Whether pieces consist of bytes, each of which is written as a character, such as "Ġ" for a space."""

    def encode_batch(self, texts: Sequence[str], num_threads: int = -1) -> list[list[int]]:
        """See `Tokenizer`; raises UserError if the vocabulary has no token for a text."""
        try:
            return [self.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        except Exception as error:  # the package raises no other class
            raise UserError(
                f"tokenizer.path: tokenizers cannot tokenize a text ({_reason(error)}); give a tokenizer.json with a "
                "token for unknown characters"
            ) from None

    def decode_batch(self, samples: Sequence[Sequence[int]], num_threads: int = -1) -> list[str]:
        """See `Tokenizer`."""
        # Some files do not declare these as special.
        ends = {*self.before, *self.after}
        return [self.tokenizer.decode([i for i in ids if i not in ends]) for ids in samples]

    def decode_with_unknown(self, samples: Sequence[Sequence[int]]) -> list[str]:
        """See `Tokenizer`."""
        unknown = self._unknown
        if unknown is None:
            return self.decode_batch(samples)
        decoder, without = self.tokenizer.decoder, self._special_ids - {self.unk_id}
        texts = []
        for ids in samples:
            pieces = [
                unknown if i == self.unk_id else self.tokenizer.id_to_token(i) or ""
                for i in ids
                if i not in without
            ]
            texts.append(decoder.decode(pieces) if decoder else " ".join(pieces))
        return texts

    @functools.cached_property
    def _unknown(self) -> str | None:
        """A character that has no other token than the unknown one; None if all characters have others."""
        if self.unk_id is None:
            return None
        return next((c for c in _UNUSUAL_CHARACTERS if self.unk_id in self.encode(c)), None)

    @functools.cached_property
    def _special_ids(self) -> set[int]:
        added = self.tokenizer.get_added_tokens_decoder()
        return {i for i, token in added.items() if token.special} | {*self.before, *self.after}

    def piece(self, token: int) -> str:
        """See `Tokenizer`."""
        if self.is_byte_level:
            text = self.tokenizer.decode([token], skip_special_tokens=False)
            return text.replace(" ", "▁")
        return self.tokenizer.id_to_token(token) or ""

    def text_tokens(self) -> list[int]:
        """See `Tokenizer`."""
        special = {*self.tokenizer.get_added_tokens_decoder(), *self._special_ids, self.unk_id}
        return sorted(
            i
            for piece, i in self.tokenizer.get_vocab().items()
            if i not in special
            and not _BYTE_PIECE.fullmatch(piece)
            and "�" not in self.tokenizer.decode([i])
        )

    def chars_from(self, text: str, token: int) -> int:
        """See `Tokenizer`."""
        offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
        return len(text) - offsets[token][0] if token < len(offsets) else 0


TOKENIZER_FILES = (SentencePieceTokenizer.file_name, JsonTokenizer.file_name)
"""The names that the tokenizer may have in the folder of a population."""


SpecialTokens = Literal["sample", "file"]


def load_tokenizer(
    model: Path | bytes, vocab_size: int | None = None, special_tokens: SpecialTokens = "sample"
) -> Tokenizer:
    """Loads and checks a tokenizer; its content, and not its name, says of which kind it is.

    Args:
      model: a SentencePiece .model file or a tokenizer.json, or the content of one.
      vocab_size: the required number of pieces; None accepts any number.
      special_tokens: "sample": samples have <bos> and <eos>; "file": those that the post-processor of a tokenizer.json
        adds to a text, which may be none.

    Raises:
      UserError: if the file is missing or is neither of the two, if it has no <bos> or no <eos>, or if the number of
        pieces differs from ``vocab_size``; for "file", if it is no tokenizer.json.
    """
    name = "tokenizer.path" if isinstance(model, bytes) else f"tokenizer.path={str(model)!r}"
    try:
        raw = model if isinstance(model, bytes) else model.read_bytes()
    except OSError as error:
        raise UserError(
            f"{name}: cannot be read ({error.strerror}); give a SentencePiece .model file or a tokenizer.json, or "
            "leave it empty to train one"
        ) from None
    if not _is_json(raw) and special_tokens == "file":
        raise UserError(
            f"{name}: a SentencePiece model does not say which special tokens a text gets; give a tokenizer.json, or "
            "leave out tokenizer.special_tokens=file"
        )
    tokenizer = (
        _load_json(raw, name, special_tokens) if _is_json(raw) else _load_sentencepiece(raw, name)
    )
    size = tokenizer.vocab_size
    if vocab_size is not None and size != vocab_size:
        raise UserError(
            f"tokenizer.vocab_size={vocab_size}: {name} has {size} pieces; "
            f"set --config.tokenizer.vocab_size={size}"
        )
    return tokenizer


def _is_json(raw: bytes) -> bool:
    """Returns whether a file is a JSON object; a SentencePiece model begins with the length of its first piece."""
    return raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"


def _load_sentencepiece(raw: bytes, name: str) -> SentencePieceTokenizer:
    try:
        if not raw:
            raise RuntimeError("it is empty")
        spm = sentencepiece.SentencePieceProcessor(model_proto=raw)
    except RuntimeError as error:
        raise UserError(
            f"{name}: sentencepiece cannot read it ({_reason(error)}); give a .model file or a tokenizer.json, or "
            "leave it empty to train one"
        ) from None
    missing = [f"<{s}>" for s, i in (("bos", spm.bos_id()), ("eos", spm.eos_id())) if i < 0]
    if missing:
        raise UserError(
            f"{name}: the model has no {' and no '.join(missing)}, but each sample begins with <bos> and ends with "
            "<eos>; give a model that has both, or leave tokenizer.path empty to train one"
        )
    return SentencePieceTokenizer(
        spm.get_piece_size(), spm.bos_id(), spm.eos_id(), spm.unk_id(), spm
    )


def _load_json(raw: bytes, name: str, special_tokens: SpecialTokens) -> JsonTokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(raw)
        content = json.loads(raw)
    except ValueError as error:
        raise UserError(
            f"{name}: tokenizers cannot read it ({_reason(error)}); give a tokenizer.json, which has the vocabulary "
            "and the rules, or a SentencePiece .model file"
        ) from None
    tokenizer.no_truncation()  # files may hold the settings of a training run
    tokenizer.no_padding()
    if content["model"].get("dropout"):
        raise UserError(
            f"{name}: model.dropout={content['model']['dropout']} gives other tokens each time; set it to null in a "
            "copy of the file"
        )
    vocabulary = tokenizer.get_vocab()
    bos_id, eos_id = _special_tokens(tokenizer, name, special_tokens)
    unk_token, unk_id = content["model"].get("unk_token"), content["model"].get("unk_id")
    if unk_token is not None:
        unk_id = vocabulary.get(unk_token)
    return JsonTokenizer(
        max(vocabulary.values(), default=-1) + 1,
        bos_id,
        eos_id,
        # In some files, it is one of these, and no character is unknown.
        None if unk_id in (bos_id, eos_id) else unk_id,
        tokenizer,
        is_byte_level='"ByteLevel"'
        in json.dumps([content.get("decoder"), content.get("pre_tokenizer")]),
    )


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _special_tokens(
    tokenizer: "tokenizers.Tokenizer", name: str, special_tokens: SpecialTokens
) -> tuple[int | None, int | None]:
    """Returns the tokens for the beginning and the end of a sample.

    They are the tokens that the post-processor puts before and after a text. For "sample", what it does not add is
    taken from the first of `SPECIAL_PAIRS` that agrees with it and that the file has among its added tokens. A token
    for the end that the post-processor puts before a text serves as both (OPT).

    Raises:
      UserError: if there are none, or if the post-processor adds several tokens on one side.
    """
    before, after = _framing_tokens(tokenizer)
    if max(len(before), len(after)) > 1:
        raise UserError(
            f"{name}: its post_processor puts {len(before)} tokens before and {len(after)} after a text, but a sample "
            "has one of each; give a tokenizer.json whose post_processor adds at most one token on each side"
        )
    if special_tokens == "file" or (before and after):
        return next(iter(before), None), next(iter(after), None)
    added = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    pairs = [(added[a], added[b]) for a, b in SPECIAL_PAIRS if a in added and b in added]
    if any(before == [added.get(end)] for _, end in SPECIAL_PAIRS):
        pairs.append((before[0], before[0]))
    for begin, end in pairs:
        if before in ([], [begin]) and after in ([], [end]):
            return begin, end
    names = ", ".join(f"{a} and {b}" if a != b else f"{a} for both" for a, b in SPECIAL_PAIRS)
    found = "".join(
        f" (its post_processor adds only {tokenizer.id_to_token(i)})" for i in before + after
    )
    raise UserError(
        f"{name}: no tokens for the beginning and the end of a sample{found}; they are those that its post_processor "
        f"adds to a text, or a pair of its added_tokens: {names}; add them to the file, or leave tokenizer.path empty "
        "to train one"
    )


def _framing_tokens(tokenizer: "tokenizers.Tokenizer") -> tuple[list[int], list[int]]:
    """Returns the tokens that the post-processor puts before and after a text."""
    for piece in tokenizer.get_vocab(with_added_tokens=False):
        try:
            encoded = tokenizer.encode(piece)
        except Exception:  # the vocabulary may have no token for a character that the pieces do not have on its own
            continue
        text = [k for k, is_special in enumerate(encoded.special_tokens_mask) if not is_special]
        if text:  # a piece on its own may be no text, such as a space
            return encoded.ids[: text[0]], encoded.ids[text[-1] + 1 :]
    return [], []


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
    progress("train tokenizer", 0, 1)
    texts = training_texts(source, documents, seed, min_chars, progress)
    model = train_apart(texts, vocab_size)
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
