"""Runs the benchmark of the score store at a small size."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lm_mia.data import subsets
from lm_mia.store import schema
from lm_mia.store.store import Store

SIZE = {"models": 6, "samples": 100}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Uses three shards per model, of two chunks each."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    monkeypatch.setattr(schema, "SHARD_SAMPLES", 40)
    monkeypatch.setattr(schema, "CHUNK_SAMPLES", 20)
    return importlib.import_module("store")


@pytest.fixture
def written(store: ModuleType, tmp_path: Path) -> Path:
    for write in (store.write_store, store.write_files, store.write_one):
        write(store.Clock(), tmp_path, **SIZE)
    return tmp_path


def test_all_methods_write_the_same_bytes(store: ModuleType, written: Path):
    values = store.drawn(**SIZE)
    loss_MxN, member_MxN = Store(written / "scores.zarr").read(subsets.requested_seeds(5, 1))
    one_file = (written / "one").read_bytes()
    assert len(one_file) == 6 * 100 * 5
    for model in range(6):
        np.testing.assert_array_equal(loss_MxN[model], values["loss"][model])
        np.testing.assert_array_equal(member_MxN[model], values["member"][model])
        folder = written / "plain" / str(model)
        assert sorted(path.name for path in folder.iterdir()) == ["loss", "member"]
        plain_bytes = (folder / "member").read_bytes() + (folder / "loss").read_bytes()
        assert plain_bytes == one_file[500 * model : 500 * (model + 1)]
        assert plain_bytes == values["member"][model].tobytes() + values["loss"][model].tobytes()


@pytest.mark.parametrize("cold", [True, False])
def test_all_methods_read(store: ModuleType, written: Path, cold: bool):
    for read in (store.read_store, store.read_files, store.read_one):
        clock = store.Clock()
        results = read(clock, written, **SIZE, cold=cold)
        assert clock.seconds > 0
        assert results["end"] > results["start"]


def test_changed_value_is_detected(store: ModuleType, written: Path):
    scores = Store(written / "scores.zarr")
    values, model = store.drawn(**SIZE), subsets.requested_seeds(5, 1)[4]
    for path in (written / "scores.zarr" / "loss" / "c" / "4").iterdir():
        path.unlink()
    scores.write_model(model, values["loss"][4] + np.float32(1e-3), values["member"][4])
    with pytest.raises(SystemExit, match="loss of samples 0 to 100: "):
        store.read_store(store.Clock(), written, **SIZE, cold=False)
    (written / "one").write_bytes(b"")
    with pytest.raises(SystemExit, match=r"\b0, expected 3000"):
        store.read_one(store.Clock(), written, **SIZE, cold=False)


def test_ratios_compare_runs_of_the_same_round(store: ModuleType):
    def run(seconds: float) -> object:
        results = {"before_bytes": np.array(2**20), "cpu": np.array(1.0)}
        return store.fresh.Measured(seconds, 2**21, results)

    runs = {"store": [run(2.0), run(8.0)], "one file": [run(1.0), run(2.0)]}
    [_, _, line, _] = store.table(runs, 4 * 10**9).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "store",
        "1.25",
        "0.50 to 2.00",
        "",
        "",
        "0.38",
        "0.25 to 0.50",
        "1.00",
        "2",
        "1",
    ]
