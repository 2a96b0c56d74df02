import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import fake_jobs
import pytest
import tiny_run
import tiny_sweep
from fake_jobs import jobs
from tiny_run import _on_cpu, tiny

from launch import cli, heartbeats, local, model_block
from launch import jobs as launch_jobs
from lm_mia.data import subsets
from lm_mia.errors import UserError
from lm_mia.run.sweep import Sweep, read_sweep

__all__ = ["_on_cpu", "jobs", "tiny"]  # fixtures


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> fake_jobs.Clock:
    clock = fake_jobs.Clock()
    monkeypatch.setattr(local, "time", clock)
    return clock


@pytest.mark.slow
@pytest.mark.process
def test_killed_job_is_restarted(tiny: tiny_run.Tiny, tmp_path: Path):
    """With real processes: all scores equal those of `lm-mia run`, and the next command is printed."""
    workdir = tiny.copy(tmp_path / "w x", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    command, out = launch_jobs.command(sweep, [sys.executable], "local"), subprocess.PIPE
    environment = {**os.environ, **tiny.environment}
    process = subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment)
    # The job may end before it is killed.
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(str(fake_jobs.wait_for(sweep, process)["pid"])), signal.SIGKILL)
    out, err = process.communicate()
    assert process.returncode == 0, err
    [task] = sweep.recipes
    assert launch_jobs.missing_indices(task) == []
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)
    # None if the worker of the killed job had time to finish its model.
    failures = [
        json.loads(line)
        for path in workdir.glob("recipes/tiny/failures/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(failures) <= 1
    assert all(failure["log"].startswith(str(workdir / "logs")) for failure in failures)
    scored = tiny_run.events(workdir, "model_scored")  # every model by one process
    assert len(scored) in (5, 6)  # 5 if killed between the last shard of a model and its log line
    assert len(set(scored)) == len(scored)
    assert out.splitlines()[-1].strip() == f"lm-mia run '--workdir={workdir}'"
    assert not fake_jobs.running(sweep)


@pytest.mark.parametrize("work", [local.run, local.worker])
def test_sweep_is_finished_although_a_job_dies(
    work: Callable[[Sweep], int],
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
):
    """All models of all recipes are made, with one job per requested worker at a time."""
    config = tiny_sweep.config_file(tiny, tmp_path)
    sweep = read_sweep(config, str(tmp_path / "s x"), ["--config.train.workers=2"])

    def die(flags: dict[str, str]) -> fake_jobs.Job | None:
        return fake_jobs.Job(-9) if len(jobs.started) == 2 else None

    jobs.before = die
    assert work(sweep) == 0
    assert [launch_jobs.missing_indices(task) for task in sweep.recipes] == [[], []]
    assert tiny_run.scores(sweep.workdir.path) == tiny_run.scores(tiny.workdir)
    assert [flags["recipe"] for flags in jobs.started] == ["tiny"] * 2 + ["epochs=2"] * 2
    this_job = model_block.this_worker("", "").job
    assert [flags["job"] for flags in jobs.started] == [f"{this_job}-0", f"{this_job}-1"] * 2
    assert {flags["models"] for flags in jobs.started} == {"0:6"}
    workers = {(flags["workers"], flags["config.train.workers"]) for flags in jobs.started}
    assert workers == {("1", "2")}  # (of a job, requested by the user)
    for task in sweep.recipes:
        stored = task.stored_config()
        assert stored is not None
        assert stored["config"]["train"]["workers"] == 2
    out = capsys.readouterr().out.splitlines()
    assert shlex.split(out[-1]) == ["lm-mia", "run", f"--workdir={sweep.workdir.path}"]
    messages = [line.split("  ", 1)[1] for line in out if " UTC  " in line]
    if work is local.run:
        assert messages == []
    else:
        starts = [line.partition(": ")[2] for line in messages]
        assert [start.startswith("6 models missing") for start in starts] == [
            True,
            True,
            False,
            True,
            True,
        ]
        assert "exited" in starts[2]


def test_workdir_with_configs_needs_no_config_flag(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
):
    """The jobs make the models with the settings of each recipe's last command."""
    config = tiny_sweep.config_file(tiny, tmp_path)
    flag = f"--workdir={tmp_path / 's'}"
    assert cli.main(["corpus", f"--config={config}", flag]) == 0
    assert cli.main(["local", flag, "--config.train.workers=1"]) == 0
    assert [f["recipe"] for f in jobs.started] == ["tiny", "epochs=2"]
    assert all("config" not in f and f["config.train.workers"] == "1" for f in jobs.started)
    sweep = read_sweep(None, str(tmp_path / "s"), ())
    assert [launch_jobs.missing_indices(task) for task in sweep.recipes] == [[], []]
    assert capsys.readouterr().out.splitlines()[-1].strip() == f"lm-mia run {flag}"


def test_recipe_keeps_its_folder_under_another_name(
    tiny: tiny_run.Tiny, tmp_path: Path, jobs: fake_jobs.FakeJobs, clock: fake_jobs.Clock
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    other = Path(shutil.copy(tiny.config, tmp_path / "other.py"))
    sweep = read_sweep(str(other), str(workdir), ["--config.train.workers=1"])
    assert local.run(sweep) == 0
    assert [flags["recipe"] for flags in jobs.started] == ["tiny"]
    assert tiny_run.scores(workdir) == tiny_run.scores(tiny.workdir)
    [task] = read_sweep(None, str(workdir), ()).recipes
    assert task.names == ("tiny", "other")
    flags = [f"--workdir={workdir}", "--models=0:6"]
    assert cli.main(["make-models", *flags, "--recipe=other"]) == 0


def test_config_that_changes_during_the_run_is_an_error(
    tiny: tiny_run.Tiny, tmp_path: Path, jobs: fake_jobs.FakeJobs, clock: fake_jobs.Clock
):
    """The job reports what has changed, and no other job is started."""
    config = Path(shutil.copy(tiny.config, tmp_path / "tiny.py"))
    sweep = read_sweep(str(config), str(tmp_path / "w"), ["--config.train.workers=1"])

    def change(flags: dict[str, str]) -> None:
        config.write_text(config.read_text().replace("batch_size=4", "batch_size=8"))

    jobs.before = change
    with pytest.raises(UserError):
        local.run(sweep)
    assert len(jobs.started) == 1
    assert [launch_jobs.missing_indices(task) for task in sweep.recipes] == [[*range(6)]]


def test_job_without_progress_is_retried_after_a_minute(
    tiny: tiny_run.Tiny, tmp_path: Path, jobs: fake_jobs.FakeJobs, clock: fake_jobs.Clock
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    jobs.not_made = {subsets.requested_seeds(4, 2)[5]}

    def free_at_last() -> None:
        if clock.seconds > 1059:
            jobs.not_made = set()

    clock.on_sleep = free_at_last
    assert local.run(sweep) == 0
    # The first job made five models, the second none, and the third the last one.
    assert len(jobs.started) == 3
    assert 1060 <= clock.seconds < 1064


@pytest.mark.process
@pytest.mark.usefixtures("_on_cpu")
@pytest.mark.parametrize("verb", ["local", "worker"])
def test_jobs_are_stopped_with_the_command(
    verb: str,
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    saving_command = [
        "sh",
        "-c",
        "trap 'echo saved; exit 143' TERM; echo up; while kill -0 $PPID; do sleep 0.05; done",
    ]
    monkeypatch.setattr(launch_jobs, "job_command", lambda *_: saving_command.copy())
    started: list[subprocess.Popen[bytes]] = []
    start = local.start
    monkeypatch.setattr(local, "start", lambda *a: started.append(start(*a)) or started[-1])

    def sleep(seconds: float) -> None:
        time.sleep(0.01)
        logs = [log.read_text() for log in workdir.glob("logs/*")]
        if sum("up" in log for log in logs) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    patched = types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(local, "time", patched)
    flags = [f"--config={tiny.config}", f"--workdir={workdir}", "--config.train.workers=2"]
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, *flags])
    assert ended.value.code == 143
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("stopped; ")
    assert [job.returncode for job in started] == [143, 143]
    assert [log.read_text() for log in (workdir / "logs").iterdir()] == ["up\nsaved\n"] * 2


LAUNCHER = """
import sys, time
from pathlib import Path
from launch import local
local.start([sys.executable, "-c", *sys.argv[1:]], Path(sys.argv[2]) / "log", {})
time.sleep(600)
"""
JOB = """
import os, sys, time
from pathlib import Path
from launch import heartbeats
recipe = Path(sys.argv[1])
with heartbeats.RunningRecord(recipe, heartbeats.WorkerInfo("job", "host", os.getpid(), "log", "0.1")).alive():
    time.sleep(600)
"""


@pytest.mark.process
def test_jobs_stop_if_their_launcher_is_killed(tmp_path: Path):
    """A job that has written its first heartbeat stops once its launcher is gone."""
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, JOB, str(tmp_path)])
    while not (jobs_at_work := list(heartbeats.running_jobs(tmp_path))) and launcher.poll() is None:
        time.sleep(0.01)
    [(_, record, _)] = jobs_at_work
    assert not tiny_run.has_ended(record["pid"])
    launcher.kill()
    launcher.communicate()
    while not tiny_run.has_ended(record["pid"]):
        time.sleep(0.01)


def test_user_error_of_a_job_is_reported(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    command = [
        "sh",
        "-c",
        "echo models: 6 requested; echo \"JAX_PLATFORMS='abacus': unset it\" >&2; exit 2",
    ]
    monkeypatch.setattr(launch_jobs, "job_command", lambda *_: command.copy())
    with pytest.raises(UserError) as caught:
        local.run(sweep)
    [log] = (workdir / "logs").iterdir()
    assert str(caught.value) == f"JAX_PLATFORMS='abacus': unset it\n(see {log})"


def test_jobs_that_die_at_once_are_restarted_twice(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tiny.copy(tmp_path / "w", models=False)
    sweep = read_sweep(tiny.config, str(workdir), ["--config.train.workers=1"])
    dying_command = ["sh", "-c", "echo last words; kill -9 $$"]
    monkeypatch.setattr(launch_jobs, "job_command", lambda *_: dying_command.copy())
    with pytest.raises(UserError) as caught:
        local.run(sweep)
    [log] = (workdir / "logs").iterdir()
    assert re.match(rf"{log}: .*code -9, the third\b.*: last words$", str(caught.value))
    assert log.read_text() == "last words\n" * 3


def test_different_devices_per_model_in_a_sweep_is_refused(tiny: tiny_run.Tiny, tmp_path: Path):
    path = tmp_path / "c.py"
    sweep_code = (
        "\ndef sweep():\n    yield {'compute.devices_per_model': 'all', 'train.epochs': 2}\n"
    )
    path.write_text(Path(tiny.config).read_text() + sweep_code)
    sweep = read_sweep(str(path), str(tmp_path / "s"), ())
    assert len(sweep.recipes) == 2
    with pytest.raises(UserError, match=r"^compute.devices_per_model: "):
        local.run(sweep)
