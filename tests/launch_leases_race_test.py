import collections
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import Server, s3

from launch import leases

KEYS = [f"recipe/8/{block}" for block in range(50)]
LEFT = [f"left/{block}" for block in range(15)]
Raced = list[list[list[str]]]

RACER = """\
import json, sys, time
from launch import leases
where, keys, left = json.loads(sys.argv[1])
held = leases.open_leases(where, 0.2, "racer")
print("ready", flush=True)
sys.stdin.readline()
won = [key for key in keys if held.claim(key)]
early = [key for key in left if held.claim(key)]
time.sleep(0.3)
late = [key for key in left if held.claim(key)]
print(json.dumps([won, early, late]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with s3() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module", params=["folder", "s3"])
def raced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Raced:
    """What each of six processes won, all asking for the same keys: free ones; left ones, at once; left ones, late."""
    where = str(tmp_path_factory.mktemp("raced"))
    if request.param == "s3":
        spec = json.loads(request.getfixturevalue("server").spec)
        where = json.dumps({**spec, "path": "raced"})
    dead = leases.open_leases(where, 60, "dead")
    assert all(dead.claim(key) for key in LEFT)
    command = [sys.executable, "-c", RACER, json.dumps([where, KEYS, LEFT])]
    racers = [
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(6)
    ]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return [json.loads(racer.communicate()[0]) for racer in racers]


def _times(raced: Raced, what: int) -> dict[str, int]:
    return dict(collections.Counter(key for won in raced for key in won[what]))


def test_of_six_processes_one_gets_each_key(raced: Raced) -> None:
    assert _times(raced, 0) == dict.fromkeys(KEYS, 1)


def test_of_six_processes_none_takes_over_at_once(raced: Raced) -> None:
    assert _times(raced, 1) == {}


def test_of_six_processes_one_takes_over_each_key_left(raced: Raced) -> None:
    assert _times(raced, 2) == dict.fromkeys(LEFT, 1)


def test_a_folder_is_found_however_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    held = leases.open_leases(f"{tmp_path}/a/../b", 60, "ours")
    assert held.claim("k")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["k.lease"]
