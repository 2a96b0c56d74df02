"""The simulation of differences between two attacks, with few and small experiments."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("attack_flips")


@pytest.mark.montecarlo
@pytest.mark.parametrize("pieces", [1, 4])
def test_intervals_contain_the_true_difference(benchmark: ModuleType, pieces: int):
    """A correct interval misses 2 of 40 on average, and 8 or more with probability 1/1400."""
    design = benchmark.Design(256, 8, pieces)
    differences = benchmark.simulate(design, 40, 0)
    assert len(differences) == 4
    for name, difference in differences.items():
        missed_F = (~benchmark.is_covered(difference)).sum(axis=0)
        assert missed_F[1] < 8, (
            name
        )  # At an FPR of 1%, halves of 128 non-members allow none or one.


@pytest.mark.montecarlo
def test_intervals_are_paired_and_not_vacuous(benchmark: ModuleType):
    differences = benchmark.simulate(benchmark.Design(512, 16), 20, 1)
    for name in ("TPR", "flip rate of members", "coin flips of members"):
        difference = differences[name]
        assert np.median(difference.margin_F[:, 1] / difference.unpaired_margin_F[:, 1]) < 0.9
        assert np.median(difference.margin_F[:, 1]) < 5 * difference.value_F[:, 1].std()


def test_table_has_a_row_per_number_and_rate(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(benchmark, "DESIGNS", {"tiny": benchmark.Design(128, 8, 2)})
    table = list(benchmark.rows(["tiny"], 2, 0))
    assert len(table) == 8
    assert table[0][:2] == ("128 samples, 2 per document; 8 replicas", "TPR at 1%")
