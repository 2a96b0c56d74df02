import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_run
import tiny_sweep
from tiny_run import _on_cpu, tiny

from launch import cli, heartbeats, jobs, model_block
from lm_mia.data import subsets
from lm_mia.errors import DiskError, RendezvousError, UserError, WorkersKilledError
from lm_mia.run import supervisor
from lm_mia.run.sweep import Sweep, SweepRecipe, read_sweep
from lm_mia.run.worker_task import WorkerTask

__all__ = ["_on_cpu", "tiny"]  # fixtures

MODELS = [str(model) for model in subsets.requested_seeds(4, 2)]
Run = Callable[..., bool]


@pytest.mark.process
@pytest.mark.usefixtures("_on_cpu")
def test_job_makes_a_block_of_models(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A second job changes nothing. The scores equal those of `lm-mia run`."""
    config, folder = tiny_sweep.config_file(tiny, tmp_path), tmp_path / "s"
    sweep = read_sweep(config, str(folder), ["--config.train.workers=1"])
    task = sweep.recipes[0]
    log = tmp_path / "log"
    assert start(sweep, task, "--models=1:3", "--job=j$(x)", f"--log={log}") == 0
    assert jobs.missing_indices(task) == [0, 3, 4, 5]
    [scored, again] = tiny_run.logged(folder, "model_scored")
    assert sorted([scored["model"], again["model"]]) == MODELS[1:3]
    assert scored["job"] == "j$(x)"
    all_scores = tiny_run.scores(tiny.workdir)
    scores = tiny_run.scores(folder)
    assert scores == {name: all_scores[name] for name in scores}
    assert len(scores) == 4  # loss and member of two models
    assert not list(task.folder.glob("running/*"))
    before = tiny_run.content(task.folder)
    monkeypatch.setattr(supervisor, "run", lambda *_: pytest.fail("nothing is to be made"))
    assert start(sweep, task, "--models=1:3", "--job=j$(x)", f"--log={log}") == 0
    assert tiny_run.content(task.folder) == before
    requested: list[str] = []

    def run(task: WorkerTask, on_event: Any) -> bool:
        requested.extend(f"{task.recipe_dir.name} {model}" for model in task.selected_models or ())
        return True

    monkeypatch.setattr(supervisor, "run", run)
    assert start(sweep, sweep.recipes[1], "--models=0:1") == 0
    assert requested == [f"epochs=2 {MODELS[0]}"]
    assert len(list((folder / "populations").glob("[!.]*"))) == 1


def start(sweep: Sweep, task: SweepRecipe, *flags: str) -> int:
    """Runs `launch make-models` in this process, with workers in their own processes; returns the exit code."""
    return cli.main(jobs.job_command(sweep, ["python"], task, *flags)[4:])


@pytest.fixture
def sweep(tiny: tiny_run.Tiny, tmp_path: Path) -> Sweep:
    """Returns the tiny run without models."""
    return read_sweep(tiny.config, str(tiny.copy(tmp_path / "w", models=False)), ())


@pytest.fixture
def recipe(sweep: Sweep) -> Path:
    """Returns the folder of the recipe."""
    return sweep.recipes[0].folder


def run_block(sweep: Sweep, models: str, name: str, log: str = "") -> int:
    """Runs a job on models of the only recipe; returns its exit code."""
    return model_block.run(sweep, sweep.recipes[0], models, name, log)


def failing(*events: dict[str, Any], error: Exception | None = None) -> Run:
    """Returns a `supervisor.run` that starts the first model, then sends these events and raises the error."""

    def run(task: WorkerTask, on_event: Any) -> bool:
        assert task.selected_models
        model = str(task.selected_models[0])
        on_event({"event": "model_started", "model": model, "role": "reference", "index": 0})
        for event in events:
            on_event({"index": 0, **event})
        if error is not None:
            raise error
        return True

    return run


CRASH = {"event": "crash", "message": "Traceback ...\n  line 1\nValueError: no such thing\n"}


def test_model_is_set_aside_after_three_failures(
    sweep: Sweep,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The worker of the first model crashes; the other models only start."""
    requested: list[list[str]] = []

    def run(task: WorkerTask, on_event: Any) -> bool:
        requested.append([str(model) for model in task.selected_models or ()])
        crash = failing(CRASH, error=RuntimeError("a worker failed"))
        return (crash if requested[-1][0] == MODELS[0] else failing())(task, on_event)

    monkeypatch.setattr(supervisor, "run", run)
    assert run_block(sweep, "0:2", "job", "the/log") == 3
    assert requested == [MODELS[:2], MODELS[:2], MODELS[:2], MODELS[1:2]]
    failures = heartbeats.failures(recipe, MODELS[0])
    assert [(f["reason"], f["log"], f["job"]) for f in failures] == [
        ("ValueError: no such thing", "the/log", "job")
    ] * 3
    err = capsys.readouterr().err
    assert f"{MODELS[0]}: set aside after 3 " in err
    assert list(heartbeats.running_jobs(recipe)) == []


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"event": "user_error", "message": "loss=1: not finite"}, "loss=1: not finite"),
        (
            {"event": "worker_lost", "exit_code": -9, "left": 1},
            "code -9 ",
        ),
    ],
)
def test_events_that_count_as_failures(
    sweep: Sweep,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    event: dict[str, Any],
    reason: str,
):
    monkeypatch.setattr(supervisor, "run", failing(event, error=UserError("x")))
    assert run_block(sweep, "3:4", "job", "") == 3
    found = heartbeats.failures(recipe, MODELS[3])
    assert [reason in failure["reason"] for failure in found] == [True] * 3


def test_stopped_worker_is_not_a_failure(
    sweep: Sweep, recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    lost = {"event": "worker_lost", "exit_code": -signal.SIGTERM, "left": 0}
    monkeypatch.setattr(supervisor, "run", failing(lost, error=None))
    assert run_block(sweep, "3:4", "job", "") == 0
    assert heartbeats.failures(recipe, MODELS[3]) == []


def test_full_disk_is_not_a_failure_of_a_model(
    sweep: Sweep, recipe: Path, monkeypatch: pytest.MonkeyPatch
):
    full = {"event": "disk", "message": "w: No space left on device"}
    monkeypatch.setattr(supervisor, "run", failing(full, error=DiskError("w: No space")))
    with pytest.raises(DiskError, match="w: No space"):
        run_block(sweep, "0:1", "job", "")
    assert heartbeats.failures(recipe, MODELS[0]) == []
    assert list(heartbeats.running_jobs(recipe)) == []


@pytest.mark.parametrize(
    "error",
    [
        RendezvousError("could not connect to each other"),
        WorkersKilledError("all workers were lost"),
    ],
)
def test_transient_errors_request_a_restart(
    sweep: Sweep,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: UserError,
):
    def run(*_: Any) -> bool:
        raise error

    monkeypatch.setattr(supervisor, "run", run)
    assert run_block(sweep, "0:1", "job", "") == 200
    assert str(error) in capsys.readouterr().err
    assert heartbeats.failures(recipe, MODELS[0]) == []


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("_on_cpu")
def test_worker_that_crashes_while_saving_exits_at_once(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Saving fails since a file has the name of a checkpoint folder. Orbax must not delay the exit by minutes."""
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    [task] = sweep.recipes
    recipe = tiny.recipe(workdir)
    (recipe / "checkpoints").mkdir()
    (recipe / "checkpoints" / MODELS[1]).write_text("")
    for _ in range(2):  # so that the next failure is its last
        heartbeats.record_failure(
            recipe, MODELS[1], "an earlier one", model_block.this_worker("j", "")
        )
    stopped: list[Any] = []
    stop = supervisor._stop
    monkeypatch.setattr(
        supervisor, "_stop", lambda processes: stop(stopped.extend(processes) or processes)
    )
    assert start(sweep, task, "--models=0:2", "--job=j") == 3
    assert [process.exitcode for process in stopped] == [1]  # by itself: not killed
    first, second, third = heartbeats.failures(recipe, MODELS[1])
    assert first["reason"] == second["reason"] == "an earlier one" != third["reason"]
    assert jobs.missing_indices(task) == [2, 3, 4, 5]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "error",
    [
        UserError("JAX_PLATFORMS='x': no such device here; unset it"),
        RuntimeError("a worker failed:\nNotADirectoryError: locks"),
    ],
)
def test_errors_before_the_first_model_are_raised(
    sweep: Sweep, recipe: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def run(*_: Any) -> bool:
        raise error

    monkeypatch.setattr(supervisor, "run", run)
    with pytest.raises(type(error)) as caught:
        run_block(sweep, "0:1", "job", "")
    assert caught.value is error
    assert heartbeats.failures(recipe, MODELS[0]) == []
    assert list(heartbeats.running_jobs(recipe)) == []


def test_failed_sharded_model_is_retried_by_the_scheduler(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.compute.devices_per_model=all"])
    recipe = sweep.recipes[0].folder
    monkeypatch.setattr(supervisor, "run", failing(CRASH, error=RuntimeError("x")))
    with pytest.raises(SystemExit) as ended:
        run_block(sweep, "0:1", "job", "")
    assert ended.value.code == 143
    assert len(heartbeats.failures(recipe, MODELS[0])) == 1


def test_secondary_process_records_failure_of_the_primary_model(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.compute.devices_per_model=all"])
    recipe = sweep.recipes[0].folder
    first = heartbeats.RunningRecord(recipe, model_block.this_worker("17_3", ""))
    monkeypatch.setenv("SLURM_PROCID", "1")

    def run(task: WorkerTask, on_event: Any) -> bool:
        on_event({"event": "worker_lost", "exit_code": -9, "left": 0, "index": 0})
        raise AssertionError("the watch stops it")

    monkeypatch.setattr(supervisor, "run", run)
    with first.alive():
        first.begin(MODELS[4])
        with pytest.raises(SystemExit):
            run_block(sweep, "0:6", "17_3", "")
    [failure] = heartbeats.failures(recipe, MODELS[4])
    assert failure["job"] == "17_3.1"


def test_host_has_the_name_of_the_scheduler(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLURMD_NODENAME", "gpu007")
    assert model_block.this_worker("a", "b").host == "gpu007"
    assert model_block.this_worker("", "").job == f"gpu007-{os.getpid()}"


def test_killed_earlier_run_counts_as_a_failure(
    sweep: Sweep,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    state = heartbeats.RunningRecord(recipe, model_block.this_worker("17_3", "old.log"))
    state.begin(MODELS[1])
    monkeypatch.setattr(supervisor, "run", failing())
    assert run_block(sweep, "0:2", "17_3", "new.log") == 0
    [failure] = heartbeats.failures(recipe, MODELS[1])
    assert failure["log"] == "old.log"
    assert "its job vanished" in capsys.readouterr().err


def test_invalid_recipe_models_and_workers_are_refused(
    tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]
):
    flags = f"--config={tiny.config}", f"--workdir={tiny.workdir}"
    assert cli.main(["make-models", *flags, "--recipe=x", "--models=0:1"]) == 2
    assert capsys.readouterr().err.startswith("--recipe=x: ")
    assert cli.main(["make-models", *flags, "--recipe=tiny", "--models=5:7"]) == 2
    assert capsys.readouterr().err.startswith("--models=5:7: ")
    assert cli.main(["make-models", *flags, "--recipe=tiny", "--models=0:1", "--workers=-1"]) == 2
    assert capsys.readouterr().err.startswith("--workers=-1: ")


def test_log_has_version_and_host(sweep: Sweep, recipe: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        supervisor,
        "run",
        failing(
            {
                "event": "model_trained",
                "model": MODELS[0],
                "steps": 1,
                "resumed_at": 0,
                "seconds": 1.0,
            }
        ),
    )
    run_block(sweep, "0:1", "job", "")
    [event] = tiny_run.logged(sweep.workdir.path, "model_trained")
    made_by = json.loads((recipe / "config.json").read_text())
    assert event["version"].split()[0] == made_by["lm_mia"]
    assert event["host"] == model_block.this_worker("", "").host
