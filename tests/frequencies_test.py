import numpy as np
import pytest

from lm_mia import frequencies, seeds

TOKENS = np.array([2, 5, 5, 1, 2, 1, 2, 6, 5, 1, 2, 6, 6], np.uint16)
OFFSETS = np.array([0, 4, 6, 10, 13])


def count(samples: int, seed: int = 0, vocab_size: int = 8) -> list[int]:
    seen: list[tuple[str, int, int]] = []
    found = frequencies.count(TOKENS, OFFSETS, vocab_size, samples, seed, lambda *n: seen.append(n))
    assert seen[-1] == ("count document frequencies", samples, samples)
    assert found.dtype == np.int64
    return found.tolist()


def test_by_hand():
    assert count(4) == [0, 3, 4, 0, 0, 2, 2, 0]


@pytest.mark.parametrize("cells", [1, 16, 24])
def test_a_few_samples_at_a_time(monkeypatch: pytest.MonkeyPatch, cells: int):
    monkeypatch.setattr(frequencies, "_CELLS", cells)
    assert count(4) == [0, 3, 4, 0, 0, 2, 2, 0]


def test_some_samples_are_drawn_by_seed():
    found = set()
    for seed in range(20):
        expected = np.zeros(8, int)
        for i in seeds.draw(seed, "population/frequency", 4, 2):
            expected[np.unique(TOKENS[OFFSETS[i] : OFFSETS[i + 1]])] += 1
        assert count(2, seed) == expected.tolist()
        found.add(tuple(expected.tolist()))
    assert len(found) > 3
