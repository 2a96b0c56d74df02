"""The simulation of intervals over pieces of documents: true values against large samples, and a small version."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.stats


@pytest.fixture(scope="module")
def pieces() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("pieces")


@pytest.mark.parametrize("r", [0.0, 0.6])
@pytest.mark.parametrize("binary", [False, True])
def test_true_values(pieces: ModuleType, r: float, binary: bool) -> None:
    rng = np.random.default_rng(0)
    x_N, noise_N = rng.normal(size=(2, 400_000))
    y_N = r * x_N + np.sqrt(1 - r**2) * noise_N
    y_N = (y_N > 1) if binary else scipy.stats.norm.cdf(y_N)
    ranks = scipy.stats.rankdata(x_N), scipy.stats.rankdata(y_N)
    correlation = np.corrcoef(*ranks)[0, 1]
    expected = correlation, y_N[x_N > 0].mean()
    assert pieces.true_values(r, binary) == pytest.approx(expected, abs=4e-3)


def test_pieces_share_the_stated_part_of_the_variance(pieces: ModuleType) -> None:
    rng = np.random.default_rng(1)
    x_N, document_N = pieces.draw(rng, 20_000, 2, 0.5)
    assert document_N.tolist() == np.repeat(np.arange(20_000), 2).tolist()
    assert np.corrcoef(x_N[::2], x_N[1::2])[0, 1] == pytest.approx(0.5, abs=0.02)
    assert x_N.std() == pytest.approx(1, abs=0.02)


@pytest.mark.montecarlo
def test_only_intervals_over_documents_cover(pieces: ModuleType) -> None:
    """Of 100 intervals, 95% should cover, with a standard error of 2.2 points."""
    rng = np.random.default_rng(2)
    size = 100, 10, 0.8
    experiments = [pieces.trends(rng, *size, 0.3, binary=False) for _ in range(100)]
    experiments = [
        dict(experiment) | dict(pieces.coin_flips(rng, *size, replicas=8))
        for experiment in experiments
    ]
    for name in ("rank correlation", "upper bin", "observed share"):
        over_samples, over_documents = np.mean([e[name] for e in experiments], axis=0)
        assert 0.87 < over_documents <= 1, name
        assert over_samples < 0.8, name
    assert np.mean([e["share at 127"] for e in experiments], axis=0)[1] > 0.95
