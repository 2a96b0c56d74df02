"""Finds the devices of this machine without loading JAX, and assigns them to worker processes."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lm_mia.errors import UserError

Kind = Literal["cpu", "accelerator"]


def environments(
    num_workers: int, devices_per_model: int | Literal["auto"]
) -> tuple[Kind, list[dict[str, str]]]:
    """Returns the kind of device, and the environment variables that each worker process needs before it loads JAX.

    There is one single-threaded process per CPU core, or one process per accelerator, which sees only that accelerator.
    On CPUs, training several models at a time is faster than using several threads per model, and makes the results
    bitwise independent of the numbers of cores and workers. With 0 devices per model there is one process, which sees
    all devices.

    Args:
      num_workers: number of processes; 0: one per core or accelerator. If there are more processes than accelerators,
        they share the accelerators and their memory.
      devices_per_model: ``compute.devices_per_model`` of the config.
    """
    kind, accelerators = _accelerators()
    if devices_per_model == 0:
        return kind, [{}]
    if devices_per_model not in (1, "auto"):
        raise UserError(
            f"compute.devices_per_model={devices_per_model}: groups of devices are not supported yet; set "
            "--config.compute.devices_per_model=0 or 1"
        )
    if kind == "cpu":
        return kind, [{"NPROC": "1"}] * (num_workers or _num_cores())  # read by XLA's CPU client
    count = num_workers or max(len(accelerators), 1)
    if count == 1 and len(accelerators) < 2:
        return kind, [{}]
    workers_per_device = -(-count // max(len(accelerators), 1))
    fraction = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / workers_per_device:.2f}")
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": fraction} if workers_per_device > 1 else {}
    return kind, [
        (accelerators[i % len(accelerators)] if accelerators else {}) | memory for i in range(count)
    ]


def _accelerators() -> tuple[Kind, list[dict[str, str]]]:
    """Returns the kind of device, and the environment variables that make only that accelerator visible, for each one.

    The list is empty if the accelerators cannot be listed.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    plugins = importlib.metadata.entry_points(group="jax_plugins")  # CUDA has one, TPUs do not
    has_tpu = importlib.util.find_spec("libtpu") is not None
    if platforms == "cpu" or not (platforms or plugins or has_tpu):
        return "cpu", []
    if has_tpu and (platforms == "tpu" or not plugins):
        return "accelerator", [_single_chip_environment(chip) for chip in _tpu_chips()]
    return "accelerator", [{"CUDA_VISIBLE_DEVICES": name} for name in gpus()]


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> Sequence[str]:
    """Returns the names of the NVIDIA GPUs: those in CUDA_VISIBLE_DEVICES if it is set, else those of the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    try:
        result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", result.stdout, re.MULTILINE)


def _tpu_chips() -> Sequence[str]:
    if visible := os.environ.get("TPU_VISIBLE_CHIPS"):
        return visible.split(",")
    chips = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    return sorted((re.sub(r"\D", "", chip.name) for chip in chips), key=int)


def _single_chip_environment(chip: str) -> dict[str, str]:
    """Returns the environment variables that restrict libtpu to this chip."""
    return {
        "TPU_VISIBLE_CHIPS": chip,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
