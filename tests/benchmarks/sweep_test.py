"""The benchmark of sweeps gives NanoDO the batches on which our models train."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tiny_config import TINY, change

from lm_mia.data import subsets
from lm_mia.data.population import Population


@pytest.fixture(scope="module")
def sweep() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
        yield importlib.import_module("sweep")


def test_reference_sees_its_members_once_per_epoch(
    sweep: ModuleType, tiny: Population, tmp_path: Path
):
    c = change(change(TINY, "train.epochs", 2), "population.samples", 20)
    model = subsets.ModelSeeds("reference", 3, 3, 3)
    folder = tmp_path / "reference"
    sweep.write_reference(folder, tiny.folder, c, model)
    x_TxBxL = np.load(folder / "batches.npy")
    assert x_TxBxL.shape == (2 * 3, 4, 8)  # 10 members in batches of 4: the third is short
    members = sorted(
        tuple(tiny.pad(np.array([i]))[0])
        for i in np.flatnonzero(subsets.member(3, 20, c.train.subset))
    )
    for epoch in x_TxBxL.reshape(2, 12, 8):
        assert sorted(tuple(x_L) for x_L in epoch if x_L.any()) == members
    assert not np.array_equal(x_TxBxL[:3], x_TxBxL[3:])
    assert np.array_equal(np.load(folder / "population.npy"), tiny.pad(np.arange(20)))
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["vocab_size"] == tiny.vocab_size
    assert settings["opt"]["num_train_steps"] == 6
    assert (folder / "tokenizer.model").is_file()
