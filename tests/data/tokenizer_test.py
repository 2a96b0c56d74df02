import functools
import io
import re
from pathlib import Path

import pytest
import sentencepiece

from lm_mia.data import docstrings
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer
from lm_mia.errors import UserError

TEXTS = docstrings.read(["zarr"])[0][:300]


@functools.cache
def trained(vocab_size: int = 500) -> bytes:
    return train_tokenizer(TEXTS, vocab_size)


def test_training_is_deterministic_and_silent(capfd: pytest.CaptureFixture[str]):
    assert train_tokenizer(iter(TEXTS), 500) == trained()
    assert capfd.readouterr() == ("", "")


def test_special_ids_size_and_round_trip():
    spm = load_tokenizer(trained(), 500)
    assert [spm.pad_id(), spm.eos_id(), spm.bos_id(), spm.unk_id()] == [0, 1, 2, 3]
    assert spm.decode(spm.encode("The array\nis  chunked.")) == "The array is chunked."


def test_long_texts_are_used_completely():
    long = " ".join(TEXTS)
    assert len(long) > 65_536
    spm = load_tokenizer(train_tokenizer([long], 500))
    assert len(spm.encode(long)) < len(long) / 2


def test_error_names_the_largest_vocabulary():
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=99999: .* at most \d+") as caught:
        train_tokenizer(TEXTS, 99_999)
    match = re.search(r"use at most (\d+)", str(caught.value))
    assert match is not None
    largest = int(match[1])
    assert load_tokenizer(train_tokenizer(TEXTS, largest), largest)
    with pytest.raises(UserError, match=f"use at most {largest}"):
        train_tokenizer(TEXTS, largest + 1)


def test_error_names_the_smallest_vocabulary():
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=9: .* at least (\d+)"):
        train_tokenizer(TEXTS, 9)


def test_given_files_are_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "t.model"
    with pytest.raises(UserError, match=r"tokenizer.path='.*t.model': cannot be read"):
        load_tokenizer(path)
    with pytest.raises(UserError, match=r"tokenizer.path='.*': cannot be read"):
        load_tokenizer(tmp_path)
    for content in (b"", b"not a model", trained()[:1000]):
        path.write_bytes(content)
        with pytest.raises(
            UserError, match=r"tokenizer.path='.*t.model': not a sentencepiece model"
        ):
            load_tokenizer(path)
    path.write_bytes(trained())
    assert load_tokenizer(path, 500).get_piece_size() == 500
    with pytest.raises(UserError, match=r"vocab_size=600: .* has 500 pieces; .*vocab_size=500"):
        load_tokenizer(path, 600)
    assert capfd.readouterr() == ("", "")


def test_other_special_ids_are_refused():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=out, vocab_size=500, minloglevel=2
    )
    with pytest.raises(UserError, match="has pad -1, eos 2, bos 1, unk 0"):
        load_tokenizer(out.getvalue())
