"""The benchmark of the score store, small: what it writes and reads, and that it would notice."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from lm_mia.data import subsets
from lm_mia.store import schema
from lm_mia.store.store import Store

SIZE = {"rows": 6, "samples": 100}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """With three shards a row, of two chunks each."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "benchmarks")
    monkeypatch.setattr(schema, "SHARD_SAMPLES", 40)
    monkeypatch.setattr(schema, "CHUNK_SAMPLES", 20)
    return importlib.import_module("store")


@pytest.fixture
def written(store: ModuleType, tmp_path: Path) -> Path:
    for write in (store.write_store, store.write_files, store.write_one):
        write(store.Clock(), tmp_path, **SIZE)
    return tmp_path


def test_all_ways_hold_the_same_bytes(store: ModuleType, written: Path):
    values = store.drawn(**SIZE)
    loss_MxN, member_MxN = Store(written / "scores.zarr").read(subsets.requested_seeds(5, 1))
    one = (written / "one").read_bytes()
    assert len(one) == 6 * 100 * 5
    for row in range(6):
        np.testing.assert_array_equal(loss_MxN[row], values["loss"][row])
        np.testing.assert_array_equal(member_MxN[row], values["member"][row])
        folder = written / "plain" / str(row)
        assert sorted(path.name for path in folder.iterdir()) == ["loss", "member"]
        found = (folder / "member").read_bytes() + (folder / "loss").read_bytes()
        assert found == one[500 * row : 500 * (row + 1)]
        assert found == values["member"][row].tobytes() + values["loss"][row].tobytes()


@pytest.mark.parametrize("cold", [True, False])
def test_reading_all_of_it(store: ModuleType, written: Path, cold: bool):
    for read in (store.read_store, store.read_files, store.read_one):
        clock = store.Clock()
        found = read(clock, written, **SIZE, cold=cold)
        assert clock.seconds > 0
        assert found["end"] > found["start"]


def test_another_value_is_noticed(store: ModuleType, written: Path):
    scores = Store(written / "scores.zarr")
    values, row = store.drawn(**SIZE), subsets.requested_seeds(5, 1)[4]
    for path in (written / "scores.zarr" / "loss" / "c" / "4").iterdir():
        path.unlink()
    scores.write_model(row, values["loss"][4] + np.float32(1e-3), values["member"][4])
    with pytest.raises(SystemExit, match="loss of samples 0 to 100: not as written"):
        store.read_store(store.Clock(), written, **SIZE, cold=False)
    (written / "one").write_bytes(b"")
    with pytest.raises(SystemExit, match="0 instead of 3000"):
        store.read_one(store.Clock(), written, **SIZE, cold=False)


def test_ratios_are_of_the_same_round(store: ModuleType):
    def run(seconds: float) -> object:
        results = {"before_bytes": np.array(2**20), "cpu": np.array(1.0)}
        return store.fresh.Measured(seconds, 2**21, results)

    found = {"store": [run(2.0), run(8.0)], "one file": [run(1.0), run(2.0)]}
    [_, _, line, _] = store.table(found, 4 * 10**9).splitlines()
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
