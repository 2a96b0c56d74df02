import importlib.metadata
import importlib.util
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from lm_mia.run import devices

ALONE = {"NPROC": "1"}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine with eight cores, no accelerator and no settings."""
    for name in ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Simulates a machine with the CUDA plugin and `count` GPUs."""
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: ["cuda"] * (group == "jax_plugins")
    )
    listed = "".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i}f)\n  MIG 1g\n" for i in range(count))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))


@pytest.mark.parametrize("platforms", ["", "cpu"])
@pytest.mark.parametrize(
    ("workers", "cores", "count"), [(0, 8, 8), (2, 8, 2), (9, 8, 9), (0, 1, 1)]
)
def test_cpu_workers_have_one_thread(
    monkeypatch: pytest.MonkeyPatch, platforms: str, workers: int, cores: int, count: int
):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    assert devices.environments(workers, 1) == ("cpu", [ALONE] * count)


def test_all_cores_count_without_affinity(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert devices.environments(0, 1) == ("cpu", [ALONE] * 3)


@pytest.mark.parametrize("workers", [0, 1, 5])
def test_all_devices_have_one_process_that_sees_all_devices(
    monkeypatch: pytest.MonkeyPatch, workers: int
):
    assert devices.environments(workers, 0) == ("cpu", [{}])
    gpus(monkeypatch, 4)
    assert devices.environments(workers, 0) == ("accelerator", [{}])


def test_each_worker_sees_one_gpu(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 3)
    cards = [{"CUDA_VISIBLE_DEVICES": str(i)} for i in range(3)]
    assert devices.environments(0, 1) == ("accelerator", cards)
    assert devices.environments(2, 1) == ("accelerator", cards[:2])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # requested, although there are GPUs
    assert devices.environments(2, 1) == ("cpu", [ALONE] * 2)


@pytest.mark.parametrize("platforms", ["cuda", "cuda,cpu", ""])
def test_single_gpu_needs_no_environment(monkeypatch: pytest.MonkeyPatch, platforms: str):
    gpus(monkeypatch, 1)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert devices.environments(0, 1) == ("accelerator", [{}])


def test_cuda_visible_devices_names_the_gpus(monkeypatch: pytest.MonkeyPatch):
    gpus(monkeypatch, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-7f")
    _, environments = devices.environments(0, 1)
    assert environments == [{"CUDA_VISIBLE_DEVICES": "5"}, {"CUDA_VISIBLE_DEVICES": "GPU-7f"}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices.environments(0, 1) == ("accelerator", [{}])


@pytest.mark.parametrize(
    ("workers", "cards", "fraction"), [(4, 2, "0.45"), (3, 2, "0.45"), (3, 1, "0.30")]
)
def test_workers_share_gpus_and_their_memory(
    monkeypatch: pytest.MonkeyPatch, workers: int, cards: int, fraction: str
):
    gpus(monkeypatch, cards)
    _, environments = devices.environments(workers, 1)
    name = "XLA_PYTHON_CLIENT_MEM_FRACTION"
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == [
        str(i % cards) for i in range(workers)
    ]
    assert [e[name] for e in environments] == [fraction] * workers
    monkeypatch.setenv(name, "0.2")  # the user's setting takes precedence
    assert {e[name] for e in devices.environments(workers, 1)[1]} == {"0.2"}


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
    assert devices.environments(0, 1) == ("accelerator", [{}])
    _, environments = devices.environments(2, 1)
    assert environments == [{"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"}] * 2


def test_tpu_chips_are_assigned_to_workers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu" or None)
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "0,2")
    kind, environments = devices.environments(0, 1)
    assert kind == "accelerator"
    bounds = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
    assert environments == [{"TPU_VISIBLE_CHIPS": chip, **bounds} for chip in ("0", "2")]
    assert devices.environments(0, 0) == ("accelerator", [{}])
