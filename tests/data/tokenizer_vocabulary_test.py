from collections.abc import Iterator

import numpy as np
import pytest

from lm_mia import seeds
from lm_mia.data import tokenizer
from lm_mia.data.documents import Document, no_progress
from lm_mia.data.tokenizer import train_tokenizer
from lm_mia.errors import UserError

CORPUS = [(f"text number {i} of many " + "and more " * (i % 6), str(i), "") for i in range(300)]
TEXTS = [text for text, *_ in CORPUS]


def test_vocabulary_of_all_documents():
    assert tokenizer.train_on_corpus(CORPUS, 35, 0, 0, 0, no_progress) == train_tokenizer(TEXTS, 35)


@pytest.mark.parametrize("read", [4096, 7])
def test_vocabulary_of_documents_drawn_by_seed(monkeypatch: pytest.MonkeyPatch, read: int):
    monkeypatch.setattr(tokenizer, "_READ_DOCUMENTS", read)
    seen: list[tuple[str, int, int]] = []
    spm = tokenizer.train_on_corpus(CORPUS, 35, 80, 5, 0, lambda *n: seen.append(n))
    drawn = np.sort(seeds.draw(5, "tokenizer/documents", 300, 80))
    assert spm == train_tokenizer([TEXTS[i] for i in drawn], 35)
    assert any(line.startswith("read documents") and counts == [80, 80] for line, *counts in seen)
    assert tokenizer.train_on_corpus(CORPUS, 35, 80, 6, 0, no_progress) != spm


def test_short_documents_are_replaced_by_the_next():
    order = seeds.draw(5, "tokenizer/documents", 300, 300)
    long = [i for i in order if len(TEXTS[i]) >= 40][:80]
    used = [*tokenizer.training_texts(CORPUS, 80, 5, 40, no_progress)]
    assert sorted(used) == sorted(TEXTS[i] for i in long)
    assert order.tolist().index(long[-1]) > 80


def test_a_number_of_documents_above_that_of_the_corpus_means_all():
    for documents, min_chars in ((301, 0), (290, 40)):
        expected = train_tokenizer([t for t in TEXTS if len(t) >= min_chars], 35)
        assert (
            tokenizer.train_on_corpus(CORPUS, 35, documents, 5, min_chars, no_progress) == expected
        )


def test_a_corpus_of_short_documents_is_refused():
    with pytest.raises(UserError, match=r"corpus.min_chars=9999: .*smaller"):
        tokenizer.train_on_corpus(CORPUS, 35, 80, 5, 9_999, no_progress)


@pytest.mark.parametrize(
    "error", [UserError("shard 3 is broken"), KeyboardInterrupt(), SystemExit(143)]
)
def test_reading_errors_are_raised(error: BaseException):
    class Broken:
        def __len__(self) -> int:
            return 300

        def __getitem__(self, i: int) -> Document:
            if i == 200:
                raise error
            return CORPUS[i]

    with pytest.raises(type(error)) as caught:
        tokenizer.train_on_corpus(Broken(), 35, 0, 0, 0, no_progress)
    assert caught.value is error


def test_too_large_vocabulary_is_reported():
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=9999: .*most"):
        tokenizer.train_on_corpus(CORPUS, 9999, 100, 0, 0, no_progress)


@pytest.mark.process
def test_a_process_trains_the_same_vocabulary(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer, "_BATCH_CHARS", 1_000)
    assert tokenizer.train_apart(TEXTS, 35) == train_tokenizer(TEXTS, 35)
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=9999: .*most"):
        tokenizer.train_apart(TEXTS, 9999)


def test_errors_of_reading_end_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenizer, "_BATCH_CHARS", 100)

    def texts() -> Iterator[str]:
        yield from TEXTS
        raise OSError("the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        tokenizer.train_apart(texts(), 35)
