import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, AttackRun, SyntheticScores, write_scores
from table_case import compute

from lm_mia import stats
from lm_mia.attacks import models
from lm_mia.attacks.spec import PresentModels
from lm_mia.data import subsets
from lm_mia.store.store import Store

FEW = dataclasses.replace(SMALL, references=12, replicas=3)

DOCUMENTS = np.arange(200) // 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SyntheticScores:
    """Returns the scores of 12 references and 3 replicas on 200 samples; models 10 and 13 are absent."""
    return write_scores(tmp_path_factory.mktemp("world"), FEW, 200, absent=(10, 13))


NAMES = [f"reference-{i:02d}" for i in range(12) if i != 10] + ["replica-00", "replica-02"]


def test_present_models(world: SyntheticScores, tmp_path: Path):
    present = models.present_models(world.store)
    assert [str(model) for model in present] == NAMES
    assert models.model_numbers(present) == PresentModels((*range(10), 11), (0, 2))
    compute(models.models_set(world.store, present), tmp_path)
    table = pd.read_csv(tmp_path / "models.csv")
    seeds = ["role", "subset_seed", "init_seed", "order_seed"]
    assert table.columns.tolist() == ["model", *seeds, "member_loss_nats", "nonmember_loss_nats"]
    assert table["model"].tolist() == NAMES
    assert table[["model", *seeds]].iloc[10].tolist() == ["reference-11", "reference", 11, 11, 11]
    assert table[["model", *seeds]].iloc[12].tolist() == ["replica-02", "replica", 2**31, 2**31, 2]
    for m, (_, row) in enumerate(table.iterrows()):
        loss_N, member_N = world.loss_MxN[m].astype(float), world.member_MxN[m]
        assert row["member_loss_nats"] == pytest.approx(loss_N[member_N].mean())
        assert row["nonmember_loss_nats"] == pytest.approx(loss_N[~member_N].mean())
    none = Store(tmp_path / "scores.zarr")
    compute(models.models_set(none, models.present_models(none)), tmp_path / "none")
    assert (tmp_path / "none" / "models.csv").read_text() == ",".join(table.columns) + "\n"


def test_later_models_are_sorted_by_number(tmp_path: Path):
    """The store appends new models, whatever their numbers."""
    few = write_scores(tmp_path, dataclasses.replace(FEW, references=4), 40)
    loss_N, member_N = few.loss_MxN[0], few.member_MxN[0]
    later = [*map(subsets.reference, (5, 4))]
    few.store.create_or_extend(later, {"tokens": np.arange(40)}, {})
    for model in later:
        few.store.write_model(model, loss_N, member_N)
    assert models.model_numbers(models.present_models(few.store)) == PresentModels(
        tuple(range(6)), (0, 1, 2)
    )


def check_losses(table: pd.DataFrame, world: SyntheticScores, ids: list[int], count: int) -> None:
    assert table["sample"].tolist() == [i for i in ids for _ in range(count)]
    for sample, lines in table.groupby("sample"):
        i = int(str(sample))
        assert lines["model"].tolist() == NAMES[:count]
        assert (lines["role"] == "reference").all()
        assert lines["member"].tolist() == world.member_MxN[:count, i].tolist()
        np.testing.assert_array_equal(
            lines["loss_nats"].astype(np.float32), world.loss_MxN[:count, i]
        )
        means = world.loss_MxN[:count].mean(axis=1, dtype=float)
        np.testing.assert_allclose(lines["mean_loss_nats"], means, rtol=1e-12)
        group_N = stats.sample_groups(DOCUMENTS)
        for h, half_N in enumerate(stats.HALVES_HxG[:, group_N]):
            means = world.loss_MxN[:count, half_N].mean(axis=1, dtype=float)
            np.testing.assert_allclose(lines[f"mean_loss_nats_half_{h}"], means, rtol=1e-12)


def test_losses_of_samples(world: SyntheticScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, present = tmp_path / "sample_losses.csv", models.present_models(world.store)[:11]
    compute(models.sample_losses_set(world.store, present[:9], [199, 5], DOCUMENTS), tmp_path)
    check_losses(pd.read_csv(path), world, [5, 199], 9)
    # block by block
    blocks = Store.blocks
    monkeypatch.setattr(Store, "blocks", lambda self, parts: blocks(self, parts, 64))
    compute(models.sample_losses_set(world.store, present, [5, 7, 199], DOCUMENTS), tmp_path)
    check_losses(pd.read_csv(path), world, [5, 7, 199], 11)


def test_losses_of_archetypes(attacked: AttackRun):
    table, archetypes = attacked.csv("archetype_losses.csv"), attacked.csv("archetypes.csv")
    world, selected = attacked.scores, archetypes[archetypes["id"].notna()]
    assert len(selected) > 0
    assert table["kind"].unique().tolist() == selected["kind"].tolist()
    names = [*(f"reference-{i:02d}" for i in range(12)), *(f"replica-{i:02d}" for i in range(8))]
    for kind, i in zip(selected["kind"], selected["id"].astype(int), strict=True):
        lines: Any = table[table["kind"] == kind]
        assert (lines["sample"] == i).all()
        assert lines["model"].tolist() == names
        assert lines["role"].tolist() == [name[:-3] for name in names]
        assert lines["member"].tolist() == world.member_MxN[:, i].tolist()
        np.testing.assert_array_equal(lines["loss_nats"].astype(np.float32), world.loss_MxN[:, i])


def test_archetype_losses_without_archetypes(world: SyntheticScores):
    present = models.present_models(world.store)
    no_archetypes = pd.DataFrame({"kind": ["clear"], "id": [np.nan]})
    losses = models.archetype_losses(world.store, present[:2], present[-1:], no_archetypes)
    assert losses.columns.tolist() == ["kind", "sample", "model", "role", "member", "loss_nats"]
    assert len(losses) == 0
