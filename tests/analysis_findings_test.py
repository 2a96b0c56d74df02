"""What the report says in words, and the shapes of its tables, for numbers that turn one way or the other."""

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
_NAMES = ("findings", "flip_curves", "flips", "probability", "sheets", "stability", "style")
findings, flip_curves, flips, probability, sheets, stability, style = map(
    importlib.import_module, _NAMES
)
training = importlib.import_module("training")
NAN = float("nan")


def _row(attack: str, references: int, auc: float, left_out: int = 0) -> dict[str, Any]:
    return dict(attack=attack, references=references, auc_mean=auc, auc_std=0.01, left_out=left_out)


def test_sentences_stay_true_when_the_numbers_turn() -> None:
    falling = [_row("lira_online", r, auc) for r, auc in ((4, 0.6), (8, 0.65), (16, 0.5))]
    falling.append(_row("loss", 0, 0.7))
    assert "The loss attack is ahead by 0.200." in findings.lira_against_loss(falling, 9)
    said = [findings.ahead_of_lira(rows) for rows in (falling, falling[:3])]
    assert said == ["Ahead of LiRA here, on average: Loss (0.700 ± 0.010).", ""]
    assert "of the 2 steps up, 1 raised it." in findings.growth(falling, 9)
    assert "no AUC" in findings.lira_against_loss([_row("lira_online", 4, NAN)], 9)
    passed, verdict = findings.control([_row("lira_online", 8, 0.55), _row("loss", 0, 0.51)])
    assert not passed
    assert "1 of 2 mean AUCs" in verdict
    assert "LiRA with 8 references, AUC 0.550" in verdict
    coin = {"bin": "coin flip", "fpr": 0.1, "members_percent": 1.0, "nonmembers_percent": 2.0}
    assert "At no FPR" in stability.coin_flips([coin], 0.1)


def test_aucs_of_different_samples_are_not_compared() -> None:
    results = ((4, 0.61, 40), (8, 0.7, 2), (16, 0.8, 0), (32, 0.9, 0))
    attacks = [_row("lira_online", *result) for result in results]
    said = findings.growth(attacks, 100)
    assert said.startswith("From 16 to 32 references the AUC of LiRA goes from 0.800 to 0.900. All")
    assert "on 100 samples" in said
    assert "0.610 with 4 references (on 60 samples), 0.700 with 8 references (on 98" in said
    said = findings.growth(attacks[:3], 100)
    assert "From" not in said
    assert "0.700 with 8 references (on 98 samples), 0.800 with 16 references (on 100" in said
    said = findings.lira_against_loss([attacks[1], _row("loss", 0, 0.6)], 100)
    assert "ahead" not in said
    assert "98 have a LiRA score, 100 a loss" in said


def test_the_test_says_when_it_has_no_power() -> None:
    assert [stability.enough(alpha) for alpha in (0.05, 0.01, 0.5)] == [6, 8, 3]
    flip_N, member_N = np.array([0, 1, np.nan, 0, 0]), np.array([True, True, True, False, False])
    said = stability.disagreement(flip_N, member_N, 0.1)
    assert "about 50.0% of members and 0.0% of non-members" in said


def test_ccdf_counts_ties_and_leaves_nan_out() -> None:
    values, share = flips.ccdf(np.array([0.0, 0.5, 0.5, 0.25, np.nan]))
    assert values.tolist() == [0.0, 0.25, 0.5]
    assert share.tolist() == [1.0, 0.75, 0.5]


def test_training_curves_are_those_of_the_last_training() -> None:
    def curve(*steps: int) -> dict[int, float]:
        of = {"row": "a", "role": "replica"}
        lines = [of | {"step": step, "loss_nats": float(i)} for i, step in enumerate(steps)]
        return training.curves([*lines, {"row": "a"}])["a"][1]

    assert curve(0, 5, 10, 0, 5) == {0: 3.0, 5: 4.0}
    assert curve(0, 5, 10, 5, 10, 15) == {0: 0.0, 5: 3.0, 10: 4.0, 15: 5.0}


def test_what_rounds_to_the_same_is_not_ahead() -> None:
    attacks = [_row("lira_online", 8, 0.7001), _row("rmia", 8, 0.7004), _row("zlib", 0, 0.7006)]
    assert findings.ahead_of_lira(attacks) == (
        "Ahead of LiRA here, on average: Zlib ratio (0.701 ± 0.010)."
    )


def test_rows_that_were_not_there_are_counted_by_role() -> None:
    def said(references: int, replicas: int) -> str:
        asked = {"config": {"references": 128, "replicas": 128}}
        return findings.rows_there(asked | {"references": references, "replicas": replicas})

    assert said(128, 128) == ""
    assert said(128, 125).startswith("The tables are of 125 of the 128 replicas that were asked")
    assert "126 of the 128 references that were asked for and 125 of the 128 replicas" in said(
        126, 125
    )
    assert said(126, 125).endswith("the 126 references and 125 replicas that were.")


def _positives(coin: float, union: float) -> list[dict[str, Any]]:
    row = {"coin_flip_share_percent_mean": coin, "coin_flip_share_percent_std": 1.25}
    return [{"fpr": 0.05, "union_share_percent_mean": union} | row]


def test_shares_of_true_positives_name_the_very_unstable_where_there_are_any() -> None:
    said = stability.hits(_positives(22.8, 54.0), 0.05)
    assert "22.8% have a decision that is a coin flip (mean over replicas, ± 1.2%)" in said
    assert said.endswith("; with those that are very unstable it is 54.0%.")
    assert "very unstable" not in stability.hits(_positives(22.8, 22.8), 0.05)
    assert stability.hits(_positives(NAN, NAN), 0.05).endswith(
        "no member was ever called a member."
    )
    assert stability.hits(_positives(22.8, 54.0), 0.1) == ""


def _areas(raw: float, free: float, retained: float, dropped: float) -> list[dict[str, Any]]:
    def row(low: float, high: float, curve: str, mean: float) -> dict[str, Any]:
        area = {"pauc": mean * (high - low), "pauc_normalised": mean}
        area |= {"lift_normalised": mean - (low + high) / 2, "curve": curve}
        area |= {"lift_retained_percent": retained, "mean_tpr_dropped_percent": dropped}
        return area | {"low": low, "high": high}

    band = [row(1e-4, 0.1, "raw", raw), row(1e-4, 0.1, "coin-free", free)]
    return [*band, row(0.0, 1.0, "raw", 0.75), row(0.0, 1.0, "coin-free", 0.69)]


def test_areas_are_said_as_in_the_paper() -> None:
    said = stability.without_coins(_areas(0.314748, 0.190810, 53.18, 39.38), (1e-4, 0.1))
    assert said.startswith(
        "Between FPRs of 0.01% and 10% the mean TPR (the normalised partial AUC)"
    )
    assert "is 0.315, and 0.191 without true positives on coin-flip samples: 39.4% of it" in said
    assert "Above chance lie 0.265 and 0.141 (the lift), so 53.2% of the lift remains." in said
    assert said.endswith("Of the area under the whole curve, 0.750, 0.060 rests on coin flips.")


def test_a_lift_that_is_gone_or_never_was_is_not_said_to_remain() -> None:
    gone = stability.without_coins(_areas(0.06, 0.01, -400.0, 83.3), (1e-4, 0.1))
    assert "so nothing of the lift remains" in gone
    never = stability.without_coins(_areas(0.0, 0.0, NAN, NAN), (1e-4, 0.1))
    assert "remains" not in never
    assert "% of it rests" not in never


def _way(how: str, sets: int, decides: bool, left_out: int) -> dict[str, Any]:
    way = {"how": how, "title": how, "sets": sets, "references_a_set": 4, "decides": decides}
    return way | {"left_out": left_out}


def test_dependent_sets_are_not_said_to_be_tested() -> None:
    ways = [_way("disjoint", 8, True, 0), _way("subsampled (dependent)", 16, True, 1810)]
    exact, dependent = stability.resampled(ways, 0.05, 2048)
    assert "8 sets of 4 references. They share no reference" in exact
    assert "the test is exact" in exact
    assert "left out" not in exact
    assert "the cutoff describes, and tests nothing" in dependent
    assert "exact" not in dependent
    assert "Of 2,048 samples, 1,810 lack a score" in dependent
    [few] = stability.resampled([_way("disjoint", 5, False, 0)], 0.05, 9)
    assert few.endswith("no power; 6 or more are needed.")


def test_an_interval_is_said_of_lira_only() -> None:
    auc = {"metric": "auc", "value": 0.8752, "bootstrap_low": 0.86, "bootstrap_high": 0.8896}
    said = findings.interval([auc | {"attack": "loss"}, auc | {"attack": "lira_online"}])
    assert "LiRA's AUC is 0.875; had other samples been drawn, it could be between 0.860" in said
    assert findings.interval([auc | {"attack": "loss"}]) == findings.interval([]) == ""


def test_heads_of_tables_3_to_6() -> None:
    edges = (0.0, 0.1, 0.25, 0.4, 0.4898, 0.504)
    names = ("very stable", "low/mid", "mid/high", "very unstable", "coin flip")
    shares = [
        {"fpr": f, "bin": n, "low": edges[i], "high": edges[i + 1]}
        for f in (0.1, 0.01)
        for i, n in enumerate(names)
    ]
    bins = sheets.bins(shares)
    assert [b["range"] for b in bins] == [
        *("[0, 0.1)", "[0.1, 0.25)", "[0.25, 0.4)", "[0.4, 0.49)", "[0.49, 0.504]"),
    ]
    assert not any(b["empty"] for b in bins)
    assert [p["range"] for p in sheets.parts(bins)] == [
        *("[0.4, 0.49)", "[0.49, 0.504]", "[0.4, 0.504]"),
    ]
    assert list(sheets.by_fpr(shares)) == [0.01, 0.1]
    for row in shares:  # with 16 replicas the cutoff is 0.4
        row["low"], row["high"] = (0.4 if e == 0.4898 else e for e in (row["low"], row["high"]))
    bins = sheets.bins(shares)
    assert [b["empty"] for b in bins] == [False, False, False, True, False]
    assert [p["range"] for p in sheets.parts(bins)] == [
        *("(empty range)", "[0.4, 0.504]", "[0.4, 0.504]"),
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
    assert sheets.rate({f"{name}_mean": mean, f"{name}_std": std}, name) == shown


def test_cells_of_tables_5_and_6() -> None:
    row = {"tp_mean": 15826.4, "tp_std": 1239.0, "s_mean": 6.84, "s_std": 0.31, "t_mean": NAN}
    assert sheets.count(row, "tp") == "15,826 ± 1,239"
    assert sheets.share(row, "s") == "6.8% ± 0.3%"
    assert sheets.share(row | {"t_std": NAN}, "t") == "–"


def test_labels_keep_apart_and_stay_as_near_as_they_can() -> None:
    assert style.spread([0.5, 0.9], 0.1, 0, 1) == [0.5, 0.9]
    near = style.spread([0.52, 0.50, 0.1], 0.1, 0, 1)
    assert near == pytest.approx([0.56, 0.46, 0.1])
    high = style.spread([0.99, 0.98, 1.0], 0.1, 0, 1)
    assert high == pytest.approx([0.9, 0.8, 1.0])
    crowded = style.spread([0.1] * 20, 0.1, 0, 1)
    assert np.diff(crowded) == pytest.approx(0.1)


def test_labels_of_a_log_axis_do_not_touch() -> None:
    fprs = [1e-5, 1e-4, 1e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.75, 1.0]
    kept = style.labelled(fprs)
    assert kept == [1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.2, 1.0]
    assert style.labelled([3.0]) == [3.0]
    assert style.labelled([]) == []


def test_true_positive_probabilities_leave_out_samples_without_a_target() -> None:
    columns = [np.array(v, float) for v in ([0.2, 0.8], [0.1, 0.3], [0.0, 1.0], [3, 5])]
    said = probability.Probabilities(*columns, left_out=2).sentence()
    assert "Over the 3 to 5 references" in said
    assert "is 0.500 on average" in said
    assert "standard deviation of 0.200" in said
    assert "50% of these posteriors" in said
    assert said.endswith("2 samples have none and are left out.")
    none = probability.Probabilities(*(c[:0] for c in columns), left_out=4).sentence()
    assert "No sample" in none


def test_points_of_the_flip_curves_are_those_of_one_fpr() -> None:
    rows = [{"fpr": f, "samples": n} for f, n in ((0.05, 20), (0.05, 21), (0.1, 9))]
    assert flip_curves.bin_sizes(flip_curves.at(rows, 0.05)) == (20, 21)
    assert flip_curves.bin_sizes([]) == (0, 0)
    assert math.isclose(style.labelled([0.05])[0], 0.05)
