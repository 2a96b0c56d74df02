import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from lm_mia.errors import UserError
from lm_mia.machine import available_cores
from lm_mia.run import backend
from lm_mia.train import sharding

HERE = backend.Backend(sharding.make_mesh(jax.local_devices()[:1]), {}, dict)


def in_job(monkeypatch: pytest.MonkeyPatch, index: int, count: int) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(jax, "process_count", lambda: count)


def _ends(samples: range) -> tuple[int, int]:
    return samples.start, samples.stop


def test_single_process_is_primary_and_has_all_samples():
    assert HERE.is_primary
    assert HERE.broadcast(-7) == -7
    assert HERE.local_samples(4, 20) == range(4, 20)
    value_C = np.arange(20)
    assert HERE.all_gather(value_C, 20) is value_C


@pytest.mark.parametrize(
    ("samples", "count"), [(20, 2), (20, 3), (21, 4), (7, 7), (1000, 64), (5, 4), (2, 4)]
)
def test_local_samples_partition_and_all_gather_restores(
    monkeypatch: pytest.MonkeyPatch, samples: int, count: int
):
    value_N = np.random.default_rng(0).normal(size=samples).astype(np.float32)
    parts = []
    for index in range(count):
        in_job(monkeypatch, index, count)
        assert HERE.is_primary == (index == 0)
        parts.append(value_N[HERE.local_samples(0, samples)])
        assert HERE.local_samples(7, 7 + samples) == range(
            *(i + 7 for i in _ends(HERE.local_samples(0, samples)))
        )
    np.testing.assert_array_equal(np.concatenate(parts), value_N)
    sent: list[np.ndarray] = []

    def gather(own: np.ndarray) -> np.ndarray:
        sent.append(own)
        return np.zeros((count, len(own)))

    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    for part in parts:
        HERE.all_gather(part, samples)
    # np.stack requires arrays of equal shapes, as JAX does.
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda own: np.stack(sent))
    np.testing.assert_array_equal(HERE.all_gather(parts[0], samples), value_N)


def test_broadcast_returns_the_number_of_the_primary_process(monkeypatch: pytest.MonkeyPatch):
    in_job(monkeypatch, 1, 2)
    seen: list[Any] = []

    def broadcast(value: np.ndarray) -> np.int32:
        seen.append(value)
        return np.int32(-2)

    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    assert HERE.broadcast(5) == -2
    assert seen == [5]


ADDRESS = {
    "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1",
    "JAX_NUM_PROCESSES": "2",
    "JAX_PROCESS_ID": "1",
}


@pytest.mark.parametrize(
    "change",
    [{name: ""} for name in ADDRESS]
    + [{"JAX_NUM_PROCESSES": "two"}, {"JAX_PROCESS_ID": "-1"}, {"JAX_PROCESS_ID": "\u00b2"}],
)
def test_incomplete_job_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
):
    settings_given = ADDRESS | change
    for name, value in settings_given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", pytest.fail)
    with pytest.raises(UserError) as caught:
        backend._join_job()
    settings = ", ".join(f"{name}={value!r}" for name, value in settings_given.items())
    assert str(caught.value).startswith(f"{settings}: ")


HOST_PORT = (
    "JAX_COORDINATOR_ADDRESS={!r}: must be host:port with a port from 1 to 65535; try 10.0.0.1:8476"
)
TOO_LARGE = "JAX_PROCESS_ID=5: must be less than JAX_NUM_PROCESSES=2; the first is 0"


@pytest.mark.parametrize(
    ("settings_given", "lines"),
    [
        *(
            ((address, "1", "0"), [HOST_PORT.format(address)])
            for address in ("nonsense", "host:", ":1234", "host:http", "host:0", "host:65536", "1")
        ),
        (("host:1234", "2", "5"), [TOO_LARGE]),
        (
            ("host:1234", "2", "2"),
            [TOO_LARGE.replace("5", "2")],
        ),
        (("host:1234", "0", "0"), ["JAX_NUM_PROCESSES=0: "]),
        (("host", "2", "5"), [HOST_PORT.format("host"), TOO_LARGE]),
    ],
)
def test_invalid_job_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, settings_given: tuple[str, str, str], lines: list[str]
):
    for name, value in zip(ADDRESS, settings_given, strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", pytest.fail)
    with pytest.raises(UserError) as caught:
        backend._join_job()
    found = str(caught.value).split("\n")
    assert [line[: len(start)] for line, start in zip(found, lines, strict=True)] == lines


@pytest.mark.parametrize("address", ["a.b-c:65535", "[::1]:1", "10.0.0.1:8476"])
def test_valid_addresses(monkeypatch: pytest.MonkeyPatch, address: str):
    calls: list[Any] = []
    for name, value in (ADDRESS | {"JAX_COORDINATOR_ADDRESS": address}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **_: calls.append(args))
    backend._join_job()
    assert calls == [(address, 2, 1)]


def test_failed_rendezvous_raises_rendezvous_error(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []

    def failing(*args: Any, **options: Any) -> None:
        calls.append((args, options))
        raise RuntimeError("DEADLINE_EXCEEDED: barrier")

    for name, value in ADDRESS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(jax.distributed, "initialize", failing)
    with pytest.raises(UserError) as caught:
        backend._join_job()
    assert re.match(
        r"compute\.devices_per_model=all: .*\(DEADLINE_EXCEEDED: barrier\); ", str(caught.value)
    )
    [(args, options)] = calls
    assert args == ("127.0.0.1:1", 2, 1)
    assert 0 < options["heartbeat_timeout_seconds"] <= 100


STARTS = """
import json, sys
from lm_mia.run import backend
from lm_mia.errors import UserError
try:
    here = backend.start(int(sys.argv[1]))
except UserError as error:
    sys.exit(str(error))
import jax
assert here.new_compilations() == {}
jax.jit(lambda x: x * 3 + 1)(2.0)
print(json.dumps([here.description, here.is_primary, here.mesh.size, here.new_compilations(), here.new_compilations()]))
"""


def start(devices_per_model: str, **environment: str) -> subprocess.CompletedProcess[str]:
    names = (*ADDRESS, "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", "XLA_FLAGS")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", STARTS, devices_per_model]
    environment = bare | {"JAX_PLATFORMS": "cpu"} | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.process
def test_processes_share_the_compilation_cache(tmp_path: Path):
    two_devices = "--xla_force_host_platform_device_count=2"
    results = []
    for kind in ("1", "0"):
        done = start(kind, XDG_CACHE_HOME=str(tmp_path), XLA_FLAGS=two_devices)
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
    for (description, is_primary, size, compiled, again), devices in zip(
        results, (1, 2), strict=True
    ):
        assert (description["platform"], description["device"]) == ("cpu", "cpu")
        assert (description["devices"], size, description["processes"], is_primary) == (
            devices,
            devices,
            1,
            True,
        )
        assert description["cpu_cores"] == available_cores()
        assert description["cache"] == str(tmp_path / "lm_mia" / "jax")
        assert compiled["seconds"] > 0
        assert again == {}  # nothing new
    (hits, misses), (later_hits, later_misses) = [
        (compiled["from_cache"], compiled["compiled"]) for *_, compiled, _ in results
    ]
    assert (hits, later_misses) == (0, 0)
    assert later_hits == misses > 0
    assert list((tmp_path / "lm_mia" / "jax").iterdir())


def test_environment_sets_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    settings: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    for name in ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    assert backend._enable_compilation_cache() == str(tmp_path / "JAX_COMPILATION_CACHE_DIR")
    assert settings == {
        "jax_compilation_cache_dir": str(tmp_path / "JAX_COMPILATION_CACHE_DIR"),
        "jax_persistent_cache_min_compile_time_secs": 0,  # even small functions
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }


def test_without_a_writable_cache_folder_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert backend._enable_compilation_cache().startswith("none, since ")
    assert settings == {}


@pytest.mark.process
def test_missing_device_is_reported():
    done = start("1", JAX_PLATFORMS="cuda")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("JAX_PLATFORMS='cuda': ")


@pytest.mark.parametrize(
    ("tasks", "gpus", "expected"),
    [
        ("1", "0,1,2,3", [0, 1, 2, 3]),
        ("1(x16)", "0,1", [0, 1]),
        ("4(x2)", "0,1,2,3", None),  # with one task per GPU, JAX assigns the GPUs
        ("1,2", "0,1", None),
        ("1", "", None),
        ("", "0,1", None),
    ],
)
def test_one_task_per_node_uses_all_gpus(
    monkeypatch: pytest.MonkeyPatch, tasks: str, gpus: str, expected: list[int] | None
):
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE", raising=False)
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", tasks)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    assert backend._local_gpus() == expected
