import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from failed_reads import fail_reads

import lm_mia
from analysis import io
from lm_mia.attacks.unchanged import is_report_outdated
from lm_mia.errors import UserError
from lm_mia.run import workdir
from lm_mia.run.workdir import (
    Workdir,
    contains_models,
    provenance,
    write_config,
)


def test_paths(tmp_path: Path):
    w = Workdir(tmp_path)
    assert w.population_dir("0123abcd") == tmp_path / "populations" / "0123abcd"
    assert w.recipe_dir("main") == tmp_path / "recipes" / "main"
    assert (w.config_file, w.report) == (tmp_path / "config.json", tmp_path / "report.html")


def test_figures_of_an_earlier_version_are_read(tmp_path: Path):
    content = {"format": 2, "recipes": [], "figures": ["fig05_instability", "scaling"]}
    (tmp_path / "config.json").write_text(json.dumps(content))
    names = ["strongmia_fig05_instability", "scaling"]
    assert Workdir(tmp_path).read_config()["figures"] == names
    assert io.read_workdir(tmp_path)["figures"] == names


def test_part_of_a_workdir_is_refused_with_the_workdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    recipe = Path("w") / "recipes" / "main"
    recipe.mkdir(parents=True)
    Workdir(recipe).check()  # a folder called recipes need not be part of a workdir
    Workdir(Path("w")).write_config({"recipes": ["main"], "figures": []})
    for part in (recipe, recipe.parent, Path("w/populations/0123abcd"), Path("w/figures")):
        with pytest.raises(UserError) as caught:
            Workdir(part).check()
        assert str(caught.value).endswith("; use --workdir=w")
    monkeypatch.chdir(recipe)
    with pytest.raises(UserError) as caught:
        Workdir(Path()).check()
    assert str(caught.value).endswith(f"; use --workdir={Path('..') / '..'}")


def test_file_is_not_a_workdir(tmp_path: Path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError, match=r"file: .*; choose"):
        Workdir(tmp_path / "file").check()


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"other": 1}', "\x00\xff"])
def test_foreign_config_files_are_refused(tmp_path: Path, text: str):
    w = Workdir(tmp_path)
    w.recipe_dir("a").mkdir(parents=True)
    for path, read in (
        (w.config_file, w.read_config),
        (w.recipe_dir("a") / "config.json", lambda: w.read_recipe_config("a")),
    ):
        path.write_text(text, encoding="latin1")
        with pytest.raises(UserError) as caught:
            read()
        problem, remedy = str(caught.value).split("; ")
        assert problem.startswith(f"{path}: not a config")
        remedies = (
            "restore it, or choose another",
            "restore it, or delete it and repeat the command",
        )
        assert remedy.startswith(remedies[path == w.config_file])


@pytest.mark.parametrize(
    "text",
    [
        '{"recipes": 3, "figures": []}',
        '{"recipes": ["a", 3], "figures": []}',
        '{"recipes": ["../a"], "figures": []}',
        '{"recipes": ["a"], "figures": "fig"}',
    ],
)
def test_edited_list_of_recipes_is_refused(tmp_path: Path, text: str):
    w = Workdir(tmp_path)
    w.config_file.write_text(text)
    with pytest.raises(UserError, match="not a config"):
        w.read_config()


def test_models_without_a_config_are_an_error(tmp_path: Path):
    w = Workdir(tmp_path)
    assert w.read_recipe_config("a") is None
    (w.recipe_dir("a") / "scores.zarr").mkdir(parents=True)
    assert contains_models(w.recipe_dir("a"))
    with pytest.raises(UserError, match=r"config.json: missing, .*; restore"):
        w.read_recipe_config("a")


def test_an_empty_workdir_has_no_recipes(tmp_path: Path):
    assert Workdir(tmp_path).read_config() == {"recipes": [], "figures": []}
    assert Workdir(tmp_path).recipe_names() == []


def test_report_is_outdated_if_tables_are_newer(tmp_path: Path):
    w, table = Workdir(tmp_path), tmp_path / "recipes" / "a" / "tables" / "attacks.csv"
    assert not is_report_outdated(tmp_path)
    w.report.write_text("")
    table.parent.mkdir(parents=True)
    table.write_text("")
    os.utime(w.report, (100, 100))
    assert is_report_outdated(tmp_path)
    os.utime(table, (50, 50))
    assert not is_report_outdated(tmp_path)


def test_provenance_is_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    facts = provenance()
    assert set(facts) == {"lm_mia", "packages", "commit", "cpu_cores"}
    assert facts["packages"]["numpy"] == sys.modules["numpy"].__version__
    assert facts["cpu_cores"] == 3


def test_commit_is_none_without_git(monkeypatch: pytest.MonkeyPatch):
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(workdir.subprocess, "run", no_git)
    assert provenance()["commit"] is None


LINKS = (
    "config.json",
    "populations",
    "populations/0123abcd",
    "recipes",
    "recipes/main",
    "recipes/main/scores.zarr",
    "recipes/main/checkpoints",
)


@pytest.mark.parametrize("name", LINKS)
def test_parts_of_a_workdir_may_be_links(tmp_path: Path, name: str):
    workdir, elsewhere = tmp_path / "w", tmp_path / "elsewhere"
    (workdir / name).parent.mkdir(parents=True)
    (workdir / name).symlink_to(elsewhere)
    (tmp_path / "linked").symlink_to(workdir)
    for path in (workdir, tmp_path / "linked"):
        with pytest.raises(UserError) as caught:
            Workdir(path).check()
        [line] = str(caught.value).splitlines()
        assert line.startswith(f"{path / name}: is a symbolic ")
    elsewhere.mkdir()
    for path in (workdir, tmp_path / "linked"):
        Workdir(path).check()


def test_broken_links_are_refused_wherever_a_command_reads(tmp_path: Path):
    (tmp_path / "w").symlink_to("missing")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("w", "loop"):
        with pytest.raises(UserError, match=f"^{tmp_path / name}: .*symbolic link"):
            Workdir(tmp_path / name).check()
        with pytest.raises(UserError, match=f"^{tmp_path / name}: .*symbolic link"):
            lm_mia.open(tmp_path / name)
    Workdir(tmp_path).check()  # other files of the user do not matter


def test_files_of_figures_in_the_workdir_move_with_it(tmp_path: Path):
    workdir, outside = Workdir(tmp_path / "w"), str(tmp_path / "mine.py")
    workdir.path.mkdir()
    inside = str(workdir.path / "own" / "mine.py")
    contents = {"recipes": [], "figures": [inside, outside, "scaling"]}
    workdir.write_config(contents)
    assert workdir.read_config() == contents
    moved = Workdir(workdir.path.rename(tmp_path / "moved"))
    listed = [str(tmp_path / "moved" / "own" / "mine.py"), outside, "scaling"]
    assert moved.read_config()["figures"] == io.read_workdir(moved.path)["figures"] == listed


def test_a_config_may_be_edited_but_not_name_other_folders(tmp_path: Path):
    path = tmp_path / "config.json"
    write_config(path, {"recipes": ["a"], "figures": []})
    path.write_text(path.read_text().replace('"a"', '"b"'))
    assert Workdir(tmp_path).read_config() == {"recipes": ["b"], "figures": []}
    for name in ("..", "", "a/b"):
        write_config(path, {"recipes": [name], "figures": []})
        with pytest.raises(UserError, match="not a config"):
            Workdir(tmp_path).read_config()


def test_the_files_of_models_are_not_looked_at_when_a_command_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir, listed = Workdir(tmp_path), list[Path]()
    (workdir.recipe_dir("main") / "checkpoints" / "reference-00").mkdir(parents=True)
    list_folder = Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        listed.append(folder)
        return list_folder(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    workdir.check()
    assert {*listed} <= {tmp_path / "recipes", tmp_path / "populations"}


def test_a_config_that_cannot_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    opened = Workdir(tmp_path)
    write_config(opened.config_file, {"format": 2, "recipes": [], "figures": []})
    fail_reads(monkeypatch, opened.config_file)
    with pytest.raises(OSError, match=opened.config_file.name):
        opened.read_config()
