"""A small version of benchmarks/reference_targets.py."""

import importlib
from pathlib import Path
from types import ModuleType

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
