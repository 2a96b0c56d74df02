"""What is read of a workdir, and what is said of one that lacks something, or holds something else."""

import dataclasses
import json
import math
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic_workdir import RECIPE, write_workdir

from analysis import attacks, io, report
from lm_mia import config
from lm_mia.store.store import Store


def test_families_are_ordered_and_names_are_shared(recipes: Any):
    recipes.used = set()
    sizes = [size for size, _ in recipes.family("fixed")]
    assert sizes == ["10M", "44M", "140M", "302M", "1018M"]
    assert recipes["fixed-140M"] is recipes["main"]
    assert len(recipes.used) == 5
    assert [int(n) for n, _ in recipes.family("data")] == [192, 384, 768, 1536, 3456]


def test_score_points_are_found_by_epochs(recipes: Any):
    epochs = recipes["epochs-140M"]
    assert epochs.step(4) == 0
    assert epochs.step(1) * 4 == config.total_steps(epochs.config)
    aucs = [attacks.attacked(epochs, step=epochs.step(e)).auc_T.mean() for e in (1, 2, 3, 4)]
    assert aucs == sorted(aucs)


def test_a_folder_of_no_recipe_is_told(tmp_path: Path):
    with pytest.raises(io.WorkdirError, match=r"config\.json"):
        io.read_recipe(tmp_path)


def test_targets_stay_while_more_references_are_made(recipes: Any):
    main = recipes["main"]
    attack = dataclasses.replace(main.config.attack, references=92)
    grown = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=attack))
    assert grown.rows[:2] == main.rows[:2]
    assert grown.rows[2] == main.rows[2]


def test_two_folders_of_one_name_are_told(folder: Path, tmp_path: Path):
    [one] = folder.glob("data-384_*")
    for name in ("a_1", "b_2"):
        (tmp_path / name / "population").mkdir(parents=True)
        (tmp_path / name / "population" / "manifest.json").write_text("{}")
        shutil.copy(one / "config.json", tmp_path / name)
    both = [tmp_path / "a_1", tmp_path / "b_2"]
    with pytest.raises(io.WorkdirError, match=r"name='data-384': .*a_1 and .*b_2"):
        io.Recipes(both)
    assert list(io.Recipes(both[:1])) == ["data-384"]
    shutil.rmtree(both[0] / "population")  # as a command leaves it that was stopped before
    assert [r.folder for r in io.Recipes(both).all] == both[1:]


def test_an_epoch_that_was_not_scored_is_said(recipes: Any):
    recipe = recipes["epochs-140M"]
    stored = json.loads((recipe.folder / "config.json").read_text())["config"]
    assert 1 in stored["score"]["at_epochs"]
    score = dataclasses.replace(recipe.config.score, at_epochs=(2.0,))
    later = dataclasses.replace(recipe, config=dataclasses.replace(recipe.config, score=score))
    with pytest.raises(io.Absent, match="epochs-140M: not scored after epoch 1"):
        later.step(1)
    assert later.step(2) > 0


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    """To the last digit; with the types of the whole column; text with line breaks and quotes; empty is NaN."""
    (tmp_path / "tables").mkdir()
    text = 'a line\nand ""more"", with NaN'
    lines = ["fpr,id,none,text", "0.1,,,nan", f'0.30000000000000004,7,,"{text}"', "-inf,8,,x"]
    (tmp_path / "tables" / "x.csv").write_text("\n".join(lines) + "\n")
    first, second, third = io.table(tmp_path, "x.csv", ("fpr", "id"))
    assert first["fpr"] == 0.1
    assert math.isnan(first["id"])
    assert (second["fpr"], second["id"]) == (0.1 + 0.2, 7)
    assert math.isnan(second["none"])
    assert second["text"] == text.replace('""', '"')
    assert third["fpr"] == -float("inf")
    with pytest.raises(io.WorkdirError, match=r"x\.csv has no column tpr; run lm-mia attack"):
        io.table(tmp_path, "x.csv", ("fpr", "tpr"))


def test_tables_without_replicas_are_not_promised(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "w")
    stored = json.loads((copy / "config.json").read_text())
    stored["config"]["attack"]["replicas"] = 0
    (copy / "config.json").write_text(json.dumps(stored))
    (copy / "tables" / "flips.json").unlink()
    with pytest.raises(io.WorkdirError, match=r"attack.replicas=0, and tables of decisions"):
        io.flip_facts(copy)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "demo"
    return write_workdir(folder, samples=100, attacks=("lira_online", "loss"))


DAMAGED = r"scores\.zarr: damaged \(\w+\); delete it, then run lm-mia score and attack"
LOST = (
    r"15 of the 16 reference rows of the tables; absent: reference-{i:02d}; run lm-mia score first"
)


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
    with pytest.raises(io.WorkdirError, match=f"^{tmp_path}[^\n]*{said}$"):
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
        with pytest.raises(io.WorkdirError, match=said):
            io.read_rows(tmp_path)


def test_a_row_without_a_statistic_of_the_attacks_is_not_there(tmp_path: Path) -> None:
    attacks = ("lira_online", "min_k")
    folder = write_workdir(tmp_path / "demo", samples=60, attacks=attacks, replicas=4)
    assert len(io.read_rows(folder).names) == 20
    (folder / RECIPE / "scores.zarr" / "min_k" / "c" / "5" / "0").unlink()
    with pytest.raises(io.WorkdirError, match="absent: reference-05; run lm-mia score"):
        io.read_rows(folder)
    path = folder / "tables" / "flips.json"  # as an attack without this row would write it
    path.write_text(json.dumps(json.loads(path.read_text()) | {"references": 15}))
    names = io.read_rows(folder).names
    assert len(names) == 19
    assert "reference-05" not in names


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
    expected = io.read_rows(finished).losses(3)
    for step, more in ((7, 0), (5, 20), (0, 40)):
        about(at_points, step)
        for found, plain in zip(io.read_rows(at_points).losses(3), expected, strict=True):
            np.testing.assert_allclose(found, plain + more, rtol=1e-6)
    about(at_points, 6)
    with pytest.raises(io.WorkdirError, match=r"not scored at step 6, .* run lm-mia attack"):
        io.read_rows(at_points)
    about(shutil.copytree(finished, at_points / "plain"), 7)
    with pytest.raises(io.WorkdirError, match=r"not scored at step 7, .* run lm-mia attack"):
        io.read_rows(at_points / "plain")


def test_only_shards_of_the_score_point_of_the_tables_count(at_points: Path) -> None:
    shards = at_points / RECIPE / "scores.zarr" / "loss" / "c" / "3"
    (shards / "0" / "0").unlink()
    assert len(io.read_rows(at_points).names) == 32
    (shards / "1" / "0").unlink()
    with pytest.raises(io.WorkdirError, match=LOST.format(i=3)):
        io.read_rows(at_points)


def test_the_page_says_which_score_point(finished: Path, at_points: Path) -> None:
    page, plain = (
        report.render(report.facts(folder), defaultdict(str)) for folder in (at_points, finished)
    )
    assert "16 replicas, as they were after step 7 of their training</dd>" in page
    assert "16 replicas</dd>" in plain
