import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lm_mia.data import dedup, docstrings


def slow_shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[i : i + 8]) for i in range(max(len(words) - 7, 1))}


def slow_without_near(texts: list[str]) -> list[int]:
    """Compares all pairs of texts, and keeps the first text of each cluster of linked texts."""
    shingles = [slow_shingles(text) for text in texts]
    linked: dict[int, set[int]] = {i: {i} for i in range(len(texts))}
    for i, j in itertools.combinations(range(len(texts)), 2):
        shared = len(shingles[i] & shingles[j])
        if 2 * shared >= len(shingles[i]) or 2 * shared >= len(shingles[j]):
            linked[i].add(j)
            linked[j].add(i)
    kept, seen = [], set()
    for i in range(len(texts)):
        if i not in seen:
            kept.append(i)
            todo = [i]
            while todo:
                k = todo.pop()
                if k not in seen:
                    seen.add(k)
                    todo += linked[k]
    return kept


def words(start: int, stop: int) -> str:
    return " ".join(f"w{i}" for i in range(start, stop))


def test_sharing_half_of_the_shorter_text_links():
    # 15 words have 8 shingles; sharing 11 words is sharing 4 of them, 10 words 3 of them.
    assert dedup.without_near_duplicates([words(0, 15), words(4, 19)]).tolist() == [0]
    assert dedup.without_near_duplicates([words(0, 15), words(5, 20)]).tolist() == [0, 1]
    # 8 shingles of a long text are half of the short one's, not of the long one's.
    assert dedup.without_near_duplicates([words(0, 500), words(4, 19)]).tolist() == [0]


def test_first_text_of_a_chain_is_kept():
    chain = [words(k, k + 15) for k in (8, 0, 4, 100)]
    assert dedup.without_near_duplicates(chain).tolist() == [0, 3]
    assert dedup.without_near_duplicates([chain[1], chain[0]]).tolist() == [0, 1]


def test_short_texts_are_one_shingle():
    texts = ["one two", "one  two", "one two three", "two one", words(0, 8), words(0, 9), "", "x"]
    assert dedup.without_near_duplicates(texts).tolist() == [0, 2, 3, 4, 6, 7]
    assert dedup.without_near_duplicates([]).tolist() == []
    assert dedup.without_near_duplicates([""]).tolist() == [0]


def test_repeated_shingles_count_once():
    repeated = " ".join(["again"] * 50)  # one distinct shingle
    assert dedup.without_near_duplicates([words(0, 30), repeated, repeated + " end"]).tolist() == [
        0,
        1,
    ]
    assert dedup.shingle_matrix([repeated]).toarray().tolist() == [[1]]


TEXTS = st.lists(
    st.lists(st.sampled_from("abc"), max_size=25).map(" ".join), min_size=0, max_size=12
)


@given(TEXTS, st.sampled_from([1, 7, 10**9]))
@settings(max_examples=150, deadline=None)
def test_near_duplicates_equal_a_slow_reference(texts: list[str], work: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "_BLOCK_PRODUCTS", work)
        assert dedup.without_near_duplicates(texts).tolist() == slow_without_near(texts)


def test_near_duplicates_of_docstrings_equal_a_slow_reference(monkeypatch: pytest.MonkeyPatch):
    texts, _ = docstrings.read(["rich", "zarr"])
    texts = [text for text in texts if len(text) >= 200][:500]
    expected = slow_without_near(texts)
    assert 300 < len(expected) < len(texts)
    for work in (1_000, 20_000_000):
        monkeypatch.setattr(dedup, "_BLOCK_PRODUCTS", work)
        seen: list[tuple[int, int]] = []
        kept = dedup.without_near_duplicates(
            texts, lambda done, total, calls=seen: calls.append((done, total))
        )
        assert kept.tolist() == expected
        assert seen[-1] == (len(texts), len(texts))
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})


def test_shingle_matrix_counts_distinct_shingles():
    texts = [words(0, 12), words(2, 12), "a b", " ".join("ab" * 20)]
    matrix = dedup.shingle_matrix(texts)
    assert np.diff(matrix.indptr).tolist() == [len(slow_shingles(t)) for t in texts]
    assert (matrix @ matrix.T).toarray()[0, 1] == 3
    assert re.fullmatch("int32", str(matrix.dtype))


def test_first_of_equal_texts_is_kept():
    assert dedup.without_exact_duplicates(["a", "b", "a", "c", "b"]).tolist() == [0, 1, 3]
    assert dedup.without_exact_duplicates([]).tolist() == []
