"""Claims on sizes: the rise and the drop of the TPR in Figure 2(b), and its spread over targets in Figure 4(b)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.claims.compare import Estimate
from analysis.experiments.strongmia import scaling
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks.spec import Variant

FPRS = (0.001, 0.01, 0.1, 0.5)


def sizes(tpr: dict[str, float]) -> Any:
    """Returns recipes of these sizes with these TPRs at every FPR; 1,000 non-members resolve FPRs from 1% on."""
    return {
        name: SimpleNamespace(
            name=name,
            tpr=value,
            nonmembers=1000,
            config=SimpleNamespace(attack=SimpleNamespace(fprs=FPRS)),
        )
        for name, value in tpr.items()
    }


@pytest.fixture(autouse=True)
def differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the difference of two recipes that of their TPRs, with a standard error of 0.01."""

    def difference(new: Any, old: Any, count: int, value: Any) -> Estimate:
        del count, value
        return Estimate(new.tpr - old.tpr, 0.01, 100, "targets")

    monkeypatch.setattr(scaling, "recipe_difference", difference)
    monkeypatch.setattr(scaling, "size_label", lambda recipe: recipe.name)


@pytest.mark.parametrize(
    ("tpr", "rises", "drops"),
    [
        ({"10M": 0.1, "44M": 0.9, "85M": 0.2, "302M": 0.3, "489M": 0.1}, "supported", "supported"),
        ({"10M": 0.1, "85M": 0.2, "302M": 0.1, "489M": 0.2}, "contradicted", "contradicted"),
        ({"10M": 0.1, "85M": 0.2, "302M": 0.205, "489M": 0.2}, "undecided", "undecided"),
        ({"10M": 0.1, "140M": 0.0, "302M": 0.2}, "supported", "not tested"),
        ({"302M": 0.1, "489M": 0.2}, "not tested", "contradicted"),
    ],
)
def test_tpr_rises_and_then_drops(tpr: dict[str, float], rises: str, drops: str):
    claims = scaling._tpr_claims(sizes(tpr), 8)
    assert [claim.verdict for claim in claims] == [rises, drops]


def test_tpr_is_compared_at_resolved_rates():
    rise, drop = scaling._tpr_claims(sizes({"10M": 0.1, "302M": 0.2, "489M": 0.1}), 8)
    assert rise.finding.startswith("TPR at an FPR of 1%, 302M minus 10M: 0.100")
    assert rise.finding.count("TPR at") == 2  # not at 0.1%, and not above 20%
    assert drop.finding.startswith("TPR at an FPR of 1%, 302M minus 489M: 0.100")


def test_spread_of_figure_4(recipes: SweepResults, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    drawn = scaling.draw_fig04(recipes)
    *_, by_size, by_fpr = drawn.claims
    family = scaling.attacks.with_equal_models([r for _, r in recipes.family("fixed")])
    count = scaling.attacks.common_references(family)
    rates = scaling.attacks.resolved_fprs(family)
    std = {}
    for recipe in family:
        attack = scaling.read_attack(recipe, Variant(references=count))
        std[scaling.size_label(recipe)] = [attack.tpr_T(rate).std(ddof=1) for rate in rates]
        table = scaling.attacks.read_jackknife(recipe, Variant(references=count)).rates
        of_halves = table[(table["part"] > 0) & (table["half"] == 0)]
        half_PxT = of_halves.pivot(index="part", columns="target", values=f"tpr_at_{rates[-1]:g}")
        shared = max(stats.shared_reference_variance(half_PxT.to_numpy().T), 0)
        rows = drawn.data[drawn.data["panel"] == "b, TPR"].to_dict("records")
        [row] = [
            row
            for row in rows
            if (row["series"], row["fpr"]) == (scaling.size_label(recipe), rates[-1])
        ]
        tpr_T = attack.tpr_T(rates[-1])
        assert row["tpr_std"] == pytest.approx(tpr_T.std())
        assert row["tpr_std_own_references"] == pytest.approx(np.sqrt(tpr_T.var() + shared))
    first, *_, last = std.values()
    by_hand = ", ".join(f"{np.log(b / a):.3f}" for a, b in zip(first, last, strict=True))
    found = [part.split(": ")[1].split(",")[0] for part in by_size.finding.split("; ")]
    assert ", ".join(found) == by_hand
    assert by_size.statement == scaling.FIG04_STATEMENTS[4]
    assert by_fpr.statement == scaling.FIG04_STATEMENTS[5]
    if len(rates) > 1:
        assert by_fpr.finding.count("relative standard deviation") == len(family)
    else:
        assert by_fpr.verdict == "not tested"
