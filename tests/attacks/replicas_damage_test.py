"""Attacks on incomplete stores, and interrupted attacks."""

import dataclasses
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from slow_case import slow_case
from synthetic_scores import SMALL, TABLES_OF_REPLICAS, AttackRun, run_attacks, write_scores

from lm_mia import stats
from lm_mia.attacks import decisions, exports, inputs, replicas
from lm_mia.errors import UserError
from lm_mia.store.store import Store

FEW = dataclasses.replace(
    SMALL,
    references=4,
    replicas=3,
    variance="pooled",
    attacks=("lira_online",),
    headline="lira_online",
    bootstraps=0,
)
POOLING_TABLES = [
    "pooling.csv",
    "pooling.json",
    "pooling_jackknife.parquet",
    "vulnerability.parquet",
]
OPTIONAL_TABLES = ["intervals.csv", "resampled_references.csv", "true_positive_probability.parquet"]
OPTIONAL_TABLES += POOLING_TABLES
EXPORTS = ["targets.csv", "target_roc.parquet"]
OTHERS = ["models.csv", "more_references.csv", "more_references.json"]
TABLES = sorted({*TABLES_OF_REPLICAS, *EXPORTS, *OTHERS} - {*OPTIONAL_TABLES})


def quick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replicas, "_NUM_SHUFFLES", 2)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


def in_parts(patch: pytest.MonkeyPatch) -> None:
    """Lets attacks take their samples in several parts."""
    patch.setattr(inputs, "_SLICE_SAMPLES", 20)
    patch.setattr(decisions, "_ROW_GROUP", 40)


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    """An attack with 8 references and all tables."""
    c = dataclasses.replace(
        FEW, references=8, leave_one_out=True, resample_references=4, bootstraps=2
    )
    folder = tmp_path_factory.mktemp("once")
    return run_attacks(write_scores(folder, c, 100), c, folder / "tables")


@pytest.fixture(scope="module")
def other_run(complete_run: AttackRun, tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    """The attack with another setting."""
    c = dataclasses.replace(complete_run.c, clear_separation=9.0)
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        in_parts(patch)
        return run_attacks(complete_run.scores, c, tmp_path_factory.mktemp("other") / "tables")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("absent", [(1,), (4, 6)])
def test_too_few_models_raise(tmp_path: Path, absent: tuple[int, ...]):
    with pytest.raises(UserError) as caught:
        run_attacks(write_scores(tmp_path, FEW, 40, absent=absent), FEW, tmp_path / "tables")
    references, replicas = (3, 3) if absent == (1,) else (4, 1)
    assert re.fullmatch(
        rf"{tmp_path}/recipe_x/scores\.zarr: {references} of 4 references and {replicas} of 3 replicas\b.*"
        r"\b4 and 2; run `lm-mia run` first",
        str(caught.value),
    )
    assert list(files(tmp_path / "tables")) == ["models.csv"]


@pytest.mark.parametrize("variable", ["loss", "member"])
def test_corrupt_shard_leaves_tables_unchanged(
    complete_run: AttackRun, variable: str, tmp_path: Path
):
    folder = shutil.copytree(complete_run.folder, tmp_path / "tables")
    world = write_scores(tmp_path, FEW, 40)
    shard = world.store.path / variable / "c" / "3" / "0"
    shard.write_bytes(bytes(40) + shard.read_bytes()[40:])
    with pytest.raises(UserError) as caught:
        run_attacks(world, FEW, folder)
    assert re.fullmatch(rf"{shard}: corrupt .*; run `lm-mia score --repair` .*", str(caught.value))
    assert files(folder) == files(complete_run.folder)


@pytest.mark.parametrize(
    ("module", "name", "failing_call"),
    [
        (stats, "lira_from_gaussians", 3),
        slow_case(stats, "count_true_positives", 2),
        slow_case(stats, "equal_count_bins", 5),
        (stats, "bootstrap_intervals", 1),
        slow_case(stats, "auc", 2),
        slow_case(stats, "true_positive_probability", 2),
        slow_case(decisions, "find_archetypes", 1),
        (exports, "rows_of_attacks", 2),
    ],
)
def test_interrupted_attack_leaves_all_tables(
    complete_run: AttackRun,
    other_run: AttackRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    failing_call: int,
):
    """Tables are those of the last attack that ended until they are replaced, and no other files are left."""
    folder = shutil.copytree(complete_run.folder, tmp_path / "tables")
    in_parts(monkeypatch)
    original, calls = getattr(module, name), 0

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= failing_call:
            raise OSError("no space left on device")
        return original(*args, **kwargs)

    with monkeypatch.context() as failing:
        failing.setattr(module, name, fails)
        with pytest.raises(OSError, match="no space left"):
            run_attacks(complete_run.scores, other_run.c, folder)
    assert {*files(folder)} == {*files(complete_run.folder)}
    if name != "rows_of_attacks":
        assert files(folder) == files(complete_run.folder)
    again = run_attacks(complete_run.scores, other_run.c, folder)
    assert files(again.folder) == files(other_run.folder)


def test_unrequested_tables_are_removed(complete_run: AttackRun, tmp_path: Path):
    folder = shutil.copytree(complete_run.folder, tmp_path / "tables")
    assert sorted(files(folder)) == sorted([*TABLES, *OPTIONAL_TABLES])
    run_attacks(complete_run.scores, dataclasses.replace(FEW, references=8), folder)
    assert sorted(files(folder)) == TABLES


def test_missing_statistic_raises(tmp_path: Path):
    c = dataclasses.replace(FEW, attacks=("lira_online", "min_k"))
    world = write_scores(tmp_path, c, 40)
    with pytest.raises(UserError, match=r"missing .*run `lm-mia run` first"):
        run_attacks(world, c, tmp_path / "tables")
    with_min_k = dataclasses.replace(world, store=Store(world.store.path, ("min_k",)))
    with pytest.raises(UserError, match=r"0 of 4 references and 0 of 3 replicas .*\(with min_k\)"):
        run_attacks(with_min_k, c, tmp_path / "tables")


@pytest.mark.parametrize("usable", ["none", "members", "non-members"])
def test_class_without_scores_raises(tmp_path: Path, usable: str):
    c = dataclasses.replace(FEW, variance="per_sample")

    def labels(member_MxN: np.ndarray) -> None:
        target_N = member_MxN[-1]
        usable_N = {"none": target_N & False, "members": target_N, "non-members": ~target_N}[usable]
        member_MxN[:4] = np.where(usable_N, np.arange(4)[:, None] < 2, True)

    with pytest.raises(UserError) as caught:
        run_attacks(write_scores(tmp_path, c, 40, labels=labels), c, tmp_path / "tables")
    missing = "non-member" if usable == "members" else "member"
    assert re.fullmatch(
        rf"attack\.references=4: no {missing} .*\bLiRA; request more references", str(caught.value)
    )
    assert list(files(tmp_path / "tables")) == ["models.csv"]


@pytest.mark.parametrize("member", [True, False])
def test_target_with_one_class_raises(tmp_path: Path, member: bool):
    """The bernoulli design gives such memberships if there are very few samples."""

    def labels(member_MxN: np.ndarray) -> None:
        member_MxN[FEW.references :] = member

    with pytest.raises(UserError, match=f"no {'non-member' if member else 'member'} has enough"):
        run_attacks(write_scores(tmp_path, FEW, 40, labels=labels), FEW, tmp_path / "tables")
