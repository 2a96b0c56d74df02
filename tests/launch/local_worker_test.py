import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import fake_jobs
import pytest
import tiny_run
from fake_jobs import jobs
from tiny_run import tiny

from launch import cli, local
from launch import jobs as launch_jobs
from lm_mia.data import subsets
from lm_mia.run import inventory
from lm_mia.run.sweep import read_sweep

__all__ = ["jobs", "tiny"]  # fixtures


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> fake_jobs.Clock:
    clock = fake_jobs.Clock()
    monkeypatch.setattr(local, "time", clock)
    return clock


@pytest.mark.slow
@pytest.mark.process
def test_models_of_a_lost_machine_are_made_by_another(tiny: tiny_run.Tiny, tmp_path: Path):
    """The scores are bitwise equal to those of `lm-mia run`, and no model is made twice."""
    sweep = read_sweep(
        tiny.config, str(tiny.copy(tmp_path / "w", models=False)), ["--config.train.workers=1"]
    )
    command, out = launch_jobs.command(sweep, [sys.executable], "worker"), subprocess.PIPE
    environment = {**os.environ, **tiny.environment}
    lost, other = (
        subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment)
        for _ in range(2)
    )
    with contextlib.suppress(AssertionError):  # it may have ended if the other one made all models
        record = fake_jobs.wait_for(sweep, lost)
        for pid in (lost.pid, record["pid"], *tiny_run.workers_of(record["pid"])):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    lost.communicate()
    output = other.communicate()
    assert other.returncode == 0, output
    assert launch_jobs.missing_indices(sweep.recipes[0]) == []
    assert tiny_run.scores(sweep.workdir.path) == tiny_run.scores(tiny.workdir)
    scored = tiny_run.events(sweep.workdir.path, "model_scored")
    assert len(scored) in (5, 6)  # 5: killed between the last shard of a model and the line
    assert len(set(scored)) == len(scored)


def test_locked_models_are_waited_for_and_then_made(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
):
    """Meanwhile no job is started, the workdir is read every few seconds, and one line reports the wait."""
    sweep = read_sweep(
        tiny.config, str(tiny.copy(tmp_path / "w", models=False)), ["--config.train.workers=1"]
    )
    [task] = sweep.recipes
    recipe, model = tiny.recipe(sweep.workdir.path), subsets.requested_seeds(4, 2)[5]
    jobs.not_made = {model}
    looks: list[float] = []

    def other_dies() -> None:
        looks.append(clock.seconds)
        if clock.seconds < 2000:
            assert len(jobs.started) == 1
        else:
            jobs.not_made = set()
            other_lock.release()

    clock.on_sleep = other_dies
    other_lock = inventory.model_lock(recipe, model)
    with other_lock:
        assert local.worker(sweep) == 0
    assert len(jobs.started) == 2
    assert launch_jobs.missing_indices(task) == []
    assert 2000 <= clock.seconds < 2010
    assert len(looks) < 250
    [line] = [x for x in capsys.readouterr().out.splitlines() if "waiting" in x]
    assert re.search(r"  waiting: .*\(1\)$", line)


def test_jobs_that_crash_are_restarted_twice(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    clock: fake_jobs.Clock,
):
    sweep = read_sweep(tiny.config, str(tiny.copy(tmp_path / "w", models=False)), ())
    dead: list[Path] = []

    def start(command: object, log: Path, environment: object) -> fake_jobs.Job:
        log.parent.mkdir(exist_ok=True)
        log.write_text("ValueError: no such thing\n")
        dead.append(log)
        return fake_jobs.Job(1)

    monkeypatch.setattr(local, "start", start)
    flags = (
        f"--config={sweep.config_arg}",
        f"--workdir={sweep.workdir.path}",
        "--config.train.workers=1",
    )
    assert cli.main(["worker", *flags]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.match(rf"{dead[0]}: .*code 1, the third\b.*: ValueError: no such thing$", line)
    assert len(dead) == 3


def test_worker_returns_at_once_if_no_model_is_missing(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["worker", f"--workdir={tiny.copy(tmp_path / 'w')}"]) == 0
    assert "6 of 6" in capsys.readouterr().out
