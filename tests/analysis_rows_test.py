"""The rows that a report reads from the store, and what it says of a store that is not what the tables are of."""

import importlib
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from synthetic_workdir import RECIPE, write_workdir

from lm_mia.store import Store

sys.path.append(str(Path(__file__).resolve().parents[1] / "analysis"))
report, rows, workdir = map(importlib.import_module, ("report", "rows", "workdir"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=100, attacks=("lira_online", "loss"))


DAMAGED = r"scores\.zarr: damaged \(\w+\); delete it, then run lm-mia score and attack"
LOST = r"15 of the 16 reference rows of the tables; absent: reference_{i}_{i}_{i}; run lm-mia score first"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize(
    ("part", "damage", "said"),
    [
        ("", shutil.rmtree, rf"demo: no {RECIPE}/scores\.zarr; run lm-mia score first"),
        ("zarr.json", cut, DAMAGED),
        ("zarr.json", Path.unlink, DAMAGED),
        ("role/c/0", cut, DAMAGED),
        ("loss/c/3/0", cut, DAMAGED),
        ("loss/c/3/0", lambda path: path.write_bytes(b""), LOST.format(i=3)),
        ("loss/c/9", shutil.rmtree, LOST.format(i=9)),
        ("member/c/3/0", Path.unlink, LOST.format(i=3)),
    ],
)
def test_a_damaged_store_is_said_in_one_line(
    damage: Callable[[Path], None], part: str, said: str, finished: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    damage(folder / RECIPE / "scores.zarr" / part)
    with pytest.raises(workdir.WorkdirError, match=f"^{tmp_path}[^\n]*{said}$"):
        report.write(folder)
    assert not (folder / "figures").exists()


def test_tables_of_other_rows_than_those_of_the_store_are_refused(
    finished: Path, tmp_path: Path
) -> None:
    (tmp_path / RECIPE).symlink_to(finished / RECIPE)
    (tmp_path / "tables").mkdir()
    facts = json.loads((finished / "tables" / "flips.json").read_text())
    more = {"config": facts["config"] | {"references": 21}, "references": 21}
    for changed, said in (
        (more, "20 of the 21 reference rows of the tables; absent: the others"),
        ({"replicas": 15}, "16 replica rows, of which the tables know 15; .* attack again$"),
        ({"config": {}}, "config has no field references"),
        ({"recipe": "../recipe_1"}, "names no recipe"),
    ):
        (tmp_path / "tables" / "flips.json").write_text(json.dumps(facts | changed))
        with pytest.raises(workdir.WorkdirError, match=said):
            rows.read(tmp_path)


def test_a_row_without_a_statistic_of_the_attacks_is_not_there(tmp_path: Path) -> None:
    attacks = ("lira_online", "min_k")
    folder = write_workdir(tmp_path / "demo", samples=60, attacks=attacks, replicas=4)
    assert len(rows.read(folder).names) == 20
    (folder / RECIPE / "scores.zarr" / "min_k" / "c" / "5" / "0").unlink()
    with pytest.raises(workdir.WorkdirError, match="absent: reference_5_5_5; run lm-mia score"):
        rows.read(folder)
    path = folder / "tables" / "flips.json"  # as an attack without this row would write it
    path.write_text(json.dumps(json.loads(path.read_text()) | {"references": 15}))
    names = rows.read(folder).names
    assert len(names) == 19
    assert "reference_5_5_5" not in names


@pytest.fixture
def at_points(finished: Path, tmp_path: Path) -> Path:
    """The finished workdir, of rows that are scored after steps 5, 7 and 9, where the tables are about step 7.

    The losses of the finished one are those of step 7; at the other points they are larger.
    """
    folder = tmp_path / "demo"
    shutil.copytree(finished, folder)
    path = folder / RECIPE / "scores.zarr"
    plain = Store(path)
    known = plain.rows()
    loss_MxN, member_MxN = plain.read(known)
    shutil.rmtree(path)
    s = Store(path, (), (5, 7), 9)
    s.ensure(known, {"tokens": np.arange(loss_MxN.shape[1])}, {})
    for row, loss_N, member_N in zip(known, loss_MxN, member_MxN, strict=True):
        for step, more in ((5, 20), (7, 0), (0, 40)):
            s.write_row(row, loss_N + np.float32(more), member_N, {}, step)
    about(folder, 7)
    return folder


def about(folder: Path, step: int) -> None:
    """Makes the tables say that they are about a step."""
    path = folder / "tables" / "flips.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"config": facts["config"] | {"step": step}}))


def test_rows_are_read_at_the_score_point_of_the_tables(finished: Path, at_points: Path) -> None:
    expected = rows.read(finished).losses(3)
    for step, more in ((7, 0), (5, 20), (0, 40)):
        about(at_points, step)
        for found, plain in zip(rows.read(at_points).losses(3), expected, strict=True):
            np.testing.assert_allclose(found, plain + more, rtol=1e-6)
    about(at_points, 6)
    with pytest.raises(workdir.WorkdirError, match=r"not scored at step 6, .* run lm-mia attack"):
        rows.read(at_points)
    about(shutil.copytree(finished, at_points / "plain"), 7)
    with pytest.raises(workdir.WorkdirError, match=r"not scored at step 7, .* run lm-mia attack"):
        rows.read(at_points / "plain")


def test_only_shards_of_the_score_point_of_the_tables_count(at_points: Path) -> None:
    shards = at_points / RECIPE / "scores.zarr" / "loss" / "c" / "3"
    (shards / "0" / "0").unlink()
    assert len(rows.read(at_points).names) == 32
    (shards / "1" / "0").unlink()
    with pytest.raises(workdir.WorkdirError, match=LOST.format(i=3)):
        rows.read(at_points)


def test_the_page_says_which_score_point(finished: Path, at_points: Path) -> None:
    page, plain = (
        report.render(report.facts(folder), defaultdict(str)) for folder in (at_points, finished)
    )
    assert "16 replicas, as they were after step 7 of their training</dd>" in page
    assert "16 replicas</dd>" in plain
