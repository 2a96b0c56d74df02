"""The vocabulary of a population: trained on all documents of a corpus, or on some that the seed names."""

from collections.abc import Iterator

import numpy as np

from lm_mia import seeds
from lm_mia.documents import Documents, Progress, lend
from lm_mia.errors import UserError
from lm_mia.tokenizer import train_tokenizer

_READ = 4096  # documents read at a time


def train(
    source: Documents,
    vocab_size: int,
    documents: int,
    seed: int,
    min_chars: int,
    progress: Progress,
) -> bytes:
    """A sentencepiece model, as `lm_mia.tokenizer.train_tokenizer` makes it; the same arguments give the same bytes.

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
    source: Documents, wanted: int, seed: int, min_chars: int, progress: Progress
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
            pairs = lend(source, index_K[low : low + _READ])
            kept = [text for text, _ in pairs if len(text) >= min_chars]
            yield from kept
            found += len(kept)
            progress("read for the vocabulary", found, wanted)
