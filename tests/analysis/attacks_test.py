"""Attacks on targets against the statistics and the attack stage; the models and FPRs that figures compare."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import attacks, io, opening
from analysis.io import SweepResults
from lm_mia import config, stats
from lm_mia.attacks.spec import Need, Variant
from lm_mia.errors import Unavailable
from lm_mia.store.store import open_store


def make_recipe(samples: int, *fprs: float) -> io.RecipeResults:
    """Returns a recipe whose models have this number of non-members, and these FPRs."""
    c = config.Config(
        population=config.Population(samples=2 * samples),
        attack=config.Attack(fprs=fprs, rmia_samples=300),
    )
    return io.RecipeResults(Path(), c, ("a",), Path())


def test_lowest_resolved_fpr_has_ten_nonmembers():
    # 0.01 of 1,000 non-members is exactly ten.
    assert attacks.lowest_resolved_fpr(make_recipe(1_000, 0.001, 0.01, 0.1)) == 0.01
    assert attacks.lowest_resolved_fpr(make_recipe(999, 0.001, 0.01, 0.1)) == 0.1
    # At 20 non-members, no FPR has ten, so the highest is taken.
    assert attacks.lowest_resolved_fpr(make_recipe(20, 0.001, 0.01, 0.1)) == 0.1


def test_unresolved_rmia_fpr_is_at_most_a_quarter_of_the_resolution():
    # 0.001 is exactly 1 / (4 |Z|).
    assert attacks.unresolved_rmia_fpr(make_recipe(1_000, 0.001, 0.01, 0.1), 250) == 0.001
    assert attacks.unresolved_rmia_fpr(make_recipe(1_000, 0.001, 0.01, 0.1), 25) == 0.01
    # No FPR is small enough, so the lowest is taken.
    assert attacks.unresolved_rmia_fpr(make_recipe(1_000, 0.001, 0.01, 0.1), 10_000) == 0.001


def test_resolved_rmia_fpr_is_nearest_to_the_resolution():
    assert attacks.resolved_rmia_fpr(make_recipe(1_000, 0.001, 0.01, 0.1), 100) == 0.01
    # 0.1 is a factor of 2 away from 1 / |Z| = 0.05, and 0.01 a factor of 5.
    assert attacks.resolved_rmia_fpr(make_recipe(1_000, 0.0, 0.01, 0.1), 20) == 0.1
    assert attacks.resolved_rmia_fpr(make_recipe(1_000, 0.001, 0.01), 10_000) == 0.001


def test_rmia_sample_counts_follow_the_papers_shares():
    assert attacks.rmia_sample_counts(make_recipe(2**19)) == [10_000, 30_000, 100_000, 300_000]
    assert attacks.rmia_sample_counts(make_recipe(1_024)) == [20, 59, 195, 586]
    assert (
        attacks.default_rmia_samples(make_recipe(100)),
        attacks.default_rmia_samples(make_recipe(1_000)),
    ) == (
        200,
        300,
    )


def test_equal_models_are_those_of_the_smallest_recipe(recipes: SweepResults):
    main, small = recipes["main"], recipes["small"]
    a = dataclasses.replace(main.config.attack, references=12, targets=2)
    narrow = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=a))
    assert small.config.attack.references > 12
    alike = attacks.with_equal_models([narrow, small])
    assert [len(r.references) for r in alike] == [10, 10]
    targets = [[model.subset_seed for model in r.targets] for r in alike]
    assert targets == [[0, 1], [0, 1]]
    assert [r.recipe_dir for r in alike] == [main.recipe_dir, small.recipe_dir]


def test_targets_are_attacked_with_the_references_after_them(recipes: SweepResults):
    main = recipes["main"]
    references, targets, replicas = main.references, main.targets, main.replicas
    assert [r.subset_seed for r in references] == [*range(4, 28)]
    assert [r.subset_seed for r in targets] == [0, 1, 2, 3]
    assert len(replicas) == 2
    store = open_store(main.config, main.recipe_dir)
    loss_TxN2, member_TxN2 = store.read(targets)
    reference_MxN2, reference_member_MxN2 = store.read(references[:8])
    result = attacks.read_attack(main, Variant(references=8, is_count_study=True))
    score_TxN2 = stats.lira(loss_TxN2, reference_MxN2, reference_member_MxN2, variance="pooled")
    # Attacks with any number of references are on the samples that the first two references suffice for.
    score_TxN2[:, reference_member_MxN2[0] == reference_member_MxN2[1]] = np.nan
    auc = [stats.auc(s, m).auc_T[0] for s, m in zip(score_TxN2, member_TxN2, strict=True)]
    assert result.auc_T == pytest.approx(auc, abs=1e-12)
    assert result.left_out == np.isnan(score_TxN2).sum(axis=1).max() > 0
    tpr = [
        stats.tpr_at_fpr(s, m, [0.1]).tpr_TxF[0, 0]
        for s, m in zip(score_TxN2, member_TxN2, strict=True)
    ]
    assert result.tpr_T(0.1) == pytest.approx(tpr)
    assert np.isnan(result.tpr_T(0.123)).all()


def test_rmia_and_logits_match_the_statistics(recipes: SweepResults):
    main, small = recipes["main"], recipes["small"]
    references, targets = small.references, small.targets
    store = open_store(small.config, small.recipe_dir)
    loss_TxN2, member_TxN2 = store.read(targets)
    reference_MxN2, _ = store.read(references)
    alpha_TxN2 = stats.rmia_simple(-loss_TxN2, -reference_MxN2)
    auc = [stats.auc(s, m).auc_T[0] for s, m in zip(alpha_TxN2, member_TxN2, strict=True)]
    assert attacks.read_attack(small, Variant("rmia_simple")).auc_T == pytest.approx(auc, abs=1e-12)
    logits = attacks.read_attack(main, Variant(observed="target_logit")).auc_T
    assert (logits > 0.5).all()  # a higher logit is more member-like
    assert (logits < attacks.read_attack(main).auc_T).all()  # the logit is the loss with noise


def test_replicas_match_the_attack_stage(recipes: SweepResults):
    flip = recipes["flip-140M"]
    result = attacks.read_attack(flip, Variant(replicas=True))
    table = pd.read_csv(flip.recipe_dir / "tables" / "attacks.csv")
    [*_, row] = table[table["attack"] == "lira_online"].to_dict("records")
    assert row["references"] == result.references
    assert result.auc_T.mean() == pytest.approx(row["auc_mean"], abs=1e-12)
    assert result.auc_T.std() == pytest.approx(row["auc_std"], abs=1e-12)
    assert result.tpr_T(0.05).mean() == pytest.approx(row["tpr_at_0.05_mean"], abs=1e-12)


def test_missing_attacks_are_named(recipes: SweepResults):
    with pytest.raises(Unavailable, match=r"\b0 targets"):
        attacks.read_attack(recipes["flip-140M"])
    with pytest.raises(Unavailable, match="24 references and"):
        attacks.read_attack(recipes["main"], Variant(references=25))
    message = (
        "^small: there are no results of lira_online with [0-9]+ references on target_logit; "
        r"run lm-mia attack with this figure in figures \(its needs must include this attack\)$"
    )
    with pytest.raises(Unavailable, match=message):
        attacks.read_attack(recipes["small"], Variant(observed="target_logit"))


def test_attacks_that_figures_need_are_computed_if_they_are_missing(
    recipes: SweepResults, tmp_path: Path
):
    """In a workdir with scores alone, the attacks equal those of the attacks stage."""
    recipe = recipes["data-384"]
    variant = Variant(references=len(recipe.references))
    folder = tmp_path / "recipes" / recipe.name
    shutil.copytree(recipe.recipe_dir / "scores.zarr", folder / "scores.zarr")
    unattacked = dataclasses.replace(
        recipe, recipe_dir=folder, declared=opening.tables_of_every_recipe
    )
    with pytest.raises(Unavailable, match=r"lira_online\b.*\bneeds"):
        attacks.read_attack(unattacked, variant)
    need = Need(("data-384",), jackknife=True)
    [attacked] = opening.with_needs(SweepResults([unattacked]), [need]).recipes
    found, expected = (attacks.read_jackknife(r, variant) for r in (attacked, recipe))
    pd.testing.assert_frame_equal(found.rates, expected.rates)
    np.testing.assert_array_equal(found.result.tpr_TxG, expected.result.tpr_TxG)
    assert [*(folder / "pieces").glob("operating_points-*.parquet")]
