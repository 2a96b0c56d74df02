import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import filelock
import pytest
import s3_server
import tiny_run
import tiny_sweep
from tiny_run import tiny

from launch import cli, sweep

__all__ = ["tiny"]  # a fixture


def start(tiny: tiny_run.Tiny, of: sweep.Sweep, **environment: str) -> subprocess.Popen[str]:
    """A worker whose jobs are two rows, and whose leases last two seconds."""
    flags = "--rows-per-job=2", "--lease-seconds=2", "--config.train.workers=1"
    command = of.command([sys.executable], "worker", *flags)
    command += [f"--leases={environment.pop('LEASES')}"] if "LEASES" in environment else []
    everything, out = {**os.environ, **tiny.environment, **environment}, subprocess.PIPE
    return subprocess.Popen(command, stdout=out, stderr=out, text=True, env=everything)


def events(out: str, kind: str) -> list[dict[str, object]]:
    """What a worker said of jobs."""
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == kind]


def test_two_workers_one_of_which_is_killed(tiny: tiny_run.Tiny, tmp_path: Path):
    """The other one takes its job over; scores are those of `lm-mia run`, and no row is made twice."""
    of = sweep.read(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())
    first = start(tiny, of)
    assert first.stdout is not None
    line = first.stdout.readline()
    second = start(tiny, of)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    out, said = second.communicate()
    assert second.returncode == 0, said
    assert [task.missing() for task in of.tasks] == [[], []]
    assert tiny_run.scores(of.tasks[0].folder) == tiny_run.scores(tiny.workdir)
    for task in of.tasks:
        scored = tiny_run.events(task.folder, "row_scored")
        assert len(set(scored)) == len(scored)
    begun = json.loads(line)
    ended = {(e["recipe"], e["rows"]) for e in events(out, "job_ended")}
    assert len(ended) >= 5  # of six jobs; the killed worker's job may have ended by itself
    assert begun["event"] == "job_started"
    assert not list((of.folder / "leases").glob("*.lease"))


def test_leases_in_a_bucket(tiny: tiny_run.Tiny, tmp_path: Path):
    of = sweep.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    with s3_server.s3() as server:
        both = [start(tiny, of, LEASES=server.spec, **server.environment) for _ in range(2)]
        told = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert tiny_run.scores(of.folder) == tiny_run.scores(tiny.workdir)
    ended = [str(e["rows"]) for out, _ in told for e in events(out, "job_ended")]
    assert sorted(ended) == ["0:2", "2:4", "4:6"]  # each by one of them
    assert not (of.folder / "leases").exists()


def test_jobs_that_crash_are_not_tried_for_ever_and_leases_are_given_back(
    tiny: tiny_run.Tiny, tmp_path: Path
):
    workdir = tiny.copy(tmp_path / "w", rows=False)
    (tiny.recipe(workdir) / "locks").write_text("")  # where a folder belongs
    of = sweep.read(tiny.config, str(workdir), ())
    process = start(tiny, of)
    out, said = process.communicate()
    assert process.returncode == 2
    assert said.strip().splitlines()[-1].count(": its job ended with code ") == 1
    assert len(events(out, "job_ended")) == 3
    assert not list((of.folder / "leases").glob("*.lease"))


def test_rows_in_other_hands_are_not_asked_for_again_and_again(tiny: tiny_run.Tiny, tmp_path: Path):
    workdir = tiny.copy(tmp_path / "w", rows=False)
    recipe, of = tiny.recipe(workdir), sweep.read(tiny.config, str(workdir), ())
    (recipe / "locks").mkdir()
    with filelock.FileLock(recipe / "locks" / "replica_2147483648_2147483648_1.lock"):
        process = start(tiny, of)
        deadline = time.monotonic() + 120
        while of.tasks[0].missing() != [5] and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(20)  # in which jobs could be started and end
        process.terminate()
        out, _ = process.communicate()
    asked = [str(e["rows"]) for e in events(out, "job_started")]
    assert sorted(asked) == ["0:2", "2:4", "4:6"]
    assert events(out, "waiting")


def test_a_stopped_worker_gives_its_lease_back(tiny: tiny_run.Tiny, tmp_path: Path):
    of = sweep.read(tiny.config, str(tmp_path / "w"), ["--config.train.epochs=500"])
    process = start(tiny, of)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(1)
    process.terminate()
    _, said = process.communicate()
    assert process.returncode == 143, said
    assert not list((of.folder / "leases").glob("*.lease"))


@pytest.mark.parametrize("seconds", ["0", "nan", "1e9"])
def test_leases_that_last_no_time_are_refused(
    tiny: tiny_run.Tiny, seconds: str, capsys: pytest.CaptureFixture[str]
):
    flags = f"--config={tiny.config}", f"--workdir={tiny.workdir}", f"--lease-seconds={seconds}"
    assert cli.main(["worker", *flags]) == 2
    assert capsys.readouterr().err.startswith("--lease-seconds=")


def test_a_place_that_is_none_is_a_line(tiny: tiny_run.Tiny, capsys: pytest.CaptureFixture[str]):
    flags = f"--config={tiny.config}", f"--workdir={tiny.workdir}", "--leases=ftp://x/y"
    assert cli.main(["worker", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("--leases=ftp://x/y: ")


def test_nothing_to_do_is_done_at_once(
    tiny: tiny_run.Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    flags = f"--config={tiny.config}", f"--workdir={tiny.workdir}", f"--leases={tmp_path}"
    assert cli.main(["worker", *flags]) == 0
    assert "6 of 6" in capsys.readouterr().out
