"""Reliability Figures 1, A1 and A2, drawn from small tables made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from verdicts import SUPPORTED_HERE
from views import recipe_of_files

from analysis import figure_section
from analysis.experiments.reliability import pooling
from analysis.io import SweepResults, Unavailable
from lm_mia import stats

FIG01, A1, A2 = "reliability_fig01_strategies", "reliability_figA1_oracle", "reliability_figA2_sample_fpr"  # fmt: skip
STRATEGIES = [*pooling._STYLES]
MODELS = (8, 16, 20)


def recipes_in(folder: Path) -> SweepResults:
    (folder / "tables").mkdir(exist_ok=True)
    return SweepResults([recipe_of_files(folder, "main", "small")])


def write_rates(folder: Path, excess: dict[tuple[str, int], float]) -> Any:
    """Writes the tables of thresholds, in which TPRs are 0.3 plus the excess of a strategy and a number of models."""
    recipes, noise = recipes_in(folder), np.random.default_rng(0).normal(scale=2e-4, size=(9, 15))
    rows, parts = [], []
    for oracle in (False, True):
        for models in MODELS:
            for number, strategy in enumerate(STRATEGIES):
                for fpr in (0.001, 0.01, 0.05, 0.1):
                    tpr = 0.3 + excess.get((strategy, models), 0.0)
                    key = {"fpr": fpr, "strategy": strategy, "oracle": oracle, "models": models}
                    rows.append(key | {"tpr": tpr, "tpr_low": tpr - 0.01, "tpr_high": tpr + 0.01})
                    rows[-1] |= {"realized_fpr": fpr, "threshold": 1.0}
                    parts += [
                        key | {"part": part, "half": half}
                        | {"tpr": tpr + (number + 1) * bool(part + half) * noise[part, half]}
                        for part in range(models // 4 + 1)
                        for half in range(15)
                    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(folder / "tables" / "pooling.csv", index=False)
    pd.DataFrame(parts).to_parquet(folder / "tables" / "pooling_jackknife.parquet")
    return recipes


AS_IN_THE_PAPER = {
    ("naive", 20): 0.1,
    ("standardized_normal", 8): 0.2,
    ("standardized_student_t", 20): 0.001,
    ("per_sample", 8): -0.1,
    ("per_sample", 20): 0.01,
}


@pytest.mark.parametrize(("figure", "claims"), [(FIG01, 4), (A1, 2)])
def test_claims_on_strategies(tmp_path: Path, figure: str, claims: int):
    draw = pooling.EXPERIMENTS[figure].draw
    drawn = draw(write_rates(tmp_path, AS_IN_THE_PAPER))
    assert [c.verdict for c in drawn.claims] == ["supported"] * claims
    assert "" in drawn.notes
    assert set(drawn.data["fpr"]) == {0.01, 0.05, 0.1}
    opposite = {key: -value for key, value in AS_IN_THE_PAPER.items()}
    opposite |= {("standardized_student_t", 20): 0.1, ("per_sample", 8): 0.0}
    drawn = draw(write_rates(tmp_path, opposite))
    assert {c.verdict for c in drawn.claims} == {"contradicted"}
    assert drawn.notes[-1].count("(contradicted)") == claims


def test_figures_name_what_is_missing(tmp_path: Path):
    recipes = recipes_in(tmp_path)
    for name in (FIG01, A2):
        with pytest.raises(Unavailable, match=r"leave_one_out\b.*; run lm-mia attack"):
            pooling.EXPERIMENTS[name].draw(recipes)
    (tmp_path / "tables" / "pooling.json").write_text(json.dumps({"reason": "6 references"}))
    shown = figure_section.make_section(FIG01, recipes, tmp_path)
    assert shown.missing.endswith("6 references")
    assert {c.verdict for c in shown.claims} == {"not tested"}


def write_sample_fprs(folder: Path, rates: dict[str, np.ndarray]) -> Any:
    """Writes sample_fpr.csv of samples whose rate at each FPR is this number times the FPR."""
    recipes, generator, frames = recipes_in(folder), np.random.default_rng(0), []
    for strategy, rate_N in rates.items():
        trials_N = generator.integers(24, 40, len(rate_N))
        for fpr in (0.01, 0.05, 0.1):
            frames.append(
                pd.DataFrame({"nonmember_models": trials_N, "called": generator.binomial(trials_N, fpr * rate_N)})
                .value_counts()
                .reset_index(name="samples")
                .assign(strategy=strategy, fpr=fpr)
            )  # fmt: skip
    pd.concat(frames).to_csv(folder / "tables" / "sample_fpr.csv", index=False)
    return recipes


def test_claims_on_the_rates_of_samples(tmp_path: Path):
    equal, uneven = np.ones(3_000), np.repeat([0.25, 4.0], [2_400, 600])
    rates = {"naive": uneven, "standardized": equal, "standardized_predictive": equal}
    drawn = pooling.draw_a2(write_sample_fprs(tmp_path, rates))
    assert [c.verdict for c in drawn.claims] == [SUPPORTED_HERE] * 2
    at_once = drawn.data[(drawn.data["fpr"] == 0.1)].pivot(
        index="low", columns="series", values="share"
    )
    np.testing.assert_allclose(at_once.sum(), 1, atol=0.02)
    assert np.abs(at_once["binomial"] - at_once["standardized"]).max() < 0.02
    rates = {"naive": equal, "standardized": uneven, "standardized_predictive": equal}
    drawn = pooling.draw_a2(write_sample_fprs(tmp_path, rates))
    assert [c.holds for c in drawn.claims] == [False, False]
    assert "Not supported here" in drawn.notes[-1]


def test_excess_variance_and_its_standard_error():
    """Samples with 20 models each, whose true rates have a beta distribution: the error is the STD over 300 tables."""
    generator, values, errors = np.random.default_rng(0), [], []
    for _ in range(300):
        called_N = generator.binomial(20, generator.beta(1, 9, 500))
        k, samples = np.unique(called_N, return_counts=True)
        estimate = pooling._SampleRates(np.full_like(k, 20), k, samples).excess_variance()
        spread = stats.rate_spread(called_N, np.full(500, 20))
        assert estimate.value == pytest.approx(1_000 * spread.variance)
        values.append(estimate.value)
        errors.append(estimate.standard_error)
    true = 1_000 * 0.1 * 0.9 / 11
    assert np.mean(values) == pytest.approx(true, abs=3 * np.std(values) / np.sqrt(300))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.12)


def test_share_of_samples_that_an_exact_test_rejects():
    # P(K >= 2) of 20 at 0.01 is 0.0169, and of K >= 1 it is 0.182
    kinds = pooling._SampleRates(np.full(3, 20), np.arange(3), np.array([70, 20, 10]))
    estimate = kinds.rejected(0.01)
    assert (estimate.value, estimate.not_covered) == (0.1, ("the models",))
    assert estimate.standard_error == pytest.approx(0.03)
