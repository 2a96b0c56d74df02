"""Order statistics of blocks against a full sort."""

import numpy as np
import pytest

from lm_mia.stats import order_statistics as selection

RANKS = np.array([0, 1, 500, 501, 2700, 2998, 2999])
GENERATOR = np.random.default_rng(1)
CASES = {
    "normal": GENERATOR.standard_normal(3000),
    "few distinct": GENERATOR.integers(-2, 3, 3000) / 3,
    "equal": np.full(3000, -1.7),
    "infinite": GENERATOR.choice([-np.inf, -1.0, 0.0, 2.0, np.inf], 3000),
    "tiny and huge": GENERATOR.standard_normal(3000) * 10.0 ** GENERATOR.integers(-320, 300, 3000),
    "neighbors": 1 + np.spacing(1) * GENERATOR.integers(0, 50, 3000),
    "zeros of both signs": GENERATOR.choice([-0.0, 0.0, 5e-324, -5e-324], 3000),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gathered", [0, 10, 2**22])
def test_order_statistics_equal_a_sort(name: str, gathered: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selection, "_GATHERED", gathered)
    for size in (3000, 1001):
        blocks = [CASES[name][low : low + size] for low in range(0, 3000, size)]
        actual = selection.order_statistics(lambda: iter(blocks), lambda count: RANKS)  # noqa: B023
        np.testing.assert_array_equal(actual, np.sort(CASES[name])[RANKS])


def test_ranks_depend_on_the_number_of_values():
    blocks = [np.arange(5.0), np.empty(0), np.arange(5.0, 8.0)]
    actual = selection.order_statistics(lambda: blocks, lambda count: np.array([count - 1]))
    np.testing.assert_array_equal(actual, [7.0])
    assert selection.order_statistics(lambda: [np.empty(0)], lambda count: RANKS).size == 0
