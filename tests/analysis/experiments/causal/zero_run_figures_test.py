"""Figures of zero-run evaluation and of interference, drawn from tables that are made by hand."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from verdicts import SUPPORTED_HERE
from views import recipe_of_files

from analysis.experiments.causal import interference, zero_run
from analysis.experiments.causal.zero_run import ATTACKS, ESTIMATORS
from analysis.io import RecipeResults, Unavailable

RUNS = 12
SETTINGS = [("groups", 0.0), ("disjoint", 0.0), *(("graded", b) for b in (0.0, 1.0, 2.0))]
ERRORS = {"truth": 0.0, "iid": 0.0, "oracle": 0.002, "ipw": 0.01, "g_formula": -0.02, "aipw": 0.0}


def zero_run_table(noise: float = 0.003) -> pd.DataFrame:
    """Returns zero_run.csv in which the unadjusted error grows with the strength, and adjusted errors are small."""
    rng = np.random.default_rng(0)
    rows = []
    for shift, strength in SETTINGS:
        for attack in ATTACKS:
            for run in range(RUNS):
                for estimator in ESTIMATORS:
                    error = ERRORS.get(estimator, 0.04 * strength if shift == "graded" else 0.08)
                    value = 0.6 + error + noise * rng.normal() * (estimator != "truth")
                    row = {"shift": shift, "strength": strength, "attack": attack}
                    row |= {"model": f"reference-{run}", "estimator": estimator, "members": 500}
                    row |= {"auc": value, "tpr_0.05": value - 0.5, "ate": value - 0.4}
                    row |= {"auc_se": 0.01, "ate_se": 0.01, "top_tenth_share": 0.7}
                    weighted = estimator in ("naive", "iid", "oracle", "ipw", "aipw")
                    row["effective_nonmembers"] = 100.0 if weighted else np.nan
                    row["has_overlap"] = (shift != "disjoint") if weighted else None
                    rows.append(row)
    return pd.DataFrame(rows)


def interference_table(spread: float) -> pd.DataFrame:
    """Returns interference.csv whose one-run AUCs have this spread, relative to that of independent samples."""
    deviation = np.random.default_rng(1).normal(size=RUNS)
    deviation = (deviation - deviation.mean()) / deviation.std(ddof=1)
    auc_M = 0.6 + 0.01 * spread * deviation
    parts = []
    for attack in ATTACKS:
        runs = pd.DataFrame({"model": [f"reference-{m}" for m in range(RUNS)], "auc": auc_M})
        runs = runs.assign(ate=auc_M - 0.4, sd_auc=0.01, sd_ate=0.01)
        total = pd.DataFrame({"model": ["multi_run", "trials"], "auc": 0.6, "ate": 0.2})
        parts.append(
            pd.concat([runs, total.assign(sd_auc=0.05, sd_ate=0.05)]).assign(attack=attack)
        )
    return pd.concat(parts)


def write(recipe: RecipeResults, table: pd.DataFrame, spread: float = 1.0, **facts: Any) -> None:
    """Writes the tables of a recipe."""
    folder = recipe.recipe_dir / "tables"
    folder.mkdir(exist_ok=True)
    facts = {
        "reason": "",
        "shift_reasons": {},
        "models": RUNS,
        "pairs": False,
        "covariates": 3,
    } | facts
    (folder / "zero_run.json").write_text(json.dumps(facts))
    table.to_csv(folder / "zero_run.csv", index=False)
    first = table[table["model"] == "reference-0"][["shift", "strength", "attack", "estimator"]]
    curves = [first.assign(fpr=x, tpr=x**0.5) for x in (0.0, 0.5, 1.0)]
    pd.concat(curves).to_csv(folder / "zero_run_curves.csv", index=False)
    interference_table(spread).to_csv(folder / "interference.csv", index=False)
    rng = np.random.default_rng(2)
    samples = pd.DataFrame({"group": np.repeat(["member", "iid", "shifted"], 50)})
    samples = samples.assign(shift="groups", strength=0.0, score=rng.normal(size=150))
    samples["log_odds_oracle"] = rng.normal(size=150)
    samples["log_odds_learned"] = samples["log_odds_oracle"].where(samples["group"] != "iid")
    samples.to_parquet(folder / "zero_run_samples.parquet")


@pytest.fixture
def recipe(tmp_path: Path) -> RecipeResults:
    return recipe_of_files(tmp_path, "epochs-140M")


def recipes_of(recipe: RecipeResults) -> Any:
    return {"epochs-140M": recipe}


def test_planted_errors_decide_the_claims(recipe: RecipeResults):
    write(recipe, zero_run_table())
    verdicts = [c.verdict for c in zero_run.draw_fig03c(recipes_of(recipe)).claims]
    assert verdicts == [SUPPORTED_HERE] * 3
    notes = " ".join(zero_run.draw_fig03c(recipes_of(recipe)).notes)
    shares = {*re.findall(r"(\w+): learned weights[^.;]*?(\d+)%", notes)}
    assert {("disjoint", "100"), ("groups", "0")} <= shares
    [weights] = zero_run.draw_fig04(recipes_of(recipe)).claims
    assert weights.estimate is not None
    assert weights.estimate.value == pytest.approx(0.7)
    verdicts = [c.verdict for c in zero_run.draw_fig07(recipes_of(recipe)).claims]
    assert verdicts == [SUPPORTED_HERE] * 2


def test_reversed_errors_are_not_seen(recipe: RecipeResults):
    table = zero_run_table()
    table["estimator"] = table["estimator"].replace({"naive": "ipw", "ipw": "naive"})
    write(recipe, table)
    claims = zero_run.draw_fig03c(recipes_of(recipe)).claims
    assert [claim.verdict for claim in claims[1:]] == ["undecided"] * 2
    assert "contradicted" not in [
        claim.verdict for claim in claims
    ]  # intervals hold the samples fixed


def test_pairs_of_complements_count_once(recipe: RecipeResults):
    write(recipe, zero_run_table(), pairs=True)
    table = zero_run.read_runs(recipe)
    error = zero_run.errors(zero_run.values(table, "groups", "loss"), "auc")
    assert len(error) == RUNS // 2
    write(recipe, zero_run_table())
    single = zero_run.errors(zero_run.values(zero_run.read_runs(recipe), "groups", "loss"), "auc")
    # In the order of the table: reference-10 is the eleventh model, not the third.
    expected = single["ipw"].to_numpy().reshape(-1, 2).mean(axis=1)
    np.testing.assert_allclose(error["ipw"], expected)
    assert zero_run.over_runs(error["ipw"]).over == "6 runs"


def test_missing_parts_are_reported(recipe: RecipeResults):
    with pytest.raises(Unavailable, match="zero-run evaluation"):
        zero_run.draw_fig03c(recipes_of(recipe))
    with pytest.raises(Unavailable, match="comparison of runs"):
        interference.draw_fig05(recipes_of(recipe))
    table = zero_run_table()
    write(recipe, table[table["strength"] == 0.0])
    with pytest.raises(Unavailable, match="at several strengths"):
        zero_run.draw_fig07(recipes_of(recipe))


def test_spread_over_runs_is_compared_with_independent_samples(recipe: RecipeResults):
    write(recipe, zero_run_table(), spread=3.0)
    result = interference.draw_fig05(recipes_of(recipe))
    estimate = interference.Runs.read(recipe, "loss").sd_ratio("auc")
    assert estimate.value == pytest.approx(2.0)
    assert estimate.low > 0
    assert re.search(r"AUCs\b.*\b3\.00 times\b.*\bindependent", " ".join(result.notes))
    assert result.claims[2].verdict == "undecided"
    assert {len(rows) for _, rows in result.data.groupby("panel")} == {RUNS}
