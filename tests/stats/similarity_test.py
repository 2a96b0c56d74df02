"""Similarity of texts, compared with literal dynamic programs on made cases."""

import difflib
import math
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_mia import stats

Text = str | Sequence[Hashable]

CASES: list[tuple[Text, Text]] = [
    ("", ""),
    ("", "abc"),
    ("abc", ""),
    ("a", "a"),
    ("a", "b"),
    ("abc", "abc"),
    ("abc", "cba"),
    ("abc", "xxabcxx"),
    ("abc", "a-b-c"),
    ("abc", "ab"),
    ("abcabc", "abc"),
    ("kitten", "sitting"),
    ("the quick brown fox", "the quick red fox"),
    ("the quick brown fox", "THE QUICK BROWN FOX"),
    ("aaaa", "aa"),
    ("aaaa", "aaaaaaaa"),
    ("abababab", "babababa"),
    ("xyzxyzxyz", "zyxzyx"),
    ("...", "!!!"),
    ("  ", " "),
    ("naïve café", "naive cafe"),
    ("straße", "strasse"),
    ("日本語のテキスト", "日本のテキスト"),
    ("🙂🙃🙂", "🙃🙂🙃"),
    ("e\u0301", "\u00e9"),  # the same letter, composed of two characters and of one
    ("the " * 60, "the " * 60 + "end"),  # difflib treats frequent characters as junk by default
    ("ab" * 150 + "c", "c" + "ba" * 150),
    ("0123456789" * 25, "9876543210" * 25),
    ([1, 2, 3], [1, 2, 3]),
    ([1, 2, 3], [3, 2, 1, 2, 3, 4]),
    ([], [1]),
    ([0, -1, -2], [-2, -1, 0]),
    # Different tokens with equal hashes in Python.
    (np.array([5, -1, 7]), np.array([5, -2, 7])),  # pyright: ignore
    ([-1.0, 3.0], [-2.0, 3.0]),
    ([(1, -1), (0, 0)], [(1, -2), (0, 0)]),
    ([0, 4], [2**61 - 1, 4]),
    ([1, 1.0, True, "1"], ["1", 1, 1]),  # equal tokens of several types
    (["to", "be", "or", "not", "to", "be"], ["be", "or", "to", "be"]),
    (np.array([7, 7, 8]), np.array([7, 8, 8], np.uint16)),  # pyright: ignore
]


def slow_lengths(target: Text, text: Text) -> tuple[int, int, int]:
    """Computes the longest common substring and subsequence, and the edit distance, by their recurrences."""
    n, m = len(target), len(text)
    suffix, subsequence, distance = np.zeros((3, n + 1, m + 1), int)
    distance[:, 0], distance[0] = np.arange(n + 1), np.arange(m + 1)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            equal = target[i - 1] == text[j - 1]
            if equal:
                suffix[i, j] = suffix[i - 1, j - 1] + 1
                subsequence[i, j] = subsequence[i - 1, j - 1] + 1
            else:
                subsequence[i, j] = max(subsequence[i - 1, j], subsequence[i, j - 1])
            distance[i, j] = min(
                distance[i - 1, j] + 1, distance[i, j - 1] + 1, distance[i - 1, j - 1] + (not equal)
            )
    return int(suffix.max()), int(subsequence[n, m]), int(distance[n, m])


def slow_included(target: Text, text: Text) -> float:
    n = len(target)
    parts = [text[i : i + n] for i in range(len(text) - n + 1)]
    return float(any([*part] == [*target] for part in parts)) if n else math.nan


def check(target: Text, text: Text) -> None:
    substring, subsequence, distance = slow_lengths(target, text)
    assert stats.common_substring(target, text) == substring
    assert stats.common_subsequence(target, text) == subsequence
    assert stats.edit_distance(target, text) == stats.edit_distance(text, target) == distance
    longer = max(len(target), len(text), 1)
    # So PrivacyGuard's edit similarity, this difference over the length of the target, is at most 1.
    assert max(len(target), len(text)) - distance <= len(target)
    expected = 1 - distance / longer if len(target) else math.nan
    assert stats.edit_similarity(target, text) == pytest.approx(expected, abs=0, nan_ok=True)
    assert stats.is_included(target, text) == pytest.approx(
        slow_included(target, text), abs=0, nan_ok=True
    )


@pytest.mark.parametrize(("target", "text"), CASES, ids=range(len(CASES)))
def test_similarities_equal_slow_reference(target: Text, text: Text):
    check(target, text)


@given(st.text("ab ", max_size=9), st.text("ab ", max_size=9))
def test_similarities_of_random_texts_equal_slow_reference(target: str, text: str):
    check(target, text)


def test_subsequence_is_longer_than_what_difflib_matches():
    """difflib takes the longest block first, after which nothing else matches here."""
    target, text = "a-b-c-d-ZZZ", "ZZZabcd"
    matched = difflib.SequenceMatcher(None, target, text, autojunk=False).get_matching_blocks()
    assert sum(block.size for block in matched) == stats.common_substring(target, text) == 3
    assert stats.common_subsequence(target, text) == 4


def test_long_texts_are_similar_only_by_their_subsequence():
    """Small version of benchmarks/similarity.py, with random letters."""
    letters_N = np.random.default_rng(0).choice([*"etaoinshr"], 3_100)
    target, text = "".join(letters_N[:100]), "".join(letters_N[100:])
    assert stats.common_subsequence(target, text) == 100
    assert stats.common_substring(target, text) < 10
    assert stats.edit_similarity(target, text) < 0.05


@pytest.mark.parametrize(
    ("text", "kept", "collapsed"),
    [
        ("", "", ""),
        ("...!?", "", ""),
        (" A\tb\r\nC ", "a b  c", "a b c"),
        ("Don't -- STOP", "dont  stop", "dont stop"),
        ("snake_case(x)", "snakecasex", "snakecasex"),
        ("“Quoted” – straße É", "“quoted” – straße é", "“quoted” – straße é"),
        ("1,000.5 €", "10005 €", "10005 €"),
        ("a\u00a0b\x0bc", "a\u00a0b\x0bc", "a b c"),  # other white space
    ],
)
def test_text_is_cleaned(text: str, kept: str, collapsed: str):
    assert stats.clean_text(text) == kept
    assert stats.clean_text(text, collapse_spaces=True) == collapsed


def test_text_and_tokens_cannot_be_compared():
    with pytest.raises(TypeError, match="both strings, or"):
        stats.is_included("a", ["a"])
