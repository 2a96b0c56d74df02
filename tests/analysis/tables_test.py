"""Column headings and cells of tables of the paper."""

import math
from typing import Any

import pandas as pd
import pytest
from views import recipe_of_tables

from analysis import tables
from analysis.io import RecipeResults

NAN = float("nan")


def row(attack: str, references: int, auc: float) -> dict[str, Any]:
    return {"attack": attack, "references": references, "auc_mean": auc}


def test_best_per_attack_has_the_most_references() -> None:
    attacks = [row("rmia", 4, NAN), row("lira_online", 4, 0.9), row("lira_online", 8, 0.6)]
    attacks.append(row("loss", 0, 0.7))
    best = tables.best_per_attack(attacks)
    assert [(r["attack"], r["references"]) for r in best] == [
        ("loss", 0),
        ("lira_online", 8),
        ("rmia", 4),
    ]
    assert tables.find_attack(best, "lira_online") == attacks[2]
    assert tables.find_attack(best, "rmia") is None
    assert tables.find_attack(best, "zlib") is None


def with_reference_targets(auc: list[float]) -> RecipeResults:
    rows = [
        {"target": f"reference-{m:02d}", "references": 6, "auc": a, "tpr_at_0.1": 0.1 * m}
        | {"members": 9, "nonmembers": 8, "left_out": 3 + m}
        for m, a in enumerate(auc)
    ]
    return recipe_of_tables({"reference_targets.csv": pd.DataFrame(rows)})


def test_reference_targets_are_summarized() -> None:
    summary = tables.read_reference_targets(with_reference_targets([0.6, 0.8, NAN]), [0.1])
    assert summary == {
        "targets": 2,
        "references": 6,
        "left_out": 4,
        "auc_mean": pytest.approx(0.7),
        "auc_std": pytest.approx(0.1),
        "tpr_at_0.1_mean": pytest.approx(0.05),
        "tpr_at_0.1_std": pytest.approx(0.05),
    }
    summary = tables.read_reference_targets(with_reference_targets([0.6, NAN]), [0.1])
    assert summary["targets"] == 1
    assert all(math.isnan(summary[f"auc_{what}"]) for what in ("mean", "std"))


def test_column_headings_of_tables_3_to_6() -> None:
    edges = (0.0, 0.1, 0.25, 0.4, 0.4898, 0.504)
    names = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
    shares = [
        {"fpr": f, "bin": n, "low": edges[i], "high": edges[i + 1]}
        for f in (0.1, 0.01)
        for i, n in enumerate(names)
    ]
    bins = tables.flip_bins(shares)
    assert [b["range"] for b in bins] == [
        "[0, 0.1)",
        "[0.1, 0.25)",
        "[0.25, 0.4)",
        "[0.4, 0.49)",
        "[0.49, 0.504]",
    ]
    assert not any(b["empty"] for b in bins)
    assert [p["range"] for p in tables.unstable_groups(bins)] == [
        "[0.4, 0.49)",
        "[0.49, 0.504]",
        "[0.4, 0.504]",
    ]
    assert list(tables.shares_by_fpr(shares)) == [0.01, 0.1]
    for row in shares:  # with 16 replicas the cutoff is 0.4
        row["low"], row["high"] = (0.4 if e == 0.4898 else e for e in (row["low"], row["high"]))
    bins = tables.flip_bins(shares)
    assert [b["empty"] for b in bins] == [False, False, False, True, False]
    assert [p["range"] for p in tables.unstable_groups(bins)] == [
        "(empty range)",
        "[0.4, 0.504]",
        "[0.4, 0.504]",
    ]


@pytest.mark.parametrize(
    ("name", "mean", "std", "shown"),
    [
        ("acc", 0.5472, 0.0, "0.547 ± 0.000"),
        ("fpr", 0.0009765625, 0.0, "0.000977"),
        ("fpr", 0.05, 0.001, "0.050 ± 0.001"),
        ("tnr", 0.99902, 0.0, "0.999"),
        ("tnr", NAN, NAN, "–"),
    ],
)
def test_cells_of_tables_1_and_2(name: str, mean: float, std: float, shown: str) -> None:
    column = tables.RATES[name]
    assert tables.format_rate({f"{column}_mean": mean, f"{column}_std": std}, name) == shown


def test_cells_of_tables_5_and_6() -> None:
    row = {"tp_mean": 15826.4, "tp_std": 1239.0, "s_mean": 0.0684, "s_std": 0.0031, "t_mean": NAN}
    assert tables.format_count(row, "tp") == "15,826 ± 1,239"
    assert tables.format_share(row, "s") == "6.8% ± 0.3%"
    assert tables.format_share(row | {"t_std": NAN}, "t") == "–"
