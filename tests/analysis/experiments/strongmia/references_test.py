"""Claims on the number of references."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest

from analysis.attacks import AttackResult, JackknifedAttack
from analysis.claims.jackknife import Jackknife
from analysis.experiments.strongmia import references


def test_claims_with_few_references_are_not_tested():
    auc = {count: Jackknife(np.full((3, 1, 15), 0.6 + count / 100), "") for count in (2, 4)}
    *growth, bound = references._fig01_claims(auc)
    assert [claim.verdict for claim in growth] == ["not tested"] * 2
    assert bound.finding.startswith("0.7 minus AUC ")


def attack(auc: float, noise: float = 0.01) -> JackknifedAttack:
    """Returns an attack with this AUC, on average, under 8 targets."""
    auc_T = auc + noise * np.arange(-3.5, 4)
    result = cast("AttackResult", SimpleNamespace(auc_T=auc_T))
    rates = pd.DataFrame({"part": 0, "auc": np.repeat(auc_T, 15)})
    return JackknifedAttack(result, rates, "8 targets", ())


@pytest.mark.parametrize(
    ("lead", "verdict"), [(0.1, "supported"), (-0.1, "contradicted"), (0.005, "undecided")]
)
def test_lira_with_one_and_two_in_references(lead: float, verdict: str):
    rng = np.random.default_rng(0)
    rmia = {count: attack(0.6 + 0.01 * rng.random()) for count in (2, 4, 8, 16, 32)}
    lira = {count: attack(0.605 + lead, noise=0.03) for count in rmia}
    *_, claim = references._fig10_claims(lira, rmia)
    assert (claim.statement, claim.verdict) == (references.FIG10_STATEMENTS[-1], verdict)
    del lira[2]
    *_, claim = references._fig10_claims(lira, rmia)
    assert claim.verdict == ("contradicted" if verdict == "contradicted" else "not tested")
    assert "with 2 references" in claim.finding
