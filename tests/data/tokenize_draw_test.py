import itertools
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
from lm_mia.data.tokenizer import load_tokenizer, train_tokenizer

WORDS = ("one", "two", "three", "four")
CORPUS = [
    (" ".join(WORDS[(i >> s) % 4] for s in range(0, 2 * (1 + i % 5), 2)) + " end", f"record {i}")
    for i in range(300)
]
MODEL = train_tokenizer([text for text, _ in CORPUS], 17)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(MODEL)
    (tmp_path / "parts").mkdir()
    return path


def drawn(
    model: Path,
    wanted: int,
    corpus: Sequence[tuple[str, str]] = CORPUS,
    seed: int = 3,
    processes: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    **rules: int,
) -> tuple[tokenize.DrawnSamples, list[str], list[tuple[str, int, int]]]:
    said: list[str] = []
    seen: list[tuple[str, int, int]] = []
    of = tokenize.SampleRules(model, 16, **rules)
    folder = model.parent / "parts"
    found = tokenize.draw_samples(
        corpus, wanted, seed, of, folder, processes, lambda *n: seen.append(n), said.append, clock
    )
    return found, said, seen


def slow(
    wanted: int, corpus: Sequence[tuple[str, str]], seed: int, min_chars: int, prefix_tokens: int
) -> tuple[Any, ...]:
    """One document of the draw after another: positions, documents looked at, too short ones, duplicates."""
    spm = load_tokenizer(MODEL)
    order = seeds.draw(seed, "population/draw", len(corpus), len(corpus))
    taken: list[int] = []
    short = same = 0
    prefixes: set[tuple[int, ...]] = set()
    for position, i in enumerate(order):
        if len(taken) == wanted:
            return taken, position, short, same
        text = corpus[i][0]
        prefix = tuple([2, *spm.encode(text), 1][:16][1 : 1 + prefix_tokens])
        if len(text) < min_chars:
            short += 1
        elif prefix_tokens and prefix in prefixes:
            same += 1
        else:
            prefixes.add(prefix)
            taken.append(position)
    return taken, len(corpus), short, same


@pytest.mark.parametrize("part", [7, 4096])
@pytest.mark.parametrize(
    ("min_chars", "prefix_tokens"), [(0, 0), (12, 0), (0, 3), (12, 3), (12, 20)]
)
def test_the_same_as_one_after_another(
    model: Path, monkeypatch: pytest.MonkeyPatch, part: int, min_chars: int, prefix_tokens: int
):
    monkeypatch.setattr(tokenize, "_PART", part)
    rules: dict[str, Any] = {"min_chars": min_chars, "distinct_prefix_tokens": prefix_tokens}
    for wanted in (1, 20, 90):
        for path in (model.parent / "parts").iterdir():
            path.unlink()
        found, _, _ = drawn(model, wanted, **rules)
        expected = slow(wanted, CORPUS, 3, min_chars, prefix_tokens)
        measures = (found.documents, found.too_short, found.prefix_duplicates)
        assert (found.position_W.tolist(), *measures) == expected
        assert found.documents == len(expected[0]) + expected[2] + expected[3]
        check_rows(found)


def check_rows(found: tokenize.DrawnSamples) -> None:
    """Every sample lies in a part, at the position of its document."""
    order = seeds.draw(3, "population/draw", len(CORPUS), len(CORPUS))
    record = {
        row["position"]: row["source_record"]
        for part in found.parts
        for row in tokenize.read_part(part, ["position", "source_record"]).to_pylist()
    }
    for position in found.position_W.tolist():
        assert record[position] == f"record {order[position]}"


@given(seed=st.integers(0, 99), wanted=st.integers(1, 60), prefix_tokens=st.integers(1, 6))
@settings(max_examples=25)
def test_rounds_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, seed: int, wanted: int, prefix_tokens: int
):
    """Few documents are left over by so short a prefix, so that many rounds are drawn."""
    folder = tmp_path_factory.mktemp("draw")
    (folder / "parts").mkdir()
    (folder / "tokenizer.model").write_bytes(MODEL)
    found, _, _ = drawn(
        folder / "tokenizer.model",
        wanted,
        seed=seed,
        min_chars=15,
        distinct_prefix_tokens=prefix_tokens,
    )
    measures = (found.documents, found.too_short, found.prefix_duplicates)
    assert (found.position_W.tolist(), *measures) == slow(wanted, CORPUS, seed, 15, prefix_tokens)


def test_all_documents_are_looked_at_if_too_few_are_samples(model: Path):
    found, _, _ = drawn(model, 290, min_chars=12)
    long = sum(len(text) >= 12 for text, _ in CORPUS)
    assert 0 < long < 290
    assert len(found.position_W) == long
    assert (found.documents, found.too_short, found.prefix_duplicates) == (300, 300 - long, 0)


def test_no_more_is_tokenised_than_needed_where_none_is_left_out(model: Path):
    found, said, seen = drawn(model, 50)
    assert found.position_W.tolist() == list(range(50))
    assert sum(tokenize.read_part(p, ["position"]).num_rows for p in found.parts) == 50
    assert seen[0] == ("tokenise samples", 0, 50)
    assert seen[-1] == ("tokenise samples", 50, 50)
    assert len(said) == 1
    assert said[0].startswith("population: 50 documents tokenised in ")


def test_the_rate_is_told_every_half_minute(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 60)
    monkeypatch.setattr(tokenize, "_BATCH", 30)
    made, _, _ = drawn(model, 300)
    made.parts[0].unlink()
    made.parts[3].unlink()
    seconds = itertools.count(step=10)
    _, said, seen = drawn(model, 300, clock=lambda: float(next(seconds)))
    # After 10, 20, ... 70 s; what was there before is not of the rate.
    assert [done for _, done, _ in seen] == [180, 210, 240, 240, 270, 300, 300]
    assert said[1:] == [
        "tokenise samples: 240 of 300, 2 a second",
        "tokenise samples: 300 of 300, 2 a second",
        "population: 120 documents tokenised in 80.0 s by 1 process(es), 2 a second",
    ]


def test_parts_lie_close_together_in_the_corpus(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 10)
    found, _, _ = drawn(model, 100)
    ranges = []
    for part in found.parts:
        rows = tokenize.read_part(part, ["position", "source_record"]).to_pylist()
        assert [r["position"] for r in rows] == sorted(r["position"] for r in rows)
        ranges.append(sorted(int(r["source_record"].split()[1]) for r in rows))
    assert len(ranges) == 10
    assert all(a[-1] < b[0] for a, b in itertools.pairwise(ranges))


def test_parts_that_are_there_are_used(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 10)
    first, _, _ = drawn(model, 45, min_chars=12)
    made = {p: p.stat().st_mtime_ns for p in first.parts}
    gone, broken = first.parts[1], first.parts[3]
    gone.unlink()
    broken.write_bytes(b"")
    again, said, seen = drawn(model, 45, min_chars=12)
    assert [p for p in again.parts if p.stat().st_mtime_ns != made[p]] == [gone, broken]
    assert again.position_W.tolist() == first.position_W.tolist()
    of = len([p for p in first.parts if p.name.startswith("0-")])
    assert said[0] == f"population: {of - 2} of {of} parts were tokenised by an earlier command"
    total = seen[0][2]
    assert seen[0] == ("tokenise samples", total - 20, total)


def test_large_draws_have_larger_parts(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_LARGE", 100)
    monkeypatch.setattr(tokenize, "_PART", 10)
    monkeypatch.setattr(tokenize, "_LARGE_PART", 50)
    assert len(drawn(model, 99)[0].parts) == 10
    for path in (model.parent / "parts").iterdir():
        path.unlink()
    assert len(drawn(model, 101)[0].parts) == 3


@pytest.mark.process
def test_any_number_of_processes(model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenize, "_PART", 30)
    alone, _, _ = drawn(model, 200, distinct_prefix_tokens=12)
    content = [p.read_bytes() for p in alone.parts]
    for path in alone.parts:
        path.unlink()
    together, said, seen = drawn(model, 200, distinct_prefix_tokens=12, processes=2)
    assert [p.read_bytes() for p in together.parts] == content
    assert together.position_W.tolist() == alone.position_W.tolist()
    assert "by 2 process(es), " in said[0]
    total = seen[0][2]
    assert ("tokenise samples", total, total) in seen
    assert np.all(np.diff([done for _, done, of in seen if of == total]) >= 0)
