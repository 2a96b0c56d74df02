"""A check that needs no model: whether members and non-members can be told apart by their texts alone.

An attack on members and non-members that differ in date, source or topic finds that difference, whatever the model has
learned.

N: texts, W: words of all texts, V: different words.
"""

import re
from collections.abc import Sequence

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from lm_mia import seeds, stats

HOW_TO = "docs/how-to/different-sources.md"
MAX_TEXTS = 20_000
"""Of more texts, this many are drawn at random and compared."""
_MAX_CHARACTERS = 20_000_000
"""Of all texts together; of longer ones, the beginnings are compared."""
_MAX_WORDS = 2**16
# Scripts without spaces between words: each character is a word.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


def word_features(texts: Sequence[str]) -> sparse.csr_array:
    """Returns feature_NxV: the TF-IDF of the words and punctuation of each text, as a vector of length 1.

    Words in a single text are left out, since they tell nothing of other texts.

    Args:
      texts: the texts; case does not matter.
    """
    longest = max(_MAX_CHARACTERS // max(len(texts), 1), 200)
    vocabulary: dict[str, int] = {}
    number_W: list[int] = []
    ends = []
    for text in texts:
        words = _WORD.findall(text[:longest].lower())
        number_W += [vocabulary.setdefault(word, len(vocabulary)) for word in words]
        ends.append(len(number_W))
    count_NxV = sparse.csr_array(
        (np.ones(len(number_W)), np.array(number_W, np.int32), np.array([0, *ends])),
        shape=(len(texts), max(len(vocabulary), 1)),
    )
    count_NxV.sum_duplicates()
    texts_V = np.bincount(count_NxV.indices, minlength=max(len(vocabulary), 1))
    common_V = np.sort(np.argsort(-texts_V, kind="stable")[:_MAX_WORDS])
    common_V = common_V[texts_V[common_V] > 1]
    feature_NxV = count_NxV[:, common_V]
    idf_V = np.log((1 + len(texts)) / (1 + texts_V[common_V])) + 1
    feature_NxV.data = (1 + np.log(feature_NxV.data)) * idf_V[feature_NxV.indices]
    length_N = np.sqrt(feature_NxV.power(2).sum(axis=1))
    feature_NxV.data /= np.repeat(length_N, np.diff(feature_NxV.indptr))
    return feature_NxV


def draw_texts(samples: int) -> np.ndarray:
    """Returns the positions of the texts to compare, in order: all of them, or `MAX_TEXTS` drawn at random."""
    return np.sort(seeds.draw(0, "text membership", samples, min(samples, MAX_TEXTS)))


def compare_texts(
    texts: Sequence[str], member_N: np.ndarray, groups: Sequence[np.ndarray | None] = ()
) -> stats.TwoSampleAuc | None:
    """Returns how well a classifier of words tells members from non-members; None if there are too few.

    It takes two seconds for 10,000 texts of 200 words.

    Args:
      texts: the texts, those of `draw_texts` if there are many.
      member_N: membership, booleans.
      groups: documents and users of the texts, as integers or strings; None where they are all unknown, "" where that
        of a text is. Texts with the same document, the same user or the same words are together in the part that a
        classifier is fitted to, or in the part on which it is tried.
    """
    same_words_N = np.array([" ".join(text.lower().split()) for text in texts], object)
    numbers = [_numbers(name_N) for name_N in (same_words_N, *groups) if name_N is not None]
    return stats.two_sample_auc(word_features(texts), member_N, _connected(numbers))


def describe(auc: stats.TwoSampleAuc, model: str = "") -> str:
    """Returns a sentence for the reader of an AUC: what it includes beside what the model has learned.

    Args:
      auc: the result of `compare_texts`.
      model: the model whose members were compared, if there are several.
    """
    of = f" of {model}" if model else ""
    found = (
        f"members and non-members{of} were given, not drawn at random; a classifier that sees only the words of the "
        f"texts tells them apart with an AUC of {auc.auc:.2f} ({auc.low:.2f} to {auc.high:.2f}): "
    )
    if auc.is_above_chance:
        return (
            f"{found}their words differ, and every AUC below includes this difference; see {HOW_TO}"
        )
    return f"{found}no difference in their words was found, but it cannot see every difference; see {HOW_TO}"


def _numbers(name_N: np.ndarray) -> np.ndarray:
    """Returns a number for each name; a text whose name is empty has a number of its own."""
    number_N = np.unique(name_N, return_inverse=True)[1]
    if name_N.dtype.kind not in "OUS":
        return number_N
    return np.where(name_N == "", number_N.size + np.arange(number_N.size), number_N)


def _connected(numbers: Sequence[np.ndarray]) -> np.ndarray:
    """Returns group_N: samples are in one group if a chain of samples with a number in common connects them."""
    samples = numbers[0].size
    columns = np.concatenate(numbers)
    offsets = np.cumsum([0, *(number_N.max(initial=-1) + 1 for number_N in numbers)])
    columns = columns + np.repeat(offsets[:-1], samples) + samples
    rows = np.tile(np.arange(samples), len(numbers))
    size = samples + int(offsets[-1])
    graph = sparse.coo_array((np.ones(rows.size, bool), (rows, columns)), shape=(size, size))
    return csgraph.connected_components(graph, directed=False)[1][:samples]
