from pathlib import Path

import numpy as np
import pytest
from docstring_population import write

from lm_mia import seeds
from lm_mia.data import features

TOKENS = np.array([2, 5, 5, 1, 2, 1, 2, 6, 5, 1, 2, 6, 6], np.uint16)
OFFSETS = np.array([0, 4, 6, 10, 13])


def count(samples: int, seed: int = 0, vocab_size: int = 8) -> list[int]:
    seen: list[tuple[str, int, int]] = []
    frequency_V = features.document_frequencies(
        TOKENS, OFFSETS, vocab_size, samples, seed, lambda *n: seen.append(n)
    )
    assert seen[-1] == ("count document frequencies", samples, samples)
    assert frequency_V.dtype == np.int64
    return frequency_V.tolist()


def test_hand_computed_example():
    assert count(4) == [0, 3, 4, 0, 0, 2, 2, 0]


@pytest.mark.parametrize("cells", [1, 16, 24])
def test_block_size_does_not_affect_frequencies(monkeypatch: pytest.MonkeyPatch, cells: int):
    monkeypatch.setattr(features, "_BLOCK_CELLS", cells)
    assert count(4) == [0, 3, 4, 0, 0, 2, 2, 0]


def test_samples_are_drawn_by_seed():
    distinct = set()
    for seed in range(20):
        expected = np.zeros(8, int)
        for i in seeds.draw(seed, "population/frequency", 4, 2):
            expected[np.unique(TOKENS[OFFSETS[i] : OFFSETS[i + 1]])] += 1
        assert count(2, seed) == expected.tolist()
        distinct.add(tuple(expected.tolist()))
    assert len(distinct) > 3


def tfidf(frequency_V: list[int], samples: int) -> np.ndarray:
    inputs = TOKENS, OFFSETS, np.array(frequency_V)
    return features.mean_tfidf(*inputs, samples, (1, 2), lambda *_: None)


def test_mean_tfidf_of_a_hand_computed_example():
    # Pieces 5 and 6 are in 2 of 4 samples each, so their idf is log(5 / 3) + 1. The samples contain 5 twice, no piece,
    # 6 and 5, and 6 twice.
    idf = np.log(5 / 3) + 1
    tfidf_N = tfidf([0, 3, 4, 0, 0, 2, 2, 0], 4)
    assert tfidf_N.dtype == np.float64
    np.testing.assert_allclose(tfidf_N, [2 * idf, np.nan, idf, 2 * idf], rtol=1e-15)
    # Frequencies in other samples: a piece in all 3 of them has an idf of 1, one in none of them log(4) + 1.
    np.testing.assert_allclose(
        tfidf([0, 3, 3, 0, 0, 3, 0, 0], 3),
        [2, np.nan, (1 + np.log(4) + 1) / 2, 2 * (np.log(4) + 1)],
    )


def test_mean_tfidf_over_all_tokens_of_a_hand_computed_example():
    # One sample: piece 3 three times, with an idf of log(5 / 2) + 1, and piece 4 once, with one of 1.
    tokens, offsets_N1 = np.array([2, 3, 3, 4, 3, 1], np.uint16), np.array([0, 6])
    frequency_V, idf = np.array([0, 4, 4, 1, 4]), np.log(5 / 2) + 1
    inputs = tokens, offsets_N1, frequency_V, 4, (1, 2), lambda *_: None
    np.testing.assert_allclose(features.mean_tfidf(*inputs), (3 * idf + 1) / 2)
    np.testing.assert_allclose(features.mean_tfidf(*inputs, over="all"), (3 * 3 * idf + 1) / 4)


@pytest.mark.parametrize("tokens", [1, 7, 100, 2**22])
def test_mean_tfidf_equals_a_slow_reference(monkeypatch: pytest.MonkeyPatch, tokens: int):
    monkeypatch.setattr(features, "_BLOCK_TOKENS", tokens)
    rng = np.random.default_rng(3)
    length_N = rng.integers(2, 40, 50)
    offsets_N1 = np.append(0, np.cumsum(length_N))
    flat = rng.integers(0, 30, offsets_N1[-1]).astype(np.uint16)
    frequency_V = features.document_frequencies(flat, offsets_N1, 30, 20, 0, lambda *_: None)
    seen: list[tuple[str, int, int]] = []
    inputs = flat, offsets_N1, frequency_V, 20, (1, 2)
    tfidf_N = features.mean_tfidf(*inputs, lambda *n: seen.append(n))
    over_all_N = features.mean_tfidf(*inputs, lambda *_: None, over="all")
    assert seen[-1] == ("compute TF-IDF", 50, 50)
    for n, begin in enumerate(offsets_N1[:-1]):
        text = [int(t) for t in flat[begin : offsets_N1[n + 1]] if t not in (1, 2)]
        value = {t: text.count(t) * (np.log(21 / (1 + frequency_V[t])) + 1) for t in text}
        for ours, values in (
            (tfidf_N[n], [*value.values()]),
            (over_all_N[n], [value[t] for t in text]),
        ):
            np.testing.assert_allclose(ours, np.mean(values) if values else np.nan, rtol=1e-13)


def test_document_frequencies_and_tfidf(tmp_path: Path):
    written = write(tmp_path / "whole")
    counted = write(tmp_path / "p", frequency_samples=40)
    assert counted.sha256 == written.sha256
    for population, ids in (
        (counted, seeds.draw(3, "population/frequency", 100, 40)),
        (written, range(100)),
    ):
        expected = np.zeros(400, int)
        for i in ids:
            expected[np.unique(population.sample(i))] += 1
        frequency_V = np.load(population.folder / "document_frequency.npy")
        assert frequency_V.dtype == np.int64
        assert frequency_V.tolist() == expected.tolist()
        idf_V = np.log((1 + len(ids)) / (1 + expected)) + 1
        pieces, times = np.unique(population.sample(7)[1:], return_counts=True)
        text = pieces != 1
        np.testing.assert_allclose(
            population.column("tfidf")[7], (times * idf_V[pieces])[text].mean(), rtol=1e-13
        )
    assert (counted.column("tfidf") != written.column("tfidf")).all()
