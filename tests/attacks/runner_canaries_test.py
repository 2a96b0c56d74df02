"""With canaries, every table is that of a population which consists of the canaries, apart from the ids of samples."""

import dataclasses
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from synthetic_scores import SMALL, FakePopulation, SyntheticScores, write_scores
from views import view_of

from lm_mia import config
from lm_mia.attacks import evaluations, runner, spec
from lm_mia.attacks.requests import recipe_needs
from lm_mia.data.population import Population
from lm_mia.store.store import Store

ALWAYS_IN, CANARIES = 150, 100
STATISTICS = ("min_k",)
C = dataclasses.replace(
    SMALL,
    references=12,
    targets=4,
    replicas=2,
    attacks=("lira_online", "rmia", "shrunk", "loss", "zlib", "min_k"),
    fprs=(0.1, 0.5),
    leave_one_out=True,
    bootstraps=2,
)


def with_always_in(scores: SyntheticScores, path: Path) -> Store:
    """Writes a store with more samples, which come first, are in every subset and have much lower losses."""
    store = Store(path, STATISTICS, first_canary=ALWAYS_IN)
    path.parent.mkdir(parents=True)
    models, rng = scores.store.models(), np.random.default_rng(1)
    store.create_or_extend(models, {"tokens": np.arange(ALWAYS_IN + CANARIES)}, {})
    for m, model in enumerate(models):
        low_N = rng.normal(0.5, 0.1, ALWAYS_IN).astype(np.float32)
        store.write_model(
            model,
            np.concatenate([low_N, scores.loss_MxN[m]]),
            np.concatenate([np.ones(ALWAYS_IN, bool), scores.member_MxN[m]]),
            {
                name: np.concatenate([9 * low_N, value_MxN[m]])
                for name, value_MxN in scores.statistics.items()
            },
        )
    return store


def attack(store: Store, population: FakePopulation, folder: Path) -> dict[str, pd.DataFrame]:
    """Returns all tables by path, with ids counted from the first canary."""
    present = spec.PresentModels(tuple(range(C.references)), tuple(range(C.replicas)))
    full = config.Config(
        population=config.Population(samples=ALWAYS_IN + CANARIES),
        train=config.Train(canaries=CANARIES),
        attack=C,
    )
    models = {"main": spec.RecipeModels(("main",), full, present)}
    need = spec.Need(("main",), attacks=("lira_online", "rmia"), sample_scores=True)
    requested = recipe_needs([need], models)["main"]
    pieces = folder.with_name(f"{folder.name}-pieces")
    view = view_of(store, cast(Population, population), C, pieces, requested)
    runner.run(view, folder)
    tables = {str(p.relative_to(folder)): pd.read_csv(p) for p in folder.rglob("*.csv")}
    tables |= {str(p.relative_to(folder)): pd.read_parquet(p) for p in folder.rglob("*.parquet")}
    for request in requested.requests:
        if request.evaluation is evaluations.sample_scores:
            scores = view.stored.read(request)
            assert scores is not None
            tables[f"scores of {request.spec.attack}"] = scores
    for table in tables.values():
        for name in {"id", "sample"} & {*table}:
            table[name] -= store.first_canary
    return tables


def test_tables_are_those_of_the_canaries_alone(tmp_path: Path):
    alone = write_scores(tmp_path / "alone", C, CANARIES, "balanced", statistics=STATISTICS)
    store = with_always_in(alone, tmp_path / "more" / "scores.zarr")
    population = FakePopulation(ALWAYS_IN + CANARIES)
    canaries = population.from_sample(ALWAYS_IN)
    canaries.first_id = 0
    expected = attack(alone.store, canaries, tmp_path / "expected")
    tables = attack(store, population, tmp_path / "tables")
    assert tables.keys() == expected.keys()
    with_ids = {name for name, table in tables.items() if "id" in table}
    assert with_ids.issuperset(
        {"samples.parquet", "membership_scores.parquet", "vulnerability.parquet", "archetypes.csv"}
    )
    assert sum(name.startswith("scores of") for name in with_ids) == 2
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, expected[name], check_exact=True, obj=name)
    counts = tables["targets.csv"][["members", "nonmembers", "left_out"]]
    assert (counts.sum(axis=1) == CANARIES).all()
