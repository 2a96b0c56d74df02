"""Claims on the number of references, and the attacks that the figures of a recipe show."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from views import recipe_of_files

from analysis.attacks import AttackResult, JackknifedAttack
from analysis.claims.jackknife import Jackknife
from analysis.figures import references


def test_claims_with_few_references_are_not_tested():
    auc = {count: Jackknife(np.full((3, 1, 15), 0.6 + count / 100), "") for count in (2, 4)}
    *growth, bound = references._fig01_claims(auc)
    assert [claim.verdict for claim in growth] == ["not tested"] * 2
    assert bound.finding.startswith("0.7 minus AUC with 2 references: 0.080")


def attack(auc: float, noise: float = 0.01) -> JackknifedAttack:
    """Returns an attack with this AUC, on average, under 8 targets."""
    auc_T = auc + noise * np.arange(-3.5, 4)
    result = cast("AttackResult", SimpleNamespace(auc_T=auc_T))
    rates = pd.DataFrame({"part": 0, "auc": np.repeat(auc_T, 15)})
    return JackknifedAttack(result, rates, "8 targets", ())


@pytest.mark.parametrize(
    ("lead", "verdict"), [(0.1, "seen"), (-0.1, "opposite"), (0.005, "undecided")]
)
def test_lira_with_one_and_two_in_references(lead: float, verdict: str):
    rng = np.random.default_rng(0)
    rmia = {count: attack(0.6 + 0.01 * rng.random()) for count in (2, 4, 8, 16, 32)}
    lira = {count: attack(0.605 + lead, noise=0.03) for count in rmia}
    *_, claim = references._fig10_claims(lira, rmia)
    assert (claim.statement, claim.verdict) == (references.FIG10_STATEMENTS[-1], verdict)
    del lira[2]
    *_, claim = references._fig10_claims(lira, rmia)
    assert claim.verdict == ("opposite" if verdict == "opposite" else "not tested")
    assert "there is no attack with 2 references" in claim.finding


def test_roc_curve_of_every_attack():
    curve = [{"fpr": fpr, "tpr_mean": tpr, "tpr_std": 0.0} for fpr, tpr in ((0.1, 0.3), (1.0, 1.0))]
    roc = {("lira_online", 8): curve, ("loss", 0): curve, ("zlib", 0): curve}
    rows = [
        {"attack": name, "references": count, "auc_mean": 0.7, "auc_std": 0.01}
        for name, count in roc
    ]
    figure = references.draw_roc_attacks(roc, rows)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    # The zlib ratio is only in the tables.
    assert labels[:2] == ["LiRA (AUC 0.700 ± 0.010)", "Loss (AUC 0.700 ± 0.010)"]
    assert not any("Zlib" in label for label in labels)


def test_only_attacks_on_the_same_samples_are_drawn_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    not_shared = {
        ("lira_online", 4): 0.3,
        ("lira_online", 8): 0.01,
        ("lira_online", 16): 0.0,
        ("rmia_offline", 1): 0.5,
        ("rmia_offline", 16): 0.0,
        ("lira_offline", 8): 0.0,
        ("lira_offline", 16): 0.02,
        ("loss", 0): 0.0,
    }
    rows = [
        {"attack": name, "references": count, "not_shared_fraction": share}
        for (name, count), share in not_shared.items()
    ]
    attacks = pd.DataFrame(rows).assign(auc_mean=0.7, auc_std=0.01)
    roc = attacks[["attack", "references"]].assign(fpr=0.1, tpr_mean=0.3, tpr_std=0.0)
    (tmp_path / "tables").mkdir()
    attacks.to_csv(tmp_path / "tables" / "attacks.csv", index=False)
    roc.to_csv(tmp_path / "tables" / "roc.csv", index=False)
    drawn: dict[str, set[Any]] = {}
    for name in ("draw_roc_references", "draw_roc_attacks"):
        monkeypatch.setattr(
            references, name, lambda roc, _, name=name: drawn.update({name: {*roc}})
        )
    monkeypatch.setattr(
        references,
        "draw_auc_references",
        lambda rows: drawn.update(auc={(r["attack"], r["references"]) for r in rows}),
    )
    references.recipe_figures(recipe_of_files(tmp_path))
    shared = {key for key, share in not_shared.items() if share <= 0.01}
    assert drawn["draw_roc_references"] == drawn["auc"] == shared
    # Each attack with its largest number of references, or not at all.
    strongest = {("lira_online", 16), ("rmia_offline", 16), ("loss", 0)}
    assert drawn["draw_roc_attacks"] == strongest
