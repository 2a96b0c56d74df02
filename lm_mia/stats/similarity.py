"""Similarity of a generated text to the target text that it should reproduce.

All functions except `clean_text` take a text either as a string, which is compared character by character, or as a
sequence of tokens or words. Neither is changed before it is compared: use `clean_text` first if case, punctuation and
line breaks do not matter.

Two lengths are easily confused, since both are abbreviated LCS: `common_substring` is contiguous, `common_subsequence`
is not. Python's `difflib.SequenceMatcher`, which takes the longest substring and goes on from there in both
directions, computes neither the longest subsequence nor the edit distance.

Source: Melis et al. 2025, PrivacyGuard: A modular framework for privacy auditing in machine learning, Definition 2.
"""

from __future__ import annotations

import difflib
import math
import string
from collections.abc import Hashable, Sequence

from rapidfuzz.distance import LCSseq, Levenshtein

_WITHOUT_PUNCTUATION = str.maketrans("\n\t\r", "   ", string.punctuation)


def clean_text(text: str, collapse_spaces: bool = False) -> str:
    """Removes differences of case, punctuation and line breaks, which do not matter when texts are compared.

    Args:
      text: the text.
      collapse_spaces: whether to replace each run of white space by one space. Otherwise, a dash between two spaces
        leaves two spaces.

    Returns:
      The text in lower case, without ASCII punctuation, with a space in place of each newline, tab and carriage return,
      and without white space at either end. Other punctuation and accents are kept, and Unicode is not normalized.

    Example:
      >>> from lm_mia.stats import clean_text
      >>> clean_text("Don't PANIC -\\nit's fine!")
      'dont panic  its fine'
    """
    cleaned = text.lower().translate(_WITHOUT_PUNCTUATION).strip()
    return " ".join(cleaned.split()) if collapse_spaces else cleaned


def is_included(target: str | Sequence[Hashable], text: str | Sequence[Hashable]) -> float:
    """Tests whether a target is a contiguous part of a text.

    Args:
      target: the text to find.
      text: the text to search; like the target, either a string or a sequence of tokens.

    Returns:
      1.0 or 0.0; NaN for an empty target, which every text contains.

    Raises:
      TypeError: if only one of the two is a string.

    Example:
      >>> from lm_mia.stats import is_included
      >>> is_included("the cat", "see the cat run"), is_included([1, 3], [1, 2, 3])
      (1.0, 0.0)
    """
    if isinstance(target, str) != isinstance(text, str):
        raise TypeError("target and text: must be both strings, or both sequences of tokens")
    if not len(target):
        return math.nan
    if isinstance(target, str) and isinstance(text, str):
        return float(target in text)
    return float(common_substring(target, text) == len(target))


def common_substring(target: str | Sequence[Hashable], text: str | Sequence[Hashable]) -> int:
    """Computes the length of the longest contiguous part of a target that is also in a text.

    The time grows with the number of pairs of equal characters: 2 ms for two texts of 500 characters, and a fifth of a
    second for 5,000.

    Args:
      target: the text to find.
      text: the text to search.

    Returns:
      Its number of characters or tokens; 0 if they have none in common.

    Example:
      >>> from lm_mia.stats import common_substring
      >>> common_substring("see the dog run", "he sees the cat run")  # "the " with the space in front
      5
    """
    a, b = (part if isinstance(part, str) else [*part] for part in (target, text))
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    return matcher.find_longest_match().size


def common_subsequence(target: str | Sequence[Hashable], text: str | Sequence[Hashable]) -> int:
    """Computes the length of the longest common subsequence, whose parts have the same order but may have gaps.

    Args:
      target: the text to find.
      text: the text to search.

    Returns:
      Its number of characters or tokens.

    Example:
      >>> from lm_mia.stats import common_subsequence
      >>> common_subsequence([1, 2, 3, 4], [9, 1, 3, 9, 4])
      3
    """
    return LCSseq.similarity(*_numbered(target, text))


def edit_distance(target: str | Sequence[Hashable], text: str | Sequence[Hashable]) -> int:
    """Computes the smallest number of insertions, deletions and substitutions that turn one text into the other.

    Args:
      target: the first text.
      text: the second text.

    Returns:
      The Levenshtein distance, in characters or tokens.

    Example:
      >>> from lm_mia.stats import edit_distance
      >>> edit_distance("kitten", "sitting")
      3
    """
    return Levenshtein.distance(*_numbered(target, text))


def edit_similarity(target: str | Sequence[Hashable], text: str | Sequence[Hashable]) -> float:
    """Computes 1 minus the edit distance over the length of the longer text.

    PrivacyGuard divides the difference of the longer length and the edit distance by the length of the target. That is
    the same for texts of equal length. For longer texts it is the share of the target that is found in order, with any
    gaps, so that it approaches 1 for a long text, whatever it says.

    Args:
      target: the text to reproduce.
      text: the generated text.

    Returns:
      A number from 0 (no position agrees) to 1 (equal); NaN for an empty target.

    Example:
      >>> from lm_mia.stats import edit_similarity
      >>> edit_similarity("abcd", "abxd"), edit_similarity("abcd", "abcdabcd")
      (0.75, 0.5)
    """
    if not len(target):
        return math.nan
    return 1 - edit_distance(target, text) / max(len(target), len(text))


def _numbered(
    target: str | Sequence[Hashable], text: str | Sequence[Hashable]
) -> tuple[str, str] | tuple[list[int], list[int]]:
    """Replaces each distinct token of the two texts by a number; two strings stay as they are.

    RapidFuzz compares the hashes of tokens, and different tokens may have equal hashes, such as -1 and -2 in Python.
    """
    if isinstance(target, str) and isinstance(text, str):
        return target, text
    number: dict[Hashable, int] = {}
    numbers = [[number.setdefault(token, len(number)) for token in part] for part in (target, text)]
    return numbers[0], numbers[1]
