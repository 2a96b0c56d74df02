"""Claims on ROC curves of single targets: that some larger models vary more between targets."""

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis import attacks
from analysis.claims import jackknife
from analysis.claims.compare import Claim, Estimate
from analysis.claims.jackknife import Jackknife
from analysis.experiments import find
from analysis.experiments.strongmia import targets
from analysis.io import SweepResults
from lm_mia.attacks.spec import Variant

RATES = (0.01, 0.1)
Z_T = np.array([-1.3, -0.9, -0.4, 0.1, 0.3, 0.8, 1.5, -0.6])


@pytest.fixture(autouse=True)
def differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes recipes of their TPRs, an array tpr_TxF at the `RATES`."""

    def read(recipe: Any) -> Any:
        def tpr(rate: float, summary: jackknife.Summary) -> Jackknife:
            value_T = recipe.tpr_TxF[:, RATES.index(rate)]
            return Jackknife.from_targets(value_T[:, None, None], "targets", summary=summary)

        return SimpleNamespace(tpr=tpr)

    def difference(new: Any, old: Any, count: int, value: Any) -> Estimate:
        del count
        return jackknife.independent_difference(value(read(new)), value(read(old)))

    monkeypatch.setattr(targets, "recipe_difference", difference)
    monkeypatch.setattr(targets, "size_label", lambda recipe: recipe.name)
    monkeypatch.setattr(targets.attacks, "resolved_fprs", lambda _: [*RATES])


def claim_of(*tpr_TxF: np.ndarray) -> Claim:
    by_size: Any = [SimpleNamespace(name=f"size {i}", tpr_TxF=tpr) for i, tpr in enumerate(tpr_TxF)]
    return targets._claim_some_vary_more(by_size, 8)


def at_rates(scale: float, seed: int = 0) -> np.ndarray:
    """Returns TPRs of 16 targets with this standard deviation at both rates."""
    noise_TxF = np.random.default_rng(seed).normal(size=(16, 2))
    return 0.5 + scale * (noise_TxF - noise_TxF.mean(0)) / noise_TxF.std(0, ddof=1)


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ((0.01, 0.01, 0.05), "supported"),
        ((0.01, 0.001, 0.05), "supported"),
        ((0.05, 0.01, 0.005), "contradicted"),
        ((0.01, 0.01, 0.01), "undecided"),
        ((0.01, 0.012, 0.001), "undecided"),
        ((0.01, 0.0, 0.001), "not tested"),
        ((0.01,), "not tested"),
    ],
)
def test_some_larger_models_vary_more(scales: tuple[float, ...], verdict: str):
    claim = claim_of(*(at_rates(scale, seed) for seed, scale in enumerate(scales)))
    assert claim.verdict == verdict
    assert claim.statement == targets.FIG18_STATEMENTS[0]


def test_mean_of_logarithms_by_hand():
    # The standard deviations are 4 and 9 times as large: the mean logarithm is that of 6.
    small_TxF, large_TxF = (
        0.5 + 0.01 * np.outer(Z_T, factors) for factors in ((1.0, 1.0), (4.0, 9.0))
    )
    claim = claim_of(small_TxF, large_TxF)
    assert re.match(r"Logarithm\b.*\b1%, 10%, size 1 minus size 0: 1\.792", claim.finding)
    assert np.log(6) == pytest.approx(1.792, abs=5e-4)


@pytest.mark.montecarlo
def test_equal_variances_are_rarely_called_larger():
    """Four sizes with equal variances; each side should be decided with 2.5% at most, up to the noise of jackknives."""
    rng = np.random.default_rng(1)
    verdicts = [claim_of(*rng.normal(0.5, 0.01, (4, 16, 2))).verdict for _ in range(400)]
    assert verdicts.count("supported") / 400 < 0.05
    assert verdicts.count("contradicted") / 400 < 0.01


def test_claim_of_a_sweep(recipes: SweepResults, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    [claim] = find("strongmia_fig19_fixed_data_targets").draw(recipes).claims
    family = attacks.with_equal_models([r for _, r in recipes.family("fixed")])
    count, rates = attacks.common_references(family), attacks.resolved_fprs(family)
    spread = []
    for recipe in family:
        attack = attacks.read_attack(recipe, Variant(references=count))
        log_std = [np.log(attack.tpr_T(rate).std(ddof=1)) for rate in rates]
        spread.append(np.mean(log_std))
    found = [part.split(": ")[1].split(",")[0] for part in claim.finding.split("; ")]
    assert found == [f"{x - spread[0]:.3f}" for x in spread[1:]]
