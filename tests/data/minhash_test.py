import numpy as np
import pytest
from datasketch import MinHashLSH
from hypothesis import given
from hypothesis import strategies as st

from lm_mia.data import minhash


def words(start: int, stop: int) -> str:
    return " ".join(f"w{i}" for i in range(start, stop))


def digests(texts: list[str]) -> np.ndarray:
    """Returns digest_DxB, uint64."""
    raw = b"".join(minhash.band_digests(texts))
    return np.frombuffer(raw, np.uint64).reshape(len(texts), minhash.BANDS)


def test_digests_depend_on_the_shingles_of_one_text_only():
    texts = [words(0, 30), words(0, 3), "", words(5, 60)]
    together = minhash.band_digests(texts)
    assert [minhash.band_digests([text])[0] for text in texts] == together
    assert {len(digest) for digest in together} == {minhash.BANDS * minhash.DIGEST_BYTES}
    assert len(set(together)) == 4
    # Whitespace and repetitions of shingles do not matter, but the order of the words does.
    assert minhash.band_digests([texts[0].replace(" ", "\n  ")])[0] == together[0]
    repeated = " ".join([words(0, 8)] * 5)
    assert (
        minhash.band_digests([repeated, repeated + " w0 w1"])[0]
        == (minhash.band_digests([repeated + " w0 w1"])[0])
    )
    assert minhash.band_digests(["w1 w0 w2"])[0] != together[1]


def test_digests_are_those_of_earlier_versions():
    """Populations that were built with other versions of the library must remain the same."""
    assert digests(["to be or not to be, that is the question", "é"])[:, 0].tolist() == [
        5081416971119074708,
        15452173187570739071,
    ]


def test_bands_are_those_that_the_library_chooses():
    lsh = MinHashLSH(threshold=0.5, num_perm=128)
    assert (lsh.b, lsh.r) == (minhash.BANDS, minhash.BAND_MINIMA)


@pytest.mark.parametrize(("shared", "similarity"), [(20, 1 / 3), (30, 0.6), (24, 3 / 7)])
def test_probability_of_a_common_band(shared: int, similarity: float):
    """Each pair has 40 shingles per text, some of which are shared: s = shared / (80 - shared)."""
    pairs = 400
    texts = []
    for pair in range(pairs):
        start = 1000 * pair
        texts.append(words(start, start + 47))
        texts.append(
            words(start, start + shared + 7) + " " + words(start + 500, start + 540 - shared)
        )
    assert similarity == pytest.approx(shared / (80 - shared))
    digest_DxB = digests(texts)
    found = (digest_DxB[::2] == digest_DxB[1::2]).any(axis=1).mean()
    expected = 1 - (1 - similarity**5) ** 25
    assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / pairs) ** 0.5)


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), max_size=12))
def test_earlier_documents_with_a_common_band_count(rows: list[list[int]]):
    digest_DxB = np.array(rows, np.uint64).reshape(-1, 2)
    expected = [
        any(a == b for other in rows[:i] for a, b in zip(row, other, strict=True))
        for i, row in enumerate(rows)
    ]
    assert minhash.follows_near_duplicate(digest_DxB.T).tolist() == expected


def test_near_duplicates_of_documents_that_are_left_out_are_left_out():
    # The second document is similar to the first and the third, which have nothing in common.
    digest_DxB = np.array([[1, 1], [1, 2], [3, 2], [4, 4]], np.uint64)
    assert minhash.follows_near_duplicate(digest_DxB.T).tolist() == [False, True, True, False]
