import dataclasses
import re
from pathlib import Path

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import heartbeats, jobs
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.run.sweep import Sweep, read_sweep

__all__ = ["tiny"]  # a fixture


@pytest.fixture
def sweep(tiny: tiny_run.Tiny, tmp_path: Path) -> Sweep:
    return read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())


def test_all_models_are_missing_without_a_population(sweep: Sweep):
    assert jobs.missing_indices(sweep.recipes[0]) == [*range(6)]
    assert jobs.blocks(jobs.missing_indices(sweep.recipes[0]), 4) == [0, 1]


def test_all_models_are_missing_if_only_the_config_exists(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", models=False)
    [task] = read_sweep(None, str(workdir), ()).recipes
    assert task.stored_config() is not None
    assert jobs.missing_indices(task) == [*range(6)]


def test_present_and_set_aside_models_are_not_missing(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    [task] = read_sweep(tiny.config, str(workdir), ()).recipes
    model = subsets.requested_seeds(4, 2)[2]
    assert jobs.missing_indices(task) == []
    for shard in task.folder.glob("scores.zarr/loss/c/[25]/*"):
        shard.unlink()
    assert jobs.missing_indices(task) == [2, 5]
    assert jobs.blocks(jobs.missing_indices(task), 3) == [0, 1]
    worker = heartbeats.WorkerInfo("j", "h", 1, "log", "0.1")
    for _ in range(3):
        heartbeats.record_failure(task.folder, str(model), "reason", worker)
    assert jobs.missing_indices(task) == [5]
    assert jobs.blocks(jobs.missing_indices(task), 3) == [1]


def test_recipe_is_found_by_each_of_its_names(sweep: Sweep):
    first, second = sweep.recipes
    assert first.names == ("tiny", "references=4")
    assert [jobs.find_recipe(sweep, name) for name in first.names] == [first, first]
    assert jobs.find_recipe(sweep, "epochs=2") == second


def test_folder_name_takes_precedence_over_alias(sweep: Sweep):
    """An earlier sweep may have given the name to another recipe of the workdir."""
    first, second = sweep.recipes
    first = dataclasses.replace(first, names=(*first.names, "epochs=2"))
    assert (
        jobs.find_recipe(dataclasses.replace(sweep, recipes=(first, second)), "epochs=2") == second
    )


def test_unknown_recipe_is_refused(sweep: Sweep):
    with pytest.raises(UserError) as caught:
        jobs.find_recipe(sweep, "epochs=3")
    assert re.match(r"--recipe=epochs=3: .*\btiny, epochs=2\b", str(caught.value))


def test_job_of_a_changed_config_is_refused(sweep: Sweep):
    was = recipe_hash(sweep.recipes[1].config)
    assert jobs.find_recipe(sweep, "epochs=2", was) == sweep.recipes[1]
    changed = read_sweep(sweep.config_arg, str(sweep.workdir.path), ["--config.train.batch_size=8"])
    now = recipe_hash(changed.recipes[1].config)
    with pytest.raises(UserError) as caught:
        jobs.find_recipe(changed, "epochs=2", was)
    assert re.match(
        rf"--recipe-hash={was}: .*\bepochs=2\b.*\b{now}\b.*; restore", str(caught.value)
    )


@pytest.mark.parametrize("models", ["", "3", "3:3", "4:2", "0:7", "-1:2", "a:b", "0:6 ", "0:1,2:3"])
def test_invalid_model_ranges_are_refused(sweep: Sweep, models: str):
    with pytest.raises(UserError) as caught:
        jobs.selected_models(models, sweep.recipes[0])
    assert re.match(rf"--models={re.escape(models)}: .*BEGIN:END.*--models=0:6$", str(caught.value))


def test_block_ranges_cover_all_models(sweep: Sweep):
    task = sweep.recipes[0]
    slices = [jobs.block_range(block, 4, 6) for block in (0, 1)]
    assert slices == ["0:4", "4:6"]
    assert [
        model for models in slices for model in jobs.selected_models(models, task)
    ] == task.models


def test_command_keeps_unusual_arguments(tiny: tiny_run.Tiny, tmp_path: Path):
    unusual_flag = "--config.corpus.path=a 'b' $(c)\n;"
    folder = f"{tmp_path}/s $(x)"
    sweep = read_sweep(tiny.config, folder, [unusual_flag])
    [task] = sweep.recipes
    start = [
        "py",
        "-m",
        "lm_mia",
        "launch",
        "make-models",
        f"--config={tiny.config}",
        f"--workdir={folder}",
    ]
    assert jobs.job_command(sweep, ["py"], task, "--models=0:1") == [
        *start,
        "--recipe=tiny",
        f"--recipe-hash={recipe_hash(task.config)}",
        "--models=0:1",
        unusual_flag,
    ]


def test_commands_of_a_workdir_need_no_config(tiny: tiny_run.Tiny):
    sweep = jobs.with_absolute_paths(
        read_sweep(None, str(tiny.workdir), ["--config.train.workers=2"])
    )
    assert sweep.config_arg is None
    assert jobs.command(sweep, ["py"], "local") == [
        *("py", "-m", "lm_mia", "launch", "local"),
        f"--workdir={tiny.workdir}",
        "--config.train.workers=2",
    ]


def test_paths_become_absolute(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config_arg = Path(tiny_sweep.config_file(tiny, tmp_path)).name
    sweep = read_sweep(config_arg, "s", ())
    absolute = jobs.with_absolute_paths(sweep)
    assert absolute.config_arg == str(tmp_path / config_arg)
    assert absolute.workdir.path == tmp_path / "s"
    assert [t.folder for t in absolute.recipes] == [
        tmp_path / "s" / "recipes" / name for name in ("tiny", "epochs=2")
    ]
    assert len({t.population_dir for t in absolute.recipes}) == 1
    with_arg = jobs.with_absolute_paths(Sweep("a/b.py:c:d", sweep.workdir, (), (), ()))
    assert with_arg.config_arg == f"{tmp_path}/a/b.py:c:d"


@pytest.mark.parametrize("name", ["quickstart", "strongmia:fig05,cpu"])
def test_name_of_an_included_config_is_kept(sweep: Sweep, name: str):
    assert jobs.with_absolute_paths(Sweep(name, sweep.workdir, (), (), ())).config_arg == name


def test_paths_of_own_texts_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    sweep = read_sweep("own:texts,column=cpu,fig05,cpu", "w", ())
    config_arg = jobs.with_absolute_paths(sweep).config_arg
    assert config_arg == f"own:{tmp_path}/texts,column=cpu,fig05,cpu"
    monkeypatch.chdir("/")
    assert config_arg is not None
    again = read_sweep(config_arg, str(tmp_path / "w"), ())
    assert [r.config for r in again.recipes] == [r.config for r in sweep.recipes]
