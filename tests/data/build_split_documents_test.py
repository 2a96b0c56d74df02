"""Documents that are split into several samples."""

import dataclasses
import functools
import hashlib
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentencepiece
from docstring_population import content, documents
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_table import table_of

from lm_mia import config, seeds
from lm_mia.config import recipe
from lm_mia.data import build, tokenize
from lm_mia.data.population import Population, open_population
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer
from lm_mia.errors import UserError

TEXTS = [text for text, *_ in documents()]
BOS, EOS = 2, 1


@functools.cache
def trained_vocabulary() -> bytes:
    return train_tokenizer(TEXTS, 400)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(trained_vocabulary())
    return path


def pieces_of(
    text: str, model: Path, length_tokens: int, min_chars: int = 0
) -> list[dict[str, Any]]:
    """Returns the rows of the part that consists of one document, the third of a draw."""
    rules = tokenize.SampleRules(model, length_tokens, min_chars, split_documents=True)
    path = model.with_name("part")
    tokenize.write_part(
        tokenize.Part(path, np.array([2]), [(text, "a", "b")], rules), lambda done: None
    )
    names = ["position", "name", "text_sha256", "chars", "zlib_bytes", "document_tokens"]
    return tokenize.read_part(path, [*names, "tokens"]).to_pylist()


def test_pieces_by_hand(model: Path):
    text = "The console renders text.\n\n    Args: naïve 漢字 ﬁle"
    ids = load_tokenizer(model).encode(text)
    rows = pieces_of(text, model, 8)
    # 7 tokens of the document follow each <bos>; <eos> is the last token of the document.
    body = [*ids, EOS]
    expected = [[BOS, *body[low : low + 7]] for low in range(0, len(body), 7)]
    assert len(expected) == 3
    assert [row["tokens"] for row in rows] == expected
    assert [row["position"] - 2 * tokenize.MAX_PIECES for row in rows] == [0, 1, 2]
    assert [row["document_tokens"] for row in rows] == 3 * [len(ids)]
    # The first piece is the sample of a document that is cut.
    assert expected[0] == [BOS, *ids, EOS][:8]


@given(
    st.text(st.sampled_from("ab \n\tXéﬁ漢.½"), min_size=1, max_size=200),
    st.integers(3, 40),
)
@settings(max_examples=60, deadline=None)
def test_pieces_add_up_to_the_document(model: Path, text: str, length_tokens: int):
    ids = load_tokenizer(model).encode(text)
    rows = pieces_of(text, model, length_tokens)
    tokens = [row["tokens"] for row in rows]
    if not ids:
        assert tokens == [[]]
        return
    assert all(piece[0] == BOS and len(piece) <= length_tokens for piece in tokens)
    assert [t for piece in tokens for t in piece[1:]] == [*ids, EOS]
    for row in rows:
        sample = load_tokenizer(model).decode(row["tokens"])
        assert row["chars"] == len(sample)
        assert row["text_sha256"] == hashlib.sha256(sample.encode()).hexdigest()
        assert row["zlib_bytes"] == len(zlib.compress(sample.encode(), 6))


def test_short_last_pieces_have_no_tokens(model: Path):
    text = TEXTS[0] * 3
    every = pieces_of(text, model, 16)
    last = every[-1]
    assert len(last["tokens"]) < 16
    # The characters of the document are counted: in the sample, consecutive spaces are one.
    spm = sentencepiece.SentencePieceProcessor(model_proto=trained_vocabulary())
    mapping = spm.encode(text, return_type="offset_mapping")
    chars = len(text) - mapping["offsets"][15 * (len(every) - 1)][0]
    assert pieces_of(text, model, 16, min_chars=chars) == every
    too_few = pieces_of(text, model, 16, min_chars=chars + 1)
    assert too_few[:-1] == every[:-1]
    assert (too_few[-1]["tokens"], too_few[-1]["position"]) == ([], last["position"])
    # The other pieces have no minimum.
    assert pieces_of(text, model, 16, min_chars=len(text))[:-1] == every[:-1]


def write(folder: Path, split: bool = True, processes: int = 1, **changes: Any) -> Population:
    fields: dict[str, Any] = {"seed": 3, "samples": 300, "length_tokens": 32} | changes
    min_chars = fields.pop("min_chars", 30)
    origin = {"documents": len(documents()), "corpus_sha256": "a"}
    spec = build.PopulationSpec(
        config.Population(**fields),
        trained_vocabulary(),
        min_chars,
        {},
        origin,
        split_documents=split,
    )
    return build.write_population(folder, documents(), spec, processes)


def slow_samples(
    num_samples: int, num_held_out: int, length_tokens: int, min_chars: int, prefix_tokens: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns (document, piece) of the samples and of the held-out samples, taken one after another."""
    spm = sentencepiece.SentencePieceProcessor(model_proto=trained_vocabulary())
    taken: list[tuple[int, int]] = []
    held_out: list[tuple[int, int]] = []
    sequences: set[tuple[int, ...]] = set()
    prefixes: set[tuple[int, ...]] = set()
    for d in seeds.draw(3, "population/draw", len(TEXTS), len(TEXTS)).tolist():
        mapping = spm.encode(TEXTS[d], return_type="offset_mapping")
        body = [*mapping["ids"], EOS]
        starts = [begin for begin, _ in mapping["offsets"]] + [len(TEXTS[d])]
        step = length_tokens - 1
        for piece, low in enumerate(range(0, len(body), step)):
            begin = 0 if piece == 0 else starts[low]
            end = len(TEXTS[d]) if low + step >= len(body) else starts[low + step]
            sequence = tuple(body[low : low + step])
            if len(TEXTS[d]) < min_chars or (len(sequence) < step and end - begin < min_chars):
                continue
            is_new = sequence not in sequences
            if prefix_tokens:
                is_new = sequence[:prefix_tokens] not in prefixes
            sequences.add(sequence)
            prefixes.add(sequence[:prefix_tokens])
            if not is_new:
                continue
            if len(taken) < num_samples:
                taken.append((d, piece))
            elif taken[-1][0] != d and len(held_out) < num_held_out:
                held_out.append((d, piece))
    return taken, held_out


@pytest.mark.parametrize("prefix_tokens", [0, 4])
@pytest.mark.parametrize("part", [7, 4096])
def test_population_equals_a_slow_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, prefix_tokens: int
):
    monkeypatch.setattr(tokenize, "_PART", part)
    monkeypatch.setattr(tokenize, "_RECORD_TOKENS", 5 * part)  # several record batches in a part
    monkeypatch.setattr(tokenize, "_BATCH", 3)
    written = write(tmp_path / "p", validation_samples=40, distinct_prefix_tokens=prefix_tokens)
    held_out = written.validation
    assert held_out is not None
    names = [name for _, name, _ in documents()]
    expected = slow_samples(300, 40, 32, 30, prefix_tokens)
    spm = load_tokenizer(trained_vocabulary())
    for population, pieces in zip((written, held_out), expected, strict=True):
        table = table_of(population)
        assert table["name"].tolist() == [names[d] for d, _ in pieces]
        assert table.piece.tolist() == [piece for _, piece in pieces]
        numbers = {d: n for n, d in enumerate(dict.fromkeys(d for d, _ in pieces))}
        assert table.document.tolist() == [numbers[d] for d, _ in pieces]
        for i, (d, piece) in enumerate(pieces):
            body = [*spm.encode(TEXTS[d]), EOS]
            assert population.sample(i).tolist() == [BOS, *body[31 * piece : 31 * (piece + 1)]]
        np.testing.assert_array_equal(population.document_N, table.document)
    assert not set(written.column("name")) & set(held_out.column("name"))
    assert {"document", "piece"} < set(written.sample_columns())


def test_counts_and_share_of_the_text(tmp_path: Path):
    written = write(tmp_path / "p")
    table, used = table_of(written), written.text_use
    assert used is not None
    spm, text_of = (
        load_tokenizer(trained_vocabulary()),
        {name: text for text, name, _ in documents()},
    )
    drawn = table["name"].unique()
    assert used.documents == len(drawn) == table.document.nunique() < 300
    assert used.document_tokens == sum(len(spm.encode(text_of[name])) for name in drawn)
    no_text = [sum(t in (BOS, EOS) for t in written.sample(i)) for i in range(300)]
    assert used.sample_tokens == len(written.tokens) - sum(no_text)
    cut = write(tmp_path / "q", split=False).text_use
    assert cut is not None
    assert cut.share < 0.5 < used.share < 1
    counts = written.manifest["provenance"]["draw"]
    left_out = counts["too_short"] + counts["identical_token_sequences"]
    assert counts["pieces"] == 300 + left_out
    lines = build.describe(written)
    assert re.match(rf"population: 300 samples\b.*\b{len(drawn)} documents", lines[2])
    assert re.match(rf"text: .*\b{100 * used.share:.3g}% ", lines[3])
    assert lines[3].endswith("not needed")
    assert f"draw: {counts['documents']} documents in {counts['pieces']} pieces, " in lines[-1]
    assert open_population(tmp_path / "p").has_split_documents


def test_documents_are_not_split_by_default(tmp_path: Path):
    written = write(tmp_path / "p", split=False)
    assert written.document_N.tolist() == list(range(300))
    assert not written.has_split_documents
    assert set(written.sample_columns()) == {"tokens", "unk", "zlib_bytes", "tfidf", "prefix_group"}
    assert "piece" not in table_of(written).columns
    assert "pieces" not in written.manifest["provenance"]["draw"]
    assert "corpus.split_documents" not in written.manifest["settings"]


def test_identical_pieces_are_one_sample(tmp_path: Path):
    page = " ".join(f"word{i}" for i in range(40))
    texts = [(f"{page} {page} end {i}", str(i), "") for i in range(4)]
    spm = load_tokenizer(trained_vocabulary())
    # A period of the text is a whole number of pieces, so that the pages of all documents are the same pieces.
    length = len(spm.encode(page)) + 1
    settings_ = config.Population(2, 0, length_tokens=length)
    spec = build.PopulationSpec(settings_, trained_vocabulary(), 3, split_documents=True)
    written = build.write_population(tmp_path / "p", texts, spec)
    assert len({tuple(written.sample(i)) for i in range(2)}) == 2
    assert written.manifest["provenance"]["draw"]["identical_token_sequences"] > 0


@pytest.mark.process
def test_number_of_processes_does_not_affect_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenize, "_PART", 9)
    alone, together = (
        write(tmp_path / f"p{n}", processes=n, validation_samples=20) for n in (1, 2)
    )
    assert content(alone.folder) == content(together.folder)


def test_too_few_pieces_are_reported(tmp_path: Path):
    total = len(slow_samples(10**6, 0, 32, 30, 0)[0])
    largest = total // 2 * 2
    message = (
        rf"^population.samples={largest + 2}: the corpus has only {total} pieces that can be samples "
        rf"\(.*use at most {largest}$"
    )
    with pytest.raises(UserError, match=message):
        write(tmp_path / "p", samples=largest + 2)
    assert list(tmp_path.iterdir()) == []
    assert len(write(tmp_path / "p", samples=largest)) == largest


def test_held_out_samples_need_other_documents(tmp_path: Path):
    """A single document has no other pieces than its own for the validation loss."""
    texts = [(" ".join(TEXTS), "all", "")]
    fields = config.Population(100, 0, length_tokens=32, validation_samples=10)
    spec = build.PopulationSpec(fields, trained_vocabulary(), 30, split_documents=True)
    with pytest.raises(UserError, match=r"validation_samples=10: .*\b0 pieces"):
        build.write_population(tmp_path / "p", texts, spec)
    alone = dataclasses.replace(fields, validation_samples=0)
    spec = dataclasses.replace(spec, population=alone)
    assert len(build.write_population(tmp_path / "p", texts, spec)) == 100


CORPUS = config.Corpus(source="text", min_chars=30, deduplicate="exact", split_documents=True)


def build_from_files(folder: Path, corpus: config.Corpus, **options: Any) -> Population:
    return build.build_population(
        corpus,
        config.Tokenizer(vocab_size=300),
        config.Population(64, 0, length_tokens=32),
        folder,
        **options,
    )


@pytest.fixture
def corpus(tmp_path: Path) -> config.Corpus:
    (tmp_path / "texts").mkdir()
    for n in range(12):  # fewer documents than samples
        (tmp_path / f"texts/{n:02d}.txt").write_text("\n".join(TEXTS[n::12]))
    return dataclasses.replace(CORPUS, path=str(tmp_path / "texts"))


def test_few_files_are_enough(tmp_path: Path, corpus: config.Corpus):
    built = build_from_files(tmp_path / "p", corpus)
    assert (built.column("chars")[built.lengths_N < 32] >= 30).all()
    assert built.manifest["settings"]["corpus.split_documents"] is True
    whole = dataclasses.replace(corpus, split_documents=False)
    with pytest.raises(UserError, match=r"population.samples=64: .*\b12 documents"):
        build_from_files(tmp_path / "q", whole)
    with pytest.raises(UserError, match=r"corpus.split_documents=False: .*\bTrue"):
        build_from_files(tmp_path / "p", whole)


def test_stopped_build_resumes(tmp_path: Path, corpus: config.Corpus):
    def stop(label: str, done: int, total: int) -> None:
        if label == "assemble population":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_from_files(tmp_path / "p", corpus, progress=stop)
    lines: list[str] = []
    built = build_from_files(tmp_path / "p", corpus, log=lines.append)
    assert any("reusing 1 of 1 parts" in line for line in lines)
    fresh = build_from_files(tmp_path / "q", corpus)
    assert content(built.folder) == content(fresh.folder)


def test_hashes_change_if_documents_are_split():
    c = config.Config()
    split = dataclasses.replace(c, corpus=dataclasses.replace(c.corpus, split_documents=True))
    assert recipe.recipe_hash(c) != recipe.recipe_hash(split)
    assert recipe.population_hash(c) != recipe.population_hash(split)
    assert recipe.differences(config.to_dict(c), split) == ["corpus.split_documents: False -> True"]


def test_sample_table_has_the_columns_of_the_schemas(tmp_path: Path):
    names = pq.read_schema(write(tmp_path / "p").folder / "samples.parquet").names
    assert names == [*build.SCHEMA.names, *build.PIECE_SCHEMA.names, "tfidf", "prefix_group"]
