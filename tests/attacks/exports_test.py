"""Exported tables: membership_scores.parquet, and what happens to files in their folder."""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from array_scores import array_scores

from lm_mia.attacks import evaluations, exports
from lm_mia.attacks.experiment import RecipeView
from lm_mia.attacks.pieces import Pieces
from lm_mia.attacks.results import Results
from lm_mia.errors import Unavailable

SAMPLES = 2500
MEMBER_TxN = np.broadcast_to(np.arange(SAMPLES) % 3 == 0, (3, SAMPLES))


def drawn_scores() -> np.ndarray:
    score_TxN = np.random.default_rng(0).normal(size=(3, SAMPLES))
    score_TxN[1, 7], score_TxN[0, 9], score_TxN[2, 3] = np.nan, -np.inf, 1e300
    return score_TxN


def stored(score_TxN: np.ndarray, folder: Path) -> list[pd.DataFrame]:
    with warnings.catch_warnings(), array_scores(score_TxN, MEMBER_TxN, folder) as scores:
        warnings.simplefilter("error")
        return [*evaluations.stored_scores(scores)]


def test_scores_under_every_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluations, "_GROUP_SCORES", 3 * 1200)
    score_TxN = drawn_scores()
    groups = stored(score_TxN, tmp_path)
    assert [len(group) for group in groups] == [1200, 1200, 100]
    table = pd.concat(groups)
    assert table.columns.tolist() == [f"replica-{b:02}" for b in range(3)]
    assert {*table.dtypes} == {np.dtype(np.float32)}
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(table.to_numpy().T, score_TxN.astype(np.float32))


def test_mean_and_first_target_of_many_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluations, "MAX_SCORES", 3 * SAMPLES - 1)
    score_TxN = drawn_scores()
    table = pd.concat(stored(score_TxN, tmp_path))
    assert table.columns.tolist() == ["mean", "replica-00"]
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(table["mean"], score_TxN.mean(axis=0).astype(np.float32))
        np.testing.assert_array_equal(table["replica-00"], score_TxN[0].astype(np.float32))


def view_of_tables(tables: dict[str, Any], folder: Path) -> RecipeView:
    """Returns a view with other tables, whose pieces would be beside a folder of tables."""
    nothing: Any = None
    pieces = Pieces("", {}, (), nothing, "exact", (), Results(folder.parent / "pieces"))
    return RecipeView("recipe", nothing, nothing, nothing, pieces, tables)


def unavailable(view: RecipeView) -> pd.DataFrame:
    raise Unavailable("too few models")


def written(folder: Path, value: int = 1, *, keeps_others: bool = False) -> dict[str, bytes]:
    """Exports four files, and returns the content of the folder."""
    table = pd.DataFrame({"a": [value]})
    groups = [pa.table({"a": [value]}), pa.table({"a": [value + 1]})]
    tables = {
        "t.csv": lambda _: table,
        "g.csv": lambda _: iter(groups),
        "g.parquet": lambda _: iter(groups),
        "facts.json": lambda _: {"a": value},
        "old.csv": unavailable,
    }
    view = view_of_tables(tables, folder)
    exports.write_tables(view, folder, keeps_others=keeps_others)
    assert view.has("t.csv")
    assert not view.has("old.csv")
    assert not view.has("other.csv")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_tables_are_replaced_and_others_removed(tmp_path: Path):
    folder = tmp_path / "tables"
    first = written(folder)
    assert first["t.csv"] == b"a\n1\n"
    assert first["g.csv"] == b"a\n1\n2\n"
    assert first["facts.json"] == b'{\n "a": 1\n}\n'
    assert pd.read_parquet(folder / "g.parquet")["a"].tolist() == [1, 2]
    (folder / "t.csv").write_text("edited")
    for name in ("old.csv", "mine.csv"):
        (folder / name).write_text("a")
    abandoned, recent = (folder / f".new-{name}.csv" for name in ("1", "2"))
    for path in (abandoned, recent):
        path.write_text("half")
    os.utime(abandoned, (0, time.time() - 25 * 3600))
    kept = written(folder, keeps_others=True)
    assert kept == {**first, "mine.csv": b"a", "old.csv": b"a", recent.name: b"half"}
    assert written(folder) == {**first, "mine.csv": b"a", recent.name: b"half"}


def test_an_equal_table_keeps_its_time(tmp_path: Path):
    folder = tmp_path / "tables"
    written(folder)
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    written(folder)
    assert {path.stat().st_mtime for path in folder.iterdir()} == {1000}
    written(folder, value=2)
    assert min(path.stat().st_mtime for path in folder.iterdir()) > 1000


def test_a_failure_leaves_the_old_tables(tmp_path: Path):
    folder = tmp_path / "tables"
    first = written(folder)

    def fails(view: RecipeView) -> pd.DataFrame:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        exports.write_tables(view_of_tables({"t.csv": fails}, folder), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


def test_tables_that_are_no_longer_known_are_removed(tmp_path: Path):
    """Tables of studies are known only while a figure names the study."""
    folder = tmp_path / "tables"
    table = {"a.csv": lambda _: pd.DataFrame({"a": [1]})}
    study = {"study.csv": lambda _: pd.DataFrame({"b": [1]})}
    exports.write_tables(view_of_tables({**table, **study}, folder), folder)
    (folder / "mine.csv").write_text("a")
    exports.write_tables(view_of_tables(table, folder), folder, keeps_others=True)
    assert (folder / "study.csv").is_file()
    exports.write_tables(view_of_tables(table, folder), folder)
    assert {path.name for path in folder.iterdir()} == {"a.csv", "mine.csv"}
    (tmp_path / "pieces" / "exported.json").write_text("{damaged")
    exports.write_tables(view_of_tables(table, folder), folder)
