"""The simulated coverage of the intervals of the decomposition of variance, with few and small experiments."""

import dataclasses
import importlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def simulation() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("variance_coverage")


def test_components_are_those_of_the_noise(simulation: Any):
    """With many samples, whose noise is independent, the components of losses are those of the design."""
    design = dataclasses.replace(simulation.DESIGNS["independent"], samples=4096, sets=2)
    with ThreadPoolExecutor(2) as pool:
        components = simulation.simulate_components(design, np.random.default_rng(0), pool)
    for name, share in simulation._SHARES.items():
        actual = components.value_P["loss", "nonmembers", name][
            components.index_P.get_loc(("all", 0))
        ]
        assert actual == pytest.approx(0.01 * share, abs=0.0006), name


def test_related_samples_share_noise(simulation: Any):
    """Then the components of an experiment vary, although there are many samples."""
    design = dataclasses.replace(
        simulation.DESIGNS["cpu"], inits=3, orders=3, sets=2, samples=64, shared=0.9
    )
    for shared, most_correlated in ((0.9, 0.5), (0.0, 0.0)):
        scores = simulation.simulate_scores(
            dataclasses.replace(design, shared=shared, inits=400, orders=2, references_per_set=4),
            np.random.default_rng(1),
        )
        loss_IxN = scores.loss_TxC[:800:2]
        correlation = np.corrcoef(loss_IxN.T)[np.triu_indices(64, 1)]
        assert (np.abs(correlation).max() > most_correlated + 0.3) == bool(shared)


@pytest.mark.montecarlo
def test_intervals_cover(simulation: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    """An interval of at least 95% misses 4 or more of 12 with a probability of at most 1/440."""
    small = simulation.Design(4, 4, 4, 8, 128, 0.5)
    monkeypatch.setattr(simulation, "DESIGNS", {"small": small})
    simulation.main(["--simulations=12"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "small: 4 initializations, 4 orders, 4 sets of 8 references, 50% of the noise shared"
    )
    rows = [line.split(" | ") for line in lines[5:]]
    assert len(rows) == 10
    for row in rows:
        assert float(row[4].split()[0]) > 100 * 8 / 12, row
