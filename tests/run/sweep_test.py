import dataclasses
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_config import FILE, TINY

from lm_mia.config import recipe
from lm_mia.errors import UserError
from lm_mia.run import sweep as sweeps
from lm_mia.run import workdir
from lm_mia.run.sweep import Sweep, SweepRecipe, claim_folders, read_sweep, record_population
from lm_mia.run.workdir import write_config

DEEPER = ["--config.model.layers=3", "--config.score.micro_batch_size=1"]


CHANGED = """
_before = get_config
def get_config():
    return replace(_before(), train=replace(_before().train, epochs=2))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Returns a config without a name."""
    return write(tmp_path / "tiny.py")


def write(path: Path, more: str = "") -> str:
    path.write_text(FILE + more)
    return str(path)


def named(path: Path, name: str, entries: str = "") -> str:
    """Writes a config file with a named config, and optionally a sweep."""
    sweep = f"\ndef sweep():\n    yield from {entries}\n" if entries else ""
    return write(
        path,
        f"""
import dataclasses
_without_name = get_config
def get_config():
    return dataclasses.replace(_without_name(), name={name!r})
{sweep}""",
    )


def begin(config_arg: str | None, folder: Path, *overrides: str) -> Sweep:
    return claim_folders(read_sweep(config_arg, str(folder), overrides))[0]


def used(sweep: Sweep) -> Sweep:
    """Returns a sweep; each recipe has models."""
    for task in sweep.recipes:
        (task.folder / "checkpoints").mkdir()
        task.population_dir.mkdir(parents=True, exist_ok=True)
    return sweep


def stored(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "recipes" / name / "config.json").read_text())


def failure(act: Callable[[], object]) -> list[str]:
    with pytest.raises(UserError) as caught:
        act()
    return str(caught.value).split("\n")


def test_single_config_is_a_sweep_of_one(file: str, tmp_path: Path):
    sweep = read_sweep(file, str(tmp_path / "w"), ())
    [task] = sweep.recipes
    assert (task.name, task.names, task.entries, task.overrides) == ("tiny", ("tiny",), (0,), {})
    assert task.folder == tmp_path / "w" / "recipes" / "tiny"
    assert task.population_dir.parent == tmp_path / "w" / "populations"
    assert len(task.models) == 6
    assert not (tmp_path / "w").exists()
    assert read_sweep(f"{file}:2", str(tmp_path / "w"), ()).recipes[0].name == "tiny-2"
    assert sweep.flags() == ([f"--config={file}", f"--workdir={tmp_path / 'w'}"], ())


def test_recipes_are_named_by_their_overrides(tmp_path: Path):
    file = named(tmp_path / "a.py", "main", "[{'model.layers': 2, 'name': ''}, {'name': 'b'}]")
    main, deeper = read_sweep(file, str(tmp_path / "w"), ()).recipes
    assert (main.name, main.names, main.other_names) == ("main", ("main", "b"), {"layers=2,name="})
    assert deeper.population_dir == main.population_dir


def test_claim_writes_config_and_provenance(file: str, tmp_path: Path):
    folder = tmp_path / "runs" / "a"
    [task] = begin(file, folder).recipes
    facts = stored(folder, "tiny")
    assert facts["config"]["model"]["layers"] == 1
    assert (facts["names"], facts["format"], facts["later"]) == (["tiny"], recipe.FORMAT, [])
    assert facts["recipe_hash"] == recipe.recipe_hash(task.config)
    assert facts["population"] == task.population_dir.name
    assert facts["population_sha256"] is None
    assert {"lm_mia", "packages", "commit", "cpu_cores"} < facts.keys()
    content = json.loads((folder / "config.json").read_text())
    assert content == {
        "format": recipe.FORMAT,
        "recipes": ["tiny"],
        "figures": [],
    }


def test_recipes_of_the_workdir_are_used_without_config(file: str, tmp_path: Path):
    used(begin(file, tmp_path / "w", "--config.attack.references=6"))
    [task] = read_sweep(None, str(tmp_path / "w"), ()).recipes
    assert (task.name, task.config.attack.references) == ("tiny", 6)
    [task] = begin(None, tmp_path / "w", "--config.attack.references=8").recipes
    assert task.config.attack.references == 8
    assert task.config.attack.fprs == (0.1, 0.5)  # flags change only their own fields
    assert stored(tmp_path / "w", "tiny")["config"]["attack"]["references"] == 8
    lines = failure(lambda: read_sweep(None, str(tmp_path / "w"), ["--config.model.layers=2"]))
    assert lines[0].startswith(f"--workdir={tmp_path / 'w'}: its recipe tiny ")
    assert lines[1:-1] == ["  model.layers: 1 -> 2"]


def test_workdir_without_recipes_needs_a_config(file: str, tmp_path: Path):
    w = str(tmp_path / "w")
    [line] = failure(lambda: read_sweep(None, w, ()))
    assert line.startswith(f"--workdir={w}: no such folder")
    (tmp_path / "w").mkdir()
    [line] = failure(lambda: read_sweep(None, w, ()))
    assert line.startswith(f"--workdir={w}: no command ")
    assert "start with" in line
    (tmp_path / "w" / "other").touch()
    [line] = failure(lambda: read_sweep(None, w, ()))
    assert line.startswith(f"--workdir={w}: is not a ")
    assert "lm-mia run" not in line
    begin(file, tmp_path / "w")
    changed = stored(tmp_path / "w", "tiny")
    changed["config"]["model"]["depth"] = 3
    changed["recipe_hash"] = recipe.stored_recipe_hash(changed["config"])
    write_config(tmp_path / "w" / "recipes" / "tiny" / "config.json", changed)
    [line] = failure(lambda: read_sweep(None, w, ()))
    assert "another version of" in line


def test_figures_of_all_commands_are_kept(file: str, tmp_path: Path):
    flag = "--config.figures={}"
    begin(file, tmp_path / "w", flag.format("strongmia_fig01_references"))
    begin(file, tmp_path / "w", flag.format("scaling"))
    assert read_sweep(None, str(tmp_path / "w"), ()).figures == (
        "strongmia_fig01_references",
        "scaling",
    )
    assert read_sweep(None, str(tmp_path / "w"), [flag.format("scaling")]).figures == ("scaling",)
    assert read_sweep(None, str(tmp_path / "w"), [flag.format("")]).figures == ()


def test_a_minus_removes_figures_from_the_workdir(file: str, tmp_path: Path):
    folder, flag = tmp_path / "w", "--config.figures={}"
    paths = [str(tmp_path / name) for name in ("a/mine.py", "b/other.py", "b/third.py")]
    begin(file, folder, flag.format(",".join([*paths, "scaling"])))

    def listed(*overrides: str) -> tuple[str, ...]:
        begin(None, folder, *overrides)
        sweep = read_sweep(None, str(folder), ())
        assert sweep.shows_listed_figures
        return sweep.figures

    sweep = read_sweep(None, str(folder), [flag.format("-mine,-other.py")])
    assert (sweep.figures, sweep.shows_listed_figures) == ((paths[2], "scaling"), True)
    assert listed() == (*paths, "scaling")  # nothing was written yet
    assert listed(flag.format("-mine,-other.py")) == (paths[2], "scaling")
    sweep = read_sweep(None, str(folder), [flag.format("-unknown")])
    assert len(sweeps.unlisted_removals(sweep)) == 1
    assert listed(flag.format("-unknown")) == (paths[2], "scaling")
    assert listed(flag.format(f"-{paths[2]},-scaling")) == ()


def test_figures_are_added_and_removed_together(file: str, tmp_path: Path):
    flags = ["--config.figures=scaling,-mine.py"]
    begin(file, tmp_path / "w", "--config.figures=a/mine.py")
    sweep = begin(None, tmp_path / "w", *flags)
    assert (sweep.figures, sweep.shows_listed_figures) == (("scaling",), False)
    assert read_sweep(None, str(tmp_path / "w"), ()).figures == ("scaling",)
    more = FILE.replace("return config.Config(", "return config.Config(figures=('a.py', 'b.py'),")
    config_file = tmp_path / "more.py"
    config_file.write_text(more)
    shown = read_sweep(str(config_file), str(tmp_path / "v"), ["--config.figures=-a"])
    assert shown.figures == (os.path.abspath("b.py"),)
    assert shown.recipes[0].config.figures == ("b.py",)


def test_a_moved_file_of_a_figure_replaces_the_earlier_one(file: str, tmp_path: Path):
    for folder in "ab":
        begin(file, tmp_path / "w", f"--config.figures={tmp_path}/{folder}/mine.py,scaling")
    figures = read_sweep(None, str(tmp_path / "w"), ()).figures
    assert figures == ("scaling", f"{tmp_path}/b/mine.py")


def test_same_recipe_can_be_claimed_again(file: str, tmp_path: Path):
    used(begin(file, tmp_path))
    begin(file, tmp_path)
    begin(file, tmp_path, "--config.train.workers=3", "--config.attack.replicas=5")
    assert stored(tmp_path, "tiny")["config"]["train"]["workers"] == 3
    begin(file, tmp_path)  # without a name, only the config determines the attacks
    assert stored(tmp_path, "tiny")["config"]["attack"]["replicas"] == 2


def test_different_config_is_refused_with_its_differences(file: str, tmp_path: Path):
    used(begin(file, tmp_path))
    before = stored(tmp_path, "tiny")
    assert failure(lambda: begin(file, tmp_path, *DEEPER)) == [
        f"--workdir={tmp_path}: its recipe tiny has a different config:",
        "  model.layers: 1 -> 3",
        "  score.micro_batch_size: 'auto' -> 1",
        "  choose another --workdir or name, or restore these fields",
    ]
    assert stored(tmp_path, "tiny") == before


def test_config_may_change_before_models_exist(file: str, tmp_path: Path):
    begin(file, tmp_path)
    begin(file, tmp_path, *DEEPER)
    assert stored(tmp_path, "tiny")["config"]["model"]["layers"] == 3


def test_models_of_another_format_are_refused(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    [task] = used(begin(file, tmp_path)).recipes
    (task.folder / "scores.zarr").mkdir()
    made_with = recipe.FORMAT
    for change, remedy in ((1, "`lm-mia import "), (-1, "use that version")):
        monkeypatch.setattr(recipe, "FORMAT", made_with + change)
        for arguments in ((file, tmp_path), (None, tmp_path)):
            [line] = failure(lambda arguments=arguments: begin(*arguments))
            assert remedy in line


def test_recipe_is_found_under_each_of_its_names(tmp_path: Path):
    w = tmp_path / "w"
    used(begin(named(tmp_path / "a.py", "main"), w, "--config.attack.references=8"))
    [task] = begin(named(tmp_path / "b.py", "fixed-1"), w, "--config.attack.replicas=5").recipes
    assert (task.name, task.names) == ("main", ("fixed-1",))
    # A named recipe is shared, so what earlier commands requested is kept.
    assert (task.config.attack.references, task.config.attack.replicas) == (8, 5)
    [message] = task.kept_settings
    assert re.match(r"attack\.references=4: recipe main .*\b8\b", message)
    assert stored(w, "main")["names"] == ["main", "fixed-1"]
    assert [path.name for path in (w / "recipes").iterdir()] == ["main"]


def test_a_sweep_may_leave_out_its_config(tmp_path: Path):
    w, sweep = tmp_path / "w", "\ndef sweep(): return [{'train.epochs': 2}, {'model.layers': 2}]\n"
    file = write(tmp_path / "a.py", sweep)
    all_names = ["a", "epochs=2", "layers=2"]
    assert [r.name for r in read_sweep(file, str(w), ()).recipes] == all_names
    left_out = read_sweep(file, str(w), ["--config.has_recipe=False"])
    assert [(r.name, r.entries) for r in left_out.recipes] == [
        ("epochs=2", (1,)),
        ("layers=2", (2,)),
    ]
    assert read_sweep(file, str(w), ["--config.no-has-recipe"]).recipes == left_out.recipes
    begun = begin(file, w, "--config.has_recipe=False")
    assert sorted(path.name for path in (w / "recipes").iterdir()) == all_names[1:]
    assert [r.name for r in begin(None, w).recipes] == [r.name for r in begun.recipes]
    without = """
_with = get_config
def get_config():
    import dataclasses
    return dataclasses.replace(_with(), has_recipe=False)
"""
    write(tmp_path / "a.py", sweep + without)
    assert read_sweep(file, str(w), ()).recipes == left_out.recipes
    # An entry may be left out, too.
    write(tmp_path / "a.py", "\ndef sweep(): return [{'train.epochs': 2, 'has_recipe': False}]\n")
    assert [r.name for r in read_sweep(file, str(w), ()).recipes] == ["a"]


def test_counts_of_a_named_recipe_can_be_lowered_without_config(tmp_path: Path):
    w = tmp_path / "w"
    used(begin(named(tmp_path / "a.py", "main"), w, "--config.attack.references=8"))
    [task] = begin(None, w, "--config.attack.references=6").recipes
    assert task.config.attack.references == 6
    assert stored(w, "main")["config"]["attack"]["references"] == 6


def test_name_of_another_recipe_is_refused(tmp_path: Path):
    w = tmp_path / "w"
    used(begin(named(tmp_path / "a.py", "a", "[{'name': 'b', 'train.epochs': 2}]"), w))
    swapped = named(tmp_path / "c.py", "b", "[{'name': 'a', 'train.epochs': 2}]")
    assert "  train.epochs: 2 -> 1" in failure(lambda: begin(swapped, w))


def test_alias_moves_to_the_recipe_with_the_name(tmp_path: Path):
    w = tmp_path / "w"
    used(begin(named(tmp_path / "a.py", "main", "[{'name': 'alias'}]"), w))
    assert stored(w, "main")["names"] == ["main", "alias"]
    begin(named(tmp_path / "a.py", "main", "[{'name': 'alias', 'train.epochs': 2}]"), w)
    assert stored(w, "main")["names"] == ["main"]
    assert stored(w, "alias")["names"] == ["alias"]


def test_an_alias_moves_to_a_recipe_of_another_command(tmp_path: Path):
    w, main, other = tmp_path / "w", tmp_path / "main.py", tmp_path / "other.py"
    used(begin(write(main), w))
    begin(write(other), w)  # the same config
    assert stored(w, "main")["names"] == ["main", "other"]
    begin(write(other, "\nfrom dataclasses import replace\n" + CHANGED), w)
    assert stored(w, "main")["names"] == ["main"]
    assert stored(w, "other")["names"] == ["other"]
    begin(str(main), w)
    assert stored(w, "main")["names"] == ["main"]


def test_derived_name_does_not_hide_a_recipe(tmp_path: Path):
    w, main, other = tmp_path / "w", tmp_path / "main.py", tmp_path / "other.py"
    used(begin(write(main), w))
    used(begin(write(other, "\nfrom dataclasses import replace\n" + CHANGED), w))
    other.write_text(main.read_text())
    assert [task.name for task in begin(str(other), w).recipes] == ["main"]
    assert stored(w, "main")["names"] == ["main"]
    assert stored(w, "other")["names"] == ["other"]


def test_alias_that_names_another_recipe_is_refused(tmp_path: Path):
    w = tmp_path / "w"
    used(begin(named(tmp_path / "a.py", "a", "[{'name': 'b', 'train.epochs': 2}]"), w))
    both = named(tmp_path / "a.py", "a", "[{'name': 'b'}]")
    [line] = failure(lambda: begin(both, w))
    assert re.match(rf"--workdir={w}: name='b' .*\brecipe a\b.*; choose another --workdir\b", line)


def test_edited_config_is_refused(file: str, tmp_path: Path):
    used(begin(file, tmp_path / "w"))
    path = tmp_path / "w" / "recipes" / "tiny" / "config.json"
    edited = stored(tmp_path / "w", "tiny")
    edited["config"]["train"]["epochs"] += 1
    write_config(path, edited)
    for config_arg in (None, file):
        [line] = failure(lambda config_arg=config_arg: begin(config_arg, tmp_path / "w"))
        assert line.startswith(f"{path}: its config ")
        assert "edited" in line


def test_edited_config_with_a_wrong_type_is_refused(file: str, tmp_path: Path):
    begin(file, tmp_path / "w")
    path = tmp_path / "w" / "recipes" / "tiny" / "config.json"
    edited = stored(tmp_path / "w", "tiny")
    edited["config"]["attack"]["references"] = "x"
    write_config(path, edited)
    [line] = failure(lambda: begin(None, tmp_path / "w"))
    assert line.startswith(f"{path}: attack.references='x': ")


def test_command_without_config_keeps_concurrent_changes(file: str, tmp_path: Path):
    w = tmp_path / "w"
    begin(file, w, "--config.attack.references=6")
    late = read_sweep(None, str(w), ["--config.train.workers=1"])
    begin(file, w, "--config.attack.references=8")
    [task] = claim_folders(late)[0].recipes
    assert (task.config.attack.references, task.config.train.workers) == (8, 1)
    assert stored(w, "tiny")["config"]["attack"]["references"] == 8


def test_lost_list_of_recipes_is_restored(file: str, tmp_path: Path):
    used(begin(file, tmp_path))
    (tmp_path / "config.json").unlink()
    begin(named(tmp_path / "b.py", "b"), tmp_path, *DEEPER)
    assert json.loads((tmp_path / "config.json").read_text())["recipes"] == ["tiny", "b"]


def test_disclaim_keeps_recipes_of_other_commands(file: str, tmp_path: Path):
    w = tmp_path / "w"
    _, disclaim = claim_folders(read_sweep(file, str(w), ()))
    begin(named(tmp_path / "b.py", "b"), w, *DEEPER)
    disclaim()
    assert not (w / "recipes" / "tiny").exists()
    assert json.loads((w / "config.json").read_text())["recipes"] == ["b"]
    assert [task.name for task in read_sweep(None, str(w), ()).recipes] == ["b"]


def test_concurrent_commands_share_a_folder(tmp_path: Path):
    w = tmp_path / "w"
    both = [read_sweep(named(tmp_path / f"{name}.py", name), str(w), ()) for name in ("a", "b")]
    assert [claim_folders(sweep)[0].recipes[0].name for sweep in both] == ["a", "a"]
    assert stored(w, "a")["names"] == ["a", "b"]


def test_later_versions_are_listed_once(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin(file, tmp_path)
    first = stored(tmp_path, "tiny")
    for commit in ("abc", first["commit"], "def", "abc"):
        monkeypatch.setattr(workdir, "_commit", lambda commit=commit: commit)
        begin(file, tmp_path)
    facts = stored(tmp_path, "tiny")
    assert [entry["commit"] for entry in facts["later"]] == ["abc", "def"]
    assert {**facts, "later": []} == first


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/nowhere"])
def test_unwritable_workdir_is_refused(file: str, tmp_path: Path, name: str):
    (tmp_path / "file").write_text("precious")
    [line] = failure(lambda: begin(file, tmp_path / name))
    assert line.startswith(f"--workdir={tmp_path / name}: ")
    assert line.endswith("a writable folder")
    assert (tmp_path / "file").read_text() == "precious"


def test_full_disk_is_reported_on_one_line(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sweeps, "write_config", full)
    [line] = failure(lambda: begin(file, tmp_path))
    assert "; choose a writable" in line


def test_disclaim_removes_everything_it_created(file: str, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("kept")
    for folder in (tmp_path / "deep" / "a" / "new", tmp_path / "mine"):
        _, disclaim = claim_folders(read_sweep(file, str(folder), ()))
        disclaim()
        disclaim()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "tiny.py"]
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["precious"]


def test_disclaim_keeps_files_of_an_earlier_command(file: str, tmp_path: Path):
    begin(file, tmp_path / "w")
    claim_folders(read_sweep(file, str(tmp_path / "w"), DEEPER))[1]()
    assert stored(tmp_path / "w", "tiny")["config"]["model"]["layers"] == 3


def test_disclaim_keeps_the_config_of_a_population(file: str, tmp_path: Path):
    sweep, disclaim = claim_folders(read_sweep(file, str(tmp_path / "w"), ()))
    sweep.recipes[0].population_dir.mkdir(parents=True)
    disclaim()
    assert stored(tmp_path / "w", "tiny")["names"] == ["tiny"]


def test_population_of_a_recipe_with_models_must_not_change(file: str, tmp_path: Path):
    [task] = begin(file, tmp_path).recipes
    record_population(task, "a" * 64)
    assert stored(tmp_path, "tiny")["population_sha256"] == "a" * 64
    record_population(task, "b" * 64)  # no model exists yet
    (task.folder / "checkpoints").mkdir()
    [line] = failure(lambda: record_population(task, "c" * 64))
    assert "its samples (sha256 cccccccccccc) " in line
    begin(file, tmp_path)
    assert stored(tmp_path, "tiny")["population_sha256"] == "b" * 64


def test_plan_without_a_workdir_reads_no_folder(file: str):
    [task] = read_sweep(file, None, ()).recipes
    assert isinstance(task, SweepRecipe)
    assert dataclasses.replace(task.config, name="x") != TINY
