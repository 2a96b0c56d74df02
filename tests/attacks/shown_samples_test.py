"""shown_samples.parquet: which samples it has, and that its losses and decisions are those of the other tables."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, run_attacks, write_scores
from views import view_of

from lm_mia.attacks import runner, shown_samples
from lm_mia.attacks.experiment import TokenSettings

SAMPLES = 200
C = dataclasses.replace(SMALL, attacks=("lira_online",), bootstraps=0)


def table(run: AttackRun) -> pd.DataFrame:
    return pd.read_parquet(run.folder / shown_samples.TABLE)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    """Attacks all samples; with few references drawn by coins, some samples have no score."""
    folder = tmp_path_factory.mktemp("run")
    c = dataclasses.replace(C, references=6)
    scores = write_scores(folder, c, SAMPLES, design="bernoulli")
    return run_attacks(scores, c, folder / "tables")


def test_all_samples_with_their_losses(attacked: AttackRun):
    shown, scores = table(attacked), attacked.scores
    assert shown["id"].tolist() == [*range(SAMPLES)]
    assert {*shown["chosen_by"]} == {"all"}
    assert shown["text"][7] == scores.population.text(7)
    for column, expected_MxN in (
        ("reference_loss_nats", scores.loss_MxN[: scores.references]),
        ("reference_member", scores.member_MxN[: scores.references]),
        ("replica_loss_nats", scores.loss_MxN[scores.references :]),
    ):
        assert np.array_equal(np.stack([*shown[column]]), expected_MxN.T), column


def test_decisions_agree_with_the_votes_in_samples_parquet(attacked: AttackRun):
    shown, samples = table(attacked), attacked.samples()
    has_score_N = samples["score"].notna()
    assert 0 < has_score_N.sum() < SAMPLES
    for fpr in C.fprs:
        decisions = shown[f"decisions_{fpr:g}"]
        assert all(v is None for row in decisions[~has_score_N] for v in row)
        votes = [sum(row) for row in decisions[has_score_N]]
        assert votes == samples[f"votes_{fpr:g}"][has_score_N].tolist()


def test_random_and_extreme_samples_are_chosen_from_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of 200 samples 44 are shown: 4 with stored tokens, 20 random ones, 10 unstable ones, 10 with high scores."""
    monkeypatch.setattr(shown_samples, "MAX_SAMPLES", 44)
    monkeypatch.setattr(shown_samples, "MAX_TOKEN_SAMPLES", 4)
    scores = write_scores(tmp_path, C, SAMPLES)
    tokens = TokenSettings(tuple(range(100, 200, 10)))
    pieces = tmp_path / "pieces"
    view = view_of(scores.store, scores.population, C, pieces, tokens=tokens)
    runner.run(view, tmp_path / "tables")
    run = AttackRun(scores, C, tmp_path / "tables", [], [])
    shown = table(run)
    assert (np.diff(shown["id"]) > 0).all()
    assert shown["text"].tolist() == [scores.population.text(i) for i in shown["id"]]
    chosen = {rule: {*ids} for rule, ids in shown.groupby("chosen_by")["id"]}
    assert chosen["tokens"] == {100, 110, 120, 130}
    assert {rule: len(ids) for rule, ids in chosen.items()} == {
        "tokens": 4,
        "random": 20,
        "flip rate": 10,
        "score": 10,
    }
    samples = run.samples()
    others = samples[~samples["id"].isin(chosen["tokens"] | chosen["random"])]
    highest = others.sort_values("flip_rate_0.1", ascending=False, kind="stable")["id"]
    assert chosen["flip rate"] == {*highest[:10]}
    others = others[~others["id"].isin(chosen["flip rate"])]
    assert chosen["score"] == {*others.nlargest(10, "mean_score")["id"]}
    assert np.array_equal(
        np.stack([*shown["replica_loss_nats"]]), scores.loss_MxN[C.references :, shown["id"]].T
    )
    votes = [np.nan if row[0] is None else sum(row) for row in shown["decisions_0.1"]]
    assert np.array_equal(votes, samples["votes_0.1"][shown["id"]], equal_nan=True)
