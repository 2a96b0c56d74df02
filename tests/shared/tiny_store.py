"""A store of six models and ten samples, in small shards, for tests."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zarr

from lm_mia.data.subsets import ModelSeeds, requested_seeds
from lm_mia.store import schema, store
from lm_mia.store.store import Store

SAMPLES = 10
FOUR, SIX = requested_seeds(4, 2), requested_seeds(6, 2)
COLUMNS = {"tokens": np.arange(SAMPLES) + 5, "unk": np.zeros(SAMPLES, np.int64)}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes three shards per model, the last one short, of two chunks each."""
    monkeypatch.setattr(schema, "SHARD_SAMPLES", 4)
    monkeypatch.setattr(schema, "CHUNK_SAMPLES", 2)


def values(model: ModelSeeds) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([model.subset_seed, model.order_seed])
    return rng.normal(size=SAMPLES).astype(np.float32), rng.random(SAMPLES) < 0.5


def ensure(s: Store, models: list[ModelSeeds]) -> None:
    s.create_or_extend(models, COLUMNS, {"recipe": "abc"})


def make_store(path: Path, models: list[ModelSeeds] = FOUR) -> Store:
    s = Store(path / "scores.zarr")
    ensure(s, models)
    for model in models:
        s.write_model(model, *values(model))
    return s


def content(s: Store) -> dict[str, bytes]:
    """Returns every file, except leftovers of interrupted atomic writes, which nothing reads."""
    files = (p for p in s.path.rglob("*") if p.is_file() and p.suffix != ".partial")
    return {str(p.relative_to(s.path)): p.read_bytes() for p in files}


def check(s: Store, models: list[ModelSeeds]) -> None:
    loss_MxN, member_MxN = s.read(models)
    assert (loss_MxN.dtype, member_MxN.dtype) == (np.float32, np.bool_)
    for i, model in enumerate(models):
        loss_N, member_N = values(model)
        np.testing.assert_array_equal(loss_MxN[i], loss_N)
        np.testing.assert_array_equal(member_MxN[i], member_N)


def lacking(s: Store, model: ModelSeeds, step: int = 0) -> list[str]:
    """Returns the variables of which a model lacks a shard."""
    missing = {name for _, _, names in s.missing_shards(model, step) for name in names}
    return [name for name in s.variables if name in missing]


POINTS, END = (3, 6), 9
SCORED_STEPS = (*POINTS, 0)
STATISTICS = ("min_k",)


def open_with_points(path: Path, statistics: tuple[str, ...] = (), step: int = 0) -> Store:
    return Store(path, statistics, POINTS, END, step)


def loss(model: ModelSeeds, step: int, name: str = "loss") -> np.ndarray:
    """Returns values that differ between score points."""
    noise = np.random.default_rng([model.subset_seed, model.order_seed, step, len(name)])
    return noise.normal(size=SAMPLES).astype(np.float32)


def write(s: Store, model: ModelSeeds, step: int) -> None:
    more = {name: loss(model, step, name) for name in s.statistics}
    s.write_model(model, loss(model, step), values(model)[1], more, step)


def write_store(
    path: Path, models: list[ModelSeeds] = FOUR, statistics: tuple[str, ...] = ()
) -> Store:
    path.mkdir(exist_ok=True)
    s = open_with_points(path / "scores.zarr", statistics)
    ensure(s, models)
    for model in models:
        for step in SCORED_STEPS:
            write(s, model, step)
    return s


class Crash(BaseException):
    """Stands in for a kill: nothing catches it."""


def crash(monkeypatch: pytest.MonkeyPatch, at_write: int, call: Callable[[], None]) -> bool:
    """Calls `call`, which crashes at its at-th write; returns False if it makes fewer writes."""
    steps = 0

    def counted(true: Callable) -> Callable:
        def step(*args: object, **kwargs: object) -> object:
            nonlocal steps
            steps += 1
            if steps == at_write:
                raise Crash
            return true(*args, **kwargs)

        return step

    with monkeypatch.context() as m:
        for owner, name in (
            (zarr, "open_group"),
            (zarr, "create_array"),
            (zarr.Array, "resize"),
            (zarr.Array, "__setitem__"),
            (store.ts, "open"),
            (os, "replace"),
            (Path, "replace"),
            (zarr, "consolidate_metadata"),
            (zarr.Group, "update_attributes"),
        ):
            m.setattr(owner, name, counted(getattr(owner, name)))
        try:
            call()
        except Crash:
            return True
    return False
