"""The rows that a report reads from the store, and what it says of a store that is not what the tables are of."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_workdir import RECIPE, write_workdir

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
