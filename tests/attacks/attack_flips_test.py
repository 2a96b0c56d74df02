"""Flip rates under every attack: against slow counting, known differences, and attacks that leave out samples."""

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores

from lm_mia import config, stats
from lm_mia.attacks import attack_flips, decision_jackknife, tables
from lm_mia.attacks.decisions import count_votes_by_class

COMPARED = ("tpr", "member_flip_rate", "member_coin_flips", "coin_flip_tp_fraction")


Row = dict[str, Any]


def read(run: AttackRun) -> pd.DataFrame:
    return run.csv("attack_flips.csv")


def by_attack(table: pd.DataFrame) -> dict[tuple[str, float], Row]:
    """Returns the rows by attack and FPR."""
    return {(row["attack"], row["fpr"]): row for row in records(table)}


def records(table: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def differences(row: Row) -> list[float]:
    """Returns the differences from LiRA and the ends of their intervals."""
    return [value for name, value in row.items() if "_minus_lira" in name]


def test_there_is_a_row_for_each_attack_with_all_references(attacked: AttackRun):
    table = read(attacked)
    expected = itertools.product(SMALL.attacks, SMALL.fprs)
    assert list(zip(table["attack"], table["fpr"], strict=True)) == list(expected)
    # The last row of an attack is that with all references.
    attacks = {row["attack"]: row for row in records(attacked.csv("attacks.csv"))}
    for row in records(table):
        same = attacks[row["attack"]]
        assert row["references"] == same["references"]
        assert row["not_shared_fraction"] == same["not_shared_fraction"]
        assert row["left_out"] == same["left_out"]
        for statistic in ("mean", "std"):
            name = f"tpr_at_{row['fpr']:g}_{statistic}"
            assert row[f"tpr_{statistic}"] == pytest.approx(same[name], rel=1e-9)


@pytest.mark.parametrize("pieces", [1, 5])
def test_lira_has_the_numbers_of_the_other_tables(pieces: int, tmp_path: Path):
    c = dataclasses.replace(SMALL, attacks=("lira_online", "loss"), bootstraps=0)
    scores = dataclasses.replace(write_scores(tmp_path, c, 300), pieces=pieces)
    run = run_attacks(scores, c, tmp_path / "tables")
    lira = [row for row in records(read(run)) if row["attack"] == "lira_online"]
    shares = [row for row in records(run.csv("flip_shares.csv")) if row["bin"] == "coin flip"]
    samples = run.samples()
    jackknife = pd.read_parquet(run.folder / "decision_jackknife.parquet")
    whole = [r for r in records(jackknife) if r["replicas"] == r["references"] == r["samples"] == 0]
    for row, share, part in zip(lira, shares, whole, strict=True):
        for name in ("fpr", "replicas", "cutoff", "left_out"):
            assert row[name] == share[name]
        for suffix in ("", "_se", "_127_low", "_127_high"):
            assert row[f"member_coin_flips{suffix}"] == share[f"member_fraction{suffix}"]
        for suffix in ("", "_se"):
            assert row[f"nonmember_coin_flips{suffix}"] == share[f"nonmember_fraction{suffix}"]
        rate_N = samples[f"flip_rate_{row['fpr']:g}"].to_numpy()
        member_N = samples["member"].to_numpy()
        assert row["member_flip_rate"] == pytest.approx(np.nanmean(rate_N[member_N]), rel=1e-12)
        assert row["nonmember_flip_rate"] == pytest.approx(np.nanmean(rate_N[~member_N]), rel=1e-12)
        assert row["tpr_mean"] == pytest.approx(part["tpr"], rel=1e-12)
        for name in ("coin_flip_tpr", "member_flip_rate", "member_coin_flips"):
            assert row[name] == pytest.approx(part[name], rel=1e-12)
        assert np.isnan(differences(row)).all()


def slow(score_BxN: np.ndarray, member_N: np.ndarray, fpr: float) -> dict[str, float]:
    """Returns the numbers of one attack at one rate, by comparing every pair of replicas."""
    scored_N = ~np.isnan(score_BxN).any(axis=0)
    score_BxN, member_N = score_BxN[:, scored_N], member_N[scored_N]
    thresholds = [stats.threshold_at_fpr(s[~member_N], fpr) for s in score_BxN]
    decision_BxN = score_BxN >= np.array(thresholds).reshape(-1, 1)
    pairs = [first != second for first, second in itertools.combinations(decision_BxN, 2)]
    flip_N, votes_N, replicas = np.mean(pairs, axis=0), decision_BxN.sum(axis=0), len(score_BxN)
    coin_N = stats.p_value(votes_N, replicas) >= 0.05
    tpr = decision_BxN[:, member_N].mean()
    coin_tpr = (decision_BxN & coin_N)[:, member_N].mean()
    return {
        "tpr_mean": tpr,
        "coin_flip_tpr": coin_tpr,
        "coin_flip_tp_fraction": coin_tpr / tpr if tpr else math.nan,
        "member_flip_rate": flip_N[member_N].mean(),
        "nonmember_flip_rate": flip_N[~member_N].mean(),
        "member_coin_flips": coin_N[member_N].mean(),
        "nonmember_coin_flips": coin_N[~member_N].mean(),
        "left_out": int((~scored_N).sum()),
    }


def slow_scores(run: AttackRun) -> dict[str, np.ndarray]:
    """Returns the scores of some attacks from whole arrays."""
    world = run.scores
    references = world.reference_MxN, world.reference_member_MxN
    return {
        "lira_online": stats.lira(world.target_TxN, *references),
        "lira_offline": stats.lira(world.target_TxN, *references, offline=True),
        "rmia_simple": stats.rmia_simple(-world.target_TxN, -references[0]),
        "reference_calibrated": references[0].astype(float).mean(axis=0) - world.target_TxN,
        "loss": -world.target_TxN.astype(float),
    }


def test_numbers_are_those_of_slow_counting(attacked: AttackRun):
    rows = by_attack(read(attacked))
    for attack, score_BxN in slow_scores(attacked).items():
        for fpr in SMALL.fprs:
            expected = slow(score_BxN, attacked.scores.member_N, fpr)
            found = {name: rows[attack, fpr][name] for name in expected}
            assert found == pytest.approx(expected, abs=1e-12, nan_ok=True), (attack, fpr)


def test_differences_are_those_of_the_rows(attacked: AttackRun):
    rows = by_attack(read(attacked))
    columns = dict(zip(COMPARED, ("tpr_mean", *COMPARED[1:]), strict=True))
    for (attack, fpr), row in rows.items():
        for name, column in columns.items() if attack != "lira_online" else ():
            gap = row[column] - rows["lira_online", fpr][column]
            low, high = row[f"{name}_minus_lira_low"], row[f"{name}_minus_lira_high"]
            assert row[f"{name}_minus_lira"] == pytest.approx(gap, abs=1e-12)
            if fpr == 1:  # All decisions are "member".
                assert low == gap == high == 0
            elif fpr == 0.1:
                assert low + high == pytest.approx(2 * gap, abs=1e-12)
                assert low < high


def test_intervals_are_those_of_the_same_parts(attacked: AttackRun):
    scores, member_N = slow_scores(attacked), attacked.scores.member_N
    group_N = stats.sample_groups(np.arange(len(member_N)))
    lira, other = (
        stats.decision_metrics(scores[name], member_N, group_N, SMALL.fprs, 1)
        for name in ("lira_online", "rmia_simple")
    )
    row = by_attack(read(attacked))["rmia_simple", 0.1]
    for name in COMPARED:
        if name == "coin_flip_tp_fraction":
            part_A1xH1xF = other.coin_flip_tpr_A1xH1xF / other.tpr_A1xH1xF
            part_A1xH1xF = part_A1xH1xF - lira.coin_flip_tpr_A1xH1xF / lira.tpr_A1xH1xF
        else:
            part_A1xH1xF = getattr(other, f"{name}_A1xH1xF") - getattr(lira, f"{name}_A1xH1xF")
        margin = stats.jackknife_margin(part_A1xH1xF[:, None, :, 1])
        difference = row[f"{name}_minus_lira"]
        assert row[f"{name}_minus_lira_low"] == pytest.approx(difference - margin, rel=1e-9)
        assert row[f"{name}_minus_lira_high"] == pytest.approx(difference + margin, rel=1e-9)


MEMBER_N = np.arange(16) < 8


Decided = tuple[pd.DataFrame, pd.DataFrame]


def decided(attack: str, score_BxN: np.ndarray) -> Decided:
    """Returns the rows and the parts of an attack on 8 members and 8 non-members, two of which are called members."""
    fprs = (0.25,)
    points = stats.tpr_at_fpr(score_BxN, MEMBER_N, fprs)
    has_decisions_F = tables.has_decisions(points)
    votes = count_votes_by_class(score_BxN, points.threshold_TxF, has_decisions_F, MEMBER_N, None)
    shares = tables.coin_flip_shares(votes, fprs, 0.05, ranges=("member",))
    metrics = stats.decision_metrics(
        score_BxN, MEMBER_N, stats.sample_groups(np.arange(16)), fprs, 0
    )
    table = attack_flips.shares_of_votes(votes, shares, points.tpr_TxF, 16, 0.05)
    table.insert(0, "attack", attack)
    return table, decision_jackknife.to_frame(metrics, 0, fprs)


def compared(lira: Decided, other: Decided) -> pd.DataFrame:
    return attack_flips.compare([lira[0], other[0]], {"loss": other[1]}, lira[1])


def test_hand_worked_case():
    """The first four samples, members, get 8, 4, 1 and 0 votes from 8 replicas; 1 to 7 votes look like coin flips."""
    score_BxN = np.zeros((8, 16))
    score_BxN[:, -2:] = 1
    for sample, votes in enumerate((8, 4, 1, 0)):
        score_BxN[:votes, sample] = 1
    lira = decided("lira_online", score_BxN)
    stable_BxN = np.where(np.arange(16) == 1, 0, score_BxN)  # the member with 4 votes gets none
    row, other = records(compared(lira, decided("loss", stable_BxN)))
    assert row["replicas"] == 8
    assert row["tpr_mean"] == pytest.approx((8 + 4 + 1) / 64)
    assert row["tpr_std"] == pytest.approx(np.std([3, 2, 2, 2, 1, 1, 1, 1]) / 8)
    assert row["member_flip_rate"] == pytest.approx((2 * 16 + 2 * 7) / 56 / 8)
    assert row["nonmember_flip_rate"] == row["nonmember_coin_flips"] == 0
    assert row["member_coin_flips"] == 2 / 8
    assert row["coin_flip_tpr"] == pytest.approx((4 + 1) / 64)
    assert row["coin_flip_tp_fraction"] == pytest.approx(5 / 13)
    assert row["left_out"] == 0
    assert other["tpr_minus_lira"] == pytest.approx(-4 / 64)
    assert other["member_flip_rate_minus_lira"] == pytest.approx(-2 * 16 / 56 / 8)
    assert other["member_coin_flips_minus_lira"] == pytest.approx(-1 / 8)
    assert other["coin_flip_tp_fraction_minus_lira"] == pytest.approx(1 / 9 - 5 / 13)


def test_an_attack_with_the_decisions_of_lira_does_not_differ_from_it():
    rng = np.random.default_rng(0)
    score_BxN = rng.normal(size=(8, 16)) + 2 * MEMBER_N
    lira, same = decided("lira_online", score_BxN), decided("loss", np.exp(score_BxN))
    assert differences(records(compared(lira, same))[1]) == [0] * 12


def test_attacks_that_leave_out_samples(tmp_path: Path):
    """With 5 references, some samples have no OUT reference, and more have fewer than two IN or OUT references."""
    c = dataclasses.replace(
        SMALL,
        references=5,
        attacks=("lira_online", "rmia_offline", "loss"),
        bootstraps=0,
        fprs=(0.005, 0.1),
    )
    run = run_attacks(write_scores(tmp_path, c, 400, design="bernoulli"), c, tmp_path / "tables")
    rows = by_attack(read(run))
    left_out = {attack: rows[attack, 0.1]["left_out"] for attack in c.attacks}
    assert left_out["lira_online"] > left_out["rmia_offline"] > left_out["loss"] == 0
    assert rows["rmia_offline", 0.1]["not_shared_fraction"] > 0.01
    assert rows["loss", 0.1]["not_shared_fraction"] > 0.01
    world = run.scores
    score_BxN = stats.lira(world.target_TxN, world.reference_MxN, world.reference_member_MxN)
    expected = slow(score_BxN, world.member_N, 0.1)
    found = {name: rows["lira_online", 0.1][name] for name in expected}
    assert found == pytest.approx(expected, abs=1e-12)
    # LiRA scores fewer than 200 non-members, and so has no TPR at an FPR of 1 / 200.
    assert math.isnan(rows["lira_online", 0.005]["tpr_mean"])
    assert math.isnan(rows["lira_online", 0.005]["member_flip_rate"])
    assert math.isnan(rows["lira_online", 0.005]["member_coin_flips"])
    # So there are no votes at this rate, and no threshold among its scores.
    shares = run.csv("flip_shares.csv")
    unshown, shown = shares[shares["fpr"] == 0.005], shares[shares["fpr"] == 0.1]
    assert unshown["member_fraction"].isna().all()
    assert unshown["members"].tolist() == unshown["nonmembers"].tolist() == [0] * 5
    assert unshown["left_out"].tolist() == [400] * 5
    assert shown["member_fraction"].notna().all()
    samples = run.samples()
    for name in ("votes", "flip_rate", "p_value", "distance"):
        assert samples[f"{name}_0.005"].isna().all()
        assert not samples[f"{name}_0.1"].isna().all()
    for name in ("true_positives.csv", "replica_true_positives.csv", "thresholds.csv"):
        table = run.csv(name)
        columns = [c for c in table if "tp" in str(c)]
        assert all(table[table["fpr"] == 0.005][c].isna().all() for c in columns), name
        assert all(table[table["fpr"] == 0.1][c].notna().all() for c in columns), name
    thresholds = run.csv("thresholds.csv")
    assert thresholds[thresholds["fpr"] == 0.005]["threshold"].tolist() == [math.inf] * 8
    assert not math.isnan(rows["loss", 0.005]["tpr_mean"])
    assert np.isnan(differences(rows["loss", 0.005])).all()
    assert not np.isnan(differences(rows["loss", 0.1])).any()


def test_a_single_attack_has_no_differences(tmp_path: Path):
    c = dataclasses.replace(SMALL, attacks=("lira_online",), bootstraps=0)
    run = run_attacks(write_scores(tmp_path, c, 200), c, tmp_path / "tables")
    rows = records(read(run))
    assert [row["attack"] for row in rows] == ["lira_online"] * len(SMALL.fprs)
    assert all(np.isnan(differences(row)).all() for row in rows)


def test_recipes_without_replicas_have_no_table(tmp_path: Path):
    c = config.Attack(references=8, targets=2, replicas=0, bootstraps=0)
    run = run_attacks(write_scores(tmp_path, c, 100), c, tmp_path / "tables")
    assert not (run.folder / "attack_flips.csv").exists()


def test_ranges_of_other_attacks_are_computed_at_the_focus_rate(tmp_path: Path):
    c = dataclasses.replace(SMALL, attacks=("lira_online", "loss"), bootstraps=0)
    run = run_attacks(write_scores(tmp_path, c, 300), c, tmp_path / "tables")
    table = read(run)
    for column in ("member_coin_flips_127_low", "member_coin_flips_127_high"):
        assert table[table["attack"] == "lira_online"][column].notna().all()
        loss = table[table["attack"] == "loss"]
        assert [*loss[loss[column].notna()]["fpr"]] == [c.focus_fpr]
