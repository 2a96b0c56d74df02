import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from docstring_population import content, documents, model, write
from sample_table import table_of

from lm_mia.data import build
from lm_mia.data.population import Population
from lm_mia.data.tokenizer import load_tokenizer
from lm_mia.errors import UserError

RANDOM = 30
FIELDS: dict[str, Any] = {
    "samples": 70 + RANDOM,
    "random_samples": RANDOM,
    "validation_samples": 5,
    "length_tokens": 300,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return write(tmp_path_factory.mktemp("plain") / "population", samples=70, length_tokens=300)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Population:
    folder = tmp_path_factory.mktemp("mixed") / "population"
    return write(folder, **FIELDS)


def test_samples_of_text_are_unchanged(plain: Population, mixed: Population):
    assert len(mixed) == 70 + RANDOM
    for i in range(70):
        assert mixed.sample(i).tolist() == plain.sample(i).tolist()
    names = [name for name in table_of(plain) if name != "prefix_group"]
    assert table_of(mixed)[names].iloc[:70].equals(table_of(plain)[names])
    for name in ("document_frequency.npy", "tokenizer.model"):
        assert (mixed.folder / name).read_bytes() == (plain.folder / name).read_bytes()
    assert mixed.text_use == plain.text_use
    drawn = {name for _, name, _ in documents()}
    assert mixed.validation is not None
    assert drawn.issuperset(mixed.validation.column("name"))


def test_random_samples_have_the_median_length_and_no_duplicates(
    plain: Population, mixed: Population
):
    length = int(np.median(plain.lengths_N))
    assert length < 300
    assert mixed.lengths_N[70:].tolist() == [length] * RANDOM
    samples = [mixed.sample(i).tolist() for i in range(100)]
    assert len({tuple(sample) for sample in samples}) == 100
    assert {(sample[0], sample[-1]) for sample in samples[70:]} == {(2, 1)}
    piece = np.array([sample[1:-1] for sample in samples[70:]])
    assert piece.min() > 3  # no special piece
    assert piece.max() < 400
    # Each of 396 pieces has the same probability: the chi-square statistic has mean 395 and SD 28.
    count = np.bincount(piece.ravel(), minlength=400)[4:]
    mean = piece.size / 396
    assert abs(((count - mean) ** 2 / mean).sum() - 395) < 4 * 28


def test_columns_of_random_samples(mixed: Population):
    table, spm = table_of(mixed).iloc[70:], load_tokenizer(model())
    assert table.id.tolist() == list(range(70, 100))
    assert table["name"].tolist() == [f"random {i}" for i in range(RANDOM)]
    assert {*table["source"]} == {"random"}
    assert {*table["user"]} == {""}
    assert table.prefix_group.tolist() == table.id.tolist()
    assert (table.unk == 0).all()
    for row in table.itertuples():
        text = spm.decode(mixed.sample(int(str(row.id))).tolist())
        raw = text.encode()
        assert row.text_sha256 == hashlib.sha256(raw).hexdigest()
        assert (row.chars, row.zlib_bytes) == (len(text), len(zlib.compress(raw, 6)))
    frequency_V = np.load(mixed.folder / "document_frequency.npy")
    idf_V = np.log(71 / (1 + frequency_V)) + 1
    distinct, count = np.unique(mixed.sample(99)[1:-1], return_counts=True)
    assert table.tfidf.iloc[-1] == pytest.approx((count * idf_V[distinct]).mean())


def test_random_samples_depend_on_the_seed_only(mixed: Population, tmp_path: Path):
    again = write(tmp_path / "again", **FIELDS)
    assert content(again.folder) == content(mixed.folder)
    fields: dict[str, Any] = FIELDS | {"samples": 72 + RANDOM, "random_samples": 32}
    more = write(tmp_path / "more", **fields)
    first_tokens = [more.sample(70 + i).tolist() for i in range(RANDOM)]
    assert first_tokens == [mixed.sample(70 + i).tolist() for i in range(RANDOM)]
    other = write(tmp_path / "other", **FIELDS, seed=4)
    assert other.sample(70)[1:5].tolist() != mixed.sample(70)[1:5].tolist()


def test_samples_that_are_all_cut_have_no_eos(tmp_path: Path):
    cut = write(tmp_path / "cut", min_chars=200, samples=24, random_samples=4, length_tokens=8)
    assert cut.lengths_N[20:].tolist() == [8] * 4
    assert all(1 not in cut.sample(i) for i in range(20, 24))


def test_distinct_prefixes_hold_for_random_samples(tmp_path: Path):
    """One of 396 pieces is drawn per sample, so that without the rule, several of 90 would be equal."""
    fields: dict[str, Any] = {"samples": 110, "random_samples": 90, "distinct_prefix_tokens": 1}
    population = write(tmp_path / "p", **fields)
    assert len({int(population.sample(i)[1]) for i in range(110)}) == 110


def test_too_few_pieces_are_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"population.random_samples=400: the 396 pieces") as error:
        write(tmp_path / "p", samples=402, random_samples=400, distinct_prefix_tokens=1)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "p").exists()


def test_messages_count_random_samples():
    build.check_num_samples(40, 0, 30, random_samples=10)
    with pytest.raises(UserError, match=r"\b38 with population.validation_samples=2 "):
        build.check_num_samples(40, 2, 30, random_samples=10)
