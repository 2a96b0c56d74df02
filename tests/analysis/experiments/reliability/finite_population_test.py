"""Reliability Figures 2 and A3: the simulation of subsets of one population."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views import recipe_of_files

from analysis.experiments.reliability import finite_population
from analysis.experiments.reliability.finite_population import Simulation, draw_a3, draw_fig02
from analysis.io import SweepResults
from lm_mia import stats


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch):
    sizes = {"models": 256, "population": 160, "dimensions": 80}
    monkeypatch.setattr(finite_population, "SIZES", sizes)
    monkeypatch.setattr(finite_population, "SIMULATIONS", 4)


def test_tpr_of_three_adversaries():
    """A sample whose gap is 1 SD over new sets, and sqrt(2) SDs over subsets: 9.2% and 18.1% at an FPR of 1%."""
    one = np.ones(3)
    sd = stats.FinitePopulationSimulation(
        norm_N=math.sqrt(500) * one,
        empirical_sd_in_N=math.sqrt(0.5) * one,
        empirical_sd_out_N=math.sqrt(0.5) * one,
        analytical_sd_in_N=one,
        analytical_sd_out_N=one,
    )
    simulation = Simulation(0.5, 500, sd)
    tpr = {
        name: float(simulation.mean_tpr_F([0.01], name)[0])
        for name in ("uncorrected", "corrected", "distribution")
    }
    assert tpr == pytest.approx(
        {"uncorrected": 0.18085, "corrected": 0.09236, "distribution": 0.09236}, abs=1e-5
    )


def test_simulations_need_no_models():
    for draw in (draw_fig02, draw_a3):
        drawn = draw(SweepResults([]))
        assert drawn.figure is not None
        assert not drawn.data["value"].isna().any()
    assert "Panel (c) lacks" in draw_fig02(SweepResults([])).notes[1]
    assert draw_a3(SweepResults([])).claims[0].verdict == "supported"


def test_order_of_the_training_data_is_read_from_the_tables(tmp_path: Path):
    (tmp_path / "tables").mkdir()
    facts = {"reason": "", "order_share": 0.4, "replicas": 32}
    (tmp_path / "tables" / "pooling.json").write_text(json.dumps(facts))
    recipes: Any = {"flip-140M": recipe_of_files(tmp_path)}
    drawn = draw_fig02(recipes)
    assert "40% of the variance" in drawn.notes[1]
    assert re.search(r"factor\b.*\b1\.60\b.*\b2\b", drawn.notes[1])
    half = drawn.data[np.isclose(drawn.data["x"], 0.5) & drawn.data["series"].str.contains("order")]
    assert half["value"].item() == pytest.approx(1.6)
