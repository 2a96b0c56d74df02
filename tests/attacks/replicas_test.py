import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from synthetic_scores import (
    SMALL,
    TABLES_OF_REPLICAS,
    AttackRun,
    SyntheticScores,
    run_attacks,
    write_scores,
)

from lm_mia import stats
from lm_mia.attacks import registry, replicas, score_matrix, spec
from lm_mia.attacks.inputs import sample_covariates
from lm_mia.errors import Unavailable, UserError
from lm_mia.seeds import permutation
from lm_mia.store.store import NOT_REPRODUCIBLE, Store

# All but the one that needs the losses of a base.
ALL_ATTACKS: tuple[str, ...] = tuple(name for name in registry.ATTACKS if name != "base_calibrated")
WITHOUT_REFERENCES = {"loss", "zlib", "min_k", "min_k_plus_plus", "lowercase"}
OPTIONAL_TABLES = {"resampled_references.csv", "true_positive_probability.parquet"}
TARGET_TABLES = {
    "models.csv",
    "flips.json",
    "target_roc.parquet",
    "targets.csv",
}
TARGET_TABLES |= {"more_references.csv", "more_references.json"}
TABLES = sorted({*TABLES_OF_REPLICAS} - OPTIONAL_TABLES | TARGET_TABLES)
ONE_ATTACK: tuple[str, ...] = ("lira_online",)
FEW = dataclasses.replace(SMALL, attacks=ONE_ATTACK, bootstraps=0)


def expected(run: AttackRun, name: str, count: int) -> np.ndarray:
    """Returns score_TxN with the first references, from lm_mia.stats on whole arrays."""
    world = run.scores
    target_TxN, loss_MxN = world.target_TxN, world.reference_MxN[:count]
    member_MxN = world.reference_member_MxN[:count]
    z = permutation(0, "samples that RMIA compares with", loss_MxN.shape[1])[: run.c.rmia_samples]
    log_p = -target_TxN, -loss_MxN, -target_TxN[:, z], -loss_MxN[:, z]
    out: dict[str, Any] = {
        "reference_member_MxN": member_MxN,
        "reference_member_MxZ": member_MxN[:, z],
    }
    losses = target_TxN, loss_MxN, member_MxN
    covariate_NxK = sample_covariates(world.population.column)
    score_functions: dict[str, Callable[[], np.ndarray]] = {
        "lira_online": lambda: stats.lira(target_TxN, loss_MxN, member_MxN),
        "lira_offline": lambda: stats.lira(target_TxN, loss_MxN, member_MxN, offline=True),
        "rmia": lambda: stats.rmia(*log_p),
        "rmia_offline": lambda: stats.rmia(*log_p, offline=True, **out),
        "rmia_simple": lambda: stats.rmia_simple(*log_p[:2]),
        "reference_calibrated": lambda: loss_MxN.astype(float).mean(axis=0) - target_TxN,
        "shrunk": lambda: stats.shrunk_lira(*losses, covariate_NxK=covariate_NxK),
        "stacked": lambda: stats.stacked_lira(*losses, covariate_NxK=covariate_NxK),
        "loss": lambda: -target_TxN,
        "zlib": lambda: -target_TxN / world.population.column("zlib_bytes"),
    }
    return score_functions[name]()


def area(score_N: np.ndarray, member_N: np.ndarray) -> float:
    """Returns the AUC by comparing every member with every non-member."""
    scored_N = ~np.isnan(score_N)
    ins, out = score_N[member_N & scored_N], score_N[~member_N & scored_N]
    above = (ins[:, None] > out).mean()
    return float(above + (ins[:, None] == out).mean() / 2)


def test_attacks_csv(attacked: AttackRun):
    table, member_N = attacked.csv("attacks.csv"), attacked.scores.member_N
    settings = list(zip(table.attack, table.references, strict=True))
    from_one = {
        "lira_online": 4,
        "lira_offline": 2,
        "shrunk": 2,
        "stacked": 2,
    }  # fewer references are enough for no sample
    assert settings == [
        (name, count)
        for name in SMALL.attacks
        for count in ([0] if name in WITHOUT_REFERENCES else [1, 2, 4, 8, 12])
        if name in WITHOUT_REFERENCES or count >= from_one.get(name, 1)
    ]
    for row in table.to_dict("records"):
        score_TxN = expected(attacked, row["attack"], row["references"] or 12)
        auc_T = [area(score_N, member_N) for score_N in score_TxN]
        assert row["targets"] == 8
        assert row["auc_mean"] == pytest.approx(np.mean(auc_T), rel=1e-9)
        assert row["auc_std"] == pytest.approx(np.std(auc_T), rel=1e-7)
        assert row["left_out"] == np.isnan(score_TxN[0]).sum()
        differs_N = np.isnan(score_TxN[0]) != np.isnan(expected(attacked, "lira_online", 12)[0])
        assert row["not_shared_fraction"] == differs_N.mean()
        points = stats.tpr_at_fpr(score_TxN, member_N, SMALL.fprs)
        for f, fpr in enumerate(SMALL.fprs):
            assert row[f"tpr_at_{fpr:g}_mean"] == pytest.approx(points.tpr_TxF[:, f].mean())
            assert row[f"tpr_at_{fpr:g}_std"] == pytest.approx(points.tpr_TxF[:, f].std())


def test_rows_with_other_samples_than_lira(attacked: AttackRun):
    table = attacked.csv("attacks.csv").set_index(["attack", "references"])
    assert table.not_shared_fraction["lira_online", 12] == 0
    assert table.left_out["rmia_offline", 1] > 100  # without an OUT reference
    assert table.not_shared_fraction["rmia_offline", 1] > 0.3


def test_membership_scores(attacked: AttackRun):
    table = pd.read_parquet(attacked.folder / "membership_scores.parquet")
    targets = [f"replica-{b:02d}" for b in range(8)]
    names = [f"{name}/{target}" for name in SMALL.attacks for target in targets]
    assert table.columns.tolist() == ["id", "member", *names]
    np.testing.assert_array_equal(table["member"], attacked.scores.member_N)
    for name in SMALL.attacks:
        score_TxN = table[[f"{name}/{target}" for target in targets]].to_numpy().T
        np.testing.assert_allclose(score_TxN, expected(attacked, name, 12), rtol=1e-6, atol=1e-6)


def test_roc_csv(attacked: AttackRun):
    table, attacks = attacked.csv("roc.csv"), attacked.csv("attacks.csv")
    member_N = attacked.scores.member_N
    grid = sorted(
        {0, *SMALL.band, *np.geomspace(1 / (~member_N).sum(), 1, score_matrix._CURVE_POINTS)}
    )
    curves = {key: part for key, part in table.groupby(["attack", "references"], sort=False)}
    assert list(curves) == list(zip(attacks.attack, attacks.references, strict=True))
    for (name, count), curve in curves.items():
        np.testing.assert_allclose(curve.fpr, grid, rtol=1e-12)
        score_TxN = expected(attacked, str(name), int(str(count)) or 12)
        tpr_TxF = stats.tpr_at_fpr(score_TxN, member_N, curve.fpr, at="vertex").tpr_TxF
        scored_nonmembers = (~np.isnan(score_TxN[0]) & ~member_N).sum()
        tpr_TxF[:, (curve.fpr > 0) & (curve.fpr * scored_nonmembers < 1 - 1e-9)] = np.nan
        np.testing.assert_allclose(curve.tpr_mean, tpr_TxF.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(curve.tpr_std, tpr_TxF.std(axis=0), atol=1e-9)
        assert (curve.left_out == np.isnan(score_TxN[0]).sum()).all()


def test_intervals_csv(attacked: AttackRun):
    table, member_N = attacked.csv("intervals.csv"), attacked.scores.member_N
    metrics = ["auc", *(f"tpr_at_{fpr:g}" for fpr in SMALL.fprs), "balanced_accuracy"]
    of_mean = table[table.models > 1]
    table = table[table.models == 1]
    assert table.attack.tolist() == [name for name in SMALL.attacks for _ in metrics]
    assert table.metric.tolist() == metrics * len(SMALL.attacks)
    group_N = stats.sample_groups(np.arange(len(member_N)))
    for (name, role), part in of_mean.groupby(["attack", "role"]):
        assert part.metric.tolist() == metrics[:-1]
        if role == "replica":
            score_TxN = expected(attacked, str(name), 12)
            points = stats.tpr_at_fpr(score_TxN, member_N, SMALL.fprs)
            auc_TxH, tpr_TxHxF = stats.rates_of_halves(score_TxN, member_N, group_N, SMALL.fprs)
            rate_TxS = np.column_stack([points.auc_T, points.tpr_TxF])
            low_S, high_S = stats.mean_rate_interval(
                rate_TxS, np.concatenate([auc_TxH[:, :, None], tpr_TxHxF], axis=2)
            )
            np.testing.assert_allclose(part.value, rate_TxS.mean(axis=0))
            np.testing.assert_allclose(part.low, low_S)
            np.testing.assert_allclose(part.high, high_S)
    assert {*of_mean.models} == {8, 12}
    assert of_mean[of_mean.role == "reference"].attack.tolist() == ["lira_online"] * 5
    for name, part in table.groupby("attack"):
        score_N = expected(attacked, str(name), 12)[0]
        intervals = stats.bootstrap_intervals(score_N, member_N, SMALL.fprs, replicates=30)
        audited = stats.epsilon_intervals(score_N, member_N, delta=SMALL.delta, replicates=30)
        accuracy = audited.balanced_accuracy_T[0]
        np.testing.assert_allclose(
            part.value, [intervals.auc_T[0], *intervals.tpr_TxF[0], accuracy]
        )
        low, high = [intervals.auc_low_T[0], *intervals.tpr_low_TxF[0]], intervals.tpr_high_TxF[0]
        np.testing.assert_allclose(part.low, [*low, audited.balanced_accuracy_low_T[0]])
        high = [*high, audited.balanced_accuracy_high_T[0]]
        np.testing.assert_allclose(part.high, [intervals.auc_high_T[0], *high])
        members = (member_N & ~np.isnan(score_N)).sum()
        assert part.true_positives.isna().tolist() == [True, *[False] * 4, True]
        np.testing.assert_allclose(part.true_positives[1:-1], part.value[1:-1] * members)
        assert (part.members == members).all()
        assert (part.left_out == np.isnan(score_N).sum()).all()


def test_audit_csv(attacked: AttackRun):
    table, member_N = attacked.csv("audit.csv"), attacked.scores.member_N
    assert table.attack.drop_duplicates().tolist() == [*SMALL.attacks]
    for name, part in table.groupby("attack"):
        score_N = expected(attacked, str(name), 12)[0]
        bound = stats.one_run_bound(score_N, member_N, membership="half", delta=SMALL.delta)
        rows = part.set_index("method")
        assert rows.epsilon["one_run"] == pytest.approx(bound.epsilon)
        assert rows.mu["one_run_gaussian"] == pytest.approx(bound.mu)
        estimates = stats.epsilon_intervals(score_N, member_N, delta=SMALL.delta, replicates=30)
        assert rows.high["estimate_max"] == pytest.approx(estimates.largest_high_T[0])
    curve = attacked.csv("audit_curve.csv")
    assert curve.groupby("attack").epsilon.max().to_dict() == pytest.approx(
        table[table.method == "one_run"].set_index("attack").epsilon.to_dict()
    )


def test_shuffled_csv(attacked: AttackRun):
    """Labels are noise; the STD of a mean of 10 AUCs is 0.0075."""
    table = attacked.csv("shuffled.csv").set_index("attack")
    assert list(table.index) == list(SMALL.attacks)
    assert table.references.to_dict() == {
        n: 0 if n in WITHOUT_REFERENCES else 12 for n in SMALL.attacks
    }
    assert (table.shuffles == 10).all()
    assert table.auc_mean.between(0.5 - 0.03, 0.5 + 0.03).all()
    assert table.auc_std.between(0.01, 0.05).all()
    assert ((table.auc_min < table.auc_mean) & (table.auc_mean < table.auc_max)).all()
    assert table.left_out[["lira_online", "rmia", "loss"]].tolist() == [3, 0, 0]
    # Each of 10 x 10 bounds is above 0 with a probability of at most 5%.
    assert (table.one_run_epsilon_mean <= table.one_run_epsilon_max).all()
    assert table.one_run_epsilon_max.median() == 0


def test_flips_json(attacked: AttackRun):
    assert sorted(path.name for path in attacked.folder.iterdir()) == TABLES  # and nothing else
    k_low, cutoff = stats.coin_flip_cutoff(8, 0.05)
    facts = json.loads((attacked.folder / "flips.json").read_text())
    assert facts == {
        "reference_models": [f"reference-{i:02d}" for i in range(12)],
        "replica_models": [f"replica-{i:02d}" for i in range(8)],
        "recipe": "recipe_x",
        "config": json.loads(json.dumps(spec.decision_settings(SMALL))),
        "design": "exact",
        "attack": "lira_online",
        "first_target": "replica-00",
        "references": 12,
        "replicas": 8,
        "k_low": k_low,
        "cutoff": cutoff,
        "max_flip_rate": pytest.approx(4 / 7),
        "left_out": 3,
        "warnings": [],
    }


def test_progress_and_messages(attacked: AttackRun):
    [message] = attacked.messages
    assert message.startswith("attack.references=12: 3 samples ")
    assert "train.subset='balanced'" in message
    labels = [*dict.fromkeys(label for label, _, _ in attacked.progress)]
    assert labels == ["attack", "shuffled labels", "studies"]
    for label in labels:
        done = [done for name, done, _ in attacked.progress if name == label]
        assert {total for name, _, total in attacked.progress if name == label} == {done[-1]}
        assert done == sorted(done)
        assert done[0] == 0
        assert max(np.diff(done)) <= score_matrix._MAX_ATTACKS_PER_PASS


@pytest.mark.slow
def test_attacks_are_deterministic(attacked: AttackRun, tmp_path: Path):
    again = run_attacks(attacked.scores, attacked.c, tmp_path / "tables")
    for name in TABLES:
        assert (again.folder / name).read_bytes() == (attacked.folder / name).read_bytes(), name


def test_auc_matches_closed_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With many references, LiRA subtracts the mean loss of each sample; the loss attack does not."""
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(FEW, references=32, replicas=4, variance="pooled")
    c = dataclasses.replace(c, attacks=("lira_online", "lira_offline", "loss"))
    table = run_attacks(write_scores(tmp_path, c, 1200), c, tmp_path / "t").csv("attacks.csv")
    auc = table.groupby("attack").auc_mean.last()
    lira_auc, loss_auc = (
        norm.cdf(0.3 / 0.2 / (2 + 1 / 16) ** 0.5),
        norm.cdf(0.3 / (2 * (0.2**2 + 0.5**2)) ** 0.5),
    )
    assert auc["lira_online"] == pytest.approx(lira_auc, abs=0.025)
    assert auc["lira_offline"] == pytest.approx(lira_auc, abs=0.025)
    assert auc["loss"] == pytest.approx(loss_auc, abs=0.03)


def test_missing_models_are_left_out(tmp_path: Path):
    """Without two replicas and a reference, B, the cutoff and all numbers are those of the remaining models."""
    c = dataclasses.replace(FEW, replicas=10)
    out = run_attacks(write_scores(tmp_path, c, 300, absent=(3, 12, 17)), c, tmp_path / "tables")
    assert re.findall(r"\d+ of \d+ \w+", out.messages[0]) == [
        "3 of 22 models",
        "8 of 10 replicas",
        "11 of 12 references",
    ]
    assert "`lm-mia run`" in out.messages[0]
    assert len(out.messages) == 2
    facts = json.loads((out.folder / "flips.json").read_text())
    k_low, cutoff = stats.coin_flip_cutoff(8, 0.05)
    assert (facts["references"], facts["replicas"]) == (11, 8)
    assert (facts["k_low"], facts["cutoff"]) == (k_low, cutoff)
    assert stats.coin_flip_cutoff(10, 0.05) != (k_low, cutoff)
    assert facts["config"]["replicas"] == 10
    for name in ("flip_shares.csv", "true_positives.csv", "error_rates.csv"):
        assert out.csv(name).replicas.unique().tolist() == [8], name
    table = out.csv("attacks.csv")
    assert table.targets.unique().tolist() == [8]
    assert table.references.tolist() == [4, 8, 11]
    for count, auc in zip(table.references, table.auc_mean, strict=True):
        auc_T = [
            area(score_N, out.scores.member_N) for score_N in expected(out, "lira_online", count)
        ]
        assert auc == pytest.approx(np.mean(auc_T), rel=1e-9)
    assert out.csv("thresholds.csv").order_seed.unique().tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    assert out.samples()["votes_0.1"].max() <= 8


def test_all_attacks_find_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(FEW, attacks=ALL_ATTACKS, references=4, replicas=2, variance="pooled")
    world = write_scores(tmp_path, c, 200, statistics=registry.statistics_of(registry.ATTACKS))
    out = run_attacks(world, c, tmp_path / "tables")
    best = out.csv("attacks.csv").groupby("attack").last()
    assert set(best.index) == set(ALL_ATTACKS) == set(out.csv("shuffled.csv").attack)
    assert (best.auc_mean > 0.5).all()
    assert best.references.to_dict() == {
        name: 0 if name in WITHOUT_REFERENCES else 4 for name in ALL_ATTACKS
    }
    member_N, target_values = (
        world.member_N,
        {n: v[world.references :] for n, v in world.statistics.items()},
    )
    target_values["lowercase"] = target_values["lowercase_loss"] - world.target_TxN
    for name in ("min_k", "min_k_plus_plus", "lowercase"):
        auc_T = [area(score_N, member_N) for score_N in target_values[name]]
        assert best.auc_mean[name] == pytest.approx(np.mean(auc_T), abs=1e-4)


def at_score_points(
    world: SyntheticScores, folder: Path, *, step: int, absent: int
) -> SyntheticScores:
    """Returns the same models scored at steps 3, 6 and 9 (the end): their losses at one step, noise at the others."""
    models, noise = world.store.models(), np.random.default_rng(1)
    store = Store(folder / "recipe_x" / "scores.zarr", world.store.statistics, (3, 6), 9)
    store.path.parent.mkdir()
    store.create_or_extend(models, {"tokens": np.arange(world.loss_MxN.shape[1])}, {})
    for m, model in enumerate(models):
        for score_step in (3, 6, 0):
            values = {"loss": world.loss_MxN[m]} | {n: v[m] for n, v in world.statistics.items()}
            if score_step != step:
                values = {n: noise.permutation(v) for n, v in values.items()}
            if score_step == step or m != absent:
                store.write_model(
                    model, values.pop("loss"), world.member_MxN[m], values, score_step
                )
    return dataclasses.replace(world, store=store)


def test_attack_at_a_step_uses_only_its_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(
        FEW, attacks=(*ONE_ATTACK, "rmia", "zlib", "min_k"), references=8, replicas=4
    )
    world = write_scores(tmp_path / "plain", c, 200, statistics=("min_k",))
    plain = run_attacks(world, c, tmp_path / "plain" / "tables")
    plain_content = json.loads((plain.folder / "flips.json").read_text())
    assert plain_content["config"].pop("step") == "last"
    tables = sorted(path.name for path in plain.folder.iterdir())
    about_models = {
        "models.csv",
        "flips.json",
        "targets.csv",
        "target_roc.parquet",
    }
    about_models |= {"more_references.json"}
    for step in (3, 6, 0):
        folder = tmp_path / f"step {step}"
        folder.mkdir()
        points = at_score_points(world, folder, step=step, absent=5)
        assert points.store.missing_models(points.store.models()) == points.store.models()[5:6]
        out = run_attacks(points, dataclasses.replace(c, step=step), folder / "tables")
        assert out.messages == plain.messages
        assert sorted(path.name for path in out.folder.iterdir()) == tables
        for name in set(tables) - about_models:
            assert (out.folder / name).read_bytes() == (plain.folder / name).read_bytes(), name
        facts = json.loads((out.folder / "flips.json").read_text())
        assert facts["config"].pop("step") == step
        assert facts == plain_content
        attacks = out.csv("targets.csv")
        assert (attacks.step == step).all()
        unlike = ["attack_id", "step"]
        assert attacks.drop(columns=unlike).equals(plain.csv("targets.csv").drop(columns=unlike))


def test_models_missing_at_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(FEW, references=8, replicas=4, step=6)
    world = at_score_points(write_scores(tmp_path / "plain", c, 60), tmp_path, step=0, absent=5)
    message = run_attacks(world, c, tmp_path / "tables").messages[0]
    assert re.match(r"1 of 12 models .*\(at step 6\): .*\b4 of 4 replicas with 7", message)
    more_models = dataclasses.replace(c, references=20, replicas=99, step=3)
    shutil.rmtree(world.store.path / "loss" / "c")
    message = r"0 of 20 references and 0 of 99 replicas are present \(at step 3\), but an attack needs at least 4"
    with pytest.raises(UserError, match=message):
        run_attacks(world, more_models, tmp_path / "tables")


@pytest.mark.parametrize(
    ("records", "is_mixed"),
    [
        (("", ""), False),
        (("", "xla on 1 x cpu"), False),
        (("", "pallas_gpu on 1 x NVIDIA H100"), True),
        (("xla on 1 x cpu", "pallas_gpu on 1 x NVIDIA H100"), False),
        (("", f"{NOT_REPRODUCIBLE}: cudnn on 1 x NVIDIA H100"), False),
        (("pallas_gpu on 1 x NVIDIA H100", f"{NOT_REPRODUCIBLE}: cudnn on 1 x NVIDIA H100"), True),
    ],
)
def test_reproducible_and_other_models_are_not_mixed(
    records: tuple[str, str], is_mixed: bool, tmp_path: Path
):
    world = write_scores(tmp_path, FEW, 40)
    for i, model in enumerate(world.store.models()):
        if records[i % 2]:
            world.store.add_computation(model, records[i % 2], is_continued=False)
    with pytest.raises(Unavailable, match="in every run") if is_mixed else nullcontext():
        replicas.find_replicas(world.store, world.population, FEW, pytest.fail)
