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
from synthetic_workdir import RECIPE, copy_workdir, write_workdir

from analysis import attacks, io, page, recipe_part
from lm_mia import config
from lm_mia.store.store import Store


def test_families_are_ordered_and_names_are_shared(recipes: Any):
    sizes = [size for size, _ in recipes.family("fixed")]
    assert sizes == ["10M", "44M", "140M", "302M", "1018M"]
    assert recipes["fixed-140M"] is recipes["main"]
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
    with pytest.raises(io.WorkdirError, match=r"none: no such folder; run lm-mia run first"):
        io.read_recipes(tmp_path / "none")
    with pytest.raises(io.WorkdirError, match="no recipe in it; run lm-mia run first"):
        io.read_recipes(tmp_path)


def test_recipes_are_chosen_by_any_of_their_names(folder: Path):
    found = io.read_recipes(folder, ["data-384", "fixed-140M"])
    assert [r.name for r in found.all] == ["main", "data-384"]
    assert "fixed-140M" in found.all[0].names
    with pytest.raises(io.WorkdirError, match=r"--recipe=data-38: .* try data-384 or "):
        io.read_recipes(folder, ["data-38"])


def test_events_are_those_of_the_recipe(tmp_path: Path):
    recipe = tmp_path / "recipes" / "a"
    recipe.mkdir(parents=True)
    lines = [
        '{"event": "train", "recipe": "a", "step": 1}',
        '{"event": "train", "recipe": "b", "row": "a", "step": 2}',
        '{"event": "scored", "recipe": "a", "of": "train"}',
        '{"event": "train", "recipe": "a", "st',
        '{"event": "train", "recipe": "a", "step": 3}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert [e["step"] for e in io.events(recipe, "train")] == [1, 3]


def test_targets_stay_while_more_references_are_made(recipes: Any):
    main = recipes["main"]
    attack = dataclasses.replace(main.config.attack, references=92)
    grown = dataclasses.replace(main, config=dataclasses.replace(main.config, attack=attack))
    assert grown.rows[:2] == main.rows[:2]
    assert grown.rows[2] == main.rows[2]


def test_two_recipes_of_one_name_are_told(recipes: Any, tmp_path: Path):
    one = recipes["data-384"]
    other = dataclasses.replace(one, folder=tmp_path / "recipes" / "b")
    with pytest.raises(io.WorkdirError, match=r"name='data-384': .*data-384 and .*/b have it; say"):
        io.Recipes([one, other])
    assert list(io.Recipes([one])) == ["data-384"]
    # as a command leaves it that was stopped before it had a population
    unbuilt = dataclasses.replace(other, population_folder=tmp_path / "populations" / "c")
    found = io.Recipes([one, unbuilt])
    assert (found.all, found.unbuilt) == ([one], [unbuilt])


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
    copy = copy_workdir(finished, tmp_path / "w")
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
        ("", shutil.rmtree, rf"{RECIPE}: no scores\.zarr; run lm-mia score first"),
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
    folder = copy_workdir(finished, tmp_path / "w")
    damage(folder / "scores.zarr" / part)
    with pytest.raises(io.WorkdirError, match=f"^{tmp_path}[^\n]*{said}$"):
        page.write_page(tmp_path / "w", None, (), lambda *_: None, lambda _: None)
    assert not (tmp_path / "w" / "figures").exists()


def test_tables_of_other_rows_than_those_of_the_store_are_refused(
    finished: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipes" / RECIPE
    (recipe / "tables").mkdir(parents=True)
    (recipe / "scores.zarr").symlink_to(finished / "scores.zarr")
    facts = json.loads((finished / "tables" / "flips.json").read_text())
    more = {"config": facts["config"] | {"references": 21}, "references": 21}
    for changed, said in (
        (more, "20 of the 21 reference rows of the tables; absent: the others"),
        ({"replicas": 15}, "16 replica rows, of which the tables know 15; .* attack again$"),
        ({"config": {}}, "config has no field references"),
        ({"recipe": "other"}, "is not of this recipe"),
    ):
        (recipe / "tables" / "flips.json").write_text(json.dumps(facts | changed))
        with pytest.raises(io.WorkdirError, match=said):
            io.read_rows(recipe)


def test_a_row_without_a_statistic_of_the_attacks_is_not_there(tmp_path: Path) -> None:
    attacks = ("lira_online", "min_k")
    folder = write_workdir(tmp_path / "demo", samples=60, attacks=attacks, replicas=4)
    assert len(io.read_rows(folder).names) == 20
    (folder / "scores.zarr" / "min_k" / "c" / "5" / "0").unlink()
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
    folder = copy_workdir(finished, tmp_path / "w")
    path = folder / "scores.zarr"
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
    plain = copy_workdir(finished, at_points / "plain")
    about(plain, 7)
    with pytest.raises(io.WorkdirError, match=r"not scored at step 7, .* run lm-mia attack"):
        io.read_rows(plain)


def test_only_shards_of_the_score_point_of_the_tables_count(at_points: Path) -> None:
    shards = at_points / "scores.zarr" / "loss" / "c" / "3"
    (shards / "0" / "0").unlink()
    assert len(io.read_rows(at_points).names) == 32
    (shards / "1" / "0").unlink()
    with pytest.raises(io.WorkdirError, match=LOST.format(i=3)):
        io.read_rows(at_points)


def test_the_page_says_which_score_point(finished: Path, at_points: Path) -> None:
    shown, plain = (
        recipe_part.render(recipe_part.facts(folder), defaultdict(str))
        for folder in (at_points, finished)
    )
    assert "16 replicas, as they were after step 7 of their training</dd>" in shown
    assert "16 replicas</dd>" in plain
