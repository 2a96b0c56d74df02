import concurrent.futures
import importlib.metadata
import importlib.util
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lm_mia.config import Compute, Config, Model
from lm_mia.errors import UserError
from lm_mia.run import devices

ALONE = {"NPROC": "1"}
OTHERS = (
    "JAX_NUM_CPU_DEVICES",
    "JAX_NUM_PROCESSES",
    "SLURM_STEP_NUM_TASKS",
    "TPU_WORKER_HOSTNAMES",
)


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine with eight cores, no accelerator and no settings."""
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS", *OTHERS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def environments(num_workers: int, devices_per_model: int) -> list[dict[str, str]]:
    return devices.assign(num_workers, devices_per_model).environments


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Simulates a machine with the CUDA plugin and `count` GPUs."""
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: ["cuda"] * (group == "jax_plugins")
    )
    listed = "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i}f)\n  MIG 1g\n" for i in range(count))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))


def tpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Simulates a machine with libtpu and `count` TPU chips."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    chips = [Path(f"/dev/accel{i}") for i in range(count)]
    monkeypatch.setattr(Path, "glob", lambda path, pattern: chips if path == Path("/dev") else [])


@pytest.mark.parametrize("platforms", ["", "cpu"])
@pytest.mark.parametrize(
    ("workers", "cores", "count"), [(0, 8, 8), (2, 8, 2), (9, 8, 9), (0, 1, 1)]
)
def test_cpu_workers_have_one_thread(
    monkeypatch: pytest.MonkeyPatch, platforms: str, workers: int, cores: int, count: int
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert environments(workers, 1) == [ALONE] * count


def test_all_cores_count_without_affinity(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert environments(0, 1) == [ALONE] * 3


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_one_process_sees_all_devices(monkeypatch: pytest.MonkeyPatch, workers: int):
    all_cores = {"NPROC": "8", "JAX_NUM_CPU_DEVICES": "8"}
    assert devices.assign(workers, 0) == devices.WorkerDevices([all_cores], 0, 8, 0)
    gpus(monkeypatch, 4)
    assert devices.assign(workers, 0) == devices.WorkerDevices([{}], 0, 4, 0)


def test_groups_of_cpu_devices(monkeypatch: pytest.MonkeyPatch):
    pair = {"NPROC": "2", "JAX_NUM_CPU_DEVICES": "2"}
    assert devices.assign(0, 2) == devices.WorkerDevices([pair] * 4, 2, 8, 0)
    assert environments(3, 2) == [pair] * 3
    assert devices.assign(0, 3).num_idle == 2
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    assert environments(0, 2) == [pair] * 2
    assert environments(0, 1) == [ALONE | {"JAX_NUM_CPU_DEVICES": "1"}] * 4
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "four")
    with pytest.raises(UserError, match=r"^JAX_NUM_CPU_DEVICES='four': "):
        environments(0, 2)


def test_each_group_sees_neighbouring_gpus(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 5)
    assigned = devices.assign(0, 2)
    pairs = [{"CUDA_VISIBLE_DEVICES": names} for names in ("0,1", "2,3")]
    assert assigned == devices.WorkerDevices(pairs, 2, 5, 1)
    assert re.match(
        r"compute\.devices_per_model=2: 1 of the 5 .*\bidle\b", devices.idle_message(assigned)
    )


@pytest.mark.parametrize(
    ("chips", "devices_per_model", "bounds", "groups"),
    [
        (4, 1, "1,1,1", ["0", "1", "2", "3"]),
        (4, 2, "1,2,1", ["0,1", "2,3"]),
        (4, 4, "2,2,1", ["0,1,2,3"]),
        (8, 4, "2,2,1", ["0,1,2,3", "4,5,6,7"]),
        (8, 8, "2,4,1", ["0,1,2,3,4,5,6,7"]),
        (1, 1, "1,1,1", ["0"]),
    ],
)
def test_each_group_of_tpu_chips_is_a_slice_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    chips: int,
    devices_per_model: int,
    bounds: str,
    groups: list[str],
):
    """Otherwise, a process on a host of a slice would wait for the other hosts."""
    tpus(monkeypatch, chips)
    assigned = environments(0, devices_per_model)
    assert [e["TPU_VISIBLE_CHIPS"] for e in assigned] == groups
    assert {e["TPU_CHIPS_PER_PROCESS_BOUNDS"] for e in assigned} == {bounds}
    assert {e["TPU_PROCESS_BOUNDS"] for e in assigned} == {"1,1,1"}
    assert {e["TPU_WORKER_HOSTNAMES"] for e in assigned} == {"localhost"}
    assert len({e["TPU_PROCESS_PORT"] for e in assigned}) == len(groups)
    assert all(e["TPU_PROCESS_ADDRESSES"].endswith(e["TPU_PROCESS_PORT"]) for e in assigned)


@pytest.mark.parametrize(
    ("kind", "count", "workers", "devices_per_model", "message"),
    [
        ("cpu", 8, 0, 9, "compute.devices_per_model=9: .*8"),
        ("gpu", 2, 0, 4, "compute.devices_per_model=4: .*2"),
        ("tpu", 4, 0, 3, "compute.devices_per_model=3: .*0, 1, 2, 4 or 8 on TPUs"),
        ("gpu", 4, 3, 2, "train.workers=3: .*2.* groups of 2"),
        ("gpu", 0, 0, 2, "compute.devices_per_model=2: .*could not"),
    ],
)
def test_groups_that_the_machine_cannot_form_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    count: int,
    workers: int,
    devices_per_model: int,
    message: str,
):
    if kind != "cpu":
        {"gpu": gpus, "tpu": tpus}[kind](monkeypatch, count)
    with pytest.raises(UserError, match=f"^{message}.*; set ") as caught:
        environments(workers, devices_per_model)
    assert "\n" not in str(caught.value)


def test_auto_reads_the_memory_only_if_several_devices_are_possible(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[int] = []

    def choose(configs: list[Config], num_devices: int, environment: dict[str, str]) -> list[int]:
        asked.append(num_devices)
        return [1, int(os.environ["CHOSEN"])]

    class Here:
        """Runs functions in this process."""

        def __init__(self, **_: Any):
            pass

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, function: Any, *args: Any) -> SimpleNamespace:
            return SimpleNamespace(result=lambda: function(*args))

    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(devices, "_fewest_devices", choose)
    auto, three = Config(), Config(compute=Compute(devices_per_model=3))
    assert devices.choose_devices_per_model([auto]) == 1  # CPUs
    gpus(monkeypatch, 8)
    assert devices.choose_devices_per_model([three, three]) == 3
    gpus(monkeypatch, 1)
    assert devices.choose_devices_per_model([auto]) == 1
    assert not asked
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    for chosen, expected in ((2, 2), (0, 0)):  # the number that suffices for all configs
        monkeypatch.setenv("CHOSEN", f"{chosen}")
        assert devices.choose_devices_per_model([auto, auto]) == expected
    gpus(monkeypatch, 8)
    monkeypatch.delenv("JAX_NUM_PROCESSES")
    assert devices.choose_devices_per_model([auto, auto]) == 0
    assert asked == [1, 1, 8]


def test_automatic_choice_asks_jax_in_another_process(monkeypatch: pytest.MonkeyPatch):
    # Two devices are listed, but the process that asks for their memory finds only a CPU.
    monkeypatch.setattr(devices, "_devices", lambda: devices._Devices("gpu", ["0", "1"]))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    model = Model(layers=1, width=8, heads=2)
    assert devices.choose_devices_per_model([Config(model=model)]) == 1
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_each_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 3)
    cards = [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(3)]
    assert environments(0, 1) == cards
    assert environments(2, 1) == cards[:2]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # requested, although there are GPUs
    assert environments(2, 1) == [ALONE] * 2


@pytest.mark.parametrize("platforms", ["cuda", "cuda,cpu", ""])
def test_single_gpu_needs_no_environment(monkeypatch: pytest.MonkeyPatch, platforms: str):
    gpus(monkeypatch, 1)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert environments(0, 1) == [{}]


def test_cuda_visible_devices_names_the_gpus(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-7f")
    assigned = environments(0, 1)
    assert assigned == [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "GPU-7f"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert environments(0, 1) == [{}]


@pytest.mark.parametrize(
    ("workers", "cards", "fraction"), [(4, 2, "0.45"), (3, 2, "0.45"), (3, 1, "0.30")]
)
def test_workers_share_gpus_and_their_memory(
    monkeypatch: pytest.MonkeyPatch, workers: int, cards: int, fraction: str
):
    gpus(monkeypatch, cards)
    assigned = environments(workers, 1)
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert [e["CUDA_VISIBLE_DEVICES"] for e in assigned] == [str(i % cards) for i in range(workers)]
    assert [e[name] for e in assigned] == [fraction] * workers
    monkeypatch.setenv(name, "0.2")  # the user's setting takes precedence
    assert {e[name] for e in environments(workers, 1)} == {"0.2"}


@pytest.mark.parametrize(
    "error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 60)]
)
def test_gpus_are_not_assigned_without_nvidia_smi(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def failing(*_: Any, **__: Any) -> None:
        raise error

    gpus(monkeypatch, 2)
    monkeypatch.setattr(subprocess, "run", failing)
    assert environments(0, 1) == [{}]
    assigned = environments(2, 1)
    assert assigned == [{"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}] * 2


def test_tpu_visible_chips_names_the_chips(monkeypatch: pytest.MonkeyPatch):
    tpus(monkeypatch, 4)
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "0,2")
    assert [e["TPU_VISIBLE_CHIPS"] for e in environments(0, 1)] == ["0", "2"]
    assert environments(0, 0) == [{}]


def test_the_accelerator_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert devices.accelerator() == "cpu"
    gpus(monkeypatch, 2)
    assert devices.accelerator() == "NVIDIA H200"
    gpus(monkeypatch, 0)  # the plugin of CUDA is installed, but there is no GPU
    assert devices.accelerator() == "cpu"
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    monkeypatch.setattr(devices, "_PCI", tmp_path)
    tpus(monkeypatch, 4)
    assert devices.accelerator() == "tpu"
    for folder, vendor, device in (("a", "0x8086", "0x0062"), ("b", "0x1ae0", "0x0063")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "vendor").write_text(f"{vendor}\n")
        (tmp_path / folder / "device").write_text(f"{device}\n")
    assert devices.accelerator() == "tpu v5e"
