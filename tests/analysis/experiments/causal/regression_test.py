"""CausalMIA Table 2 and Figures 3a and 3b: cells beside those of the paper, and claims."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr, ndtri

from analysis import experiment
from analysis.experiments.causal import regression
from analysis.io import SweepResults
from lm_mia import stats

AUC = {
    "multi_run": 0.56,
    "one_run": 0.56,
    "raw": 0.67,
    "oracle": 0.56,
    "learned": 0.6,
    "same_samples": 0.6,
}
"""Of both algorithms; about those of ridge regression in the paper."""
SEEDS = 4


def results_of(auc: Mapping[str, float]) -> regression.RegressionResults:
    """Returns results of 4 seeds, with ROC curves of normal scores."""
    metrics, curves = [], []
    generator = np.random.default_rng(0)
    for algorithm in regression.ALGORITHMS:
        for evaluation, mean in auc.items():
            noise_S = generator.standard_normal(SEEDS)
            for seed, value in enumerate(mean + 1e-3 * (noise_S - noise_S.mean())):
                names = {"algorithm": algorithm, "evaluation": evaluation, "seed": seed}
                numbers = {"auc": value, "youden": 0.1, "ate": 300.0 + seed, "tpr": 0.2}
                metrics.append(names | numbers | {"effective_nonmembers": 700.0})
                tpr_F = ndtr(np.sqrt(2) * ndtri(value) + ndtri(regression.FPRS))
                curves.append(pd.DataFrame({**names, "fpr": regression.FPRS, "tpr": tpr_F}))
    return regression.RegressionResults(pd.DataFrame(metrics), pd.concat(curves))


def draw(
    figure: str, monkeypatch: pytest.MonkeyPatch, auc: Mapping[str, float] = AUC
) -> experiment.Drawing:
    monkeypatch.setattr(regression, "load", lambda _: results_of(auc))
    return regression.EXPERIMENTS[figure].draw(SweepResults([]))


def test_the_table_has_our_numbers_beside_those_of_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    result = draw("causal_tab02_regression", monkeypatch)
    assert result.table is not None
    rows = {label: dict(row) for label, row in result.table.iterrows()}
    here, paper = rows["Ridge, zero-run, unadjusted"], rows["Ridge, zero-run, unadjusted (paper)"]
    assert (here["AUC"], paper["AUC"]) == ("0.670 ± 0.001", "0.669 ± 0.020")
    # The ATE on the loss; the results have that of the score.
    assert (here["ATE on the loss"], paper["ATE on the loss"]) == ("-302 ± 1", "-1,050 ± 139")
    assert paper["TPR at 20% FPR"] == "0.350 ± 0.041"
    assert (here["Effective non-members"], paper["Effective non-members"]) == ("700", "–")
    assert any(
        {"DP-SGD", "zero-run", "same-sample weights"} <= {*str(row).split(", ")} for row in rows
    )
    assert len(rows) == 12 + 10
    assert len(result.ours) == 40  # the ten rows of the paper
    assert result.ours["dp_sgd_learned_ate"][0] == pytest.approx(-301.5)
    experiment.write(tmp_path, "table", result)
    assert "Ridge, one-run" in (tmp_path / "tables" / "table.md").read_text()


def test_claims_hold_for_the_numbers_of_the_paper(monkeypatch: pytest.MonkeyPatch):
    result = draw("causal_tab02_regression", monkeypatch)
    assert tuple(claim.statement for claim in result.claims) == regression.TAB02_STATEMENTS
    assert [claim.verdict for claim in result.claims] == ["supported"] * 4


@pytest.mark.parametrize(
    ("evaluation", "value", "claim"),
    [
        ("multi_run", 0.60, 0),
        ("raw", 0.50, 1),
        ("oracle", 0.52, 2),
        ("learned", 0.70, 3),
        ("learned", 0.50, 3),
    ],
)
def test_claims_fail_for_other_numbers(
    evaluation: str, value: float, claim: int, monkeypatch: pytest.MonkeyPatch
):
    result = draw("causal_tab02_regression", monkeypatch, AUC | {evaluation: value})
    assert result.claims[claim].verdict == "contradicted"


def test_curves_are_drawn(monkeypatch: pytest.MonkeyPatch):
    for name, count in (("causal_fig03a_ridge", 5), ("causal_fig03b_dp_sgd", 7)):
        result = draw(name, monkeypatch)
        assert result.figure is not None
        [axes] = result.figure.axes
        legend = axes.get_legend()
        assert legend is not None
        labels = [text.get_text() for text in legend.get_texts()]
        assert labels[2] == "Zero-run, unadjusted (AUC 0.670)"
        assert len(labels) == count
        curve = result.data[result.data["series"] == "raw"]
        assert curve["tpr_mean"].to_numpy()[20] == pytest.approx(0.41, abs=0.01)


def test_curve_above_the_bound_is_seen(monkeypatch: pytest.MonkeyPatch):
    """The ROC curve of normal scores with an AUC of 0.67 (mu = 0.62) is between both bounds."""
    result = draw("causal_fig03b_dp_sgd", monkeypatch)
    assert [claim.verdict for claim in result.claims] == ["supported", "contradicted"]
    assert result.ours["epsilon"][0] == pytest.approx(1.581, abs=5e-4)
    assert float(stats.gaussian_dp_delta(0.62, 0.602)) > regression.DELTA
    assert float(stats.gaussian_dp_delta(0.62, 1.581)) < regression.DELTA
