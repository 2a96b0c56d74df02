"""Attacks on every reference with the others: scores by `lira`, and by whole pairs in the balanced design."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from attack_variants import SAMPLES, VARIANTS, blocks
from synthetic_scores import SMALL, SyntheticScores, run_attacks, write_scores
from table_case import working

from lm_mia import config, stats
from lm_mia.attacks import reference_targets, replicas
from lm_mia.attacks.inputs import AttackInputs
from lm_mia.attacks.results import Table, to_frame
from lm_mia.data import subsets

__all__ = ["blocks"]  # a fixture

C = dataclasses.replace(SMALL, references=14, fprs=(0.1, 0.3))
DESIGNS: tuple[subsets.Design, ...] = ("exact", "balanced")


@pytest.fixture(scope="module", params=DESIGNS)
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> SyntheticScores:
    return write_scores(tmp_path_factory.mktemp("references"), C, SAMPLES, design=request.param)


def is_balanced(world: SyntheticScores) -> bool:
    return bool((world.reference_member_MxN[0] ^ world.reference_member_MxN[1]).all())


def expected_scores(world: SyntheticScores, c: config.Attack) -> np.ndarray:
    """Returns score_MxN by `lira`, one reference at a time."""
    index_M, scores = np.arange(world.references), []
    for m in index_M:
        used_M = index_M // 2 != m // 2 if is_balanced(world) else index_M != m
        references = world.reference_MxN[used_M], world.reference_member_MxN[used_M]
        share = 0.5 if c.finite_population else 0.0
        scores += [
            *stats.lira(
                world.reference_MxN[m], *references, variance=c.variance, sampled_share=share
            )
        ]
    return np.array(scores)


def attacked(source: AttackInputs, c: config.Attack, folder: Path) -> dict[str, pd.DataFrame]:
    """Returns the tables by file name."""
    found: dict[str, pd.DataFrame] = {}

    def write(name: str, table: Table) -> None:
        is_whole = isinstance(table, pd.DataFrame)
        found[name] = table if is_whole else to_frame(pa.concat_tables([*table]))

    group_N = stats.sample_groups(np.arange(source.num_samples))
    with working(folder) as (work, _):
        reference_targets.attack_references(source, c, group_N, work, write)
    return found


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_every_reference_is_attacked_with_the_others(
    world: SyntheticScores, changes: dict[str, Any], tmp_path: Path
):
    c = dataclasses.replace(C, **changes)
    source = replicas.find_replicas(world.store, world.population, c, pytest.fail).inputs
    found = attacked(source, dataclasses.replace(c, leave_one_out=True, bootstraps=1), tmp_path)
    assert list(tmp_path.iterdir()) == []
    table = found[reference_targets.TABLE]
    intervals = found[reference_targets.INTERVALS]

    score_MxN, member_MxN = expected_scores(world, c), world.reference_member_MxN
    points = stats.tpr_at_fpr(score_MxN, member_MxN, c.fprs)
    assert table.target.tolist() == [f"reference-{m:02d}" for m in range(14)]
    assert set(table.references) == {12 if is_balanced(world) else 13}
    np.testing.assert_allclose(table.auc, points.auc_T, rtol=1e-9)
    np.testing.assert_allclose(table[["tpr_at_0.1", "tpr_at_0.3"]], points.tpr_TxF, rtol=1e-9)
    assert table.members.tolist() == (member_MxN & ~np.isnan(score_MxN)).sum(axis=1).tolist()
    assert table.nonmembers.tolist() == (~member_MxN & ~np.isnan(score_MxN)).sum(axis=1).tolist()
    assert table.left_out.tolist() == np.isnan(score_MxN).sum(axis=1).tolist()
    assert table.auc.mean() > 0.75
    assert intervals.metric.tolist() == ["auc", "tpr_at_0.1", "tpr_at_0.3"]
    assert set(intervals.models) == {14}
    np.testing.assert_allclose(
        intervals.value, [table[metric].mean() for metric in intervals.metric]
    )
    assert (intervals.low < intervals.value).all()
    assert (intervals.value < intervals.high).all()

    probability = found[reference_targets.PROBABILITIES]
    assert probability.columns.tolist() == ["id", "mean", "std", "share_above_half", "targets"]
    assert probability.id.tolist() == list(range(SAMPLES))
    posteriors = [[] for _ in range(SAMPLES)]
    for m, n in np.argwhere(member_MxN & ~np.isnan(score_MxN)):
        posteriors[n].append(1 / (1 + np.exp(-score_MxN[m, n])))
    assert probability.targets.tolist() == [len(p) for p in posteriors]
    non_empty = [p if p else [np.nan] for p in posteriors]
    means, stds = [np.mean(p) for p in non_empty], [np.std(p) for p in non_empty]
    np.testing.assert_allclose(probability["mean"], means, rtol=1e-9)
    np.testing.assert_allclose(probability["std"], stds, rtol=1e-7, atol=1e-12)
    above = [float(np.mean(np.array(p) > 0.5)) if p else np.nan for p in posteriors]
    np.testing.assert_allclose(probability["share_above_half"], above)
    assert probability["mean"].mean() > 0.6


def test_noise_is_at_chance_in_a_balanced_design(tmp_path: Path):
    """Without its complement, no reference reveals the members of the one that is attacked."""
    c = dataclasses.replace(C, references=8, replicas=2, variance="pooled")
    world = write_scores(tmp_path, c, 4000, design="balanced", effect=0.0)
    source = replicas.find_replicas(world.store, world.population, c, pytest.fail).inputs
    table = attacked(source, c, tmp_path)[reference_targets.TABLE]
    alone = source.with_references([0, 2, 4, 6])  # without a complement to leave out
    few = attacked(alone, c, tmp_path)[reference_targets.TABLE]
    assert len(table) == 8
    # The STD of one AUC is 0.009; pairs of targets have nearly opposite errors.
    np.testing.assert_allclose(table.auc, 0.5, atol=0.04)
    assert table.auc.mean() == pytest.approx(0.5, abs=0.015)
    assert set(few.references) == {3}
    others_7 = np.arange(1, 8)  # including the complement: the mistake would be detected
    leaking = stats.lira(
        world.reference_MxN[0],
        world.reference_MxN[others_7],
        world.reference_member_MxN[others_7],
        variance="pooled",
    )
    assert stats.auc(leaking, world.reference_member_MxN[0]).auc_T[0] < 0.49


def test_without_its_complement_all_others_attack_a_reference(tmp_path: Path):
    c = dataclasses.replace(C, references=12, replicas=2, variance="pooled")
    world = write_scores(tmp_path, c, 100, design="balanced", absent=(3,))
    source = replicas.find_replicas(world.store, world.population, c, lambda _: None).inputs
    table = attacked(source, c, tmp_path)[reference_targets.TABLE]
    present = [m for m in range(12) if m != 3]
    assert table.target.tolist() == [f"reference-{m:02d}" for m in present]
    assert table.references.tolist() == [10 if m == 2 else 9 for m in present]
    for row, (auc, m) in enumerate(zip(table.auc, present, strict=True)):
        used = [other for other, r in enumerate(present) if r // 2 != m // 2]
        arrays = world.reference_MxN[used], world.reference_member_MxN[used]
        score_1xN = stats.lira(world.reference_MxN[row], *arrays, variance="pooled")
        assert auc == pytest.approx(stats.auc(score_1xN, world.reference_member_MxN[row]).auc_T[0])


def test_too_few_references_have_no_auc(tmp_path: Path):
    c = dataclasses.replace(C, references=4, replicas=2)
    world = write_scores(tmp_path, c, 50, design="balanced")
    source = replicas.find_replicas(world.store, world.population, c, pytest.fail).inputs
    table = attacked(source, c, tmp_path)[reference_targets.TABLE]
    assert table.auc.isna().all()
    assert table.left_out.tolist() == [50] * 4
    assert table.members.tolist() == [0] * 4


@pytest.mark.parametrize("design", DESIGNS)
def test_attack_writes_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: subsets.Design
):
    monkeypatch.setattr(replicas, "_NUM_SHUFFLES", 1)
    c = dataclasses.replace(
        C, replicas=2, variance="pooled", attacks=("lira_online",), bootstraps=0
    )
    world = write_scores(tmp_path, c, 100, design=design)
    requested = dataclasses.replace(c, leave_one_out=True)
    run = run_attacks(world, requested, tmp_path / "tables")
    table = run.csv("reference_targets.csv")
    auc_M = stats.auc(expected_scores(world, c), world.reference_member_MxN).auc_T
    np.testing.assert_allclose(table.auc, auc_M, rtol=1e-9)
    probabilities = run.folder / "true_positive_probability.parquet"
    assert len(pd.read_parquet(probabilities)) == 100
    run_attacks(world, c, run.folder)
    assert not probabilities.exists()
    pd.testing.assert_frame_equal(run.csv("reference_targets.csv"), table)
