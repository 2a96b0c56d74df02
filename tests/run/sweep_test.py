import dataclasses
import os
from pathlib import Path

import pytest
from tiny_config import TINY, change

from lm_mia.config import Config
from lm_mia.errors import UserError
from lm_mia.run import sweep


def named(name: str, **changes: object) -> Config:
    c = dataclasses.replace(TINY, name=name)
    for field, value in changes.items():
        c = change(c, field.replace("__", "."), value)
    return c


def test_a_config_alone_has_the_folder_unless_it_has_a_name(tmp_path: Path):
    [alone] = sweep.tasks(str(tmp_path), [({}, TINY)])
    assert (alone.folder, alone.shared, alone.label) == (tmp_path, None, "the config")
    [task] = sweep.tasks(str(tmp_path), [({}, named("main"))])
    assert (task.folder, task.label) == (tmp_path / f"main_{task.key}", "main")
    assert task.shared is not None
    assert task.shared.parent == tmp_path / "populations"
    assert alone.key == task.key


def test_recipes_that_come_out_the_same_are_one_with_all_names_and_rows():
    a = named("main", attack__references=8, attack__targets=2)
    b = named("fixed-1", attack__references=6, attack__targets=4, extract__samples=3)
    other = named("small", model__layers=2)
    first, second = sweep.tasks("w", [({}, a), ({"x": 1}, b), ({"y": 2}, other)])
    assert first.config.name == "main+fixed-1"
    assert first.label == "main"
    assert (first.config.attack.references, first.config.attack.targets) == (8, 4)
    assert first.config.extract.samples == 3
    assert second.config.name == "small"


def test_a_folder_is_found_again_by_its_key(tmp_path: Path):
    [task] = sweep.tasks(str(tmp_path), [({}, named("old"))])
    task.folder.mkdir()
    [again] = sweep.tasks(str(tmp_path), [({}, named("new"))])
    assert again.folder == task.folder


def test_of_two_commands_that_begin_at_once_the_first_names_the_folder(tmp_path: Path):
    [a] = sweep.tasks(str(tmp_path), [({}, named("a"))])
    [b] = sweep.tasks(str(tmp_path), [({}, named("b"))])
    assert (a.folder.name, b.folder.name) == (f"a_{a.key}", f"b_{a.key}")
    b.folder.mkdir()
    assert a.folder == b.folder == tmp_path / f"b_{a.key}"


def test_the_population_is_linked_once(tmp_path: Path):
    [task] = sweep.tasks(str(tmp_path), [({}, named("main"))])
    task.folder.mkdir()
    assert sweep.link(task)
    assert not sweep.link(task)
    assert os.readlink(task.folder / "population") == f"../populations/{task.population.name}"
    [alone] = sweep.tasks(str(tmp_path / "w"), [({}, TINY)])
    assert not sweep.link(alone)


def test_a_folder_of_one_config_takes_no_sweep(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has the rows of one config, not of a sweep"):
        sweep.tasks(str(tmp_path), [({}, named("main"))])


def test_a_config_alone_takes_no_folder_of_a_sweep(tmp_path: Path):
    (tmp_path / "populations").mkdir()
    with pytest.raises(UserError, match="has the recipes of a sweep; choose another folder"):
        sweep.tasks(str(tmp_path), [({}, TINY)])
    assert len(sweep.tasks(str(tmp_path), [({}, named("main"))])) == 1


def test_two_recipes_of_one_name_are_refused():
    entries = [({}, named("wide")), ({"model.layers": 2}, named("wide", model__layers=2))]
    with pytest.raises(UserError, match="name='wide': is the name of two recipes"):
        sweep.tasks("w", entries)


def test_entries_that_attack_the_same_rows_otherwise_are_refused():
    entries = [({}, named("a")), ({"attack.alpha": 0.1}, named("b", attack__alpha=0.1))]
    said = r"attack.alpha: entries 0 and 1 of the sweep want the same rows with 0.05 and 0.1; say one for both"
    with pytest.raises(UserError, match=said):
        sweep.tasks("w", entries)


def test_entries_that_extract_the_same_rows_otherwise_are_refused():
    a = named("a", extract__samples=3)
    b = named("b", extract__samples=4, extract__prefix_tokens=2)
    assert len(sweep.tasks("w", [({}, a), ({"x": 1}, named("c"))])) == 1
    with pytest.raises(UserError, match=r"extract.prefix_tokens: entries 0 and 1 of the sweep"):
        sweep.tasks("w", [({}, a), ({"x": 1}, b)])


def test_a_task_knows_the_names_of_the_others():
    entries = [({}, named("a")), ({"x": 1}, named("b")), ({"y": 2}, named("c", model__layers=2))]
    assert [task.others for task in sweep.tasks("w", entries)] == [{"c"}, {"a", "b"}]
