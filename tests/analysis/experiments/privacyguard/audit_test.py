"""The audit of one attack, compared with the statistics that it is made of."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from array_scores import array_scores

from analysis.experiments.privacyguard import audit
from lm_mia import config, stats
from lm_mia.attacks import privacy_bounds
from lm_mia.data import subsets

C = config.Attack(bootstraps=20, alpha=0.1, delta=1e-4)
METHODS = ["estimate_tpr", "estimate_max", "one_run", "one_run_gaussian"]


def drawn_scores(design: subsets.Design, samples: int = 600) -> tuple[np.ndarray, np.ndarray]:
    drawn = "bernoulli" if design == "given" else design
    member_N2 = subsets.member(5, samples, drawn)
    score_N2 = np.random.default_rng(0).normal(size=samples) + 2 * member_N2
    score_N2[:7] = np.nan
    return score_N2, member_N2


def audited(
    score_N2: np.ndarray,
    member_N2: np.ndarray,
    design: subsets.Design,
    folder: Path,
    bootstraps: int = C.bootstraps,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the rows of both tables."""
    settings: dict[str, Any] = {"alpha": C.alpha, "delta": C.delta, "design": design}
    with array_scores(score_N2[None], member_N2[None], folder) as scores:
        rows = audit.epsilon_audit(scores, bootstraps=bootstraps, **settings)
        return rows, audit.audit_curve(scores, **settings)


@pytest.mark.parametrize("design", ["exact", "balanced", "bernoulli", "given"])
def test_rows(design: subsets.Design, tmp_path: Path):
    score_N2, member_N2 = drawn_scores(design)
    table, curve = audited(score_N2, member_N2, design, tmp_path)
    table = table.set_index("method")
    is_known = design != "given"
    assert table.index.tolist() == METHODS[: 4 if is_known else 2]
    assert table.is_bound.tolist() == [False, False, True, False][: len(table)]
    assert (table.delta == 1e-4).all()
    assert (table.left_out == 7).all()
    estimates = stats.epsilon_intervals(score_N2, member_N2, delta=1e-4, replicates=20)
    of_method: dict[Any, dict[Any, Any]] = table.to_dict("index")
    for method, name in (("estimate_tpr", "at_tpr"), ("estimate_max", "largest")):
        row = of_method[method]
        expected = [getattr(estimates, f"{name}{end}_T")[0] for end in ("", "_low", "_high")]
        np.testing.assert_allclose([row[c] for c in ("epsilon", "low", "high")], expected)
        assert (row["canaries"], row["confidence"], row["adjacency"]) == (600, 0.95, "add_remove")
        members = (member_N2 & ~np.isnan(score_N2)).sum()
        assert row["ceiling"] == pytest.approx(np.log(members))
    if not is_known:
        assert curve.empty
        return
    membership = "coins" if design == "bernoulli" else "half"
    bound = stats.one_run_bound(
        score_N2, member_N2, membership=membership, delta=1e-4, confidence=0.9
    )
    row, gaussian = of_method["one_run"], of_method["one_run_gaussian"]
    assert (row["guesses"], row["correct"]) == (bound.guesses, bound.correct)
    assert row["epsilon"] == pytest.approx(bound.epsilon)
    assert row["ceiling"] == pytest.approx(bound.ceiling)
    assert row["epsilon"] > 0
    assert (gaussian["guesses"], gaussian["correct"]) == (
        bound.guesses_gaussian,
        bound.correct_gaussian,
    )
    assert gaussian["epsilon"] == pytest.approx(bound.epsilon_if_gaussian)
    assert gaussian["mu"] == pytest.approx(bound.mu)
    assert gaussian["ceiling"] == pytest.approx(bound.ceiling_if_gaussian)
    assert {row["canaries"], gaussian["canaries"]} == {600 if membership == "coins" else 300}
    assert {row["adjacency"]} == {"add_remove" if membership == "coins" else "replace_one"}
    assert row["confidence"] == pytest.approx(0.9)
    assert all(np.isnan(row[c]) for c in ("low", "high", "mu"))
    np.testing.assert_allclose(curve.epsilon, bound.curve.epsilon_C)
    np.testing.assert_allclose(curve.mu, bound.curve.mu_C)
    assert curve.sides.tolist() == [*bound.curve.sides_C]
    assert curve.epsilon.max() == row["epsilon"]


def test_estimates_without_bootstrap_are_the_same(tmp_path: Path):
    score_N2, member_N2 = drawn_scores("exact")
    with_ends, _ = audited(score_N2, member_N2, "given", tmp_path)
    without, _ = audited(score_N2, member_N2, "given", tmp_path, bootstraps=0)
    assert without["epsilon"].tolist() == with_ends["epsilon"].tolist()
    assert without["low"].isna().all()


def test_no_rows_without_a_class(tmp_path: Path):
    score_N2, member_N2 = drawn_scores("exact")
    score_N2[member_N2] = np.nan
    table, curve = audited(score_N2, member_N2, "exact", tmp_path)
    assert len(table) == len(curve) == 0
    assert "epsilon" in table
    assert "epsilon" in curve


@pytest.mark.parametrize(
    ("delta", "design", "lines"),
    [(1e-3, "bernoulli", 0), (1.1e-3, "bernoulli", 1), (1.1e-3, "exact", 0), (0.5, "given", 0)],
)
def test_a_large_delta_is_said(delta: float, design: subsets.Design, lines: int):
    messages: list[str] = []
    privacy_bounds.say_if_delta_is_large(delta, 1000, design, messages.append)
    assert len(messages) == lines
    if lines:
        assert messages[0].startswith("attack.delta=0.0011: above 1/1,000")
        assert messages[0].endswith("try --config.attack.delta=1e-04")
