"""membership_scores.parquet: a column per attack and target, or the mean and the first target."""

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from lm_mia.attacks import inputs, score_table
from lm_mia.attacks.score_matrix import MembershipScoreFile
from lm_mia.attacks.score_table import MembershipScoreTable
from lm_mia.data import subsets

TARGETS = [subsets.replica(b) for b in (0, 1, 4)]
SAMPLES = 2500
MEMBER_N2 = np.arange(SAMPLES) % 3 == 0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def write_table(folder: Path, pool: ThreadPoolExecutor) -> dict[str, np.ndarray]:
    """Writes the table of two attacks; returns their scores in float64."""
    rng = np.random.default_rng(0)
    scores = {name: rng.normal(size=(3, SAMPLES)) for name in ("loss", "lira_online")}
    scores["loss"][1, 7], scores["lira_online"][0, 9] = np.nan, -np.inf
    scores["lira_online"][2, 3] = 1e300
    with MembershipScoreTable(folder, ["lira_online", "loss"], TARGETS, SAMPLES) as table:
        for name, score_TxN2 in scores.items():  # in another order
            with MembershipScoreFile(folder, 3, SAMPLES) as file:
                file.write(0, slice(0, SAMPLES), score_TxN2)
                table.add(name, file, pool)
        table.write_table(folder / "scores.parquet", {"member": MEMBER_N2})
    assert [path.name for path in folder.iterdir()] == ["scores.parquet"]
    return scores


@pytest.mark.parametrize("part", [100, 10_000])
def test_every_attack_under_every_target(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, part: int
):
    monkeypatch.setattr(inputs, "_SLICE_SAMPLES", part)
    monkeypatch.setattr(score_table, "MAX_SCORES", 6 * SAMPLES)
    monkeypatch.setattr(score_table, "_GROUP_SCORES", 6 * 1200)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = write_table(tmp_path, pool)
    names = [f"{a}/replica-{b}" for a in ("lira_online", "loss") for b in ("00", "01", "04")]
    table = pd.read_parquet(tmp_path / "scores.parquet")
    assert table.columns.tolist() == ["id", "member", *names]
    assert table["id"].tolist() == list(range(SAMPLES))
    assert table["member"].tolist() == MEMBER_N2.tolist()
    assert set(table[names].dtypes) == {np.dtype(np.float32)}
    with np.errstate(over="ignore"):
        expected = np.concatenate([scores["lira_online"], scores["loss"]]).astype(np.float32)
    np.testing.assert_array_equal(table[names].to_numpy().T, expected)
    assert np.isposinf(table["lira_online/replica-04"][3])
    with pq.ParquetFile(tmp_path / "scores.parquet") as file:
        groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [1200, 1200, 100]


def test_mean_and_first_target_of_large_tables(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(score_table, "MAX_SCORES", 6 * SAMPLES - 1)
    scores = write_table(tmp_path, pool)
    table = pd.read_parquet(tmp_path / "scores.parquet").drop(columns=["id", "member"])
    names = ["lira_online/mean", "lira_online/replica-00", "loss/mean", "loss/replica-00"]
    assert table.columns.tolist() == names
    for name, score_TxN2 in scores.items():
        finite_N2 = np.arange(SAMPLES) != 3  # beyond the range of float32
        mean_N2 = score_TxN2.mean(axis=0)
        np.testing.assert_allclose(
            table[f"{name}/mean"][finite_N2], mean_N2[finite_N2], rtol=1e-6, atol=1e-7
        )
        np.testing.assert_array_equal(table[f"{name}/replica-00"], score_TxN2[0].astype(np.float32))
    assert np.isnan(table["loss/mean"][7])
