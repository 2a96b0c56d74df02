"""A small version of benchmarks/pooling.py."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.montecarlo


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("pooling")


def test_jackknife_intervals_cover_the_tpr_and_binomial_ones_do_not(benchmark: ModuleType):
    result = benchmark.coverage("standardized", 16, 200, 0.3, experiments=60)
    assert (result.jackknife_ExF.mean(axis=0) >= 0.93).all()
    assert (result.binomial_ExF.mean(axis=0) < 0.9).all()
    # The intervals are not so wide that they say nothing.
    assert (result.margin_ExF.mean(axis=0) < 5 * result.tpr_ExF.std(axis=0)).all()


@pytest.mark.parametrize("models", [8, 16])
def test_noise_reveals_nothing_if_pairs_are_left_out(benchmark: ModuleType, models: int):
    auc, _, tpr = benchmark.rates_on_noise(models, "lower", True, runs=60).mean(axis=0)
    assert auc == pytest.approx(0.5, abs=0.005)
    assert tpr == pytest.approx(0.1, abs=0.005)
    # Without the target only, members have one OUT reference more than non-members, and their scores a lighter tail.
    auc, _, tpr = benchmark.rates_on_noise(models, "lower", False, runs=30).mean(axis=0)
    assert auc == pytest.approx(0.5, abs=0.005)
    assert tpr < (0.08 if models == 8 else 0.097)
