"""A small version of benchmarks/reference_targets.py."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lm_mia.data import subsets

pytestmark = pytest.mark.montecarlo


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("reference_targets")


@pytest.mark.parametrize("design", ["exact", "balanced"])
def test_spread_over_references_is_that_over_new_targets(
    benchmark: ModuleType, design: subsets.Design
):
    """Replicas of one subset vary much less."""
    replicas, references, new = benchmark.standard_deviations(16, design, "pooled", rounds=30)
    assert references == pytest.approx(new, rel=0.12)
    assert replicas < 0.75 * new


@pytest.mark.parametrize("design", ["exact", "bernoulli", "balanced"])
def test_noise_is_at_chance(benchmark: ModuleType, design: subsets.Design):
    for aucs in benchmark.aucs_on_noise(8, design, rounds=30).values():
        assert abs(np.mean(aucs) - 0.5) < 4 * np.std(aucs, ddof=1) / np.sqrt(30)
