import os
from pathlib import Path

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import heartbeats, jobs
from lm_mia.data import subsets
from lm_mia.errors import UserError

__all__ = ["tiny"]  # a fixture


@pytest.fixture
def of(tiny: tiny_run.Tiny, tmp_path: Path) -> jobs.Sweep:
    return jobs.read(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())


def test_entries_of_one_recipe_are_one_task_and_share_a_population(of: jobs.Sweep):
    first, second = of.tasks
    assert [t.asked.entries for t in of.tasks] == [(0, 2), (1,)]
    assert [t.label for t in of.tasks] == ["the config", "epochs=2"]
    assert first.folder.name == f"the_config_{first.key}"
    assert second.folder.name == f"epochs_2_{second.key}"
    assert first.shared == second.shared
    assert first.shared is not None
    assert first.shared.parent == of.folder / "populations"


def test_without_a_sweep_the_folder_is_the_workdir(tiny: tiny_run.Tiny):
    found = jobs.read(tiny.config, str(tiny.workdir), ())
    [task] = found.tasks
    assert (task.folder, task.shared) == (tiny.workdir, None)
    assert task.missing() == []
    assert task.recipe() == next(tiny.workdir.glob("recipe_*"))


def test_other_samples_are_another_population(tiny: tiny_run.Tiny, tmp_path: Path):
    path = tmp_path / "c.py"
    more = (
        "\ndef sweep():\n    yield {'population.samples': 16}\n    yield {'corpus.processes': 1}\n"
    )
    path.write_text(Path(tiny.config).read_text() + more)
    first, second = jobs.read(
        str(path), str(tmp_path), ()
    ).tasks  # processes: one recipe with the first
    assert first.shared != second.shared


def test_a_folder_keeps_its_name_when_its_entry_says_more(of: jobs.Sweep, tmp_path: Path):
    of.tasks[1].folder.mkdir(parents=True)
    path = Path(of.config)
    path.write_text(
        path.read_text().replace('{"train.epochs": 2}', '{"train.epochs": 2, "attack.replicas": 3}')
    )
    again = jobs.read(of.config, str(of.folder), ())
    assert again.tasks[1].folder == of.tasks[1].folder


def test_all_rows_are_missing_before_there_is_a_population(of: jobs.Sweep):
    assert of.tasks[0].missing() == [*range(6)]
    assert jobs.blocks(of.tasks[0].missing(), 4) == [0, 1]


def test_rows_that_are_there_or_set_aside_are_not_missing(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w")
    [task] = jobs.read(tiny.config, str(workdir), ()).tasks
    recipe, row = task.recipe(), subsets.rows(4, 2)[2]
    assert recipe is not None
    for shard in recipe.glob("scores.zarr/loss/c/[25]/*"):
        shard.unlink()
    assert task.missing() == [2, 5]
    assert jobs.blocks(task.missing(), 3) == [0, 1]
    by = heartbeats.By("j", "h", 1, "log", "0.1")
    for _ in range(3):
        heartbeats.failed(recipe, str(row), "reason", by)
    assert task.missing() == [5]
    assert jobs.blocks(task.missing(), 3) == [1]


def test_a_workdir_of_another_config_is_refused(tiny: tiny_run.Tiny):
    [task] = jobs.read(tiny.config, str(tiny.workdir), ["--config.train.epochs=3"]).tasks
    with pytest.raises(UserError, match="belongs to another config"):
        task.missing()


def test_a_job_of_a_config_that_changed_since_is_refused(of: jobs.Sweep):
    assert jobs.task_of(of, of.tasks[1].key) == of.tasks[1]
    with pytest.raises(UserError) as caught:
        jobs.task_of(of, "00000000")
    assert str(caught.value).startswith(f"--recipe=00000000: {of.config} asks for no such recipe")
    assert f"{of.tasks[1].key} (epochs=2)" in str(caught.value)


@pytest.mark.parametrize("said", ["", "3", "3:3", "4:2", "0:7", "-1:2", "a:b", "0:6 ", "0:1,2:3"])
def test_rows_that_are_no_rows(of: jobs.Sweep, said: str):
    with pytest.raises(UserError) as caught:
        jobs.rows_of(said, of.tasks[0])
    assert str(caught.value) == (
        f"--rows={said}: must be BEGIN:END, the first and the one after the last of 6 rows; try --rows=0:6"
    )


def test_blocks_are_slices_of_all_rows(of: jobs.Sweep):
    task = of.tasks[0]
    slices = [jobs.slice_of(block, 4, 6) for block in (0, 1)]
    assert slices == ["0:4", "4:6"]
    assert [row for said in slices for row in jobs.rows_of(said, task)] == task.rows


def test_a_command_is_arguments_however_odd_they_are(tiny: tiny_run.Tiny, tmp_path: Path):
    odd = "--config.corpus.path=a 'b' $(c)\n;"
    folder = f"{tmp_path}/s $(x)"
    of = jobs.read(tiny.config, folder, [odd])
    command = of.command(["py"], "rows", "--rows=0:1")
    assert command == [
        "py",
        "-m",
        "launch",
        "rows",
        f"--config={tiny.config}",
        f"--workdir={folder}",
        "--rows=0:1",
        odd,
    ]


def test_odd_values_make_plain_folder_names(tiny: tiny_run.Tiny, tmp_path: Path):
    path = tmp_path / "c.py"
    more = "\ndef sweep():\n    yield {'corpus.path': '../../x y;$(z)/\\n' + 'long' * 30}\n"
    path.write_text(Path(tiny.config).read_text() + more)
    task = jobs.read(str(path), str(tmp_path / "s"), ()).tasks[1]
    assert task.folder.parent == tmp_path / "s"
    assert set(task.folder.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    assert len(task.folder.name) <= 60


def test_paths_become_absolute_and_the_argument_stays(tiny: tiny_run.Tiny, tmp_path: Path):
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        config_arg = Path(tiny_sweep.config_file(tiny, tmp_path)).name
        found = jobs.absolute(jobs.read(config_arg, "s", ()))
    finally:
        os.chdir(before)
    assert found.config == str(tmp_path / config_arg)
    assert found.folder == tmp_path / "s"
    assert all(t.folder.parent == tmp_path / "s" for t in found.tasks)
    assert found.tasks[0].shared == found.tasks[1].shared
    with_arg = jobs.absolute(jobs.Sweep("a/b.py:c:d", Path("s"), (), ()))
    assert with_arg.config.endswith("/a/b.py:c:d")


@pytest.mark.parametrize("name", ["quickstart", "strongmia:fig05,cpu"])
def test_the_name_of_an_included_config_stays_a_name(name: str):
    assert jobs.absolute(jobs.Sweep(name, Path("s"), (), ())).config == name


def test_a_folder_of_one_config_takes_no_sweep(tiny: tiny_run.Tiny, tmp_path: Path):
    config = tiny_sweep.config_file(tiny, tmp_path)
    with pytest.raises(UserError, match="has the rows of one config, not of a sweep"):
        jobs.read(config, str(tiny.workdir), ())


def test_a_file_is_no_folder(tiny: tiny_run.Tiny):
    with pytest.raises(UserError, match="is a file; choose a folder"):
        jobs.read(tiny.config, tiny.config, ())
