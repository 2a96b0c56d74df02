import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import local, records, sweep
from lm_mia.errors import UserError

__all__ = ["tiny"]  # a fixture


def start(tiny: tiny_run.Tiny, of: sweep.Sweep, verb: str, *more: str) -> subprocess.Popen[str]:
    """A verb of launch, on CPU."""
    environment, out = {**os.environ, **tiny.environment}, subprocess.PIPE
    command = of.command([sys.executable], verb, *more)
    return subprocess.Popen(command, stdout=out, stderr=out, text=True, env=environment)


def running(of: sweep.Sweep) -> list[dict[str, object]]:
    """The records of all jobs of a sweep that are at work on a row."""
    found = [r for p in of.folder.glob("*/recipe_*") for _, r, _ in records.running(p)]
    return [record for record in found if record["rows"]]


def wait_for(of: sweep.Sweep, process: subprocess.Popen[str]) -> dict[str, object]:
    """The record of a job that is at work on a row."""
    while process.poll() is None:
        with contextlib.suppress(IndexError, OSError):
            return running(of)[0]
        time.sleep(0.01)
    raise AssertionError(process.communicate())


def test_a_sweep_one_job_of_which_is_killed(tiny: tiny_run.Tiny, tmp_path: Path):
    """Every row is made, the first recipe's as by `lm-mia run`, and what to do next is said."""
    config = tiny_sweep.config_file(tiny, tmp_path)
    of = sweep.read(config, str(tmp_path / "s"), ["--config.train.workers=2"])
    process = start(tiny, of, "local")
    os.kill(int(str(wait_for(of, process)["pid"])), signal.SIGKILL)
    out, said = process.communicate()
    assert process.returncode == 0, said
    assert [task.missing() for task in of.tasks] == [[], []]
    assert tiny_run.scores(of.tasks[0].folder) == tiny_run.scores(tiny.workdir)
    # None where the killed job's worker had time to end its row.
    failures = [
        json.loads(line)
        for path in of.folder.glob("*/recipe_*/failures/*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert len(failures) <= 1
    assert all(failure["log"].startswith(str(of.folder / "logs")) for failure in failures)
    for task in of.tasks:  # every row by one process
        scored = tiny_run.events(task.folder, "row_scored")
        assert len(scored) in (5, 6)  # 5: killed between the row's last shard and the line
        assert len(set(scored)) == len(scored)
    assert f"lm-mia run --config={config} --workdir={of.folder} --config.train.workers=2" in out
    assert not running(of)


def test_stopped_and_gone_on_with(tiny: tiny_run.Tiny, tmp_path: Path):
    of = sweep.read(tiny.config, str(tmp_path / "s"), ["--config.train.workers=1"])
    process = start(tiny, of, "local")
    while not list((tmp_path / "s").glob("recipe_*/running/*")) and process.poll() is None:
        time.sleep(0.01)
    job = records.running(next((tmp_path / "s").glob("recipe_*")))
    pids = [record["pid"] for _, record, _ in job]
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 143
    assert said.strip().endswith("stopped; the same command goes on from here")
    assert all(tiny_run.gone(pid) for pid in pids)
    again = start(tiny, of, "local")
    again.communicate()
    assert again.returncode == 0
    assert tiny_run.scores(tmp_path / "s") == tiny_run.scores(tiny.workdir)


def test_a_launcher_that_is_killed_takes_its_jobs_along(tiny: tiny_run.Tiny, tmp_path: Path):
    of = sweep.read(tiny.config, str(tmp_path / "s"), ["--config.train.epochs=500"])
    process = start(tiny, of, "local", "--config.train.workers=1")
    folder = tmp_path / "s"
    while not list(folder.glob("recipe_*/running/*")) and process.poll() is None:
        time.sleep(0.01)
    [(_, record, _)] = records.running(next(folder.glob("recipe_*")))
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while not tiny_run.gone(record["pid"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert tiny_run.gone(record["pid"])


def test_what_a_job_finds_wrong_is_the_last_word(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", rows=False)
    of = sweep.read(tiny.config, str(workdir), ["--config.train.workers=1"])
    environment = {**os.environ, **tiny.environment, "JAX_PLATFORMS": "abacus"}
    command = of.command([sys.executable], "local")
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    *_, said, place = done.stderr.strip().splitlines()
    assert said.startswith("JAX_PLATFORMS='abacus': no such device here")
    [log] = (workdir / "logs").iterdir()
    assert place == f"({log} has more)"


def test_jobs_that_die_at_once_are_not_started_for_ever(
    tiny: tiny_run.Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    workdir = tiny.copy(tmp_path / "w", rows=False)
    of = sweep.read(tiny.config, str(workdir), ["--config.train.workers=1"])
    code = "print('it said so'); import os; os.kill(os.getpid(), 9)"
    monkeypatch.setattr(sweep.Sweep, "command", lambda *_: [sys.executable, "-c", code])
    with pytest.raises(UserError) as caught:
        local.run(of)
    [log] = (workdir / "logs").iterdir()
    assert str(caught.value).startswith(
        f"{log}: its job ended with code -9, the third in a row; it said last: "
    )
    assert len(log.read_text().splitlines()) in (0, 3)
