import dataclasses
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
import pytest
from synthetic_scores import SMALL, FakePopulation
from table_case import compute, set_of_study, working
from views import recipe_of_files

from analysis.experiments.open import variance
from analysis.io import SweepResults
from lm_mia import config, stats
from lm_mia.data import subsets
from lm_mia.data.population import Population
from lm_mia.data.subsets import ModelSeeds
from lm_mia.seeds import rng
from lm_mia.store.store import Store

C = dataclasses.replace(
    SMALL,
    references=12,
    replicas=5,
    replica_inits=4,
    orders_per_init=3,
    resample_references=4,
    variance="pooled",
)
SAMPLES = 600
SD = {"init": 0.2, "order": 0.3, "init_order": 0.1, "subset": 0.25}


def losses(models: Sequence[ModelSeeds]) -> tuple[np.ndarray, np.ndarray]:
    """Returns loss_MxN with independent effects of the seeds and of their combination, and member_MxN."""
    member_MxN = subsets.members(models, SAMPLES, "exact")

    def effect(purpose: str, *numbers: int) -> np.ndarray:
        return rng(0, f"{purpose} {numbers}").normal(0, SD[purpose], SAMPLES)

    loss_MxN = [
        4
        + effect("init", model.init_seed)
        + effect("order", model.order_seed)
        + effect("init_order", model.init_seed, model.order_seed)
        + effect("subset", model.subset_seed)
        - 0.6 * member_N
        for model, member_N in zip(models, member_MxN, strict=True)
    ]
    return np.array(loss_MxN, np.float32), member_MxN


def write(folder: Path, models: Sequence[ModelSeeds]) -> Store:
    store = Store(folder / "recipe" / "scores.zarr")
    store.path.parent.mkdir(parents=True)
    store.create_or_extend(models, {"tokens": np.arange(SAMPLES)}, {})
    for model, loss_N, member_N in zip(models, *losses(models), strict=True):
        store.write_model(model, loss_N, member_N)
    return store


def requested(c: config.Attack) -> list[ModelSeeds]:
    return subsets.requested_seeds(c.references, c.replicas, c.replica_inits, c.orders_per_init)


def run(store: Store, c: config.Attack, folder: Path) -> list[str]:
    messages: list[str] = []
    population = cast(Population, FakePopulation(SAMPLES))
    with working(folder, messages.append) as (work, _):
        compute(set_of_study(variance.STUDY, store, population, c, work), folder)
    return messages


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Path]:
    folder = tmp_path_factory.mktemp("variance")
    store = write(folder, requested(C))
    assert run(store, C, folder) == []
    return store, folder


def read(folder: Path, varied: str = "all", part: int = 0) -> pd.Series:
    table = pd.read_csv(folder / variance.TABLE)
    rows = table[(table["varied"] == varied) & (table["part"] == part)]
    return rows.set_index(["quantity", "class", "component"])["variance"]


def crossed_models(inits: Sequence[int], orders: Sequence[int]) -> list[ModelSeeds]:
    return [subsets.crossed(i, b) if i else subsets.replica(b) for i in inits for b in orders]


def test_components_of_losses_are_those_of_the_seeds(made: tuple[Store, Path]):
    values = read(made[1])
    for component, sd in SD.items():
        for class_name in ("members", "nonmembers"):
            actual = values["loss", class_name, component]
            assert actual == pytest.approx(sd**2, abs=0.012), (component, class_name)
    assert ("loss", "members", "references") not in values.index


@pytest.mark.parametrize(
    ("varied", "part", "inits", "orders", "sets"),
    [
        ("all", 0, range(4), range(3), (0, 1, 2)),
        ("inits", 2, (0, 1, 3), range(3), (0, 1, 2)),
        ("orders", 1, range(4), (0, 2), (0, 1, 2)),
        ("sets", 0, range(4), range(3), (1, 2)),
    ],
)
def test_scores_and_decisions_equal_separate_attacks(
    made: tuple[Store, Path],
    varied: str,
    part: int,
    inits: Sequence[int],
    orders: Sequence[int],
    sets: Sequence[int],
):
    values = read(made[1], varied, part)
    target_TxN, member_TxN = losses(crossed_models(inits, orders))
    reference_MxN, reference_member_MxN = losses([*map(subsets.reference, range(12))])
    member_N, index_SxR = member_TxN[0], np.arange(12).reshape(3, 4)
    all_TxN = np.concatenate([target_TxN, reference_MxN])
    all_member_TxN = np.concatenate([member_TxN, reference_member_MxN])
    score_SxTxN = np.array(
        [
            stats.lira(
                all_TxN, reference_MxN[index], reference_member_MxN[index], variance="pooled"
            )
            for index in index_SxR
        ]
    )
    has_score_N = ~np.isnan(score_SxTxN).any(axis=(0, 1))
    decision_SxTxN = np.zeros(score_SxTxN.shape)
    for s, score_TxN in enumerate(score_SxTxN):
        for t, score_N in enumerate(score_TxN):
            nonmembers = score_N[has_score_N & ~all_member_TxN[t]]
            decision_SxTxN[s, t] = score_N >= stats.threshold_at_fpr(nonmembers, C.focus)
    class_N = has_score_N & member_N
    for quantity, value_SxTxN in (("score", score_SxTxN), ("decision", decision_SxTxN)):
        chosen = value_SxTxN[[*sets], : len(target_TxN)].reshape(
            len(sets), len(inits), len(orders), -1
        )
        components = stats.crossed_components(chosen[..., class_N], 3)
        names = ("references", "init", "order")
        for key, value_C in components.items():
            actual = values[quantity, "members", "_".join(names[axis] for axis in key)]
            assert actual == pytest.approx(value_C.mean(), abs=1e-12)
        of_targets = sum(v.mean() for key, v in components.items() if key != (0,))
        between = []
        for n in np.flatnonzero(class_N):
            of_sets = []
            for s in sets:
                others = [m for other in sets if other != s for m in index_SxR[other]]
                value_R = [
                    value_SxTxN[s, len(target_TxN) + m, n]
                    for m in others
                    if reference_member_MxN[m, n]
                ]
                of_sets += [np.var(value_R, ddof=1)] if len(value_R) > 1 else []
            between += [np.mean(of_sets)] if of_sets else []
        expected = np.mean(between) - of_targets
        assert values[quantity, "members", "subset"] == pytest.approx(expected, abs=1e-9)


def test_parts_and_facts(made: tuple[Store, Path]):
    table = pd.read_csv(made[1] / variance.TABLE)
    parts = table.groupby("varied")["part"].nunique().to_dict()
    assert parts == {"all": 1, "inits": 4, "orders": 3, "sets": 3, "samples": 14}
    facts = json.loads((made[1] / "variance_components.json").read_text())
    assert (facts["sets"], facts["references_per_set"], facts["fpr"]) == (3, 4, C.focus)


def test_the_figure_is_drawn_from_the_tables_of_the_study(made: tuple[Store, Path], tmp_path: Path):
    shutil.copytree(made[1], tmp_path / "tables")
    drawn = variance.draw(SweepResults([recipe_of_files(tmp_path, variance.RECIPE)]))
    assert re.search(r"\b4 initializations\b.*\b3 batch orders", drawn.notes[0])
    assert [claim.statement for claim in drawn.claims] == [*variance.STATEMENTS]


def test_there_is_no_table_of_one_initialization(made: tuple[Store, Path], tmp_path: Path):
    assert run(made[0], dataclasses.replace(C, replica_inits=1), tmp_path) == []
    assert [*tmp_path.iterdir()] == []


def test_missing_models_are_reported(tmp_path: Path):
    models = [model for model in requested(C) if model != subsets.crossed(2, 1)]
    [message] = run(write(tmp_path, models), C, tmp_path)
    assert re.match(r"attack\.replica_inits=4: 1 of 12 models\b.*\b3 sets", message)
    assert not (tmp_path / variance.TABLE).exists()
