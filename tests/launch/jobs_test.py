import dataclasses
from pathlib import Path

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import heartbeats, jobs
from lm_mia.config.recipe import recipe_hash
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.run import sweep

__all__ = ["tiny"]  # a fixture


@pytest.fixture
def of(tiny: tiny_run.Tiny, tmp_path: Path) -> sweep.Sweep:
    return sweep.read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())


def test_all_models_are_missing_without_a_population(of: sweep.Sweep):
    assert jobs.missing_indices(of.recipes[0]) == [*range(6)]
    assert jobs.blocks(jobs.missing_indices(of.recipes[0]), 4) == [0, 1]


def test_all_models_are_missing_if_only_the_config_exists(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", models=False)
    [task] = sweep.read_sweep(None, str(workdir), ()).recipes
    assert task.stored_config() is not None
    assert jobs.missing_indices(task) == [*range(6)]


def test_present_and_set_aside_models_are_not_missing(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    [task] = sweep.read_sweep(tiny.config, str(workdir), ()).recipes
    row = subsets.requested_seeds(4, 2)[2]
    assert jobs.missing_indices(task) == []
    for shard in task.folder.glob("scores.zarr/loss/c/[25]/*"):
        shard.unlink()
    assert jobs.missing_indices(task) == [2, 5]
    assert jobs.blocks(jobs.missing_indices(task), 3) == [0, 1]
    by = heartbeats.WorkerInfo("j", "h", 1, "log", "0.1")
    for _ in range(3):
        heartbeats.record_failure(task.folder, str(row), "reason", by)
    assert jobs.missing_indices(task) == [5]
    assert jobs.blocks(jobs.missing_indices(task), 3) == [1]


def test_recipe_is_found_by_each_of_its_names(of: sweep.Sweep):
    first, second = of.recipes
    assert first.names == ("tiny", "references=4")
    assert [jobs.find_recipe(of, name) for name in first.names] == [first, first]
    assert jobs.find_recipe(of, "epochs=2") == second


def test_folder_name_takes_precedence_over_alias(of: sweep.Sweep):
    """An earlier sweep may have given the name to another recipe of the workdir."""
    first, second = of.recipes
    first = dataclasses.replace(first, names=(*first.names, "epochs=2"))
    assert jobs.find_recipe(dataclasses.replace(of, recipes=(first, second)), "epochs=2") == second


def test_unknown_recipe_is_refused(of: sweep.Sweep):
    with pytest.raises(UserError) as caught:
        jobs.find_recipe(of, "epochs=3")
    assert str(caught.value) == (
        "--recipe=epochs=3: there is no such recipe; choose one of tiny, epochs=2, or restore the config if it has "
        "changed since the job was written"
    )


def test_job_of_a_changed_config_is_refused(of: sweep.Sweep):
    was = recipe_hash(of.recipes[1].config)
    assert jobs.find_recipe(of, "epochs=2", was) == of.recipes[1]
    changed = sweep.read_sweep(of.config_arg, str(of.workdir.path), ["--config.train.batch_size=8"])
    now = recipe_hash(changed.recipes[1].config)
    with pytest.raises(UserError) as caught:
        jobs.find_recipe(changed, "epochs=2", was)
    assert str(caught.value) == (
        f"--recipe-hash={was}: the config of recipe epochs=2 has changed since this job was written (its hash is now "
        f"{now}); restore the config, or write the jobs again"
    )


@pytest.mark.parametrize("models", ["", "3", "3:3", "4:2", "0:7", "-1:2", "a:b", "0:6 ", "0:1,2:3"])
def test_invalid_model_ranges_are_refused(of: sweep.Sweep, models: str):
    with pytest.raises(UserError) as caught:
        jobs.selected_models(models, of.recipes[0])
    assert str(caught.value) == (
        f"--models={models}: must be BEGIN:END, where END is exclusive, within the 6 models; try --models=0:6"
    )


def test_block_ranges_cover_all_models(of: sweep.Sweep):
    task = of.recipes[0]
    slices = [jobs.block_range(block, 4, 6) for block in (0, 1)]
    assert slices == ["0:4", "4:6"]
    assert [row for models in slices for row in jobs.selected_models(models, task)] == task.models


def test_command_keeps_unusual_arguments(tiny: tiny_run.Tiny, tmp_path: Path):
    odd = "--config.corpus.path=a 'b' $(c)\n;"
    folder = f"{tmp_path}/s $(x)"
    of = sweep.read_sweep(tiny.config, folder, [odd])
    [task] = of.recipes
    start = ["py", "-m", "launch", "make-models", f"--config={tiny.config}", f"--workdir={folder}"]
    assert jobs.job_command(of, ["py"], task, "--models=0:1") == [
        *start,
        "--recipe=tiny",
        f"--recipe-hash={recipe_hash(task.config)}",
        "--models=0:1",
        odd,
    ]


def test_commands_of_a_workdir_need_no_config(tiny: tiny_run.Tiny):
    of = jobs.with_absolute_paths(
        sweep.read_sweep(None, str(tiny.workdir), ["--config.train.workers=2"])
    )
    assert of.config_arg is None
    assert jobs.command(of, ["py"], "local") == [
        *("py", "-m", "launch", "local"),
        f"--workdir={tiny.workdir}",
        "--config.train.workers=2",
    ]


def test_paths_become_absolute(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    config_arg = Path(tiny_sweep.config_file(tiny, tmp_path)).name
    of = sweep.read_sweep(config_arg, "s", ())
    found = jobs.with_absolute_paths(of)
    assert found.config_arg == str(tmp_path / config_arg)
    assert found.workdir.path == tmp_path / "s"
    assert [t.folder for t in found.recipes] == [
        tmp_path / "s" / "recipes" / name for name in ("tiny", "epochs=2")
    ]
    assert len({t.population_dir for t in found.recipes}) == 1
    with_arg = jobs.with_absolute_paths(sweep.Sweep("a/b.py:c:d", of.workdir, (), (), ()))
    assert with_arg.config_arg == f"{tmp_path}/a/b.py:c:d"


@pytest.mark.parametrize("name", ["quickstart", "strongmia:fig05,cpu"])
def test_name_of_an_included_config_is_kept(of: sweep.Sweep, name: str):
    assert jobs.with_absolute_paths(sweep.Sweep(name, of.workdir, (), (), ())).config_arg == name
