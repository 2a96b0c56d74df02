"""Claims on sizes: the TPR by size in Figures 2(b) and 4(b), its spread over targets, and the AUC of Figure 4(a)."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.claims.compare import Estimate
from analysis.claims.jackknife import Jackknife
from analysis.experiments.strongmia import scaling
from analysis.io import SweepResults
from lm_mia import stats
from lm_mia.attacks.spec import Variant

FPRS = (0.001, 0.01, 0.1, 0.5)


def sizes(tpr: Mapping[str, object]) -> Any:
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

    def difference(new: Any, old: Any, count: int, value: Any = None) -> Estimate:
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
    assert re.match(r"TPR\b.*\b1%, 302M minus 10M: 0\.100", rise.finding)
    assert rise.finding.count("TPR at") == 2  # not at 0.1%, and not above 20%
    assert re.match(r"TPR\b.*\b1%, 302M minus 489M: 0\.100", drop.finding)


def on_data(auc: Mapping[int, float]) -> list[Any]:
    """Returns recipes with these numbers of samples and AUCs."""
    return [SimpleNamespace(samples=samples, tpr=value) for samples, value in auc.items()]


@pytest.mark.parametrize(
    ("auc", "verdict"),
    [
        ({50_000: 0.6, 500_000: 0.7, 1_000_000: 0.75, 10_000_000: 0.65}, "supported"),
        ({50_000: 0.6, 500_000: 0.8, 1_000_000: 0.75, 10_000_000: 0.65}, "contradicted"),
        ({50_000: 0.6, 500_000: 0.75, 1_000_000: 0.75, 10_000_000: 0.65}, "undecided"),
        ({192: 0.6, 384: 0.7, 768: 0.75, 1536: 0.65}, "supported"),
        ({192: 0.6, 384: 0.75, 768: 0.75, 1536: 0.65}, "supported"),
        # One number in between must be above both ends.
        ({192: 0.8, 384: 0.75, 768: 0.7, 1536: 0.65}, "contradicted"),
        ({192: 0.6, 384: 0.65, 768: 0.7, 1536: 0.75}, "contradicted"),
        ({192: 0.7, 384: 0.6, 768: 0.6, 1536: 0.7}, "contradicted"),
        ({192: 0.7, 384: 0.701, 768: 0.699, 1536: 0.7}, "undecided"),
        # The difference of 0.021 to the largest number decides alone, but not among two.
        ({192: 0.6, 384: 0.671, 1536: 0.65}, "supported"),
        ({192: 0.6, 384: 0.671, 768: 0.65, 1536: 0.65}, "undecided"),
        ({192: 0.7, 1536: 0.8}, "not tested"),
        ({192: 0.7}, "not tested"),
    ],
)
def test_auc_is_highest_in_between(auc: dict[int, float], verdict: str):
    claim = scaling._claim_highest_between(on_data(auc), 8)
    assert claim.verdict == verdict
    assert claim.statement == scaling.FIG04_STATEMENTS[1]


@pytest.mark.montecarlo
def test_selection_of_the_highest_auc_is_corrected(monkeypatch: pytest.MonkeyPatch):
    """The four numbers in between have the AUC of the largest one, so none is highest; the smallest is far below."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        scaling,
        "recipe_difference",
        lambda new, old, _: Estimate(new.tpr - old.tpr, 0.01 * 2**0.5, np.inf, "targets"),
    )
    supported = uncorrected = 0
    for _ in range(800):
        noise = rng.normal(0.7, 0.01, 5)
        auc = {100 * i: value for i, value in enumerate((0.2, *noise), 1)}
        claim = scaling._claim_highest_between(on_data(auc), 8)
        supported += claim.verdict == "supported"
        uncorrected += claim.holds and claim.p_value / 4 < 0.05
    assert supported / 800 < 0.035
    assert uncorrected / 800 > 0.05


def claim_every_step(tpr: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the claim on every step in size of Figure 4(b), with these TPRs at FPRs of 1% and 10%."""

    def difference(new: Any, old: Any, count: int, value: Any = None) -> Estimate:
        del count
        if value is None:
            return Estimate(0.0, 0.01, 100, "targets")
        new_tpr, old_tpr = (
            value(SimpleNamespace(tpr=lambda fpr, *_, r=r: r.tpr[[0.01, 0.1].index(fpr)]))
            for r in (new, old)
        )
        return Estimate(new_tpr - old_tpr, 0.01, 100, "targets")

    constant = Jackknife.from_targets(np.ones((3, 1, 1)), "3 targets")
    monkeypatch.setattr(scaling, "recipe_difference", difference)
    monkeypatch.setattr(
        scaling, "read_jackknife", lambda *_: SimpleNamespace(tpr=lambda *_: constant)
    )
    claims = scaling._size_claims([*sizes(tpr).values()], 8)
    return next(c for c in claims if c.statement == scaling.FIG04_STATEMENTS[6])


@pytest.mark.parametrize(
    ("tpr", "verdict"),
    [
        ({"10M": [0.1, 0.2], "44M": [0.2, 0.3], "85M": [0.3, 0.4]}, "supported"),
        ({"10M": [0.1, 0.2], "44M": [0.2, 0.1], "85M": [0.3, 0.4]}, "contradicted"),
        ({"10M": [0.1, 0.2], "44M": [0.2, 0.21], "85M": [0.3, 0.4]}, "undecided"),
        ({"10M": [0.1, 0.2], "44M": [0.1, 0.2], "85M": [0.1, 0.2]}, "undecided"),
        ({"10M": [0.1, 0.2]}, "not tested"),
    ],
)
def test_tpr_rises_at_every_step(
    tpr: dict[str, list[float]], verdict: str, monkeypatch: pytest.MonkeyPatch
):
    claim = claim_every_step(tpr, monkeypatch)
    assert claim.verdict == verdict
    assert claim.finding.count("TPR at ") == 2 * (len(tpr) - 1)


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
    [low] = (c for c in drawn.claims if c.statement == scaling.FIG04_STATEMENTS[2])
    data = [recipe for _, recipe in recipes.family("data")]
    ends = [f"with {recipe.samples:,} samples" for recipe in (data[0], data[-1])]
    assert [part.split(": ")[0] for part in low.finding.split("; ")] == [
        f"0.7 minus AUC {end}" for end in ends
    ]
    assert by_size.statement == scaling.FIG04_STATEMENTS[-2]
    assert by_fpr.statement == scaling.FIG04_STATEMENTS[-1]
    if len(rates) > 1:
        assert by_fpr.finding.count("relative standard deviation") == len(family)
    else:
        assert by_fpr.verdict == "not tested"
