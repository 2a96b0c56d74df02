"""A small version of benchmarks/audit.py."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytestmark = pytest.mark.montecarlo


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("audit")


@pytest.mark.parametrize(("membership", "digits"), [("coins", None), ("half", 1)])
def test_noise_has_no_bound(benchmark: ModuleType, membership: str, digits: int | None):
    bounds = benchmark.one_run_bounds(membership, digits, 200, np.inf, 40)
    assert np.mean([bound.mu == 0 for bound in bounds]) >= 0.9
    assert np.mean([bound.epsilon == 0 for bound in bounds]) >= 0.9


def test_sections_print_tables(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]):
    benchmark.tutorial(1)
    benchmark.counts(2)
    assert (
        "| PrivacyGuard: best of 50 numbers of guesses, grid of noise levels | 252 | 249 | 5.356 |"
        in (capsys.readouterr().out)
    )
