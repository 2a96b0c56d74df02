"""Flip rates under every attack: against slow counting, known differences, and attacks that leave out samples."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores

from lm_mia import config, stats
from lm_mia.attacks import attack_flips, tables
from lm_mia.attacks.attack_flips import AttackDecisions
from lm_mia.attacks.decisions import count_votes_by_class

COMPARED = ("tpr", "member_flip_rate", "member_coin_flips", "coin_flip_tp_fraction")


def read(run: AttackRun) -> pd.DataFrame:
    return run.csv("attack_flips.csv")


def test_there_is_a_row_for_each_attack_with_all_references(attacked: AttackRun):
    table = read(attacked)
    expected = itertools.product(SMALL.attacks, SMALL.fprs)
    assert list(zip(table["attack"], table["fpr"], strict=True)) == list(expected)
    attacks = attacked.csv("attacks.csv").groupby("attack").last()
    for row in table.to_dict("records"):
        same = attacks.loc[row["attack"]]
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
    lira = read(run).query("attack == 'lira_online'").set_index("fpr")
    shares = run.csv("flip_shares.csv").query("bin == 'coin flip'").set_index("fpr")
    for name in ("replicas", "cutoff", "left_out"):
        assert lira[name].tolist() == shares[name].tolist()
    for name in ("", "_se", "_127_low", "_127_high"):
        assert (
            lira[f"member_coin_flips{name}"].tolist() == shares[f"member_fraction{name}"].tolist()
        )
    for name in ("", "_se"):
        found = lira[f"nonmember_coin_flips{name}"].tolist()
        assert found == shares[f"nonmember_fraction{name}"].tolist()
    samples = run.samples()
    for fpr, row in lira.iterrows():
        rate_N = samples[f"flip_rate_{fpr:g}"]
        means = rate_N.groupby(samples["member"]).mean()
        assert row["member_flip_rate"] == pytest.approx(means[True], rel=1e-12)
        assert row["nonmember_flip_rate"] == pytest.approx(means[False], rel=1e-12)
    rows = pd.read_parquet(run.folder / "decision_jackknife.parquet").query(
        "replicas == 0 and references == 0 and samples == 0"
    )
    for name, column in (
        ("tpr", "tpr_mean"),
        *((n, n) for n in ("coin_flip_tpr", "member_flip_rate", "member_coin_flips")),
    ):
        np.testing.assert_allclose(lira[column], rows[name], rtol=1e-12)
    assert lira[[c for c in lira if "minus_lira" in c]].isna().all(axis=None)


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
        "left_out": (~scored_N).sum(),
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
    table = read(attacked).set_index(["attack", "fpr"])
    for attack, score_BxN in slow_scores(attacked).items():
        for fpr in SMALL.fprs:
            expected = slow(score_BxN, attacked.scores.member_N, fpr)
            found = table.loc[(attack, fpr)]
            for name, value in expected.items():
                assert found[name] == pytest.approx(value, abs=1e-12, nan_ok=True), (attack, name)


def test_differences_are_those_of_the_rows(attacked: AttackRun):
    table = read(attacked).set_index(["attack", "fpr"])
    columns = dict(zip(COMPARED, ("tpr_mean", *COMPARED[1:]), strict=True))
    for (attack, fpr), row in table.iterrows():
        if attack == "lira_online":
            continue
        for name, column in columns.items():
            gap = row[column] - table.loc[("lira_online", fpr)][column]
            assert row[f"{name}_minus_lira"] == pytest.approx(gap, abs=1e-12)
            if fpr == 0.1:  # at an FPR of 1 all decisions are "member", and there is no spread
                low, high = row[f"{name}_minus_lira_low"], row[f"{name}_minus_lira_high"]
                assert low + high == pytest.approx(2 * gap, abs=1e-12)
                assert low < high
    always = table.xs(1.0, level="fpr").drop("lira_online")
    for name in COMPARED[:3]:
        for end in ("", "_low", "_high"):
            assert (always[f"{name}_minus_lira{end}"] == 0).all()


def test_intervals_are_those_of_the_same_parts(attacked: AttackRun):
    scores, member_N = slow_scores(attacked), attacked.scores.member_N
    group_N = stats.sample_groups(np.arange(len(member_N)))
    lira, other = (
        stats.decision_metrics(scores[name], member_N, group_N, SMALL.fprs, 1)
        for name in ("lira_online", "rmia_simple")
    )
    row = read(attacked).set_index(["attack", "fpr"]).loc[("rmia_simple", 0.1)]
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


def decided(attack: str, score_BxN: np.ndarray) -> AttackDecisions:
    """Returns the decisions of an attack on 8 members and 8 non-members, at an FPR of 0."""
    fprs = (0.0,)
    points = stats.tpr_at_fpr(score_BxN, MEMBER_N, fprs)
    votes = count_votes_by_class(score_BxN, points.threshold_TxF, MEMBER_N, None)
    shares = tables.coin_flip_shares(votes, fprs, 0.05, ranges=("member",))
    metrics = stats.decision_metrics(
        score_BxN, MEMBER_N, stats.sample_groups(np.arange(16)), fprs, 0
    )
    parts = {name: getattr(metrics, f"{name}_A1xH1xF") for name in attack_flips._PARTS}
    return AttackDecisions(attack, 4, points.tpr_TxF, 0.0, 16, votes, shares, parts)


def jackknife(decisions: AttackDecisions) -> pd.DataFrame:
    """Returns the rows of decision_jackknife.parquet that have these values."""
    parts = decisions.parts
    index = np.indices(parts["tpr"].shape)
    names = ("replicas", "samples", "fpr")
    columns = {name: axis.ravel() for name, axis in zip(names, index, strict=True)}
    values = {name: value.ravel() for name, value in parts.items()}
    return pd.DataFrame({"references": 0} | columns | values)


def test_hand_worked_case():
    """Of 8 replicas, 8, 4, 1 and 0 call the first members members; 1 to 7 votes look like coin flips."""
    score_BxN = np.zeros((8, 16))
    for sample, votes in enumerate((8, 4, 1, 0)):
        score_BxN[:votes, sample] = 1
    lira = decided("lira_online", score_BxN)
    stable_BxN = np.where(np.arange(16) == 1, 0, score_BxN)  # the member with 4 votes gets none
    table = attack_flips.attack_flips(
        [dataclasses.replace(lira, parts={}), decided("loss", stable_BxN)], jackknife(lira), 0.05
    ).set_index("attack")
    row, other = table.loc["lira_online"], table.loc["loss"]
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
    [_, row] = attack_flips.attack_flips(
        [dataclasses.replace(lira, parts={}), same], jackknife(lira), 0.05
    ).to_dict("records")
    for name in COMPARED:
        assert [row[f"{name}_minus_lira{end}"] for end in ("", "_low", "_high")] == [0, 0, 0]


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
    table = read(run).set_index(["attack", "fpr"]).sort_index()
    left_out = table["left_out"].xs(0.1, level="fpr")
    assert left_out["lira_online"] > left_out["rmia_offline"] > left_out["loss"] == 0
    assert (table["not_shared_fraction"].loc[["rmia_offline", "loss"]] > 0.01).all()
    world = run.scores
    score_BxN = stats.lira(world.target_TxN, world.reference_MxN, world.reference_member_MxN)
    expected = slow(score_BxN, world.member_N, 0.1)
    for name, value in expected.items():
        assert table.loc[("lira_online", 0.1)][name] == pytest.approx(value, abs=1e-12)
    # LiRA scores fewer than 200 non-members, and so has no TPR at an FPR of 1 / 200.
    assert math.isnan(table.loc[("lira_online", 0.005)]["tpr_mean"])
    assert not math.isnan(table.loc[("loss", 0.005)]["tpr_mean"])
    differences = [name for name in table if "minus_lira" in name]
    assert table.loc[("loss", 0.005)][differences].isna().all()
    assert table.loc[("loss", 0.1)][differences].notna().all()


def test_a_single_attack_has_no_differences(tmp_path: Path):
    c = dataclasses.replace(SMALL, attacks=("lira_online",), bootstraps=0)
    run = run_attacks(write_scores(tmp_path, c, 200), c, tmp_path / "tables")
    table = read(run)
    assert (table["attack"] == "lira_online").all()
    assert len(table) == len(SMALL.fprs)
    assert table[[name for name in table if "minus_lira" in name]].isna().all(axis=None)


def test_recipes_without_replicas_have_no_table(tmp_path: Path):
    c = config.Attack(references=8, targets=2, replicas=0, bootstraps=0)
    run = run_attacks(write_scores(tmp_path, c, 100), c, tmp_path / "tables")
    assert not (run.folder / "attack_flips.csv").exists()


def test_votes_are_counted_in_blocks(
    attacked: AttackRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("lm_mia.attacks.signals._SLICE_SAMPLES", 70)
    again = read(run_attacks(attacked.scores, SMALL, tmp_path / "tables"))
    pd.testing.assert_frame_equal(again, read(attacked), rtol=1e-9)
