"""more_references.csv: AUC and TPRs with parts of the references, and their extrapolation."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, SyntheticScores, run_attacks, write_scores

from analysis.experiments.recipe import more_references
from lm_mia import config, stats
from lm_mia.attacks.inputs import sample_covariates
from lm_mia.seeds import permutation

SAMPLES = 300
ATTACKS: tuple[str, ...] = (
    "lira_online",
    "rmia",
    "rmia_simple",
    "reference_calibrated",
    "shrunk",
    "loss",
)
WITH_TARGETS = config.Attack(
    references=23,
    targets=4,
    replicas=0,
    attacks=ATTACKS,
    variance="pooled",
    fprs=(0.02, 0.05, 0.1),
    focus_fpr=0.1,
    band=(0.01, 0.2),
    rmia_samples=100,
)
"""19 references and 4 targets: 9 pairs, of which 8 are in quarters, and one reference without a partner."""
WITH_REPLICAS = dataclasses.replace(SMALL, replicas=10, attacks=ATTACKS, bootstraps=0)


def facts(run: AttackRun) -> dict:
    return json.loads((run.folder / "more_references.json").read_text())


def naive_rates(
    scores: SyntheticScores, c: config.Attack, targets: list[int], index_R: list[int], samples: int
) -> dict[tuple[str, str], float]:
    """The rates of all attacks with some of the references, by attack and metric."""
    loss_MxN, member_MxN = (a[:, :samples] for a in (scores.loss_MxN, scores.member_MxN))
    target_TxN, reference_RxN = loss_MxN[targets], loss_MxN[index_R]
    order_N = permutation(0, "samples that RMIA compares with", samples)
    comparison_Z = order_N[: c.rmia_samples]
    score = {
        "lira_online": stats.lira(
            target_TxN, reference_RxN, member_MxN[index_R], variance=c.variance
        ),
        "rmia": stats.rmia(
            -target_TxN,
            -reference_RxN,
            -target_TxN[:, comparison_Z],
            -reference_RxN[:, comparison_Z],
        ),
        "rmia_simple": stats.rmia_simple(-target_TxN, -reference_RxN),
        "reference_calibrated": stats.reference_calibrated_loss(target_TxN, reference_RxN),
        "shrunk": stats.shrunk_lira(
            target_TxN,
            reference_RxN,
            member_MxN[index_R],
            covariate_NxK=sample_covariates(scores.population.column)[:samples],
        ),
    }
    rates = {}
    for name, score_TxN in score.items():
        points = stats.tpr_at_fpr(score_TxN, member_MxN[targets], [0.05, 0.1])
        rates[name, "auc"] = points.auc_T.mean()
        rates[name, "tpr_at_0.05"], rates[name, "tpr_at_0.1"] = points.tpr_TxF.mean(axis=0)
    return rates


def check_table(
    run: AttackRun,
    targets: list[int],
    quarters: list[list[int]],
    references: int,
    samples: int = SAMPLES,
    first: int = 0,
) -> None:
    """Compares the table with rates and predictions that are computed one by one."""
    sets = [
        sorted(index for q in np.flatnonzero(set_Q) for index in quarters[q])
        for set_Q in stats.REFERENCE_SETS_SxQ
    ]
    sets[-1] = list(range(first, first + references))
    by_set = [naive_rates(run.scores, run.c, targets, index_R, samples) for index_R in sets]
    table = (
        run.csv("more_references.csv").set_index(["attack", "metric", "references"]).sort_index()
    )
    assert table.index.is_unique
    metrics = ["auc", *(f"tpr_at_{f:g}" for f in (0.05, 0.1) if f in run.c.fprs)]
    expected = {(a, m) for a in ATTACKS if a != "loss" for m in metrics}
    assert {(a, m) for a, m, _ in table.index} == expected
    quarter = len(quarters[0])
    counts = quarter, 2 * quarter, references
    for attack, metric in expected:
        rate_S = np.array([rates[attack, metric] for rates in by_set])
        rows = table.xs((attack, metric))
        assert rows.index.tolist() == [*counts, 2 * references, 4 * references]
        assert rows.kind.tolist() == ["observed"] * 3 + ["predicted"] * 2
        assert rows.sets.tolist() == [4, 6, 1, 0, 0]
        observed = [rate_S[:4].mean(), rate_S[4:10].mean(), rate_S[10]]
        np.testing.assert_allclose(rows.value[:3], observed, rtol=1e-9)
        assert rows.low[:3].isna().all()
        assert rows.reason.isna().all()
        more = stats.predict_more_references(
            rate_S,
            counts,
            [2 * references, 4 * references],
            "auc" if metric == "auc" else "tpr",
            targets=facts(run)["targets"] if facts(run)["over"] == "targets" else 1,
        )
        for column in ("value", "low", "high"):
            np.testing.assert_allclose(rows[column][3:], getattr(more, column), rtol=1e-9)


def pairs(*numbers: int) -> list[int]:
    return [index for pair in numbers for index in (2 * pair, 2 * pair + 1)]


def test_targets_are_attacked_with_parts_of_the_references(tmp_path: Path):
    scores = write_scores(tmp_path, WITH_TARGETS, SAMPLES)
    run = run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    quarters = [pairs(2, 3), pairs(4, 5), pairs(6, 7), pairs(8, 9)]
    check_table(run, [0, 1, 2, 3], quarters, references=19, first=4)
    assert facts(run)["over"] == "targets"
    assert facts(run)["samples"] == SAMPLES


def test_only_the_first_samples_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lm_mia.attacks.inputs.BLOCK_SAMPLES", 200)
    monkeypatch.setattr("lm_mia.attacks.inputs._SLICE_SAMPLES", 64)
    scores = write_scores(tmp_path, WITH_TARGETS, SAMPLES)
    run = run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    quarters = [pairs(2, 3), pairs(4, 5), pairs(6, 7), pairs(8, 9)]
    check_table(run, [0, 1, 2, 3], quarters, references=19, samples=200, first=4)
    assert facts(run)["samples"] == 200


def test_pairs_that_are_complements_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Reference 3 is missing, so that reference 2 is without its complement. Only 8 of 10 replicas are attacked.
    monkeypatch.setattr("analysis.experiments.recipe.more_references._MAX_TARGETS", 8)
    c = dataclasses.replace(WITH_REPLICAS, references=20, variance="pooled", fprs=(0.05, 0.1, 0.5))
    scores = write_scores(tmp_path, c, SAMPLES, "balanced", absent=[3])
    run = run_attacks(scores, c, tmp_path / "tables")
    quarters = [[0, 1, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
    check_table(run, list(range(19, 27)), quarters, references=19)
    assert facts(run)["over"] == "replicas"
    assert facts(run)["targets"] == 8


def test_current_tables_are_kept(tmp_path: Path):
    scores = write_scores(tmp_path, WITH_TARGETS, SAMPLES)
    run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    table = tmp_path / "tables" / "more_references.csv"
    first, written = table.read_text(), table.stat().st_mtime_ns
    run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    assert table.stat().st_mtime_ns == written
    fewer = dataclasses.replace(WITH_TARGETS, attacks=("lira_online", "rmia"))
    run_attacks(scores, fewer, tmp_path / "tables")
    assert {*pd.read_csv(table).attack} == {"lira_online", "rmia"}
    run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    assert table.read_text() == first
    table.write_text("damaged")
    run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    assert table.read_text() == first


def test_too_few_references_leave_a_reason_and_no_table(tmp_path: Path):
    scores = write_scores(tmp_path, WITH_TARGETS, SAMPLES)
    run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    fewer = dataclasses.replace(WITH_TARGETS, references=11)
    run = run_attacks(scores, fewer, tmp_path / "tables")
    assert not (run.folder / "more_references.csv").exists()
    assert re.search(r"\b3 complete pairs\b.*\b4\b", facts(run)["reason"])


def reasons(run: AttackRun, attack: str, metric: str) -> list[str]:
    table = run.csv("more_references.csv")
    rows = table[(table.attack == attack) & (table.metric == metric)]
    predicted = rows[rows.kind == "predicted"]
    assert predicted[["value", "low", "high"]].isna().all(axis=None)
    return predicted.reason.tolist()


def test_an_attack_without_scores_is_not_extrapolated(tmp_path: Path):
    # Variances of each sample need two IN and two OUT references, but a quarter has two references.
    c = dataclasses.replace(WITH_TARGETS, references=12, variance="per_sample")
    run = run_attacks(write_scores(tmp_path, c, SAMPLES), c, tmp_path / "tables")
    reason = "no member or no non-member has a score with 2 references"
    assert reasons(run, "lira_online", "auc") == [reason] * 2
    assert reasons(run, "lira_online", "tpr_at_0.1") == [reason] * 2
    table = run.csv("more_references.csv")
    assert table[(table.attack == "rmia") & (table.metric == "auc")].value.notna().all()


def test_an_attack_that_leaves_out_many_samples_is_not_extrapolated(tmp_path: Path):
    # With 4 of 8 references, one in eight samples is IN all of them or in none.
    c = dataclasses.replace(WITH_TARGETS, references=12)
    run = run_attacks(write_scores(tmp_path, c, SAMPLES), c, tmp_path / "tables")
    for reason in reasons(run, "lira_online", "auc"):
        assert re.fullmatch(r"1\d% .*no score.* 4 references", reason)


def test_a_perfect_attack_is_not_extrapolated(tmp_path: Path):
    run = run_attacks(
        write_scores(tmp_path, WITH_TARGETS, SAMPLES, effect=20.0),
        WITH_TARGETS,
        tmp_path / "tables",
    )
    for reason in reasons(run, "reference_calibrated", "auc"):
        assert reason.startswith("the value is 0 or 1 ")


def test_without_an_effect_no_change_is_expected(tmp_path: Path):
    scores = write_scores(tmp_path, WITH_TARGETS, SAMPLES, effect=0.0)
    run = run_attacks(scores, WITH_TARGETS, tmp_path / "tables")
    table = run.csv("more_references.csv")
    auc = table[(table.metric == "auc") & (table.attack == "rmia_simple")].set_index("references")
    assert (auc.low[[38, 76]] < auc.value[19]).all()
    assert (auc.high[[38, 76]] > auc.value[19]).all()


def test_quarters_share_no_unit_and_are_as_large_as_possible():
    pairs = [np.array([2 * i, 2 * i + 1]) for i in range(9)]
    assert more_references._quarters(pairs).tolist() == [
        [4 * q + i for i in range(4)] for q in range(4)
    ]
    # Related subsets: of the first unit, only the models that fit are used.
    units = [np.arange(6), *pairs[3:8]]
    quarters = more_references._quarters(units)
    assert quarters.tolist() == [[0, 1], [6, 7], [8, 9], [10, 11]]
    units = [np.arange(6), *pairs[3:]]
    assert more_references._quarters(units).tolist() == [
        [0, 1, 2, 3],
        *np.arange(6, 18).reshape(3, 4).tolist(),
    ]
