"""Attacks measured from stores, against the statistics themselves and against the attack stage."""

import dataclasses
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_figures import folder

from lm_mia.stats import lira, rmia, roc

__all__ = ["folder"]  # a fixture
sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
measured = importlib.import_module("measured")


@pytest.fixture(scope="module")
def recipes(folder: Path) -> Any:
    return measured.Recipes(sorted(p.parent for p in folder.glob("*/config.json")))


def test_targets_are_attacked_with_the_references_before_them(recipes: Any):
    main = recipes["main"]
    references, targets, replicas = main.rows
    assert [r.subset_seed for r in references] == [*range(24)]
    assert [r.subset_seed for r in targets] == [24, 25, 26, 27]
    assert len(replicas) == 2
    loss_TxN2, member_TxN2 = main.store.read(targets)
    reference_MxN2, reference_member_MxN2 = main.store.read(references[:8])
    found = measured.attacked(main, references=8)
    score_TxN2 = lira.lira(loss_TxN2, reference_MxN2, reference_member_MxN2, variance="pooled")
    auc = [roc.auc(s, m).auc_T[0] for s, m in zip(score_TxN2, member_TxN2, strict=True)]
    assert found.auc_T == pytest.approx(auc, abs=1e-12)
    assert found.left_out == np.isnan(score_TxN2).sum(axis=1).max() > 0
    tpr = [
        roc.tpr_at_fpr(s, m, [0.1]).tpr_TxF[0, 0]
        for s, m in zip(score_TxN2, member_TxN2, strict=True)
    ]
    assert found.tpr_T(0.1) == pytest.approx(tpr)
    assert np.isnan(found.tpr_T(0.123)).all()


def test_rmia_and_logits_are_those_of_the_statistics(recipes: Any):
    main = recipes["main"]
    references, targets, _ = main.rows
    loss_TxN2, member_TxN2 = main.store.read(targets)
    reference_MxN2, _ = main.store.read(references)
    alpha_TxN2 = rmia.rmia_simple(-loss_TxN2, -reference_MxN2)
    auc = [roc.auc(s, m).auc_T[0] for s, m in zip(alpha_TxN2, member_TxN2, strict=True)]
    assert measured.attacked(main, "rmia_simple").auc_T == pytest.approx(auc, abs=1e-12)
    logits = measured.attacked(main, observed="target_logit").auc_T
    assert (logits > 0.5).all()  # a higher logit is more member-like
    assert (logits < measured.attacked(main).auc_T).all()  # it is the loss and noise


def test_replicas_are_those_of_the_attack_stage(recipes: Any):
    flip = recipes["flip-140M"]
    found = measured.attacked(flip, replicas=True)
    table = pd.read_csv(flip.folder / "tables" / "attacks.csv")
    [row] = table[table["attack"] == "lira_online"].to_dict("records")
    assert row["references"] == found.references
    assert found.auc_T.mean() == pytest.approx(row["auc_mean"], abs=1e-12)
    assert found.auc_T.std() == pytest.approx(row["auc_std"], abs=1e-12)
    assert found.tpr_T(0.05).mean() == pytest.approx(row["tpr_at_0.05_mean"], abs=1e-12)


def test_what_is_not_there_is_said(recipes: Any):
    with pytest.raises(measured.Absent, match="no recipe nonsense in this sweep"):
        recipes["nonsense"]
    with pytest.raises(measured.Absent, match="0 targets"):
        measured.attacked(recipes["flip-140M"])
    with pytest.raises(measured.Absent, match="24 references"):
        measured.attacked(recipes["main"], references=25)
    with pytest.raises(measured.Absent, match="target_logit at step 0"):
        measured.attacked(recipes["small"], observed="target_logit")


def test_families_are_ordered_and_names_are_shared(recipes: Any):
    recipes.used = set()
    sizes = [size for size, _ in recipes.family("fixed")]
    assert sizes == ["10M", "44M", "140M", "302M", "1018M"]
    assert recipes["fixed-140M"] is recipes["main"]
    assert len(recipes.used) == 5
    assert [int(n) for n, _ in recipes.family("data")] == [192, 384, 768, 1536, 3456]


def test_score_points_are_found_by_epochs(recipes: Any):
    epochs = recipes["epochs-140M"]
    assert epochs.step(4) == 0
    assert epochs.step(1) * 4 == measured.points.total_steps(epochs.config)
    aucs = [measured.attacked(epochs, step=epochs.step(e)).auc_T.mean() for e in (1, 2, 3, 4)]
    assert aucs == sorted(aucs)


def test_a_folder_of_no_recipe_is_told(tmp_path: Path):
    with pytest.raises(importlib.import_module("workdir").WorkdirError, match=r"config\.json"):
        measured.read(tmp_path)


def test_targets_stay_while_more_references_are_made(recipes: Any):
    main = recipes["main"]
    attack = dataclasses.replace(main.config.attack, references=92)
    grown = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=attack))
    assert grown.rows[:2] == main.rows[:2]
    assert grown.rows[2] == main.rows[2]


def test_two_folders_of_one_name_are_told(folder: Path, tmp_path: Path):
    [one] = folder.glob("data-384_*")
    for name in ("a_1", "b_2"):
        (tmp_path / name / "population").mkdir(parents=True)
        (tmp_path / name / "population" / "manifest.json").write_text("{}")
        shutil.copy(one / "config.json", tmp_path / name)
    both = [tmp_path / "a_1", tmp_path / "b_2"]
    with pytest.raises(measured.workdir.WorkdirError, match=r"name='data-384': .*a_1 and .*b_2"):
        measured.Recipes(both)
    assert list(measured.Recipes(both[:1])) == ["data-384"]
    shutil.rmtree(both[0] / "population")  # as a command leaves it that was stopped before
    assert [r.folder for r in measured.Recipes(both).all] == both[1:]


def test_an_epoch_that_was_not_scored_is_said(recipes: Any):
    recipe = recipes["epochs-140M"]
    stored = json.loads((recipe.folder / "config.json").read_text())["config"]
    assert 1 in stored["score"]["at_epochs"]
    score = dataclasses.replace(recipe.config.score, at_epochs=(2.0,))
    later = dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, score=score))
    with pytest.raises(measured.Absent, match="epochs-140M: not scored after epoch 1"):
        later.step(1)
    assert later.step(2) > 0
