import functools
import itertools
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia import seeds
from lm_mia.data import tokenize
from lm_mia.data.documents import Document
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer

WORDS = ("one", "two", "three", "four")
CORPUS = [
    (
        " ".join(WORDS[(i >> s) % 4] for s in range(0, 2 * (1 + i % 5), 2)) + " end",
        f"record {i}",
        "",
    )
    for i in range(300)
]
"""Short texts, about a third of which occur more than once."""
DISTINCT = [
    (" ".join(WORDS[(i >> s) % 4] for s in range(0, 10, 2)), f"record {i}", "") for i in range(300)
]


@functools.cache
def trained_vocabulary() -> bytes:
    return train_tokenizer([text for text, *_ in CORPUS], 17)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained_vocabulary())
    (tmp_path / "parts").mkdir()
    return path


def draw_from(
    model: Path,
    num_samples: int,
    corpus: Sequence[Document] = CORPUS,
    seed: int = 3,
    processes: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    length_tokens: int = 16,
    num_held_out: int = 0,
    **rules: Any,
) -> tuple[tokenize.DrawnSamples, list[str], list[tuple[str, int, int]]]:
    lines: list[str] = []
    progress: list[tuple[str, int, int]] = []
    draw = tokenize.draw_samples(
        corpus,
        num_samples,
        num_held_out,
        seed,
        tokenize.SampleRules(model, length_tokens, **rules),
        model.parent / "parts",
        processes,
        lambda *n: progress.append(n),
        lines.append,
        clock,
    )
    return draw, lines, progress


def counts(draw: tokenize.DrawnSamples) -> tuple[int, int, int, int]:
    identical = draw.identical_token_sequences
    return draw.documents, draw.too_short, identical, draw.prefix_duplicates


def documents_of(draw: tokenize.DrawnSamples) -> list[int]:
    """Returns the index in the draw of the document of each sample; documents are not split."""
    assert not (draw.position_W % tokenize.MAX_PIECES).any()
    return (draw.position_W // tokenize.MAX_PIECES).tolist()


def slow_draw(
    num_samples: int,
    corpus: Sequence[Document],
    seed: int,
    min_chars: int,
    prefix_tokens: int,
    length_tokens: int = 16,
) -> tuple[Any, ...]:
    """Takes one document of the draw after another; returns the positions of the samples and `counts`."""
    spm = load_tokenizer(trained_vocabulary())
    order = seeds.draw(seed, "population/draw", len(corpus), len(corpus))
    taken: list[int] = []
    short = identical = same_prefix = position = 0
    sequences: set[tuple[int, ...]] = set()
    prefixes: set[tuple[int, ...]] = set()
    while len(taken) < num_samples and position < len(corpus):
        text = corpus[order[position]][0]
        sequence = tuple([2, *spm.encode(text), 1][:length_tokens])
        prefix = sequence[1 : 1 + prefix_tokens]
        if len(text) < min_chars:
            short += 1
        elif sequence in sequences:
            identical += 1
        elif prefix_tokens and prefix in prefixes:
            same_prefix += 1
        else:
            taken.append(position)
        if len(text) >= min_chars:
            sequences.add(sequence)
            prefixes.add(prefix)
        position += 1
    return taken, position, short, identical, same_prefix


@pytest.mark.parametrize("part", [7, 4096])
@pytest.mark.parametrize(
    ("min_chars", "prefix_tokens"), [(0, 0), (12, 0), (0, 3), (12, 3), (12, 20)]
)
def test_draw_equals_a_slow_reference(
    model: Path, monkeypatch: pytest.MonkeyPatch, part: int, min_chars: int, prefix_tokens: int
):
    monkeypatch.setattr(tokenize, "_PART", part)
    rules: dict[str, Any] = {"min_chars": min_chars, "distinct_prefix_tokens": prefix_tokens}
    for num_samples in (1, 20, 90):
        for path in (model.parent / "parts").iterdir():
            path.unlink()
        draw, _, _ = draw_from(model, num_samples, **rules)
        expected = slow_draw(num_samples, CORPUS, 3, min_chars, prefix_tokens)
        assert (documents_of(draw), *counts(draw)) == expected
        assert draw.documents == draw.pieces == len(expected[0]) + sum(expected[2:])
        assert draw.candidates == len(expected[0])
        check_rows(draw)


def check_rows(draw: tokenize.DrawnSamples) -> None:
    """Asserts that each sample is in a part, with the position of its document."""
    order = seeds.draw(3, "population/draw", len(CORPUS), len(CORPUS))
    record = {
        row["position"]: row["name"]
        for part in draw.parts
        for row in tokenize.read_part(part, ["position", "name"]).to_pylist()
    }
    for position in draw.position_W.tolist():
        assert record[position] == f"record {order[position // tokenize.MAX_PIECES]}"


@given(
    seed=st.integers(0, 99),
    num_samples=st.integers(1, 60),
    prefix_tokens=st.integers(0, 6),
    length_tokens=st.integers(4, 16),
)
@settings(max_examples=25)
def test_number_of_rounds_does_not_affect_the_draw(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    num_samples: int,
    prefix_tokens: int,
    length_tokens: int,
):
    """With short prefixes or samples, few documents are distinct, so that there are many rounds."""
    folder = tmp_path_factory.mktemp("draw")
    (folder / "parts").mkdir()
    (folder / "tokenizer.model").write_bytes(trained_vocabulary())
    draw, _, _ = draw_from(
        folder / "tokenizer.model",
        num_samples,
        seed=seed,
        length_tokens=length_tokens,
        min_chars=15,
        distinct_prefix_tokens=prefix_tokens,
    )
    expected = slow_draw(num_samples, CORPUS, seed, 15, prefix_tokens, length_tokens)
    assert (documents_of(draw), *counts(draw)) == expected


def test_all_documents_are_read_if_too_few_are_samples(model: Path):
    draw, _, _ = draw_from(model, 290, DISTINCT, min_chars=22, length_tokens=40)
    long = sum(len(text) >= 22 for text, *_ in DISTINCT)
    assert 0 < long < 290
    assert len(draw.position_W) == long
    assert counts(draw) == (300, 300 - long, 0, 0)


def test_a_draw_without_duplicates_tokenizes_no_spare_documents(model: Path):
    draw, lines, progress = draw_from(model, 50, DISTINCT, length_tokens=40)
    assert documents_of(draw) == list(range(50))
    assert sum(tokenize.read_part(p, ["position"]).num_rows for p in draw.parts) == 50
    assert progress[0] == ("tokenize samples", 0, 50)
    assert progress[-1] == ("tokenize samples", 50, 50)
    assert len(lines) == 1
    assert lines[0].startswith("population: 50 documents tokenized ")


def test_identical_token_sequences_are_one_sample(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 2)
    spm = load_tokenizer(trained_vocabulary())
    texts = ["one two three four one end", "two one", "three three"]
    cut = 1 + len(spm.encode(texts[0]))  # <bos> and the text, without <eos>
    texts += [texts[0] + " and four", texts[0] + " more"]  # differ after the cut
    texts += ["two  one", "ｔｈｒｅｅ three"]  # have the same tokens after normalization
    texts += ["one two three four one four", "two one two"]  # differ before it
    corpus = [(text, str(i), "") for i, text in enumerate(texts)]
    draw, _, _ = draw_from(model, len(corpus), corpus, length_tokens=cut)
    assert counts(draw) == (9, 0, 4, 0)
    order = seeds.draw(3, "population/draw", 9, 9).tolist()
    groups = [{0, 3, 4}, {1, 5}, {2, 6}, {7}, {8}]
    first = [min(order.index(i) for i in group) for group in groups]
    assert documents_of(draw) == sorted(first)
    assert documents_of(draw_from(model, 5, corpus, length_tokens=cut)[0]) == sorted(first)


def test_speed_is_logged_every_half_minute(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 60)
    monkeypatch.setattr(tokenize, "_BATCH", 30)
    draw, _, _ = draw_from(model, 300, DISTINCT)
    draw.parts[0].unlink()
    draw.parts[3].unlink()
    seconds = itertools.count(step=10)
    _, lines, progress = draw_from(model, 300, DISTINCT, clock=lambda: float(next(seconds)))
    # After 10, 20, ... 70 s; parts that existed before do not count for the speed.
    assert [done for _, done, _ in progress] == [180, 210, 240, 240, 270, 300, 300]
    assert [re.findall(r"\d+", line) for line in lines[1:]] == [
        ["240", "300", "2"],
        ["300", "300", "2"],
        ["120", "80", "1", "2"],
    ]


def test_documents_of_a_part_are_close_together_in_the_corpus(
    model: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tokenize, "_PART", 10)
    draw, _, _ = draw_from(model, 100, DISTINCT, length_tokens=40)
    ranges = []
    for part in draw.parts:
        rows = tokenize.read_part(part, ["position", "name"]).to_pylist()
        assert [r["position"] for r in rows] == sorted(r["position"] for r in rows)
        ranges.append(sorted(int(r["name"].split()[1]) for r in rows))
    assert len(ranges) == 10
    assert all(a[-1] < b[0] for a, b in itertools.pairwise(ranges))


def test_existing_parts_are_reused(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 10)
    first, _, _ = draw_from(model, 45, DISTINCT, min_chars=22, length_tokens=40)
    modified_ns = {p: p.stat().st_mtime_ns for p in first.parts}
    gone, broken = first.parts[1], first.parts[3]
    gone.unlink()
    broken.write_bytes(b"")
    again, lines, progress = draw_from(model, 45, DISTINCT, min_chars=22, length_tokens=40)
    assert [p for p in again.parts if p.stat().st_mtime_ns != modified_ns[p]] == [gone, broken]
    assert again.position_W.tolist() == first.position_W.tolist()
    n = len([p for p in first.parts if p.name.startswith("0-")])
    assert lines[0].startswith(f"population: reusing {n - 2} of {n} ")
    total = progress[0][2]
    assert progress[0] == ("tokenize samples", total - 20, total)


def test_large_draws_have_larger_parts(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_LARGE_DRAW", 100)
    monkeypatch.setattr(tokenize, "_PART", 10)
    monkeypatch.setattr(tokenize, "_LARGE_PART", 50)
    assert len(draw_from(model, 99, DISTINCT, length_tokens=40)[0].parts) == 10
    for path in (model.parent / "parts").iterdir():
        path.unlink()
    assert len(draw_from(model, 101, DISTINCT, length_tokens=40)[0].parts) == 3


@pytest.mark.process
def test_number_of_processes_does_not_affect_the_draw(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 30)
    alone, _, _ = draw_from(model, 150, distinct_prefix_tokens=12)
    assert min(alone.identical_token_sequences, alone.prefix_duplicates) > 0
    content = [p.read_bytes() for p in alone.parts]
    for path in alone.parts:
        path.unlink()
    together, lines, progress = draw_from(model, 150, distinct_prefix_tokens=12, processes=2)
    assert [p.read_bytes() for p in together.parts] == content
    assert together.position_W.tolist() == alone.position_W.tolist()
    assert counts(together) == counts(alone)
    assert "by 2 process(es), " in lines[0]
    total = progress[0][2]
    assert ("tokenize samples", total, total) in progress
    assert np.all(np.diff([done for _, done, count in progress if count == total]) >= 0)
