import collections
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import fake_jobs
import pytest
import tensorstore as ts
import tiny_run
from fake_jobs import jobs
from s3_server import HEEDLESS, Server, s3
from tiny_run import tiny

from launch import cli, leases, worker
from launch import jobs as launch_jobs
from lm_mia.errors import UserError

__all__ = ["jobs", "tiny"]  # fixtures

ODD = ["a/b", "", ".", "..", "../../etc", "ü %?#&+~:*\n'\"", "a%2Fb", "A.lease", "-x__lock.__lock"]


class Clock:
    """A clock that stands still."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases, "monotonic", clock)
    return clock


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.process)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "folder":
        return str(tmp_path / "leases")
    spec = json.loads(request.getfixturevalue("server").spec)
    return json.dumps({**spec, "path": tmp_path.name})


class Two(NamedTuple):
    ours: leases.Leases
    theirs: leases.Leases


class CutOff(NamedTuple):
    held: leases.Leases
    lease: leases.Lease


@pytest.fixture
def two(place: str, clock: Clock) -> Two:
    return Two(leases.open_leases(place, 60, "ours"), leases.open_leases(place, 60, "theirs"))


def _claimed(held: leases.Leases, key: str = "k") -> leases.Lease:
    lease = held.claim(key)
    assert lease
    return lease


def _stolen(two: Two, clock: Clock) -> tuple[leases.Lease, leases.Lease]:
    old = _claimed(two.ours)
    assert not two.theirs.claim("k")
    clock.seconds += 60
    return old, _claimed(two.theirs)


def test_a_lease_is_had_by_one(two: Two) -> None:
    _claimed(two.ours)
    assert two.theirs.claim("k") is None
    assert two.ours.claim("k") is None


def test_a_lease_that_was_released_is_anybodys(two: Two) -> None:
    two.ours.release(_claimed(two.ours))
    assert two.theirs.claim("k")


def test_a_lease_is_taken_over_when_unchanged_for_long_enough(two: Two, clock: Clock) -> None:
    _claimed(two.ours)
    assert two.theirs.claim("k") is None
    clock.seconds += 59.9
    assert two.theirs.claim("k") is None
    clock.seconds += 0.1
    assert two.theirs.claim("k")


def test_a_lease_first_seen_late_is_given_its_time(two: Two, clock: Clock) -> None:
    _claimed(two.ours)
    clock.seconds += 1000
    assert two.theirs.claim("k") is None


def test_a_lease_that_is_renewed_is_never_taken_over(two: Two, clock: Clock) -> None:
    lease = _claimed(two.ours)
    for _ in range(9):
        assert two.theirs.claim("k") is None
        clock.seconds += 59
        assert two.ours.renew(lease)
        clock.seconds += 59
    assert two.theirs.claim("k") is None


def test_an_old_holder_learns_at_renewal(two: Two, clock: Clock) -> None:
    old, _ = _stolen(two, clock)
    assert not two.ours.renew(old)


def test_an_old_holders_release_leaves_the_new_lease(two: Two, clock: Clock) -> None:
    old, new = _stolen(two, clock)
    two.ours.release(old)
    assert two.theirs.renew(new)


def test_a_lease_that_is_gone_is_not_renewed(two: Two) -> None:
    lease = _claimed(two.ours)
    two.ours.release(lease)
    assert not two.ours.renew(lease)


@pytest.fixture
def overtaken(two: Two, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> leases.Lease:
    """A lease of ours that they take over between our next look and what we do then."""
    old = _claimed(two.ours)
    assert two.theirs.claim("k") is None
    clock.seconds += 60
    read = two.ours._read

    def then_they_take_it(key: str, seconds: float) -> object:
        found = read(key, seconds)
        monkeypatch.setattr(two.ours, "_read", read)
        _claimed(two.theirs)
        return found

    monkeypatch.setattr(two.ours, "_read", then_they_take_it)
    return old


def test_a_lease_taken_over_just_before_it_is_renewed_is_lost(
    two: Two, overtaken: leases.Lease
) -> None:
    assert not two.ours.renew(overtaken)
    assert two.ours.holders()["k"]["owner"] == "theirs"


def test_a_lease_taken_over_just_before_it_is_released_stays_theirs(
    two: Two, overtaken: leases.Lease
) -> None:
    two.ours.release(overtaken)
    assert two.ours.holders()["k"]["owner"] == "theirs"


class Twice:
    """A store whose answer to a write is lost, so that it is tried again, and refused by itself."""

    def __init__(self, store: ts.KvStore) -> None:
        self.read, self._store = store.read, store

    def write(self, name: str, value: bytes, if_equal: bytes) -> object:
        self._store.write(name, value, if_equal=if_equal).result()
        return self._store.write(name, value, if_equal=if_equal)


def test_a_write_that_was_refused_by_itself_counts(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(two.ours, "_store", Twice(two.ours._store))
    assert two.ours.renew(_claimed(two.ours))


def test_holders_say_who_since_when_and_how_often_renewed(two: Two) -> None:
    lease = _claimed(two.ours, "a/b")
    two.ours.renew(lease)
    holder = two.theirs.holders()["a/b"]
    assert (holder["owner"], holder["beat"]) == ("ours", 1)
    assert holder["since"].endswith("+00:00")


def test_odd_keys_come_back_as_they_were(two: Two) -> None:
    for key in ODD:
        _claimed(two.ours, key)
    assert sorted(two.theirs.holders()) == sorted(ODD)


def test_odd_keys_stay_in_the_folder(tmp_path: Path) -> None:
    held = leases.open_leases(str(tmp_path / "leases"), 60, "ours")
    for key in ODD:
        _claimed(held, key)
    assert len(list((tmp_path / "leases").iterdir())) == len(ODD)
    assert [p.name for p in tmp_path.iterdir()] == ["leases"]


def test_opening_leaves_nothing(place: str) -> None:
    assert leases.open_leases(place, 60, "ours")._store.list().result() == []


@pytest.mark.parametrize("left", [b"", b"{", b"[1]"])
def test_a_damaged_lease_is_taken_over(tmp_path: Path, clock: Clock, left: bytes) -> None:
    held = leases.open_leases(str(tmp_path), 60, "ours")
    (tmp_path / "k.lease").write_bytes(left)
    assert held.holders() == {"k": {"owner": None, "since": None, "beat": None}}
    assert held.claim("k") is None
    clock.seconds += 60
    _claimed(held)


@pytest.fixture
def cut_off(tmp_path: Path, clock: Clock) -> CutOff:
    """A lease that cannot be read any more."""
    held = leases.open_leases(str(tmp_path), 60, "ours")
    lease = _claimed(held)
    (tmp_path / "k.lease").unlink()
    (tmp_path / "k.lease").symlink_to("k.lease")
    return CutOff(held, lease)


def test_a_place_out_of_reach_leaves_the_lease_ours_while_nobody_can_take_it(
    cut_off: CutOff, clock: Clock
) -> None:
    clock.seconds += 59
    assert cut_off.held.renew(cut_off.lease)
    clock.seconds += 1
    assert not cut_off.held.renew(cut_off.lease)


def test_a_place_out_of_reach_is_one_line_at_a_claim(cut_off: CutOff) -> None:
    with pytest.raises(UserError, match=r"^--leases=.*symbolic links; name a [^\n]*$"):
        cut_off.held.claim("k")


def test_a_release_out_of_reach_leaves_the_lease_to_run_out(
    cut_off: CutOff, tmp_path: Path
) -> None:
    cut_off.held.release(cut_off.lease)
    assert (tmp_path / "k.lease").is_symlink()


@pytest.mark.process
def test_no_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(leases, "_TRIAL_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        spec = json.loads(server.spec) | {"endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        with pytest.raises(UserError, match=r"^--leases=\{.*: no answer in 0\.2 s; name [^\n]*$"):
            leases.open_leases(json.dumps(spec), 60, "ours")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("{bad", "not JSON (Expecting property name enclosed in double quotes at column 2)"),
        ('{"driver": "nosuch"}', "is not a registered KvStore driver"),
        ('{"path": "x"}', 'Error parsing object member "driver"'),
        ('{"driver": "file",\n "path": 3}', 'Error parsing object member "path"'),
        ('{"driver": "memory"}', "has no leases: the driver is memory"),
        ("foo://bucket/x", 'unsupported URL scheme "foo"'),
        ("http://127.0.0.1/x", "has no leases: the driver is http"),
        ("s3://B!/x", 'Invalid S3 bucket name: "B!"'),
    ],
)
def test_what_is_no_place_is_one_line(where: str, said: str) -> None:
    with pytest.raises(UserError) as told:
        leases.open_leases(where, 60, "ours")
    assert said in str(told.value)
    assert str(told.value).startswith("--leases=")
    assert "\n" not in str(told.value)


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^--leases=.*file/x: .*Not a directory; name [^\n]*$"):
        leases.open_leases(str(tmp_path / "file" / "x"), 60, "ours")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"^--leases=.*Permission denied; name [^\n]*$"):
        leases.open_leases(str(tmp_path), 60, "ours")


@pytest.mark.process
def test_no_such_bucket_is_one_line(server: Server) -> None:
    spec = json.dumps(json.loads(server.spec) | {"bucket": "another"})
    with pytest.raises(UserError, match=r"^--leases=.*bucket does not exist; name [^\n]*$"):
        leases.open_leases(spec, 60, "ours")


@pytest.mark.process
def test_a_bucket_that_ignores_conditions_is_refused(server: Server) -> None:
    spec = json.dumps(json.loads(server.spec) | {"bucket": HEEDLESS})
    with pytest.raises(UserError, match="takes no heed"):
        leases.open_leases(spec, 60, "ours")


KEYS = [f"recipe/8/{block}" for block in range(50)]
LEFT = [f"left/{block}" for block in range(15)]
Raced = list[list[list[str]]]
"""Of every process: the keys that it won of KEYS, those of LEFT that it took over at once, and those later."""

RACER = """\
import json, sys, time
from launch import leases
def together():
    print("ready", flush=True)
    sys.stdin.readline()
places, keys, left = json.loads(sys.argv[1])
found = []
for place in places:
    held = leases.open_leases(place, 0.2, "racer")
    together()
    won = [key for key in keys if held.claim(key)]
    early = [key for key in left if held.claim(key)]
    together()  # all have seen what is left, before any takes it over
    time.sleep(0.2)
    found.append([won, early, [key for key in left if held.claim(key)]])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def raced_at(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Raced]:
    """What six processes got that all asked for the same leases: free ones, and ones whose holder is dead."""
    spec = json.dumps({**json.loads(server.spec), "path": "raced"})
    places = [str(tmp_path_factory.mktemp("raced")), spec]
    for place in places:
        dead = leases.open_leases(place, 60, "dead")
        assert all(dead.claim(key) for key in LEFT)
    command = [sys.executable, "-c", RACER, json.dumps([places, KEYS, LEFT])]
    racers = [
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    for _ in range(2 * len(places)):
        for racer in racers:
            assert racer.stdout
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("go\n")
            racer.stdin.flush()
    told = [json.loads(racer.communicate()[0]) for racer in racers]
    return {name: [of[k] for of in told] for k, name in enumerate(("folder", "s3"))}


def times(raced: Raced, what: int) -> dict[str, int]:
    return dict(collections.Counter(key for won in raced for key in won[what]))


@pytest.mark.process
@pytest.mark.parametrize("where", ["folder", "s3"])
def test_of_six_processes_one_gets_each_key_and_none_or_one_takes_over(
    raced_at: dict[str, Raced], where: str
) -> None:
    """None takes a lease over at once, and one takes over each lease that was left, once its time has passed."""
    raced = raced_at[where]
    assert times(raced, 0) == dict.fromkeys(KEYS, 1)
    assert times(raced, 1) == {}
    assert times(raced, 2) == dict.fromkeys(LEFT, 1)


def test_a_folder_is_found_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    held = leases.open_leases(f"{tmp_path}/a/../b", 60, "ours")
    assert held.claim("k")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["k.lease"]


class Waiting(BaseException):
    """Ends a worker that waits for another, which cannot go on before it has ended."""


@pytest.mark.process
def test_two_workers_whose_leases_are_in_a_bucket(
    server: Server,
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    jobs: fake_jobs.FakeJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the first is at its first job, the second does all others; each job is done by one of them."""
    of = launch_jobs.read(tiny.config, str(tiny.copy(tmp_path / "w", rows=False)), ())
    clock = fake_jobs.Clock()
    monkeypatch.setattr(worker, "time", clock)
    place = json.dumps({**json.loads(server.spec), "path": "workers"})
    flags = [f"--config={of.config}", f"--workdir={of.folder}", "--rows-per-job=2"]
    by_second: list[str] = []

    def wait() -> None:
        raise Waiting

    def second_worker(first_job: dict[str, str]) -> None:
        jobs.before = lambda job: by_second.append(job["rows"])
        clock.on_sleep = wait
        with pytest.raises(Waiting):
            cli.main(["worker", *flags, f"--leases={place}"])
        assert first_job["rows"] not in by_second

    jobs.before = second_worker
    assert cli.main(["worker", *flags, f"--leases={place}"]) == 0
    assert len(by_second) == 2
    assert sorted(job["rows"] for job in jobs.started) == ["0:2", "2:4", "4:6"]
    assert tiny_run.scores(of.folder) == tiny_run.scores(tiny.workdir)
    assert not (of.folder / "leases").exists()
    assert leases.open_leases(place, 60, "ours").holders() == {}
