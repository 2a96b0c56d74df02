"""benchmarks/more_references.py: predictions and what they are compared with."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lm_mia import stats


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        module = importlib.import_module("more_references")
        patch.setattr(module, "SIMULATED_SAMPLES", 400)
        yield module


def test_predictions_are_compared_with_what_more_references_gave(benchmark: Any):
    losses = benchmark.simulated_losses(0, 0.3)
    rows = list(benchmark.predictions(losses, "RMIA simple", sets=4))
    # Sets of 8, 16 and 32 of 128 references: four of each, with twice and four times as many.
    counts = [(row["references"], row["factor"]) for row in rows if row["metric"] == "AUC"]
    assert sorted(counts) == sorted(
        (count, factor) for count in (8, 16, 32) for factor in (2, 4) for _ in range(4)
    )

    def auc(references: slice) -> float:
        score_TxN = stats.rmia_simple(-losses.loss_MxN2[-8:], -losses.loss_MxN2[references])
        return float(stats.auc(score_TxN, losses.member_MxN2[-8:]).auc_T.mean())

    [third] = [
        row
        for row in [r for r in rows if r["metric"] == "AUC" and r["references"] == 16][4:6]
        if row["factor"] == 2
    ]
    assert third["today"] == pytest.approx(auc(slice(32, 48)))
    assert third["truth"] == pytest.approx(auc(slice(32, 64)))
    assert third["low"] < third["value"] < third["high"]


def test_lira_without_scores_for_many_samples_is_not_predicted(benchmark: Any):
    losses = benchmark.simulated_losses(1, 0.3)
    rows = list(benchmark.predictions(losses, "LiRA pooled", sets=1))
    values = {row["references"]: row["value"] for row in rows if row["metric"] == "AUC"}
    assert np.isnan(values[8])
    assert np.isfinite([values[16], values[32]]).all()


def test_summary_counts_errors_and_misses(benchmark: Any):
    table = pd.DataFrame(
        {
            "today": [0.60, 0.60, 0.60],
            "value": [0.62, 0.63, 0.61],
            "low": [0.61, 0.62, 0.60],
            "high": [0.64, 0.65, 0.62],
            "truth": [0.62, 0.61, 0.63],
        }
    )
    assert benchmark.summary(table) == [
        "3",
        "+2.00",
        "+2.00",
        "2.16",
        "1.63",
        "1.33",
        "33.3 %",
        "33.3 %",
        "33.3 %",
    ]


def test_most_intervals_of_simulated_recipes_cover(benchmark: Any):
    table = benchmark.simulate(draws=1)
    table = table[table["value"].notna()]
    assert {*table["recipe"]} == {*benchmark.SIMULATED}
    assert {*table["attack"]} == {*benchmark.SIMULATED_ATTACKS}
    assert ((table["low"] <= table["truth"]) & (table["truth"] <= table["high"])).mean() > 0.9
