import json
import os
import signal
import subprocess
import time
import types
from pathlib import Path

import fake_jobs
import pytest
import tiny_run
import tiny_sweep
from fake_jobs import jobs
from tiny_run import _on_cpu, tiny

from launch import cli, leases, local, worker
from launch import jobs as launch_jobs
from lm_mia.data import subsets
from lm_mia.run import plan

__all__ = ["_on_cpu", "jobs", "tiny"]  # fixtures


class Killed(BaseException):
    """In place of SIGKILL: nothing that the worker would do after it is done."""


class Stopped(BaseException):
    """Ends a worker that would go on for ever."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> fake_jobs.Clock:
    """The time of workers and of their leases."""
    clock = fake_jobs.Clock()
    monkeypatch.setattr(worker, "time", clock)
    monkeypatch.setattr(leases, "monotonic", clock.monotonic)
    return clock


def work(of: launch_jobs.Sweep, lease_seconds: float = 2.0) -> int:
    """A worker whose jobs are two rows."""
    sizes = launch_jobs.Sizes(plan.chip_of("h100", 0.5), 2, 4.0, None)
    return worker.run(of, sizes, worker.Options("", lease_seconds))


def events(out: str, kind: str) -> list[dict[str, object]]:
    """What a worker said of jobs."""
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == kind]


def test_the_job_of_a_worker_that_was_killed_is_taken_over(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """After its lease has run out, by the one that is left; scores are all there, and no row is made twice."""
    of = launch_jobs.read(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())

    def kill(flags: dict[str, str]) -> None:
        begin, end = flags["rows"].split(":")
        argv = [f"--{name}={value}" for name, value in flags.items() if name != "rows"]
        assert cli.main(["rows", *argv, f"--rows={begin}:{int(end) - 1}"]) == 0  # one of its two
        raise Killed

    jobs.before = kill
    with monkeypatch.context() as patch:
        patch.setattr(leases.Leases, "release", lambda *_: None)
        with pytest.raises(Killed):
            work(of)
    assert len(list((of.folder / "leases").glob("*.lease"))) == 1
    [killed] = jobs.started
    jobs.before = lambda flags: None
    began = clock.seconds
    assert work(of) == 0
    assert clock.seconds - began >= 2
    assert [task.missing() for task in of.tasks] == [[], []]
    assert tiny_run.scores(of.tasks[0].folder) == tiny_run.scores(tiny.workdir)
    for task in of.tasks:
        scored = tiny_run.events(task.folder, "row_scored")
        assert len(scored) == len(set(scored)) == 6
    out = capsys.readouterr().out
    ended = [(e["recipe"], e["rows"]) for e in events(out, "job_ended")]
    everything = {(task.key, rows) for task in of.tasks for rows in ("0:2", "2:4", "4:6")}
    assert len(ended) == 6
    assert set(ended) == everything
    assert ended[-1] == (killed["recipe"], killed["rows"])
    [waiting] = events(out, "waiting")
    assert waiting["jobs"] == 1
    assert len(events(out, "job_started")) == 7
    assert not list((of.folder / "leases").glob("*.lease"))


def test_a_lease_is_renewed_while_its_job_runs(
    tiny: tiny_run.Tiny, tmp_path: Path, jobs: fake_jobs.FakeJobs, clock: fake_jobs.Clock
):
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    others = leases.open_leases(str(of.folder / "leases"), 2.0, "others")
    job = fake_jobs.Job(None)
    jobs.before = lambda flags: job

    def look() -> None:
        if job.poll() is None:
            [(key, holder)] = others.holders().items()
            assert others.claim(key) is None
            if holder["beat"] == 6:  # every half second
                job.returncode = 0
                jobs.before = lambda flags: None

    clock.on_sleep = look
    assert work(of) == 0
    assert clock.seconds >= 1003


def test_a_job_whose_lease_was_taken_over_is_stopped(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
):
    """And whoever has taken it over keeps it."""
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    others = leases.open_leases(str(of.folder / "leases"), 2.0, "others")
    job = fake_jobs.Job(None)
    jobs.before = lambda flags: None if taken else job
    taken: list[leases.Lease] = []

    def take_over() -> None:
        if taken:
            raise Stopped  # it waits for the rows of the lease that is theirs
        [key] = others.holders()
        assert others.claim(key) is None
        clock.seconds += 3  # in which the worker was suspended
        taken.extend(filter(None, [others.claim(key)]))
        assert taken

    clock.on_sleep = take_over
    with pytest.raises(Stopped):
        work(of)
    assert job.returncode == 143
    first, *others_ended = events(capsys.readouterr().out, "job_ended")
    assert first["code"] == 143
    assert [e["code"] for e in others_ended] == [0, 0]
    assert others.renew(taken[0])


def test_jobs_that_crash_are_not_tried_for_ever_and_leases_are_given_back(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    crash = ["sh", "-c", "echo ValueError: no such thing; exit 1"]
    monkeypatch.setattr(launch_jobs.Sweep, "command", lambda *_: crash)
    flags = [f"--config={of.config}", f"--workdir={of.folder}", "--rows-per-job=2"]
    assert cli.main(["worker", *flags]) == 2
    out, said = capsys.readouterr()
    [line] = said.strip().splitlines()
    assert line.endswith(
        ": its job ended with code 1, the third in a row; it said last: ValueError: no such thing"
    )
    assert [e["code"] for e in events(out, "job_ended")] == [1, 1, 1]
    assert not list((of.folder / "leases").glob("*.lease"))


def test_rows_in_other_hands_are_not_asked_for_again_and_again(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    clock: fake_jobs.Clock,
    capsys: pytest.CaptureFixture[str],
):
    """But once a minute."""
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    jobs.not_made = {subsets.rows(4, 2)[5]}

    def free_at_last() -> None:
        asked = sorted(flags["rows"] for flags in jobs.started)
        if clock.seconds <= 1060:
            assert asked == ["0:2", "2:4", "4:6"]
            assert of.tasks[0].missing() == [5]
        else:
            assert asked == ["0:2", "2:4", "4:6", "4:6"]
            jobs.not_made = set()

    clock.on_sleep = free_at_last
    assert work(of, lease_seconds=50) == 0
    assert clock.seconds == 1120  # it looks every five seconds
    assert [flags["rows"] for flags in jobs.started].count("4:6") == 3
    assert len(events(capsys.readouterr().out, "waiting")) == 2


@pytest.mark.process
@pytest.mark.usefixtures("_on_cpu")
def test_a_stopped_worker_stops_its_job_and_gives_its_lease_back(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    saves = [
        "sh",
        "-c",
        "trap 'echo saved; exit 143' TERM; echo up; while kill -0 $PPID; do sleep 0.05; done",
    ]
    monkeypatch.setattr(launch_jobs.Sweep, "command", lambda *_: saves)
    started: list[subprocess.Popen[bytes]] = []
    start = local.start
    monkeypatch.setattr(local, "start", lambda *a: started.append(start(*a)) or started[-1])

    def sleep(seconds: float) -> None:
        time.sleep(0.01)
        if any("up" in log.read_text() for log in of.folder.glob("logs/*")):
            assert len(list((of.folder / "leases").glob("*.lease"))) == 1
            os.kill(os.getpid(), signal.SIGTERM)

    patched = types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic)
    monkeypatch.setattr(worker, "time", patched)
    with pytest.raises(SystemExit) as ended:
        cli.main(["worker", f"--config={of.config}", f"--workdir={of.folder}"])
    assert ended.value.code == 143
    assert capsys.readouterr().err == "stopped; the same command goes on from here\n"
    assert [job.returncode for job in started] == [143]
    [log] = (of.folder / "logs").iterdir()
    assert log.read_text() == "up\nsaved\n"
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
