import functools
import io
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from lm_mia.config import Population
from lm_mia.data import build, docstrings
from lm_mia.data.population import lowercase
from lm_mia.data.tokenizer import (
    beginning,
    covered_characters,
    load_tokenizer,
    train_tokenizer,
)
from lm_mia.errors import UserError

TEXTS = docstrings.read(["zarr"])[0][:300]


@functools.cache
def trained(vocab_size: int = 500) -> bytes:
    return train_tokenizer(TEXTS, vocab_size)


def test_training_is_deterministic_and_silent(capfd: pytest.CaptureFixture[str]):
    assert train_tokenizer(iter(TEXTS), 500) == trained()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("rare", ["éß漢字🙂漢\u200d\x80", "\0\u2585\t\u2028\ufffd\u2581\ue000"])
def test_the_covered_characters_are_those_of_the_vocabulary(rare: str):
    texts = [f"{text}\n{rare[i.bit_length() % len(rare)]}" for i, text in enumerate(TEXTS)]
    spm = load_tokenizer(train_tokenizer(texts, 300))
    pieces = {spm.piece(i) for i in range(300)}
    assert {*covered_characters(texts)} == {piece for piece in pieces if len(piece) == 1}


@given(
    st.lists(st.text(st.sampled_from("ab \n\0é漢字\u2581\u200b"), max_size=12), min_size=2),
    st.integers(1, 6),
)
def test_texts_with_equal_tokens_have_equal_beginnings(texts: list[str], tokens: int):
    spm, covered = load_tokenizer(trained()), covered_characters(TEXTS)
    characters_by_ids: dict[tuple[int, ...], str] = {}
    for text in texts:
        ids = (*spm.encode(text), *spm.after)[:tokens]
        characters = beginning(text, covered, tokens)
        assert characters_by_ids.setdefault(ids, characters) == characters


def test_special_ids_size_and_round_trip():
    spm = load_tokenizer(trained(), 500)
    assert [spm.piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert (spm.eos_id, spm.bos_id, spm.unk_id) == (1, 2, 3)
    assert spm.decode(spm.encode("The array\nis  chunked.")) == "The array is chunked."


def test_long_texts_are_used_completely():
    long = " ".join(TEXTS)
    assert len(long) > 65_536
    spm = load_tokenizer(train_tokenizer([long], 500))
    assert len(spm.encode(long)) < len(long) / 2


def test_error_names_the_largest_vocabulary():
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=99999: .*most \d+") as caught:
        train_tokenizer(TEXTS, 99_999)
    match = re.search(r"use at most (\d+)", str(caught.value))
    assert match is not None
    largest = int(match[1])
    assert load_tokenizer(train_tokenizer(TEXTS, largest), largest)
    with pytest.raises(UserError, match=f"use at most {largest}"):
        train_tokenizer(TEXTS, largest + 1)


def test_error_names_the_smallest_vocabulary():
    with pytest.raises(UserError, match=r"tokenizer.vocab_size=9: .*least (\d+)"):
        train_tokenizer(TEXTS, 9)


def test_given_files_are_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path = tmp_path / "t.model"
    with pytest.raises(UserError, match=r"tokenizer.path='.*t.model': .*be read"):
        load_tokenizer(path)
    with pytest.raises(UserError, match=r"tokenizer.path='.*': .*be read"):
        load_tokenizer(tmp_path)
    for content in (b"", b"not a model", trained()[:1000]):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer.path='.*t.model': sentencepiece "):
            load_tokenizer(path)
    path.write_bytes(trained())
    assert load_tokenizer(path, 500).vocab_size == 500
    with pytest.raises(UserError, match=r"vocab_size=600: .*\b500 pieces; .*vocab_size=500"):
        load_tokenizer(path, 600)
    assert capfd.readouterr() == ("", "")


def sentencepiece_model(**settings: Any) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=out, minloglevel=2, **settings
    )
    return out.getvalue()


def test_samples_have_the_special_ids_of_a_given_model(tmp_path: Path):
    # As Llama 2: unk 0, bos 1, eos 2, no pad, and characters that have no piece are bytes.
    llama = sentencepiece_model(vocab_size=700, model_type="bpe", pad_id=-1, byte_fallback=True)
    path = tmp_path / "llama.model"
    path.write_bytes(llama)
    documents = [(f"{text} 中文", str(i), "") for i, text in enumerate(TEXTS[:20])]
    for random_samples, split in ((0, True), (4, False)):
        settings = Population(samples=16, length_tokens=12, random_samples=random_samples)
        spec = build.PopulationSpec(settings, llama, split_documents=split)
        population = build.write_population(tmp_path / f"split={split}", documents, spec)
        samples = [population.sample(i).tolist() for i in range(len(population))]
        assert {sample[0] for sample in samples} == {1}
        assert {sample[-1] for sample in samples if len(sample) < 12} <= {2}
        assert not any({0, 1, 2} & {*sample[1:-1]} for sample in samples)
        assert lowercase(population).tokens[0] == 1


def test_a_model_without_bos_is_refused():
    t5 = sentencepiece_model(vocab_size=500, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    with pytest.raises(UserError, match=r"no <bos>, .*; give"):
        load_tokenizer(t5)
