"""Heads and cells of the tables of a page."""

import pytest

from analysis import tables

NAN = float("nan")


def test_heads_of_tables_3_to_6() -> None:
    edges = (0.0, 0.1, 0.25, 0.4, 0.4898, 0.504)
    names = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
    shares = [
        {"fpr": f, "bin": n, "low": edges[i], "high": edges[i + 1]}
        for f in (0.1, 0.01)
        for i, n in enumerate(names)
    ]
    bins = tables.bins(shares)
    assert [b["range"] for b in bins] == [
        "[0, 0.1)",
        "[0.1, 0.25)",
        "[0.25, 0.4)",
        "[0.4, 0.49)",
        "[0.49, 0.504]",
    ]
    assert not any(b["empty"] for b in bins)
    assert [p["range"] for p in tables.parts(bins)] == [
        "[0.4, 0.49)",
        "[0.49, 0.504]",
        "[0.4, 0.504]",
    ]
    assert list(tables.by_fpr(shares)) == [0.01, 0.1]
    for row in shares:  # with 16 replicas the cutoff is 0.4
        row["low"], row["high"] = (0.4 if e == 0.4898 else e for e in (row["low"], row["high"]))
    bins = tables.bins(shares)
    assert [b["empty"] for b in bins] == [False, False, False, True, False]
    assert [p["range"] for p in tables.parts(bins)] == [
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
    assert tables.rate({f"{name}_mean": mean, f"{name}_std": std}, name) == shown


def test_cells_of_tables_5_and_6() -> None:
    row = {"tp_mean": 15826.4, "tp_std": 1239.0, "s_mean": 6.84, "s_std": 0.31, "t_mean": NAN}
    assert tables.count(row, "tp") == "15,826 ± 1,239"
    assert tables.share(row, "s") == "6.8% ± 0.3%"
    assert tables.share(row | {"t_std": NAN}, "t") == "–"
