"""The part of the report about the stability of stronger attacks."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from synthetic_workdir import Page, write_workdir

from analysis import attack_flips, page
from analysis.io import RecipeResults, Record


def row(
    attack: str = "rmia", tpr: float = 0.5, lira: tuple[float, float] = (0.4, 0.4), **changes: Any
) -> Record:
    """Returns a row whose intervals are 0.02 wide; LiRA has these shares of coin flips (members, true positives)."""
    result: Record = {"attack": attack, "references": 16, "fpr": 0.05, "not_shared_fraction": 0.0}
    result |= {"left_out": 0, "tpr_mean": tpr, "tpr_std": 0.01, "member_coin_flips_se": 0.01}
    result |= {"member_coin_flips": lira[0], "coin_flip_tp_fraction": lira[1]}
    gaps = {"tpr": tpr - 0.45, "member_flip_rate": 0.0}
    gaps |= {"member_coin_flips": lira[0] - 0.4, "coin_flip_tp_fraction": lira[1] - 0.4}
    for name, gap in gaps.items():
        gap = math.nan if attack == "lira_online" else gap
        result[f"{name}_minus_lira"] = gap
        result |= {f"{name}_minus_lira_low": gap - 0.01, f"{name}_minus_lira_high": gap + 0.01}
    return result | changes


LIRA = row("lira_online", 0.45)


@pytest.mark.parametrize(
    ("other", "begin"),
    [
        (row(lira=(0.45, 0.4)), "RMIA is stronger than LiRA, and decides more members like"),
        (row(lira=(0.35, 0.4)), "RMIA is stronger than LiRA, and decides fewer members like"),
        (row(), "RMIA is stronger than LiRA, and decides neither clearly more nor fewer members"),
        (row(tpr=0.3), "RMIA is weaker than LiRA, and decides neither clearly more nor fewer"),
        (row(tpr=0.455), "RMIA is neither clearly stronger nor weaker than LiRA; it decides"),
    ],
)
def test_verdict(other: Record, begin: str) -> None:
    assert attack_flips.verdict([other, LIRA]).startswith(begin)


def test_verdict_has_the_numbers_and_their_intervals() -> None:
    text = attack_flips.verdict([row(lira=(0.45, 0.3)), LIRA])
    assert text.endswith(
        "At an FPR of 5% its TPR is 0.500, that of LiRA 0.450 (difference 0.050, 95% interval 0.040 to 0.060). It "
        "decides 45.0% of the members like a coin flip, LiRA 40.0% (difference 5.0 percentage points, 95% interval 4.0 "
        "to 6.0). Of its true positives, 30.0% are on coin flips, of LiRA's 40.0% (difference -10.0 percentage points, "
        "95% interval -11.0 to -9.0)."
    )


def test_missing_numbers_are_not_shown() -> None:
    nan = math.nan
    other = row(tpr_minus_lira_low=nan, tpr_minus_lira_high=nan, coin_flip_tp_fraction=nan)
    text = attack_flips.verdict([other, LIRA])
    assert "(difference 0.050, no interval)" in text
    assert "true positives" not in text
    assert "nan" not in text


def test_attacks_on_other_samples_are_not_compared() -> None:
    rows = [row("stacked", 0.7, not_shared_fraction=0.02), row(), row("zlib", math.nan), LIRA]
    assert [r["attack"] for r in attack_flips.comparable(rows)] == ["rmia", "lira_online"]
    assert attack_flips.verdict(rows).startswith("RMIA is stronger")
    assert attack_flips.verdict([LIRA]) == ""
    assert attack_flips.verdict([rows[0], LIRA]) == ""


def test_summary_counts_stronger_attacks() -> None:
    rows = [row(lira=(0.45, 0.3)), row(lira=(0.45, 0.4)), row(lira=(0.3, 0.4)), row(tpr=0.455)]
    assert attack_flips.summary([*rows, LIRA]) == (
        "Of the attacks with a higher TPR than LiRA (3), as far as the intervals of the differences decide it, 2 have "
        "more coin flips among the members, 1 fewer, and 0 neither; 0 have more coin flips among the true positives, "
        "1 fewer, and 2 neither."
    )
    assert (
        attack_flips.summary([rows[-1], LIRA])
        == "No attack has a significantly higher TPR than LiRA."
    )


def test_figure_shows_attacks_with_references() -> None:
    rows = [row(lira=(0.45, 0.3)), LIRA, row("loss", 0.1, references=0)]
    rows.append(row("stacked", 0.7, not_shared_fraction=0.02))
    drawn = attack_flips.drawn(rows)
    assert [r["attack"] for r in drawn] == ["rmia", "lira_online"]
    left, right = attack_flips.draw(drawn).axes
    assert left.get_legend_handles_labels()[1] == ["RMIA", "LiRA"]
    for axes, expected in ((left, [[0.5, 45], [0.45, 40]]), (right, [[0.5, 30], [0.45, 40]])):
        points = [
            np.ravel(np.asarray(line.get_xydata()))
            for line in axes.lines
            if str(line.get_label()) in ("RMIA", "LiRA")
        ]
        np.testing.assert_allclose(points, expected)
    [bars] = (
        collection for collection in left.collections if isinstance(collection, LineCollection)
    )
    np.testing.assert_allclose(bars.get_segments()[0], [[0.5, 44], [0.5, 46]])


def page_of(folder: Path, **settings: Any) -> tuple[RecipeResults, Page]:
    recipe = write_workdir(folder, samples=120, bootstraps=0, **settings)
    page.write_page(folder, None, (), lambda *_: None, lambda _: None)
    return recipe, Page((folder / "figures.html").read_text(encoding="utf-8"))


@pytest.mark.usefixtures("undrawn")
def test_page_has_the_numbers_of_the_table(tmp_path: Path) -> None:
    recipe, shown = page_of(tmp_path, attacks=("lira_online", "reference_calibrated", "loss"))
    rows = attack_flips.read(recipe)
    assert [r["tpr_mean"] for r in rows] == sorted((r["tpr_mean"] for r in rows), reverse=True)
    assert "Is a stronger attack more stable?" in shown.words
    assert attack_flips.verdict(rows) in shown.words
    assert attack_flips.summary(rows) in shown.words
    text = shown.words.replace(" ", "")
    for r in rows:
        gap, low, high = (
            100 * r[f"member_coin_flips_minus_lira{e}"] for e in ("", "_low", "_high")
        )
        shares = f"{100 * r['member_coin_flips']:.1f}%±{100 * r['member_coin_flips_se']:.1f}%"
        assert shares in text
        if r["attack"] != "lira_online":
            assert f"{gap:+.1f}[{low:+.1f},{high:+.1f}]" in text
    assert "demo-attack_flips.png" in {p.name for p in (tmp_path / "figures").iterdir()}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "settings", [{"headline": "lira_online"}, {"attacks": ("lira_online", "loss"), "replicas": 4}]
)
def test_page_without_a_comparison(settings: dict[str, Any], tmp_path: Path) -> None:
    """With a single attack there is none, and with 4 replicas the coin-flip test has no power."""
    recipe, shown = page_of(tmp_path, **{"attacks": ("lira_online",)} | settings)
    assert "Is a stronger attack more stable?" not in shown.words
    assert attack_flips.recipe_figures(recipe) == {"attack_flips": None}


def test_tables_without_lira_are_not_compared() -> None:
    assert attack_flips.verdict([row(), row("loss", 0.2)]) == ""
