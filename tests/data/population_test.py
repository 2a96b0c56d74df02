import dataclasses
import hashlib
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sentencepiece
from docstring_population import content, documents, model, write
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_table import table_of

from lm_mia import config, seeds
from lm_mia.data import build, tokenize
from lm_mia.data.population import SAMPLE_FILES, Population, TextUse, open_population
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer
from lm_mia.errors import UserError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return write(tmp_path_factory.mktemp("workdir") / "population")


def test_samples_are_the_drawn_documents(written: Population):
    spm, text_of = load_tokenizer(model()), {name: text for text, name, _ in documents()}
    table = table_of(written)
    assert len(written) == len(table) == table["name"].nunique() == 100
    assert table.id.tolist() == list(range(100))
    cut = 0
    for row in table.itertuples():
        text = text_of[str(row.name)]
        tokens = [2, *spm.encode(text), 1][:64]
        sample = written.sample(int(str(row.id)))
        assert sample.tolist() == tokens
        # Everything is measured on the text of the sample, not on that of the document that it is cut from.
        sample_text = spm.decode(tokens)
        assert written.text(int(str(row.id))) == sample_text
        raw = sample_text.encode()
        assert row.text_sha256 == hashlib.sha256(raw).hexdigest()
        measures = (row.chars, row.tokens, row.unk, row.zlib_bytes)
        expected = len(sample_text), len(tokens), tokens.count(3), len(zlib.compress(raw, 6))
        assert measures == expected
        cut += len(text) > 1.5 * len(sample_text)
    assert cut > 20
    assert {*table["source"]} == {"rich"}
    assert {*table["user"]} == {""}
    assert written.lengths_N.tolist() == table.tokens.tolist()
    assert 64 in written.lengths_N
    assert written.lengths_N.min() < 64


def test_sizes_dtypes_and_texts(written: Population):
    assert (written.vocab_size, written.length_tokens) == (400, 64)
    assert (written.tokens.dtype, written.offsets_N1.dtype) == (np.uint16, np.int64)
    assert isinstance(written.tokens, np.memmap)
    assert not written.tokens.flags.writeable
    short = int(np.argmin(written.lengths_N))
    text = {name: text for text, name, _ in documents()}[table_of(written)["name"][short]]
    assert written.text(short).split() == text.split()
    for i in (-1, 100):
        with pytest.raises(IndexError):
            written.sample(i)


@given(st.lists(st.integers(0, 99), max_size=20))
@settings(deadline=None, max_examples=50)
def test_pad_equals_a_slow_reference(written: Population, ids: list[int]):
    ids_B = np.array(ids, np.int64)
    expected = np.zeros((len(ids), 64), np.int32)
    for b, i in enumerate(ids):
        for k, token in enumerate(written.sample(i)):
            expected[b, k] = token
    x_BxL = written.pad(ids_B)
    assert x_BxL.dtype == np.int32
    np.testing.assert_array_equal(x_BxL, expected)


def test_equal_arguments_give_equal_bytes(written: Population, tmp_path: Path):
    again = write(tmp_path / "deep" / "elsewhere")
    assert content(again.folder) == content(written.folder)
    assert again.sha256 == written.sha256
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("change", [{"seed": 4}, {"samples": 98}, {"length_tokens": 63}])
def test_settings_change_the_hash(written: Population, tmp_path: Path, change: dict[str, Any]):
    assert write(tmp_path / "p", **change).sha256 != written.sha256


def test_parts_and_segments_do_not_affect_the_samples(
    written: Population, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenize, "_BATCH", 5)
    monkeypatch.setattr(tokenize, "_PART", 7)
    monkeypatch.setattr(build, "_SEGMENT_SAMPLES", 9)
    seen: list[tuple[str, int, int]] = []
    other = write(tmp_path / "p", progress=lambda *n: seen.append(n))
    assert other.sha256 == written.sha256
    pd.testing.assert_frame_equal(table_of(other), table_of(written))
    assert seen[:2] == [("tokenize samples", 0, 100), ("tokenize samples", 5, 100)]
    assert ("tokenize samples", 100, 100) in seen
    assert ("assemble population", 100, 100) in seen
    assert (seen[-1][0].startswith("group samples"), *seen[-1][1:]) == (True, 100, 100)


def test_large_vocabularies_are_stored_in_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Large:
        bos_id, eos_id, unk_id = (lambda self, i=i: i for i in (2, 1, 3))

        def __init__(self, **_):
            pass

        def get_piece_size(self) -> int:
            return 65_537

        def encode(self, texts: list[str], **_) -> list[list[int]]:
            return [[65_536, 3, len(text)] for text in texts]

        def decode(self, samples: list[list[int]], **_) -> list[str]:
            return ["x" * tokens[3] for tokens in samples]

    monkeypatch.setattr(sentencepiece, "SentencePieceProcessor", Large)
    large = write(tmp_path / "p", samples=2)
    assert large.tokens.dtype == np.uint32
    chars = table_of(large).chars
    assert large.tokens.reshape(2, 5).tolist() == [[2, 65_536, 3, n, 1] for n in chars]
    assert table_of(large).unk.tolist() == [1, 1]


def test_columns_are_read_one_by_one(written: Population):
    for name in ("id", "tokens", "unk", "zlib_bytes"):
        column_N = written.column(name)
        assert column_N.dtype == np.int64
        assert column_N.tolist() == table_of(written)[name].tolist()
    assert written.column("name").tolist() == table_of(written)["name"].tolist()


def test_held_out_samples_follow_in_the_draw(written: Population, tmp_path: Path):
    both = write(tmp_path / "p", validation_samples=30)
    held_out = both.validation
    assert held_out is not None
    assert written.validation is None
    assert held_out.validation is None
    assert (len(both), len(held_out), held_out.length_tokens) == (100, 30, 64)
    assert both.sha256 == written.sha256 != held_out.sha256
    # A larger population would have them as its next samples.
    larger = write(tmp_path / "q", samples=130)
    assert table_of(larger)["name"].tolist() == [
        *both.column("name"),
        *held_out.column("name"),
    ]
    assert table_of(held_out).id.tolist() == list(range(30))
    assert held_out.lengths_N.tolist() == held_out.column("tokens").tolist()
    np.testing.assert_array_equal(held_out.pad(np.arange(30)), larger.pad(np.arange(100, 130)))
    names = {f"{prefix}{name}" for prefix in ("", "validation_") for name in SAMPLE_FILES}
    names |= {"tokenizer.model", "document_frequency.npy"}
    assert set(both.manifest["files"]) == names
    assert set(content(both.folder)) == names | {"manifest.json"}


def test_short_documents_and_repeated_prefixes_are_left_out(tmp_path: Path):
    spm, texts = load_tokenizer(model()), [text for text, *_ in documents()]
    population = write(tmp_path / "p", samples=60, distinct_prefix_tokens=2, min_chars=150)
    prefixes = [tuple(population.sample(i)[1:3]) for i in range(60)]
    assert len(set(prefixes)) == 60
    # All skipped documents are too short or begin like an earlier document.
    counts = population.manifest["provenance"]["draw"]
    order = seeds.draw(3, "population/draw", len(texts), len(texts))[: counts["documents"]]
    short = [i for i in order if len(texts[i]) < 150]
    duplicates = counts["identical_token_sequences"] + counts["prefix_duplicates"]
    assert counts["documents"] == 60 + counts["too_short"] + duplicates
    assert counts["too_short"] == len(short) > 0
    long = [tuple([*spm.encode(texts[i]), 1][:2]) for i in order if len(texts[i]) >= 150]
    assert list(dict.fromkeys(long)) == prefixes
    assert duplicates == len(long) - 60 > 0


def test_documents_without_tokens_are_left_out(tmp_path: Path):
    texts = [*documents()[:20], *[("\u200b" * (30 + i), f"invisible {i}", "") for i in range(5)]]
    spec = build.PopulationSpec(config.Population(20, 0, length_tokens=64), model())
    population = build.write_population(tmp_path / "p", texts, spec)
    assert {*population.column("name")} == {name for _, name, _ in texts[:20]}
    spec = dataclasses.replace(spec, population=config.Population(22, 0, length_tokens=64))
    with pytest.raises(UserError, match=r"samples=22: .*\b20 documents .*too short: 5,"):
        build.write_population(tmp_path / "q", texts, spec)


def test_too_few_long_documents_are_reported(tmp_path: Path):
    texts = [(f"{'long ' * 9}text {i}", str(i), "") for i in range(30)]
    texts += [(f"short {i}", str(i), "") for i in range(30, 40)]
    small = train_tokenizer([text for text, *_ in texts], 25)

    def write_samples(samples: int) -> Population:
        settings = config.Population(samples, 0, length_tokens=64, validation_samples=5)
        spec = build.PopulationSpec(settings, small, min_chars=20)
        return build.write_population(tmp_path / "p", texts, spec)

    message = (
        "population.samples=28: the corpus has only 30 documents that can be samples "
        r"\(40 read; too short: 10, identical token sequences: 0, other prefix duplicates: 0\); "
        "use at most 24 with population.validation_samples=5"
    )
    with pytest.raises(UserError, match=message):
        write_samples(28)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match=r"\b40 documents; .*\b34\b"):
        write_samples(36)
    assert len(write_samples(24)) == 24


def test_too_few_documents_messages_name_possible_settings():
    for samples, held_out, remedy in (
        (28, 29, "2 with population.samples=28"),
        (99, 1000, "28 with population.samples=2"),
    ):
        with pytest.raises(
            UserError, match=f"^population.validation_samples={held_out}: .*most {remedy}$"
        ):
            build.check_num_samples(samples, held_out, 30)
    build.check_num_samples(28, 2, 30)
    with pytest.raises(UserError, match=r"^population.samples=4: .*\b2 with .*samples=28$"):
        build.check_num_samples(4, 28, 30)
    with pytest.raises(UserError, match=r"^population.samples=4: .*\b1 documents; add "):
        build.check_num_samples(4, 0, 1)


def test_manifest_records_settings_and_provenance(tmp_path: Path):
    population = write(
        tmp_path / "p", settings={"corpus.source": "text"}, provenance={"files": ["a"]}
    )
    manifest = json.loads((tmp_path / "p/manifest.json").read_text())
    assert manifest == population.manifest
    assert manifest["settings"] == {
        "corpus.source": "text",
        "population.samples": 100,
        "population.seed": 3,
        "population.length_tokens": 64,
        "population.distinct_prefix_tokens": "none",
        "population.random_samples": 0,
        "population.validation_samples": 0,
        "population.frequency_samples": 2**16,
        "population.group_prefix_tokens": 50,
    }
    assert manifest["provenance"] == {
        "files": ["a"],
        "draw": {
            "documents": 100,
            "too_short": 0,
            "identical_token_sequences": 0,
            "prefix_duplicates": 0,
        },
        "text": dataclasses.asdict(slow_text_use(population)),
    }
    assert set(manifest["versions"]) == {"numpy", "pyarrow", "sentencepiece"}
    for name, entry in manifest["files"].items():
        raw = (tmp_path / "p" / name).read_bytes()
        assert entry == {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def slow_text_use(population: Population) -> TextUse:
    """Counts the tokens of the documents of the samples, before and after they are cut."""
    spm, text_of = load_tokenizer(model()), {name: text for text, name, _ in documents()}
    lengths = [len(spm.encode(text_of[r])) for r in population.column("name")]
    limit = population.length_tokens - 1  # without <bos>
    return TextUse(len(lengths), sum(lengths), sum(min(n, limit) for n in lengths))


ORIGIN = {"documents": 1000, "corpus_sha256": "a"}


@pytest.mark.parametrize("length_tokens", [16, 64, 4096])
def test_share_of_the_text_that_is_used(tmp_path: Path, length_tokens: int):
    population = write(
        tmp_path / "p", provenance=ORIGIN, length_tokens=length_tokens, validation_samples=5
    )
    used = slow_text_use(population)
    assert population.text_use == used
    assert used.share == used.sample_tokens / used.document_tokens
    [line] = [line for line in build.describe(population) if line.startswith("text: ")]
    assert f"{100 * used.share:.3g}% of the text" in line
    assert ("at population.length_tokens" in line) == (length_tokens < 4096)
    assert (used.share == 1) == (length_tokens == 4096)


def test_populations_of_earlier_versions_lack_the_share_of_text(tmp_path: Path):
    population = write(tmp_path / "p", provenance=ORIGIN)
    del population.manifest["provenance"]["text"]
    assert population.text_use is None
    assert not any(line.startswith("text: ") for line in build.describe(population))


def test_missing_population_is_reported(tmp_path: Path):
    with pytest.raises(UserError, match=r"; run `lm-mia corpus` first"):
        open_population(tmp_path / "p")


def test_invalid_arguments_write_nothing(tmp_path: Path):
    have = len(documents())
    message = f"population.samples=9998: the corpus has only {have} documents; use at most {have // 2 * 2}"
    with pytest.raises(UserError, match=message):
        write(tmp_path / "w/p", samples=9998)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "p").mkdir()
    (tmp_path / "p/mine").write_text("precious")
    with pytest.raises(UserError, match="exists already"):
        write(tmp_path / "p")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_an_empty_folder_is_filled(written: Population, tmp_path: Path):
    (tmp_path / "p").mkdir()
    assert write(tmp_path / "p").sha256 == written.sha256


PAGES = [f"page {i} of {'the long manual ' * 4}{ending}" for ending in "abc" for i in range(20)]
"""Texts of which those with the same number differ in the last character only."""


def write_pages(
    folder: Path, samples: int, validation_samples: int, length_tokens: int, processes: int = 1
) -> Population:
    texts = [*PAGES, *(text.replace(" of ", "  of ") for text in PAGES)]  # equal when normalized
    documents = [(text, str(i), "") for i, text in enumerate(texts)]
    settings = config.Population(samples, 5, length_tokens, validation_samples=validation_samples)
    spec = build.PopulationSpec(
        settings, train_tokenizer(PAGES, 30), provenance={"documents": 120, "corpus_sha256": "a"}
    )
    return build.write_population(folder, documents, spec, processes)


@pytest.mark.parametrize(("length_tokens", "distinct"), [(200, 60), (20, 20)])
def test_no_two_samples_have_the_same_tokens(tmp_path: Path, length_tokens: int, distinct: int):
    written = write_pages(tmp_path / "p", distinct - 6, 6, length_tokens)
    held_out = written.validation
    assert held_out is not None
    sequences = [tuple(p.sample(i)) for p in (written, held_out) for i in range(len(p))]
    assert len(set(sequences)) == distinct
    # The first of several identical documents in the order of the draw is the sample.
    number = {text: i % 20 if distinct == 20 else i for i, text in enumerate(PAGES)}
    order = seeds.draw(5, "population/draw", 120, 120).tolist()
    first = dict[int, int]()
    for i in order:
        first.setdefault(number[PAGES[i % 60]], i)
    records = [int(r) for p in (written, held_out) for r in p.column("name")]
    assert records == list(first.values())
    drawn = written.manifest["provenance"]["draw"]
    looked = order.index(records[-1]) + 1
    assert drawn == {
        "documents": looked,
        "too_short": 0,
        "identical_token_sequences": looked - distinct,
        "prefix_duplicates": 0,
    }
    assert re.match(
        rf"draw: {looked} documents, ({looked - distinct}) left out: \1 .*\bsame tokens\b.*\b{length_tokens} tokens$",
        build.describe(written)[-1],
    )


def test_too_few_distinct_samples_are_reported(tmp_path: Path):
    message = (
        r"^population.samples=16: the corpus has only 20 documents that can be samples \(120 read; too short: 0, "
        r"identical token sequences: 100, other prefix duplicates: 0\); use at most 14 with "
        r"population.validation_samples=6$"
    )
    with pytest.raises(UserError, match=message):
        write_pages(tmp_path / "p", 16, 6, 20)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_two_processes_find_the_same_identical_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenize, "_PART", 9)
    alone, together = (write_pages(tmp_path / f"p{n}", 40, 10, 200, n) for n in (1, 2))
    assert content(alone.folder) == content(together.folder)
    assert alone.manifest["provenance"]["draw"]["identical_token_sequences"] > 0
