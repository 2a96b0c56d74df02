"""What the report says in words, for numbers that turn one way or the other."""

from typing import Any

import numpy as np

from analysis import sentences

NAN = float("nan")


def _row(attack: str, references: int, auc: float, left_out: int = 0) -> dict[str, Any]:
    return dict(attack=attack, references=references, auc_mean=auc, auc_std=0.01, left_out=left_out)


def test_sentences_stay_true_when_the_numbers_turn() -> None:
    falling = [_row("lira_online", r, auc) for r, auc in ((4, 0.6), (8, 0.65), (16, 0.5))]
    falling.append(_row("loss", 0, 0.7))
    assert "The loss attack is ahead by 0.200." in sentences.lira_against_loss(falling, 9)
    said = [sentences.ahead_of_lira(rows) for rows in (falling, falling[:3])]
    assert said == ["Ahead of LiRA here, on average: Loss (0.700 ± 0.010).", ""]
    assert "of the 2 steps up, 1 raised it." in sentences.growth(falling, 9)
    assert "no AUC" in sentences.lira_against_loss([_row("lira_online", 4, NAN)], 9)
    passed, verdict = sentences.control([_row("lira_online", 8, 0.55), _row("loss", 0, 0.51)])
    assert not passed
    assert "1 of 2 mean AUCs" in verdict
    assert "LiRA with 8 references, AUC 0.550" in verdict
    coin = {"bin": "coin flip", "fpr": 0.1, "members_percent": 1.0, "nonmembers_percent": 2.0}
    assert "At no FPR" in sentences.coin_flips([coin], 0.1)


def test_aucs_of_different_samples_are_not_compared() -> None:
    results = ((4, 0.61, 40), (8, 0.7, 2), (16, 0.8, 0), (32, 0.9, 0))
    attacks = [_row("lira_online", *result) for result in results]
    said = sentences.growth(attacks, 100)
    assert said.startswith("From 16 to 32 references the AUC of LiRA goes from 0.800 to 0.900. All")
    assert "on 100 samples" in said
    assert "0.610 with 4 references (on 60 samples), 0.700 with 8 references (on 98" in said
    said = sentences.growth(attacks[:3], 100)
    assert "From" not in said
    assert "0.700 with 8 references (on 98 samples), 0.800 with 16 references (on 100" in said
    said = sentences.lira_against_loss([attacks[1], _row("loss", 0, 0.6)], 100)
    assert "ahead" not in said
    assert "98 have a LiRA score, 100 a loss" in said


def test_the_test_says_when_it_has_no_power() -> None:
    assert [sentences.enough(alpha) for alpha in (0.05, 0.01, 0.5)] == [6, 8, 3]
    flip_N, member_N = np.array([0, 1, np.nan, 0, 0]), np.array([True, True, True, False, False])
    said = sentences.disagreement(flip_N, member_N, 0.1)
    assert "about 50.0% of members and 0.0% of non-members" in said


def test_what_rounds_to_the_same_is_not_ahead() -> None:
    attacks = [_row("lira_online", 8, 0.7001), _row("rmia", 8, 0.7004), _row("zlib", 0, 0.7006)]
    assert sentences.ahead_of_lira(attacks) == (
        "Ahead of LiRA here, on average: Zlib ratio (0.701 ± 0.010)."
    )


def test_rows_that_were_not_there_are_counted_by_role() -> None:
    def said(references: int, replicas: int) -> str:
        asked = {"config": {"references": 128, "replicas": 128}}
        return sentences.rows_there(asked | {"references": references, "replicas": replicas})

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
    said = sentences.hits(_positives(22.8, 54.0), 0.05)
    assert "22.8% have a decision that is a coin flip (mean over replicas, ± 1.2%)" in said
    assert said.endswith("; with those that are very unstable it is 54.0%.")
    assert "very unstable" not in sentences.hits(_positives(22.8, 22.8), 0.05)
    assert sentences.hits(_positives(NAN, NAN), 0.05).endswith(
        "no member was ever called a member."
    )
    assert sentences.hits(_positives(22.8, 54.0), 0.1) == ""


def _areas(raw: float, free: float, retained: float, dropped: float) -> list[dict[str, Any]]:
    def row(low: float, high: float, curve: str, mean: float) -> dict[str, Any]:
        area = {"pauc": mean * (high - low), "pauc_normalised": mean}
        area |= {"lift_normalised": mean - (low + high) / 2, "curve": curve}
        area |= {"lift_retained_percent": retained, "mean_tpr_dropped_percent": dropped}
        return area | {"low": low, "high": high}

    band = [row(1e-4, 0.1, "raw", raw), row(1e-4, 0.1, "coin-free", free)]
    return [*band, row(0.0, 1.0, "raw", 0.75), row(0.0, 1.0, "coin-free", 0.69)]


def test_areas_are_said_as_in_the_paper() -> None:
    said = sentences.without_coins(_areas(0.314748, 0.190810, 53.18, 39.38), (1e-4, 0.1))
    assert said.startswith(
        "Between FPRs of 0.01% and 10% the mean TPR (the normalised partial AUC)"
    )
    assert "is 0.315, and 0.191 without true positives on coin-flip samples: 39.4% of it" in said
    assert "Above chance lie 0.265 and 0.141 (the lift), so 53.2% of the lift remains." in said
    assert said.endswith("Of the area under the whole curve, 0.750, 0.060 rests on coin flips.")


def test_a_lift_that_is_gone_or_never_was_is_not_said_to_remain() -> None:
    gone = sentences.without_coins(_areas(0.06, 0.01, -400.0, 83.3), (1e-4, 0.1))
    assert "so nothing of the lift remains" in gone
    never = sentences.without_coins(_areas(0.0, 0.0, NAN, NAN), (1e-4, 0.1))
    assert "remains" not in never
    assert "% of it rests" not in never


def _way(how: str, sets: int, decides: bool, left_out: int) -> dict[str, Any]:
    way = {"how": how, "title": how, "sets": sets, "references_a_set": 4, "decides": decides}
    return way | {"left_out": left_out}


def test_dependent_sets_are_not_said_to_be_tested() -> None:
    ways = [_way("disjoint", 8, True, 0), _way("subsampled (dependent)", 16, True, 1810)]
    exact, dependent = sentences.resampled(ways, 0.05, 2048)
    assert "8 sets of 4 references. They share no reference" in exact
    assert "the test is exact" in exact
    assert "left out" not in exact
    assert "the cutoff describes, and tests nothing" in dependent
    assert "exact" not in dependent
    assert "Of 2,048 samples, 1,810 lack a score" in dependent
    [few] = sentences.resampled([_way("disjoint", 5, False, 0)], 0.05, 9)
    assert few.endswith("no power; 6 or more are needed.")


def test_an_interval_is_said_of_lira_only() -> None:
    auc = {"metric": "auc", "value": 0.8752, "bootstrap_low": 0.86, "bootstrap_high": 0.8896}
    said = sentences.interval([auc | {"attack": "loss"}, auc | {"attack": "lira_online"}])
    assert "LiRA's AUC is 0.875; had other samples been drawn, it could be between 0.860" in said
    assert sentences.interval([auc | {"attack": "loss"}]) == sentences.interval([]) == ""
