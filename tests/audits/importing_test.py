import dataclasses
import json
import re
import shlex
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import subset_designs as draw
import tiny_run
import xarray as xr
import zarr
from markupsafe import Markup
from report_html import of_table
from slow_case import slow_case
from synthetic_scores import AttackRun
from tiny_run import tiny

import lm_mia
from analysis import page
from analysis.report import numbers
from lm_mia import cli, stats
from lm_mia.data import imported
from lm_mia.data import losses as loss_reader
from lm_mia.data.arrays import open_arrays
from lm_mia.data.subsets import requested_seeds
from lm_mia.errors import UserError
from lm_mia.run import sweep
from lm_mia.run.workdir import write_config
from lm_mia.store import schema
from lm_mia.store.store import Store

__all__ = ["tiny"]  # a fixture
M, N = 8, 40
SETTINGS = ["--config.attack.fprs=0.1,0.5", "--config.attack.focus_fpr=0.1"]
SETTINGS += ["--config.attack.bootstraps=0", "--config.attack.band=0.1,0.5"]


def flags(c: lm_mia.config.Attack) -> list[str]:
    """Returns flags for the fields of attack settings that differ from the defaults of an import."""
    default, kept = lm_mia.config.Attack(), {"references", "replicas"}
    values = {
        field.name: getattr(c, field.name)
        for field in dataclasses.fields(c)
        if getattr(c, field.name) != getattr(default, field.name) and field.name not in kept
    }
    values |= {"variance": c.variance, "leave_one_out": c.leave_one_out}
    values |= {"attacks": c.attacks}
    return [
        f"--config.attack.{name}={','.join(map(str, v)) if isinstance(v, tuple) else v}"
        for name, v in values.items()
    ]


def losses(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    member_MxN = rng.permuted(np.tile(np.arange(N) < N // 2, (M, 1)), axis=1)
    loss_MxN = 3 - 0.5 * member_MxN + rng.normal(0, 0.2, (M, N))
    return {"loss_MxN": loss_MxN, "member_MxN": member_MxN}


def import_file(file: Path, workdir: Path, *more: str) -> int:
    return cli.main(["import", str(file), f"--workdir={workdir}", *more])


def test_tables_equal_those_of_the_same_losses_in_a_store_of_ours(
    attacked: AttackRun, tmp_path: Path
):
    assert attacked.c.headline == "stacked"  # what an import chooses for itself
    scores, columns = attacked.scores, attacked.scores.population.sample_columns()
    roles = ["reference"] * scores.references + ["replica"] * attacked.c.replicas
    file = tmp_path / "losses.npz"
    arrays: dict[str, Any] = {f"{name}_N": column_N for name, column_N in columns.items()}
    np.savez(
        file,
        loss_MxN=scores.loss_MxN,
        member_MxN=scores.member_MxN,
        role_M=np.array(roles),
        text_N=np.array([scores.population.text(i) for i in range(len(scores.population))]),
        **arrays,
    )
    assert import_file(file, tmp_path / "w", "--subset=exact", *flags(attacked.c)) == 0
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}"]) == 0
    tables = tmp_path / "w/recipes/losses/tables"
    compared = 0
    for path in attacked.folder.iterdir():
        if path.suffix == ".csv":
            assert (tables / path.name).read_bytes() == path.read_bytes(), path.name
        elif path.suffix == ".parquet":
            pd.testing.assert_frame_equal(
                pd.read_parquet(tables / path.name), pd.read_parquet(path), obj=path.name
            )
        compared += path.suffix in (".csv", ".parquet")
    assert compared > 15
    # Nothing is known about the training of the models.
    for verb in ("train", "score", "run", "extract", "plan"):
        assert cli.main([verb, f"--workdir={tmp_path / 'w'}"]) == 2


def test_a_base_is_subtracted_and_is_no_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays, rng = losses(), np.random.default_rng(1)
    hardness_N = rng.gamma(9, 0.3, N)  # of each sample; the base knows it
    loss_MxN = np.concatenate([arrays["loss_MxN"] + hardness_N, hardness_N[None] + 3])
    member_MxN = np.concatenate([arrays["member_MxN"], np.zeros((1, N), bool)])
    roles = np.array(["target"] * 2 + ["reference"] * 6 + ["base"])
    file = tmp_path / "tuned.npz"
    np.savez(file, loss_MxN=loss_MxN, member_MxN=member_MxN, role_M=roles)
    workdir = tmp_path / "w"
    assert import_file(file, workdir, "--subset=exact") == 0
    assert "6 references, 2 targets" in capsys.readouterr().out
    settings = [
        *SETTINGS,
        "--config.attack.attacks=lira_online,stacked,base_calibrated,reference_calibrated",
    ]
    assert cli.main(["attack", f"--workdir={workdir}", *settings]) == 0
    results = lm_mia.open(workdir).recipes["tuned"]
    table = results.table("targets")
    table = table[table["references"].isin([0, 6])]
    auc = table.groupby("attack")["auc"].mean()
    expected = [stats.auc(loss_MxN[8] - loss_MxN[t], member_MxN[t]).auc_T[0] for t in range(2)]
    assert auc["base_calibrated"] == pytest.approx(np.mean(expected), abs=1e-6)
    reference = [
        stats.auc(loss_MxN[2:8].mean(axis=0) - loss_MxN[t], member_MxN[t]).auc_T[0]
        for t in range(2)
    ]
    assert auc["reference_calibrated"] == pytest.approx(np.mean(reference), abs=1e-6)
    assert results.table("models")["model"].str.startswith("base").sum() == 0
    assert cli.main(["report", f"--workdir={workdir}"]) == 0
    assert "Base loss minus loss" in (workdir / "report.html").read_text()
    # The base of models that were imported without one cannot be added: their attacks would change.
    np.savez(file, loss_MxN=loss_MxN[:8], member_MxN=member_MxN[:8], role_M=roles[:8])
    assert import_file(file, tmp_path / "v") == 0
    np.savez(file, loss_MxN=loss_MxN, member_MxN=member_MxN, role_M=roles)
    assert import_file(file, tmp_path / "v") == 2
    assert "imported without one" in capsys.readouterr().err


def wide_losses() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns loss_MxN and member_MxN of six models of 400 samples, and the losses of their base."""
    rng = np.random.default_rng(2)
    hardness_N = 2 + rng.gamma(9, 0.3, 400)
    member_MxN = rng.permuted(np.tile(np.arange(400) < 200, (6, 1)), axis=1)
    loss_MxN = hardness_N - 0.6 * member_MxN + rng.normal(0, 0.2, (6, 400))
    return loss_MxN, member_MxN, hardness_N + rng.normal(0.1, 0.1, 400)


@pytest.mark.parametrize(
    ("models", "roles", "has_base", "texts", "headline", "attacks"),
    [
        (
            1,
            ["target"],
            True,
            True,
            "base_calibrated",
            {"base_calibrated", "loss", "zlib", "min_k"},
        ),
        # A single model is attacked, whatever its role.
        slow_case(
            1, ["reference"], True, False, "base_calibrated", {"base_calibrated", "loss", "min_k"}
        ),
        slow_case(
            3, ["target"] * 3, True, False, "base_calibrated", {"base_calibrated", "loss", "min_k"}
        ),
        (1, ["target"], False, True, "loss", {"loss", "zlib", "min_k"}),
    ],
)
def test_models_are_attacked_without_references(
    models: int, roles: list[str], has_base: bool, texts: bool, headline: str, attacks: set[str],
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    loss_MxN, member_MxN, base_N = wide_losses()
    used_MxN, members_MxN = loss_MxN[:models], member_MxN[:models]
    if has_base:
        used_MxN = np.concatenate([used_MxN, base_N[None]])
        members_MxN = np.pad(members_MxN, ((0, 1), (0, 0)))
    lm_mia.open_arrays(
        tmp_path / "w",
        used_MxN,
        members_MxN,
        role_M=[*roles, *["base"] * has_base],
        text_N=[f"text number {i} of {i % 7}" for i in range(400)] if texts else None,
        statistics={"min_k": -used_MxN},
        name="tuned",
    )
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", *SETTINGS]) == 0
    assert cli.main(["report", f"--workdir={tmp_path / 'w'}"]) == 0
    output = capsys.readouterr().out
    assert "has no score" not in output
    results = lm_mia.open(tmp_path / "w").recipes["tuned"]
    table = results.table("targets")
    assert {*table["attack"]} == attacks
    assert {*table["references"]} == {0}
    auc = table.groupby("attack")["auc"].mean()
    reference_N = base_N if has_base else np.zeros(400)
    expected = [stats.auc(reference_N - loss_MxN[t], member_MxN[t]).auc_T[0] for t in range(models)]
    assert auc[headline] == pytest.approx(np.mean(expected), abs=1e-6)
    strength = results.table("strength")
    found = of_table(strength, headline, "tpr")
    page = (tmp_path / "w" / "report.html").read_text()
    for text in (output, " ".join(str(Markup(page).striptags()).split())):
        assert f"finds {found} at 10 " in text
    assert "Not possible here" in page
    assert "0 reference" not in page


@pytest.mark.parametrize("name", ["base", "base_v2"])
def test_a_base_is_found_by_the_name_of_its_column_if_a_target_is_named(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = losses()
    table = {f"loss_m{m}": arrays["loss_MxN"][m] for m in range(M)}
    table |= {f"member_m{m}": arrays["member_MxN"][m] for m in range(M)}
    table[f"loss_{name}"] = arrays["loss_MxN"].mean(axis=0)
    pd.DataFrame(table).to_parquet(tmp_path / "losses.parquet")
    assert import_file(tmp_path / "losses.parquet", tmp_path / "w", "--target=m3") == 0
    assert f"{M - 1} references, 1 target, its base" in capsys.readouterr().out
    audited = lm_mia.audit(tmp_path / "losses.parquet", target=["m3"], fprs=[0.5])
    assert "base_calibrated" in {*audited.summary["attack"]}


@pytest.mark.parametrize(("value", "remedy"), [(False, "--base=0"), (True, "--target")])
def test_a_model_without_members_is_not_attacked_unasked(
    value: bool, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = losses()
    arrays["member_MxN"][0] = value
    np.savez(tmp_path / "losses.npz", **arrays)
    assert import_file(tmp_path / "losses.npz", tmp_path / "w") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "'0'" in line
    assert remedy in line
    assert not (tmp_path / "w").exists()


def test_mean_losses_are_of_models_with_members_and_nonmembers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = losses()
    arrays["role_M"] = ["target"] + ["reference"] * (M - 2) + ["base"]
    arrays["member_MxN"][-1] = False  # a base has no members
    np.savez(tmp_path / "losses.npz", **arrays)
    assert import_file(tmp_path / "losses.npz", tmp_path / "w") == 0
    [line] = [s for s in capsys.readouterr().out.splitlines() if s.startswith("mean loss: ")]
    trained = [*zip(arrays["loss_MxN"], arrays["member_MxN"], strict=True)][:-1]
    means = [
        np.mean([loss_N[member_N == is_member].mean() for loss_N, member_N in trained])
        for is_member in (True, False)
    ]
    assert [float(mean) for mean in re.findall(r"\d+\.\d+", line)] == pytest.approx(means, abs=1e-3)


def replica_losses(effect: float, *, has_base: bool) -> dict[str, Any]:
    """Returns losses of 13 replicas of 600 samples, which lower those of members, and of their base."""
    rng = np.random.default_rng(3)
    hardness_N = 2 + rng.gamma(9, 0.1, 600)
    member_MxN = np.tile(rng.permutation(600) < 250, (13, 1))
    gap_N = rng.normal(0, 0.2, 600) + effect * member_MxN[0]
    loss_MxN = hardness_N - gap_N + rng.normal(0, 0.2, (13, 600))
    roles = ["replica"] * 13
    if has_base:
        loss_MxN, member_MxN = (
            np.vstack([loss_MxN, hardness_N]),
            np.pad(member_MxN, ((0, 1), (0, 0))),
        )
        roles.append("base")
    return {"loss_MxN": loss_MxN, "member_MxN": member_MxN, "role_M": roles}


@pytest.mark.parametrize("has_base", [True, slow_case(False)])
def test_decisions_of_replicas_are_judged_without_references(
    has_base: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = replica_losses(0.5, has_base=has_base)
    lm_mia.open_arrays(tmp_path / "w", **arrays, name="tuned")
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", *SETTINGS]) == 0
    assert cli.main(["report", f"--workdir={tmp_path / 'w'}"]) == 0
    output = capsys.readouterr().out
    headline = "base_calibrated" if has_base else "loss"
    loss_BxN, member_N = arrays["loss_MxN"][:13].astype(np.float32), arrays["member_MxN"][0]
    base_N = arrays["loss_MxN"][13].astype(np.float32) if has_base else np.zeros(600, np.float32)
    score_BxN = base_N - loss_BxN
    points = stats.tpr_at_fpr(score_BxN, member_N, 0.1)
    called_BxN = score_BxN >= points.threshold_TxF
    flip_N = stats.flip_rate(called_BxN.sum(axis=0), 13)
    results = lm_mia.open(tmp_path / "w").recipes["tuned"]
    [flips] = (
        row
        for row in results.table("attack_flips").to_dict("records")
        if row["attack"] == headline and row["fpr"] == 0.1
    )
    tpr = points.tpr_TxF.mean()
    assert flips["tpr_mean"] == pytest.approx(tpr)
    assert flips["member_flip_rate"] == pytest.approx(flip_N[member_N].mean())
    assert flips["nonmember_flip_rate"] == pytest.approx(flip_N[~member_N].mean())
    is_coin_flip_N = flip_N >= stats.coin_flip_cutoff(13)[1]
    assert flips["member_coin_flips"] == pytest.approx(is_coin_flip_N[member_N].mean())
    assert all(np.isnan(value) for name, value in flips.items() if "_minus_lira" in str(name))
    assert results.table("attacks")["not_shared_fraction"].isna().all()
    strength = results.table("strength")
    missed = strength.query(f"attack == '{headline}' and metric == 'missed'")["value"].item()
    hits_BxK = called_BxN[:, member_N]
    again = [
        hits_BxK[b][hits_BxK[a]].sum() for a in range(13) for b in range(13) if a != b
    ]  # hits of one training that another one finds, too
    assert missed == pytest.approx(1 - sum(again) / (12 * hits_BxK.sum()))
    # The page and the last line have these numbers, and say what needs references.
    found = of_table(strength, headline, "tpr")
    page = (tmp_path / "w" / "report.html").read_text()
    for text in (output, " ".join(str(Markup(page).striptags()).split())):
        assert f"finds {found} at 10 " in text
        assert f"{100 * missed:.0f} % (" in text
    assert "LiRA needs 4 " in Markup(page).striptags()
    for table in ("samples", "flip_shares", "decision_jackknife", "reference_targets"):
        assert table not in results.tables
        with pytest.raises(UserError, match="LiRA needs references"):
            results.table(table)
    assert 'href="recipes/tuned/samples.html"' in page
    assert (tmp_path / "w/recipes/tuned/samples.html").is_file()


def test_replicas_of_noise_are_found_as_often_as_false_alarms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lm_mia.open_arrays(tmp_path, **replica_losses(0.0, has_base=True), name="noise")
    assert cli.main(["attack", f"--workdir={tmp_path}", *SETTINGS]) == 0
    assert "told from guessing." in capsys.readouterr().out
    strength = lm_mia.open(tmp_path).recipes["noise"].table("strength")
    row = strength.query("attack == 'base_calibrated' and metric == 'tpr'").iloc[0]
    assert row["low"] < row["fpr"] < row["high"]
    assert row["value"] == pytest.approx(row["fpr"], abs=0.04)


@pytest.mark.slow
def test_references_of_replicas_may_come_later(tmp_path: Path):
    arrays, rng = replica_losses(0.5, has_base=True), np.random.default_rng(4)
    arrays = {
        name: array[9:] for name, array in arrays.items()
    }  # four of the replicas, and the base
    lm_mia.open_arrays(tmp_path, **arrays, name="tuned", subset="given")
    assert cli.main(["attack", f"--workdir={tmp_path}", *SETTINGS]) == 0
    alone = lm_mia.open(tmp_path).recipes["tuned"].table("attacks").set_index("attack")
    member_RxN = rng.random((5, 600)) < 0.5
    loss_RxN = arrays["loss_MxN"][4] - 0.5 * member_RxN + rng.normal(0, 0.2, (5, 600))
    arrays["loss_MxN"] = np.vstack([arrays["loss_MxN"], loss_RxN])
    arrays["member_MxN"] = np.vstack([arrays["member_MxN"], member_RxN])
    arrays["role_M"] = [*arrays["role_M"], *["reference"] * 5]
    lm_mia.open_arrays(tmp_path, **arrays, name="tuned", subset="given")
    assert cli.main(["attack", f"--workdir={tmp_path}", *SETTINGS]) == 0
    results = lm_mia.open(tmp_path).recipes["tuned"]
    table = results.table("attacks").set_index("attack")
    assert table["auc_mean"]["base_calibrated"] == alone["auc_mean"]["base_calibrated"]
    assert {"flip_shares", "samples"} <= {*results.tables}


def test_flags_name_the_target_and_the_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """As in a table of `lm-mia hf-losses`, whose models have names of their own."""
    loss_MxN, member_MxN, base_N = wide_losses()
    table = {"loss_tuned": loss_MxN[0], "member_tuned": member_MxN[0], "loss_gpt2": base_N}
    file = tmp_path / "losses.parquet"
    pd.DataFrame(table).to_parquet(file)
    assert import_file(file, tmp_path / "w") == 2
    assert "--base=NAME" in capsys.readouterr().err
    assert import_file(file, tmp_path / "w", "--target=tuned", "--base=tuned") == 2
    assert not (tmp_path / "w").exists()
    assert import_file(file, tmp_path / "w", "--target=tuned", "--base=gpt2") == 0
    assert "1 target, its base" in capsys.readouterr().out
    assert import_file(file, tmp_path / "v", "--base=gpt2") == 0  # the other model is attacked
    for workdir in ("w", "v"):
        [recipe] = sweep.read_sweep(None, str(tmp_path / workdir), []).recipes
        assert recipe.config.attack.headline == "base_calibrated"


def test_references_that_come_later_make_the_usual_attacks_possible(tmp_path: Path):
    loss_MxN, member_MxN, base_N = wide_losses()
    file = tmp_path / "tuned.npz"

    def import_models(models: int) -> lm_mia.config.Attack:
        roles = ["target", *["reference"] * (models - 1), "base"]
        np.savez(
            file,
            loss_MxN=np.concatenate([loss_MxN[:models], base_N[None]]),
            member_MxN=np.pad(member_MxN[:models], ((0, 1), (0, 0))),
            role_M=np.array(roles),
        )
        assert import_file(file, tmp_path / "w", "--subset=exact") == 0
        [recipe] = sweep.read_sweep(None, str(tmp_path / "w"), []).recipes
        return recipe.config.attack

    assert import_models(1).headline == "base_calibrated"
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", *SETTINGS]) == 0
    alone = lm_mia.open(tmp_path / "w").recipes["tuned"].table("targets").set_index("attack")
    assert import_models(6).headline == "stacked"
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", *SETTINGS]) == 0
    table = lm_mia.open(tmp_path / "w").recipes["tuned"].table("targets").set_index("attack")
    # The same model is attacked, with the same result.
    assert table["auc"]["base_calibrated"] == alone["auc"]["base_calibrated"]
    assert table["references"]["stacked"] == 5


def test_targets_are_attacked_and_reported_without_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results = lm_mia.open_arrays(tmp_path, **losses(), subset="exact", name="mine")
    assert results.recipes["mine"].scores()["loss"].shape == (M, N)
    settings = [*SETTINGS, "--config.attack.attacks=lira_online,stacked,shrunk,loss"]
    assert cli.main(["attack", f"--workdir={tmp_path}", *settings]) == 0
    assert re.search(r"20 members and 20 .*too few", capsys.readouterr().out)
    tables = lm_mia.open(tmp_path).recipes["mine"]
    # Samples of which nothing is known except their losses have no covariates.
    auc = tables.table("targets").groupby("attack")["auc"].mean()
    assert {"lira_online", "stacked", "shrunk", "loss"} <= {*auc.index}
    assert auc["lira_online"] > 0.7
    assert cli.main(["report", f"--workdir={tmp_path}"]) == 0
    assert "imported from" in (tmp_path / "report.html").read_text()


def test_attacks_without_members_among_the_references_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arrays = losses()
    arrays["member_MxN"][:-1] = False
    roles = ["reference"] * (M - 1) + ["target"]
    lm_mia.open_arrays(tmp_path, **arrays, role_M=roles, name="mine")
    assert cli.main(["status", f"--workdir={tmp_path}"]) == 0
    command = f"lm-mia attack --workdir={tmp_path} && lm-mia report --workdir={tmp_path}"
    assert command in capsys.readouterr().out
    assert cli.main(["attack", f"--workdir={tmp_path}", *SETTINGS]) == 0
    table = lm_mia.open(tmp_path).recipes["mine"].table("strength")
    auc = of_table(table, "shrunk_offline", "auc", numbers.FRACTION)
    assert f"AUC {auc};" in capsys.readouterr().out
    assert "lira_online" not in {*table["attack"]}  # it has no scores
    auc = lm_mia.open(tmp_path).recipes["mine"].table("targets").groupby("attack")["auc"].mean()
    assert np.isnan(auc["lira_online"])
    assert auc["lira_offline"] > 0.7


@pytest.mark.parametrize(
    ("studies", "table", "heading"),
    [
        (("leave_one_out=True",), "pooling", "Thresholds"),
        (
            ("leave_one_out=False", "zero_run=graded"),
            "interference",
            "Different sources",
        ),
    ],
)
def test_references_are_attacked_and_reported_without_targets(
    studies: tuple[str, ...],
    table: str,
    heading: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    np.savez(tmp_path / "a.npz", **losses())
    fields = ("targets=0", "fprs=0.1,0.5", "focus_fpr=0.1", "band=0.1,0.5", *studies)
    settings = [f"--config.attack.{field}" for field in fields]
    assert import_file(tmp_path / "a.npz", tmp_path / "w", "--subset=exact", *settings) == 0
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}"]) == 0
    assert cli.main(["report", f"--workdir={tmp_path / 'w'}"]) == 0
    assert "8 references" in capsys.readouterr().out.splitlines()[-2]
    assert len(lm_mia.open(tmp_path / "w").recipes["a"].table(table)) > 0
    page = (tmp_path / "w" / "report.html").read_text()
    assert f"<b>{heading}" in page
    assert "No model of " in page
    assert ('href="figures/a-pooling.png"' in page) == (table == "pooling")


@pytest.mark.parametrize(
    ("models", "targets"), [(6, 2), slow_case(8, 2), slow_case(14, 2), (16, 4)]
)
def test_pairs_are_attacked_as_a_whole(
    models: int, targets: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    half_PxN = np.random.default_rng(1).permuted(
        np.tile(np.arange(N) % 2 == 0, (models, 1)), axis=1
    )
    member_MxN = np.stack([half_PxN, ~half_PxN], axis=1).reshape(-1, N)[:models]
    np.savez(tmp_path / "a.npz", loss_MxN=3 - 0.5 * member_MxN, member_MxN=member_MxN)
    assert import_file(tmp_path / "a.npz", tmp_path / "w", "--subset=balanced") == 0
    assert f"{models - targets} references, {targets} targets" in capsys.readouterr().out


def test_formats_have_the_same_content(tmp_path: Path):
    arrays = losses()
    roles = np.array(["reference"] * 6 + ["target"] * 2)
    tokens_N, text_N = np.arange(N) + 5, np.array([f"text {i}" for i in range(N)])
    np.savez(tmp_path / "a.npz", **arrays, role_M=roles, tokens_N=tokens_N, text_N=text_N)
    dataset = xr.Dataset(
        {name: (("model", "sample"), arrays[f"{name}_MxN"]) for name in ("loss", "member")},
        {"role": ("model", roles), "tokens": ("sample", tokens_N), "text": ("sample", text_N)},
    )
    dataset.to_netcdf(tmp_path / "a.nc", engine="scipy")
    table = {"tokens": tokens_N, "text": text_N}
    for m, role in enumerate(roles):
        table[f"loss_{role}-{m}"] = arrays["loss_MxN"][m]
        table[f"member_{role}-{m}"] = arrays["member_MxN"][m]
    pd.DataFrame(table).to_parquet(tmp_path / "a.parquet")
    for name in ("a.npz", "a.nc", "a.parquet"):
        file = loss_reader.read_losses(open_arrays(tmp_path / name))
        assert file.role_M == tuple(roles), name
        np.testing.assert_array_equal(file.columns["tokens"], tokens_N)
        assert file.text_N is not None
        assert file.text_N.tolist() == text_N.tolist()
        for m in range(M):
            np.testing.assert_array_equal(file.read("loss", m), arrays["loss_MxN"][m])
            np.testing.assert_array_equal(loss_reader.read_member(file, m), arrays["member_MxN"][m])
    # A score store of ours can be imported too.
    ours = lm_mia.open_arrays(tmp_path / "w", **arrays, columns={"tokens": tokens_N})
    file = loss_reader.read_losses(open_arrays(ours.recipes["imported"].path / "scores.zarr"))
    assert file.columns["tokens"].tolist() == tokens_N.tolist()
    assert file.names_M == tuple(f"reference-{m:02d}" for m in range(M))
    np.testing.assert_array_equal(file.read("loss", 3), arrays["loss_MxN"][3].astype(np.float32))


def test_zeros_of_zarr_stores_are_not_missing_values(tmp_path: Path):
    """Arrays of Zarr format 2 have the fill value 0, which xarray takes for missing; no metadata are consolidated."""
    arrays = losses()
    arrays["loss_MxN"][1, 2] = 0
    unk_N = np.arange(N) % 3
    for zarr_format in (2, 3):
        group = zarr.open_group(tmp_path / f"{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
        for name, dimensions, values in (
            ("loss", ["model", "sample"], arrays["loss_MxN"]),
            ("member", ["model", "sample"], arrays["member_MxN"]),
            ("unk", ["sample"], unk_N),
        ):
            names: dict[str, Any] = {"dimension_names": dimensions} if zarr_format == 3 else {}
            array = group.create_array(name, shape=values.shape, dtype=values.dtype, **names)
            array[:] = values
            array.attrs["_ARRAY_DIMENSIONS"] = dimensions
        file = loss_reader.read_losses(open_arrays(tmp_path / f"{zarr_format}.zarr"))
        np.testing.assert_array_equal(file.columns["unk"], unk_N)
        for m in range(M):
            np.testing.assert_array_equal(file.read("loss", m), arrays["loss_MxN"][m])
            np.testing.assert_array_equal(loss_reader.read_member(file, m), arrays["member_MxN"][m])


def test_import_again_adds_models_and_never_changes_any(tmp_path: Path):
    arrays = losses()
    few = {name: value[:6] for name, value in arrays.items()}
    lm_mia.open_arrays(tmp_path, **few)
    results = lm_mia.open_arrays(tmp_path, **arrays)
    stored = results.recipes["imported"].scores()
    np.testing.assert_array_equal(stored["loss"], arrays["loss_MxN"].astype(np.float32))
    before = {p: p.read_bytes() for p in tmp_path.rglob("c/*/*")}
    assert before
    arrays["loss_MxN"][2, 3] += 0.1
    with pytest.raises(UserError, match=r"model 2\b.*\breference-02"):
        lm_mia.open_arrays(tmp_path, **arrays)
    assert {p: p.read_bytes() for p in tmp_path.rglob("c/*/*")} == before
    with pytest.raises(UserError, match=r"imported: .*without texts; import"):
        results.recipes["imported"].text(0)


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_losses_of_the_same_samples_have_a_recipe_for_each_name(tmp_path: Path):
    small, medium = losses(), losses()
    medium["loss_MxN"] = medium["loss_MxN"] + 1
    lm_mia.open_arrays(tmp_path, **small, name="small")
    lm_mia.open_arrays(tmp_path, **medium, name="medium")
    # Equal losses, too, are imported under the name that was given.
    results = lm_mia.open_arrays(tmp_path, **small, name="again")
    assert list(results.recipes) == ["small", "medium", "again"]
    for name, arrays in (("small", small), ("medium", medium), ("again", small)):
        stored_MxN = results.recipes[name].scores()["loss"]
        np.testing.assert_array_equal(stored_MxN, arrays["loss_MxN"].astype(np.float32))
    assert len([*(tmp_path / "populations").glob("[!.]*")]) == 1
    # Under a name that exists, nothing changes: neither with the same losses, nor with more models and other losses.
    before = files_of(tmp_path / "recipes")
    lm_mia.open_arrays(tmp_path, **small, name="small")
    more: dict[str, Any] = {name: np.tile(value, (2, 1)) for name, value in medium.items()}
    with pytest.raises(UserError, match=r"reference-00 in .*small.*or --name"):
        lm_mia.open_arrays(tmp_path, **more, name="small")
    assert files_of(tmp_path / "recipes") == before


def test_the_same_import_again_keeps_the_settings_of_the_attack(tmp_path: Path):
    file, workdir = changed()(tmp_path), tmp_path / "w"
    assert import_file(file, workdir, "--config.attack.attacks=lira_online") == 0
    before = files_of(workdir / "recipes")
    assert import_file(file, workdir) == 0
    assert files_of(workdir / "recipes") == before


def settings_of(
    workdir: Path, drawn: np.ndarray, roles: list[str], *flags: str, base: bool = False
) -> lm_mia.config.Attack:
    """Imports noise of models with some members, and returns the settings of the attack."""
    member_MxN, names = drawn, [*roles]
    if base:
        member_MxN, names = np.pad(drawn, ((0, 1), (0, 0))), [*roles, "base"]
    loss_MxN = 3 + np.random.default_rng(0).normal(0, 0.2, member_MxN.shape)
    np.savez(
        workdir.with_suffix(".npz"),
        loss_MxN=loss_MxN,
        member_MxN=member_MxN,
        role_M=np.array(names),
    )
    assert import_file(workdir.with_suffix(".npz"), workdir, *flags) == 0
    [recipe] = sweep.read_sweep(None, str(workdir), []).recipes
    return recipe.config.attack


ONE_TARGET = ["target"] + ["reference"] * 7
HALF = ["target"] * 4 + ["reference"] * 4


@pytest.mark.parametrize(
    ("drawn", "roles", "flags", "base", "headline"),
    [
        (draw.exact, ONE_TARGET, ["--subset=exact"], False, "stacked"),
        slow_case(draw.exact, ONE_TARGET, ["--subset=bernoulli"], True, "stacked"),
        (draw.exact, ONE_TARGET, [], False, "rmia"),
        slow_case(draw.exact, HALF, [], False, "rmia"),
        (draw.exact, HALF, ["--config.attack.headline=zlib"], False, "zlib"),
        slow_case(draw.pairs, HALF, ["--subset=balanced"], False, "stacked"),
        # Each target leaves out its complement, or a reference of each sample.
        (draw.pairs, HALF, [], False, "rmia"),
        slow_case(draw.pairs, ["target"] * 3 + ["reference"] * 5, [], False, "rmia"),
        (draw.columns, ["target"] * 3 + ["reference"] * 5, [], False, "rmia"),
        slow_case(draw.columns, HALF, [], False, "reference_calibrated"),
        (draw.columns, HALF, [], True, "base_calibrated"),
        # The first references are attacked, as many as the command says.
        (draw.columns, ["reference"] * 8, ["--config.attack.targets=3"], False, "rmia"),
        slow_case(
            draw.columns,
            ["reference"] * 8,
            ["--config.attack.targets=4"],
            False,
            "reference_calibrated",
        ),
    ],
)
def test_results_are_named_by_an_attack_that_follows_from_the_subsets(
    drawn: Any, roles: list[str], flags: list[str], base: bool, headline: str, tmp_path: Path
):
    member_MxN = drawn(np.random.default_rng(1), 8, 400)
    assert settings_of(tmp_path / "w", member_MxN, roles, *flags, base=base).headline == headline


def test_references_that_were_trained_on_no_sample(tmp_path: Path):
    member_MxN = np.zeros((6, 400), bool)
    member_MxN[0, :200] = True
    roles = ["target", *["reference"] * 5]
    assert settings_of(tmp_path / "w", member_MxN, roles).headline == "shrunk_offline"


def test_the_rate_follows_from_the_number_of_nonmembers(tmp_path: Path):
    """Half of the samples would allow 10 false positives at 0.01."""
    rng = np.random.default_rng(0)
    for members, focus in ((1000, "auto"), (1500, 0.05), (1950, 0.1)):
        member_MxN = rng.permuted(np.tile(np.arange(2000) < members, (8, 1)), axis=1)
        workdir = tmp_path / f"{members}"
        assert settings_of(workdir, member_MxN, ONE_TARGET).focus_fpr == focus
    attack = settings_of(tmp_path / "w", member_MxN, ONE_TARGET, "--config.attack.fprs=0.05,0.5")
    assert (attack.focus_fpr, attack.fprs) == (0.1, (0.05, 0.1, 0.5))


def test_imports_at_once_share_the_population(tmp_path: Path):
    table, start = imported.sample_table(N, {}, None), threading.Barrier(4)

    def write(_: int) -> str:
        start.wait()
        return imported.write_population(tmp_path / "populations/a", table, {}).sha256

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(write, range(4))}) == 1


def test_an_import_of_other_samples_at_the_same_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The other one claims the name after this one, but before there are results."""
    claim = sweep.claim_folders

    def claim_twice(claimed: sweep.Sweep) -> Any:
        result = claim(claimed)
        other = lm_mia.config.Corpus(source="imported", path="0123456789ab")
        c = dataclasses.replace(claimed.recipes[0].config, corpus=other)
        claim(sweep.imported_sweep(str(tmp_path), c))
        return result

    monkeypatch.setattr(sweep, "claim_folders", claim_twice)
    with pytest.raises(UserError, match=r"config\.json: another command"):
        lm_mia.open_arrays(tmp_path, **losses())


def test_differences_from_an_import_are_named_as_they_were_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lm_mia.open_arrays(tmp_path, **losses())
    other = {name: value[:, 1:] for name, value in losses().items()}
    with pytest.raises(UserError) as error:
        lm_mia.open_arrays(tmp_path, **other, subset="bernoulli")
    first, *differences, last = str(error.value).splitlines()
    assert first.startswith(f"--workdir={tmp_path}: its recipe imported ")
    assert differences == [
        f"  number of samples: {N} -> {N - 1}",
        "  --subset: 'given' -> 'bernoulli'",
    ]
    assert "--workdir or --name" in last
    with pytest.raises(UserError, match=r"\n  samples: other "):
        lm_mia.open_arrays(tmp_path, **losses(), columns={"tokens": np.arange(N) + 1})
    assert cli.main(["attack", f"--workdir={tmp_path}", "--config.model.layers=3"]) == 2
    error = capsys.readouterr().err
    assert "model.layers, model.size: " in error
    quickstart = ["--config=quickstart", "--config.name=imported", f"--workdir={tmp_path}"]
    assert cli.main(["train", *quickstart]) == 2
    assert "has imported losses" in capsys.readouterr().err


def test_commands_on_models_leave_out_imported_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    sweep.claim_folders(sweep.read_sweep("quickstart", str(tmp_path), ()))
    lm_mia.open_arrays(tmp_path, **losses())
    assert cli.main(["plan", f"--workdir={tmp_path}", "--json"]) == 0
    shown = capsys.readouterr()
    assert "lm-mia plan: leaves out imported" in shown.err
    assert len(json.loads(shown.out)["recipes"]) == 1


def changed(**arrays: Any) -> Callable[[Path], Path]:
    """Returns a function that writes losses with other arrays; None leaves an array out."""

    def write(folder: Path) -> Path:
        content = {name: v for name, v in (losses() | arrays).items() if v is not None}
        np.savez(folder / "bad.npz", **content)
        return folder / "bad.npz"

    return write


def cell(name: str, value: float) -> Callable[[Path], Path]:
    array = losses()[name].astype(float)
    array[2, 3] = value
    return changed(**{name: array})


def raw(content: bytes, name: str = "bad.npz") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def frame(name: str, **columns: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pd.DataFrame(columns).to_parquet(folder / name)
        return folder / name

    return write


def dataset(dims: tuple[str, ...], *names: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        shape = [2] * len(dims)
        variables = {name: (dims, np.ones(shape)) for name in names}
        xr.Dataset(variables).to_netcdf(folder / "bad.nc", engine="scipy")
        return folder / "bad.nc"

    return write


ROLES = np.array(["reference"] * M)


def wide(**arrays: Any) -> dict[str, Any]:
    """Returns arrays of twice as many samples, of which no two models share their subset by chance."""
    return {"loss_MxN": np.ones((M, 2 * N))} | arrays


RNG = np.random.default_rng(0)
OVERLAPPING = RNG.random((M, 4000)) < 0.5
OVERLAPPING[5, :2000] = OVERLAPPING[2, :2000]
WHOLE_MxN = np.repeat(
    np.random.default_rng(0).permuted(np.tile(np.arange(N) < N // 2, (M, 1)), axis=1), 2, axis=1
)
"""Membership that was drawn by documents of two samples each."""

HALF_PxN = losses()["member_MxN"][: M // 2]
COMPLEMENTS = {"member_MxN": np.stack([HALF_PxN, ~HALF_PxN], axis=1).reshape(M, N)}
"""Membership of pairs of complementary subsets."""

BAD: dict[str, tuple[Callable[[Path], Path], str, tuple[str, ...]]] = {
    "no file": (lambda folder: folder / "none.npz", "none.npz", ()),
    "a folder": (lambda folder: folder, "", ()),
    "empty": (raw(b""), "bad.npz", ()),
    "text": (raw(b"loss,member\n"), "bad.npz", ()),
    "other suffix": (raw(b"x", "bad.pkl"), "must end in .npz, .csv", ()),
    "pickle": (changed(loss_MxN=np.array([{}], object)), "bad.npz", ()),
    "no losses": (changed(loss_MxN=None), "has no losses among", ()),
    "no members": (changed(member_MxN=None), "no array member_MxN", ()),
    "unknown array": (changed(labels=np.zeros(3)), "unknown arrays labels", ()),
    "one dimension": (changed(loss_MxN=np.ones(N)), "one row per model", ()),
    "no samples": (changed(loss_MxN=np.ones((M, 0))), "is empty", ()),
    "other shapes": (changed(member_MxN=np.ones((M, 3))), "they must be equal", ()),
    "NaN": (cell("loss_MxN", np.nan), "model 2: loss of sample 3 is NaN", ()),
    "infinite": (cell("loss_MxN", np.inf), "model 2: loss", ()),
    "log-probabilities": (changed(loss_MxN=-losses()["loss_MxN"]), "negate log-probabilities", ()),
    "strings": (changed(loss_MxN=np.full((M, N), "3.1")), "model 0: loss", ()),
    "member of 2": (cell("member_MxN", 2), "membership", ()),
    "member of 0.5": (cell("member_MxN", 0.5), "membership", ()),
    "too few roles": (changed(role_M=ROLES[1:]), "one value for each of the 8 models", ()),
    "unknown role": (changed(role_M=np.where(np.arange(M), ROLES, "shadow")), "'shadow'", ()),
    "one replica": (
        changed(role_M=np.where(np.arange(M), ROLES, "replica")),
        "has 1 replica: must",
        (),
    ),
    "replicas of other subsets": (
        changed(role_M=np.where(np.arange(M) < 6, "reference", "replica")),
        "same samples",
        (),
    ),
    "target of one class": (
        changed(member_MxN=np.ones((M, N)), role_M=np.where(np.arange(M), ROLES, "target")),
        "needs members and non-members",
        (),
    ),
    **{
        f"{models} models": (
            changed(**{name: value[:models] for name, value in losses().items()}),
            f"{models} models: must be at least five",
            (),
        )
        for models in (2, 3, 4)
    },
    "a base alone": (
        changed(
            loss_MxN=losses()["loss_MxN"][:1],
            member_MxN=np.zeros((1, N), bool),
            role_M=np.array(["base"]),
        ),
        "has only a base",
        (),
    ),
    "an attack with references, without any": (
        changed(role_M=np.array(["target"] * M)),
        "lira_online, rmia need references",
        ("--config.attack.attacks=lira_online,rmia,loss",),
    ),
    "all references as targets": (
        changed(),
        f"all imported models are attacked (attack.targets={M})",
        (f"--config.attack.targets={M}",),
    ),
    "few references of replicas": (
        changed(
            member_MxN=np.concatenate([losses()["member_MxN"][:3], np.tile(HALF_PxN[:1], (5, 1))]),
            role_M=np.where(np.arange(M) < 3, "reference", "replica"),
        ),
        "has 5 replicas, 3 references: besides replicas and a base, it must have none or at least four",
        (),
    ),
    "replicas and targets without references": (
        changed(
            member_MxN=np.concatenate([losses()["member_MxN"][:3], np.tile(HALF_PxN[:1], (5, 1))]),
            role_M=np.where(np.arange(M) < 3, "target", "replica"),
        ),
        "has 5 replicas, 0 references and 3 targets: ",
        (),
    ),
    "pairs without a partner": (
        changed(**{name: value[:7] for name, value in losses().items()}),
        "--subset=balanced: ",
        ("--subset=balanced",),
    ),
    "a target without a partner": (
        changed(role_M=np.where(np.arange(M) < 7, "reference", "target")),
        "1 of them targets: both numbers must be even",
        ("--subset=balanced",),
    ),
    "many targets": (changed(), "attack.targets=9: ", ("--config.attack.targets=9",)),
    "odd number of targets": (
        changed(**COMPLEMENTS),
        "attack.targets=1: must be even for --subset=balanced",
        ("--config.attack.targets=1", "--subset=balanced"),
    ),
    "no target": (
        changed(**{name: value[:6] for name, value in losses().items()}),
        "attack.targets=0: ",
        ("--config.attack.targets=0",),
    ),
    "odd sets of references": (changed(), "4; sets", ("--config.attack.resample_references=3",)),
    "a step": (changed(), "attack.step=3: ", ("--config.attack.step=3",)),
    "attack without its statistic": (
        changed(),
        "import a file with min_k_MxN",
        ("--config.attack.attacks=lira_online,min_k",),
    ),
    "low rate": (
        changed(),
        "(half of the samples)",
        ("--config.attack.fprs=0.001", "--config.attack.focus_fpr=0.001"),
    ),
    "initializations": (
        changed(),
        "attack.replica_inits=2: ",
        ("--config.attack.replica_inits=2",),
    ),
    "large sets of references": (
        changed(**{name: value[:6] for name, value in losses().items()}),
        "import more models",
        ("--config.attack.resample_references=4",),
    ),
    "short column": (changed(tokens_N=np.ones(3)), "one value for each of the 40", ()),
    "no tokens": (changed(tokens_N=np.zeros(N)), "has values below 1", ()),
    "column of texts": (changed(city_N=np.full(N, "a")), "has values that are not num", ()),
    "user of real numbers": (changed(user_N=np.full(N, 0.5)), "holds fractions", ()),
    "short texts": (changed(text_N=np.array(["a"])), "one text for each", ()),
    "reserved column": (changed(member_N=np.ones(N)), "unknown arrays member_N", ()),
    "not exact": (
        changed(member_MxN=np.tile(np.arange(N) < 21, (M, 1))),
        "was trained on 21 of 40 samples, not on 20; use --subset=bernoulli if",
        ("--subset=exact",),
    ),
    "not balanced": (changed(), "complement", ("--subset=balanced",)),
    "equal subsets": (
        changed(**wide(member_MxN=np.tile(np.arange(2 * N) < N, (M, 1)))),
        "model 1 of",
        ("--subset=exact",),
    ),
    "complements": (
        changed(**wide(member_MxN=(np.arange(2 * N) < N) ^ (np.arange(M)[:, None] % 2 == 1))),
        "was trained on the same samples as model 0, or on all others",
        ("--subset=bernoulli",),
    ),
    "overlapping subsets": (
        changed(loss_MxN=np.ones((M, 4000)), member_MxN=OVERLAPPING),
        "models 2 and 5 of",
        (),
    ),
    "columns": (
        changed(loss_MxN=np.ones((M, 400)), member_MxN=draw.columns(RNG, M, 400)),
        "every sample is in the same number of training subsets",
        ("--subset=bernoulli",),
    ),
    "whole documents": (
        changed(**wide(member_MxN=WHOLE_MxN, document_N=np.arange(2 * N) // 2)),
        "was trained on whole documents",
        ("--subset=exact",),
    ),
    "a few documents of 20 samples": (
        changed(
            **wide(
                member_MxN=np.tile(np.arange(2 * N) < N, (M, 1)), document_N=np.arange(2 * N) // 20
            )
        ),
        "was trained on whole documents",
        ("--subset=bernoulli",),
    ),
    "tiny losses": (changed(loss_MxN=1e-160 * losses()["loss_MxN"]), "at least 1e-29", ()),
    "huge loss": (cell("loss_MxN", 1e39), "must be below 1e+29 in magnitude", ()),
    "field of training": (changed(), "only fields of attack", ("--config.train.epochs=3",)),
    "number of models": (changed(), "determined by the file", ("--config.attack.references=6",)),
    "unknown design": (changed(), "--subset='half'", ("--subset=half",)),
    "bad name": (changed(), "--name='a/b'", ("--name=a/b",)),
    "bad field": (changed(), "attack.fprs", ("--config.attack.fprs=2",)),
    "damaged parquet": (raw(b"PAR1", "bad.parquet"), "; copy or save it again", ()),
    "parquet without members": (frame("bad.parquet", loss_a=[1.0]), "member_a is missing", ()),
    "parquet without values": (
        frame("bad.parquet", loss_a=[1.0, None], member_a=[True, None]),
        "is missing for 1 samples",
        (),
    ),
    "sums of losses": (changed(loss_MxN=300 * losses()["loss_MxN"]), "sums over tokens", ()),
    "sums of short texts": (
        changed(
            loss_MxN=losses()["loss_MxN"] * np.arange(1, N + 1) / 20, tokens_N=np.arange(1, N + 1)
        ),
        "grow in proportion to the tokens",
        (),
    ),
    "bits of a known vocabulary": (
        changed(vocabulary_N=np.full(N, 10)),
        "above the 2.403 nats",
        (),
    ),
    "no vocabulary": (changed(vocabulary_N=np.ones(N)), "must be the number of pieces", ()),
    "damaged netCDF": (raw(b"CDF", "bad.nc"), "; copy or save it again, or run", ()),
    "single array": (raw(b"\x93NUMPY", "bad.npy"), "np.savez(FILE, loss_MxN=", ()),
    "netCDF without members": (dataset(("model", "sample"), "loss"), "no array member_MxN", ()),
    "checkpoints": (
        dataset(("model", "checkpoint", "sample"), "loss", "member"),
        "dataset.isel(checkpoint=-1)",
        (),
    ),
}


def test_the_unit_of_losses_is_printed_and_can_be_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = changed(loss_MxN=300 * losses()["loss_MxN"])(tmp_path)
    assert import_file(file, tmp_path / "w", "--losses-are-nats") == 0
    assert "nats per token, as --losses-are-nats" in capsys.readouterr().out
    arrays = losses() | {"loss_MxN": 300 * losses()["loss_MxN"]}
    with pytest.raises(UserError, match="losses_are_nats=True"):
        lm_mia.open_arrays(tmp_path / "a", **arrays)
    lm_mia.open_arrays(tmp_path / "a", **arrays, losses_are_nats=True)
    np.savez(tmp_path / "right.npz", **losses())
    assert import_file(tmp_path / "right.npz", tmp_path / "w") == 0
    assert "nats per token, as far" in capsys.readouterr().out


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_and_nothing_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write, message, more = BAD[name]
    file = write(tmp_path)
    assert import_file(file, tmp_path / "w", *more) == 2
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if "━" not in line]
    assert message in error
    assert "Traceback" not in error
    # A file determines these fields, so that no flag of the command sets them.
    fields = r"(?<!config\.)((train|score|population|corpus)\.|attack\.(references|replicas)\b)"
    assert not re.search(fields, error)
    assert 1 <= len(lines) <= 6
    assert not (tmp_path / "w").exists()


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown statistic": ({"statistics": {"minK": np.ones((M, N))}}, "unknown name 'minK'"),
    "name of a file's array": (
        {"statistics": {"min_k_MxN": np.ones((M, N))}},
        "unknown name 'min_k_MxN'; use one of",
    ),
    "column with a suffix": ({"columns": {"tokens_N": np.ones(N)}}, "name it 'tokens'"),
    "reserved column": ({"columns": {"loss": np.ones(N)}}, "may not have the name 'loss'"),
    "texts as a column": ({"columns": {"text": np.ones(N)}}, "may not have the name 'text'"),
    "columns in a list": ({"columns": [np.ones(N)]}, "columns: is of type list; it must be a dict"),
    "column with a number": ({"columns": {3: np.ones(N)}}, "columns has the name 3; it must be"),
    "ragged losses": ({"loss_MxN": [[1.0, 2.0], [1.0]]}, "array 'loss_MxN' is not an array ("),
    "ragged column": ({"columns": {"tokens": [[1], [1, 2]]}}, "array 'tokens_N' is not an array ("),
    "second losses": ({"statistics": {"loss": np.ones((M, N))}}, "unknown name 'loss'; use one"),
}


@pytest.mark.parametrize("name", BAD_ARGUMENTS)
def test_bad_arguments_are_refused_and_nothing_is_written(name: str, tmp_path: Path):
    arguments, message = BAD_ARGUMENTS[name]
    with pytest.raises(UserError, match=re.escape(message)):
        lm_mia.open_arrays(tmp_path / "w", **(losses() | arguments))
    assert not (tmp_path / "w").exists()


def test_a_wrong_order_of_the_rows_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    members, hint = losses()["member_MxN"], "check that rows and columns"
    for folder, member_MxN, has_hint in (("a", members, False), ("b", members[::-1], True)):
        assert import_file(changed(member_MxN=member_MxN)(tmp_path), tmp_path / folder) == 0
        [line] = [s for s in capsys.readouterr().out.splitlines() if s.startswith("mean loss: ")]
        means = [losses()["loss_MxN"][member_MxN == value].mean() for value in (True, False)]
        assert f"{means[0]:.3f} of members, {means[1]:.3f} of non-members" in line
        assert (hint in line) == has_hint


def test_inverted_membership_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for folder, invert in (("a", False), ("b", True)):
        member_MxN = losses()["member_MxN"] ^ invert
        assert import_file(changed(member_MxN=member_MxN)(tmp_path), tmp_path / folder) == 0
        [line] = [s for s in capsys.readouterr().out.splitlines() if s.startswith("mean loss: ")]
        assert ("True stands for non-members" in line) == invert


@pytest.mark.parametrize(
    ("drawn", "line"),
    [
        (draw.columns, "the same number"),
        (
            lambda *of: draw.seeds(draw.exact(of[0], of[1] // 2, of[2])),
            "8 models are equal",
        ),
        (draw.exact, None),
    ],
)
def test_related_subsets_are_named_and_leak_nothing(
    drawn: Any, line: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Both ways to order models with the same subset: next to each other, and with a target among the references."""
    rng = np.random.default_rng(1)
    member_MxN = drawn(rng, 8, 3000)
    member_MxN = member_MxN[[0, 2, 4, 6, 1, 3, 5, 7]]
    loss_MxN = 3 + rng.normal(0, 0.2, member_MxN.shape)
    np.savez(tmp_path / "noise.npz", loss_MxN=loss_MxN, member_MxN=member_MxN)
    assert import_file(tmp_path / "noise.npz", tmp_path / "w") == 0
    printed = capsys.readouterr().out
    assert ("subsets: " in printed) == (line is not None)
    assert (line or "") in printed
    attacks = "--config.attack.attacks=lira_online,rmia,stacked,reference_calibrated"
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", attacks]) == 0
    table = pd.read_csv(next((tmp_path / "w").rglob("targets.csv")))
    table = table[table["references"] == table["references"].max()]
    assert {*table["attack"]} == {"lira_online", "rmia", "stacked", "reference_calibrated"}
    assert table["auc"].between(0.45, 0.55).all()
    # The page shows the first target, with the losses of the references that its attacks use.
    shown = pd.read_parquet(next((tmp_path / "w").rglob("page_samples.parquet")))
    models = shown["in_loss_nats"].str.len() + shown["out_loss_nats"].str.len()
    assert {*models} == ({6} if drawn == draw.exact else {5, 6} if drawn == draw.columns else {5})
    assert {*shown["model_loss_nats"].str.len()} == {1}
    pooled = pd.read_csv(next((tmp_path / "w").rglob("pooling.csv"))).set_index("strategy")
    assert pooled.loc["standardized"].query("fpr == 0.01")["tpr"].between(0.004, 0.018).all()


def test_the_next_commands_can_be_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    workdir = tmp_path / "a b"
    assert import_file(changed()(tmp_path), workdir) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    expected = f"next: lm-mia attack '--workdir={workdir}' && lm-mia report '--workdir={workdir}'"
    assert line == expected


def test_flags_are_checked_together(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["import", "--subset=half"]) == 2
    error = capsys.readouterr().err
    assert all(text in error for text in ("--subset='half'", "FILE: missing", "--workdir: missing"))


def test_pieces_of_documents_stay_together(tmp_path: Path):
    document_N = np.arange(N) // 4 * 10
    lm_mia.open_arrays(tmp_path, **losses(), columns={"document": document_N})
    samples = lm_mia.open(tmp_path).recipes["imported"].samples()
    assert samples["document"].tolist() == (np.arange(N) // 4).tolist()
    assert samples["piece"].tolist() == (np.arange(N) % 4).tolist()
    shutil.rmtree(tmp_path / "populations")
    assert cli.main(["attack", f"--workdir={tmp_path}"]) == 2


@pytest.mark.parametrize("subset", ["given", "bernoulli"])
def test_equal_texts_are_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], subset):
    different = np.array([f"text {i}" for i in range(N)])
    for name, text_N in (
        ("different", different),
        ("three", np.where(np.arange(N) < 3, "text", different)),
        ("all", np.full(N, "text")),
    ):
        np.savez(tmp_path / f"{name}.npz", **losses(), text_N=text_N)
        file = tmp_path / f"{name}.npz"
        assert import_file(file, tmp_path / name, f"--subset={subset}") == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if "different texts" in line]
        assert len(lines) == (name != "different")
        if lines:
            repeated, texts = {"three": (3, N - 2), "all": (N, 1)}[name]
            assert f"{repeated} samples" in lines[0]
            assert f"{texts} different texts of {N}" in lines[0]


@pytest.mark.parametrize(
    ("role", "differ"), [("target", False), slow_case("target", True), slow_case("replica", True)]
)
def test_what_texts_tell_of_given_members_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, differ: bool
):
    rng = np.random.default_rng(0)
    member_MxN = rng.random((M, 200)) < 0.5
    member_MxN[-1] = member_MxN[-2]
    word_NxW = rng.geometric(0.05, (200, 30)).astype(str)
    text_N = np.array([" ".join(word_W) for word_W in word_NxW])
    if differ:
        text_N = np.where(member_MxN[-1], np.char.add(text_N, " members"), text_N)
    loss_MxN = 3 - 0.5 * member_MxN + rng.normal(0, 0.2, member_MxN.shape)
    arrays: dict[str, Any] = {"loss_MxN": loss_MxN}
    arrays |= {"member_MxN": member_MxN, "text_N": text_N}
    count = 1 if role == "target" else 2
    roles = np.array(["reference"] * (M - 2) + [role] * count)
    arrays = {name: v[: M - 2 + count] if v.shape[0] == M else v for name, v in arrays.items()}
    np.savez(tmp_path / "a.npz", **arrays, role_M=roles)
    assert import_file(tmp_path / "a.npz", tmp_path / "w") == 0
    said = "every AUC below includes this difference" if differ else "no difference in their words"
    assert said in capsys.readouterr().out.splitlines()[1]
    settings = [*SETTINGS, "--config.attack.attacks=rmia,lira_online"]
    assert cli.main(["attack", f"--workdir={tmp_path / 'w'}", *settings]) == 0
    assert said in capsys.readouterr().out
    assert cli.main(["report", f"--workdir={tmp_path / 'w'}"]) == 0
    html = (tmp_path / "w/report.html").read_text()
    assert html.index(said) < html.index('<section id="attacks"')
    capsys.readouterr()
    assert import_file(tmp_path / "a.npz", tmp_path / "w2", "--subset=bernoulli") == 0
    assert "texts:" not in capsys.readouterr().out


def test_names_sources_and_users_are_stored(tmp_path: Path):
    names, users = [f"record {n}" for n in range(N)], np.arange(N) // 4
    sources = ["a.txt" if n < 9 else "" for n in range(N)]
    arrays = losses()
    given = {"name_N": np.array(names), "source_N": np.array(sources), "user_N": users}
    np.savez(tmp_path / "a.npz", **arrays, **given)
    data = xr.Dataset(
        {name: (("model", "sample"), arrays[f"{name}_MxN"]) for name in ("loss", "member")},
        {name.removesuffix("_N"): ("sample", value) for name, value in given.items()},
    )
    data.to_netcdf(tmp_path / "b.nc", engine="scipy")
    table: dict[str, Any] = {"name": names, "source": sources, "user": users}
    for m in range(M):
        table[f"loss_{m}"] = arrays["loss_MxN"][m]
        table[f"member_{m}"] = arrays["member_MxN"][m]
    pd.DataFrame(table).to_parquet(tmp_path / "c.parquet")
    np.savez(tmp_path / "unknown.npz", **arrays)
    expected = pd.DataFrame({"name": names, "source": sources, "user": users.astype(str)})
    for file in ("a.npz", "b.nc", "c.parquet"):
        assert import_file(tmp_path / file, tmp_path / "w") == 0
        samples = lm_mia.open(tmp_path / "w").recipes[Path(file).stem].samples()
        assert (samples[[*expected]] == expected).all(axis=None), file
    assert import_file(tmp_path / "unknown.npz", tmp_path / "w") == 0
    samples = lm_mia.open(tmp_path / "w").recipes["unknown"].samples()
    assert (samples[[*expected]] == "").all(axis=None)
    # They are not in the score store, which has what attacks use.
    with xr.open_zarr(tmp_path / "w/recipes/a/scores.zarr") as stored:
        assert not {*expected} & {*map(str, stored.variables)}


def of_release_0_2(workdir: Path) -> Path:
    """Turns a workdir into one of release 0.2, whose sample tables describe documents; returns its score store."""
    [folder] = (workdir / "recipes").iterdir()
    stored = json.loads((folder / "config.json").read_text())
    write_config(folder / "config.json", stored | {"format": 2, "lm_mia": "0.2.0"})
    store = folder / "scores.zarr"
    shutil.rmtree(store / schema.DIGEST)
    with schema.no_zarr_warnings():
        group = zarr.open_group(store, mode="a")
        names = str(group.attrs["coordinates"]).split()
        group.attrs["coordinates"] = " ".join(n for n in names if n != schema.DIGEST)
    schema.consolidate(store)
    return store


def test_workdirs_of_release_0_2_are_refused_with_their_import(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = tiny.copy(tmp_path / "old")
    losses_MxN, member_MxN = Store(of_release_0_2(workdir)).read(requested_seeds(4, 2))
    lines = set()
    for verb in (
        "run",
        "corpus",
        "train",
        "score",
        "attack",
        "extract",
        "report",
        "status",
        "plan",
    ):
        assert cli.main([verb, f"--workdir={workdir}"]) == 2
        lines.add(capsys.readouterr().err)
    assert cli.main(tiny.argv("run", workdir)) == 2
    lines.add(capsys.readouterr().err)
    assert page.main([str(workdir)]) == 2
    lines.add(capsys.readouterr().err)
    [line] = lines
    with pytest.raises(UserError, match=re.escape(line.strip())):
        lm_mia.open(workdir)
    assert line.count("\n") == 1
    [command] = re.findall("`lm-mia (.*)`", line)
    new = tmp_path / "new"
    argv = [word.replace("=NEW", f"={new}") for word in shlex.split(command)]
    assert cli.main(argv) == 0
    # The compressed sizes of whole documents are left out.
    assert "unknown: zlib_bytes " in capsys.readouterr().out
    recipe = lm_mia.open(new).recipes["tiny"]
    np.testing.assert_array_equal(recipe.scores()["loss"], losses_MxN)
    np.testing.assert_array_equal(recipe.scores()["member"], member_MxN)
    assert recipe.samples()["zlib_bytes"].isna().all()
    assert recipe.samples()["tokens"].notna().all()
