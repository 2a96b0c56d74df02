"""Numbers about decisions with parts of the models and samples, against the statistics on whole arrays."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores

from lm_mia import stats
from lm_mia.attacks import decision_jackknife, spec

C = dataclasses.replace(SMALL, references=18, attacks=("lira_online",), bootstraps=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    folder = tmp_path_factory.mktemp("jackknife")
    scores = dataclasses.replace(write_scores(folder, C, 160), pieces=5)
    return run_attacks(scores, C, folder / "tables")


def table(run: AttackRun) -> pd.DataFrame:
    return pd.read_parquet(run.folder / "decision_jackknife.parquet")


def select(table: pd.DataFrame, replicas: int, references: int, samples: int) -> pd.DataFrame:
    """Returns the rows with all or some models and samples, one for each FPR."""
    rows = table[table["replicas"].eq(replicas) & table["references"].eq(references)]
    return rows[rows["samples"].eq(samples)]


def test_numbers_are_those_of_the_models_and_samples(run: AttackRun):
    found, world = table(run), run.scores
    assert len(found) == 9 * 15 * 15 * 4
    group_N = stats.sample_groups(run.scores.population.document_N)
    group_R = np.array(spec.reference_groups(range(18)))
    for references in (0, 1, 14):
        half = spec.half_groups(references - 1) if references else range(8)
        index_R = np.isin(group_R, [*half])
        score_BxN = stats.lira(
            world.target_TxN,
            world.reference_MxN[index_R],
            world.reference_member_MxN[index_R],
        )
        metrics = stats.decision_metrics(score_BxN, world.member_N, group_N, C.fprs, 1)
        for replicas, samples in ((0, 0), (3, 0), (0, 5), (8, 14)):
            rows = select(found, replicas, references, samples)
            assert rows["fpr"].tolist() == list(C.fprs)
            for name, value in dataclasses.asdict(metrics).items():
                column = rows[name.partition("_A1x")[0]]
                np.testing.assert_allclose(column, value[replicas, samples], rtol=1e-9)


def test_all_models_and_samples_give_the_numbers_of_the_other_tables(run: AttackRun):
    rows = select(table(run), 0, 0, 0)
    shares = run.csv("flip_shares.csv")
    coin = shares[shares["bin"] == "coin flip"]
    np.testing.assert_allclose(rows["member_coin_flips"], coin["member_fraction"])
    np.testing.assert_allclose(rows["nonmember_coin_flips"], coin["nonmember_fraction"])
    np.testing.assert_allclose(rows["auc"], run.csv("attacks.csv")["auc_mean"].iloc[-1])
    samples = run.samples()
    flips = [samples.loc[samples["member"], f"flip_rate_{fpr:g}"].mean() for fpr in C.fprs]
    np.testing.assert_allclose(rows["member_flip_rate"], flips)


def test_few_references_are_not_divided(attacked: AttackRun):
    found = table(attacked)  # 12 references
    assert set(found["references"]) == {0}
    assert len(found) == 9 * 15 * 4


def test_only_the_first_samples_are_used(
    run: AttackRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(decision_jackknife, "_SAMPLES", 80)
    monkeypatch.setattr("lm_mia.attacks.inputs._SLICE_SAMPLES", 80)
    again = run_attacks(run.scores, C, tmp_path / "tables")
    first, whole = (select(table(r), 0, 0, 0)["member_flip_rate"] for r in (again, run))
    assert (first.to_numpy() != whole.to_numpy()).any()
