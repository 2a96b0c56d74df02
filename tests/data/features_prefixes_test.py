from pathlib import Path

import numpy as np
import pytest
from docstring_population import write
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_table import table_of

from lm_mia.data import build, features


def flat(samples: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets_N1 = np.append(0, np.cumsum([len(s) for s in samples]))
    return np.array([t for s in samples for t in s], np.uint16), offsets_N1


def groups(samples: list[list[int]], prefix_tokens: int) -> list[int]:
    seen: list[tuple[str, int, int]] = []
    group_N = features.prefix_groups(*flat(samples), prefix_tokens, lambda *n: seen.append(n))
    assert seen[-1] == ("group samples by prefix", len(samples), len(samples))
    assert group_N.dtype == np.int64
    return group_N.tolist()


SAMPLES = [[2, 5, 6, 7, 1], [2, 5, 6, 8, 1], [2, 5, 6], [2, 9, 6, 7, 1], [2, 5, 6, 7, 1], [2, 1]]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (1, [0, 0, 0, 3, 0, 5]),
        (2, [0, 0, 0, 3, 0, 5]),
        (3, [0, 1, 2, 3, 0, 5]),
        (9, [0, 1, 2, 3, 0, 5]),
    ],
)
def test_hand_computed_example(tokens: int, expected: list[int]):
    assert groups(SAMPLES, tokens) == expected


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=5), min_size=1, max_size=30),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=60)
def test_equals_a_slow_reference(samples: list[list[int]], tokens: int):
    begin = [sample[1 : 1 + tokens] for sample in samples]
    assert groups(samples, tokens) == [begin.index(b) for b in begin]


def test_block_size_does_not_affect_groups(monkeypatch: pytest.MonkeyPatch):
    whole = groups(SAMPLES, 2)
    monkeypatch.setattr(features, "_BLOCK_SAMPLES", 4)
    assert groups(SAMPLES, 2) == whole


def test_digests_do_not_depend_on_the_dtype():
    for dtype in (np.uint16, np.uint32, np.int64):
        assert features.prefix_digest(np.array([2, 5, 6], dtype), 50) == features.prefix_digest(
            [2, 5, 6], 50
        )


@pytest.mark.parametrize("tokens", [2, 50])
def test_samples_with_equal_prefixes_form_groups(
    tmp_path: Path, tokens: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(build, "_SEGMENT_SAMPLES", 30)
    population = write(tmp_path / "p", group_prefix_tokens=tokens)
    begin = [population.sample(i)[1 : 1 + tokens].tolist() for i in range(100)]
    group_N = population.column("prefix_group")
    assert group_N.tolist() == [begin.index(b) for b in begin]
    assert (group_N < np.arange(100)).any() == (tokens == 2)
    assert list(table_of(population).columns[-2:]) == ["tfidf", "prefix_group"]
