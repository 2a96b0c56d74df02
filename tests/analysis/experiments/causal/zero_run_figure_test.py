"""What the report shows about members and non-members from different sources, against zero_run.csv."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from views import recipe_of_files

from analysis.experiments.causal import zero_run

FACTS = {"reason": "", "shift_reasons": {"disjoint": "all are <C4>"}, "models": 4, "pairs": False}
FACTS |= {"covariates": 68}
TRUTH = {"auc": 0.6, "tpr_0.05": 0.1, "ate": 0.2}
ERROR = {"iid": 0.0, "naive": 0.1, "oracle": -0.01, "g_formula": 0.05, "aipw": 0.0001}
"""Mean error of each estimator; runs differ by -0.03, -0.01, 0.01 and 0.03."""
NOISE = (-0.03, -0.01, 0.01, 0.03)


def write(folder: Path, **changes: object) -> Path:
    """Writes tables of four runs and two attacks."""
    tables = folder / "tables"
    tables.mkdir()
    (tables / "zero_run.json").write_text(json.dumps(FACTS | changes))
    rows = []
    for shift, strength in (("groups", 0.0), ("graded", 1.0), ("graded", 2.0)):
        for attack in ("loss", "reference_calibrated"):
            for m, noise in enumerate(NOISE):
                common = {"shift": shift, "strength": strength, "attack": attack}
                common |= {"model": f"reference-0{m}", "members": 100 + m}
                se = {"ate_se": 0.01, "auc_se": 0.02}
                rows.append(common | {"estimator": "truth"} | TRUTH | se)
                for name, error in ERROR.items():
                    row = {k: value + error + noise for k, value in TRUTH.items()}
                    weights = {"effective_nonmembers": 80.0 + m, "has_overlap": m != 1}
                    no_weights = {"effective_nonmembers": math.nan, "has_overlap": math.nan}
                    row |= no_weights if name == "g_formula" else weights
                    rows.append(common | {"estimator": name} | row)
    pd.DataFrame(rows).to_csv(tables / "zero_run.csv", index=False)
    interference = [
        {"attack": "loss", "model": name, "ate": value, "auc": value, "sd_ate": 3.0, "sd_auc": 4.0}
        for name, value in (*enumerate(NOISE), ("multi_run", 0.7), ("trials", 9.0))
    ]
    pd.DataFrame(interference).to_csv(tables / "interference.csv", index=False)
    return folder


def test_errors_have_means_and_t_intervals_over_runs(tmp_path: Path):
    shown = zero_run.read(recipe_of_files(write(tmp_path)))
    assert shown is not None
    assert [s.title for s in shown.settings[::2]] == [
        *("groups", "graded, strength 1", "graded, strength 2")
    ]
    setting = shown.settings[0]
    assert [e.name for e in setting.estimators] == [*ERROR]
    interval = stats.ttest_1samp(np.array(NOISE) + 0.1, 0).confidence_interval(0.95)
    naive = setting.find("naive")
    assert naive is not None
    for metric in zero_run.METRICS:
        error = naive.errors[metric]
        assert (error.mean, error.low, error.high) == pytest.approx((0.1, *interval))
    assert setting.find("ipw") is None
    [one] = shown.one_run
    assert (one.multi_run, one.independent_sd) == (0.7, 4.0)
    assert one.sd == pytest.approx(np.std(NOISE, ddof=1))
    assert f"{one.independent_sd:.4f}" in one.sentence
    assert "independent" in one.sentence


def test_complementary_runs_count_once(tmp_path: Path):
    shown = zero_run.read(recipe_of_files(write(tmp_path, pairs=True)))
    assert shown is not None
    naive = shown.settings[0].find("naive")
    assert naive is not None
    # The means of two pairs are 0.08 and 0.12.
    margin = stats.t.ppf(0.975, 1) * 0.02
    assert naive.errors["auc"].high - 0.1 == pytest.approx(margin)


def test_estimates_that_do_not_exist_have_no_error():
    error = zero_run.mean_error([math.nan, 0.3])
    assert error.mean == 0.3
    assert math.isnan(error.low)
    assert math.isnan(zero_run.mean_error([math.nan]).mean)


def test_verdict_and_figure(tmp_path: Path):
    shown = zero_run.read(recipe_of_files(write(tmp_path)))
    assert shown is not None
    assert shown.verdict == (
        "With the shift groups, the AUC of the loss is off by +0.100 without adjustment, by -0.010 with true "
        "weights and by 0.000 with AIPW. With the shift graded, strength 2, the AUC of the loss is off by +0.100 "
        "without adjustment, by -0.010 with true weights and by 0.000 with AIPW."
    )
    figure = zero_run.recipe_figures(recipe_of_files(tmp_path))["zero_run"]
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Loss", "Calibrated loss"]
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["groups", "graded, strength 1", "graded, strength 2"]
    naive = figure.axes[0].containers[1]
    np.testing.assert_allclose(np.asarray(naive[0].get_xdata(), float), 0.1)
    # Estimators are drawn in the order of their names, from the top.
    heights = [container[0].get_ydata()[0] for container in figure.axes[0].containers]
    assert heights == sorted(heights, reverse=True)


def test_without_tables_or_with_a_reason_nothing_is_drawn(tmp_path: Path):
    assert zero_run.read(recipe_of_files(tmp_path)) is None
    assert zero_run.recipe_figures(recipe_of_files(tmp_path)) == {"zero_run": None}
    shown = zero_run.read(recipe_of_files(write(tmp_path, reason="too few")))
    assert shown is not None
    assert shown.reason == "too few"
    assert zero_run.recipe_figures(recipe_of_files(tmp_path)) == {"zero_run": None}
