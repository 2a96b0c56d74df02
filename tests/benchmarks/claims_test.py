"""The simulation of intervals of claims, with few and small recipes."""

import dataclasses
import importlib
import math
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def claims() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("claims")


@pytest.mark.montecarlo
def test_alike_recipes_are_rarely_told_apart(claims: ModuleType):
    """A correct interval misses 2 of 40 on average, and 8 or more with probability 1/1400."""
    for design in (
        lambda rng: claims.same_population(rng, 256, 4, 16),
        lambda rng: claims.other_population(rng, 256, 4, 16),
        lambda rng: claims.unrelated_property(rng, 256, 4, 16),
    ):
        for name, missed_Sx2 in claims.simulate(design, 40, 0).items():
            assert missed_Sx2[:, 0].sum() < 8, name


@pytest.mark.montecarlo
def test_alike_replicas_are_rarely_told_apart(claims: ModuleType):
    """A correct interval misses 5 or more of 16 with probability 1/1000; those over samples alone miss a third."""
    missed = claims.simulate(
        lambda rng: claims.replicas(rng, 256, 8, 16, subset_noise=False), 16, 0
    )
    assert all(missed_Sx2[:, 0].sum() < 5 for missed_Sx2 in missed.values())


def test_recipes_that_differ_are_told_apart(claims: ModuleType, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    population = claims.Population.draw(rng, 512)
    subsets = claims.balanced_subsets(rng, 24, 512)
    old = claims.target_jackknife(claims.Recipe(rng, population, subsets), 8, 16)
    more = dataclasses.replace(population, gain_N2=2 * population.gain_N2)
    new = claims.target_jackknife(claims.Recipe(rng, more, subsets), 8, 16)
    gap = (new["AUC"] - old["AUC"]).estimate()
    assert gap.low > 0.03


def test_rows_of_the_table(
    claims: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    small = "few models", lambda rng: claims.same_population(rng, 64, 2, 4)
    monkeypatch.setattr(claims, "DESIGNS", {"small": small})
    monkeypatch.setattr("sys.argv", ["claims.py", "--simulations=3"])
    claims.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| few models | AUC | 3 | ")
    assert claims._percent(np.array([0, math.nan])) == "–"
