"""Devices of this machine, told without loading JAX: how many processes make rows, and what each of them sees."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Kind = Literal["cpu", "accelerator"]


def environments(
    workers: int, sharding: Literal["none", "fsdp"]
) -> tuple[Kind, list[dict[str, str]]]:
    """What the worker processes compute on, and the environment that each needs before it loads JAX.

    Rows side by side: one process a CPU core, single-threaded, since rows gain more from running side by side than
    from threads inside them, and since a row's bits then depend on neither the number of cores nor that of workers; or
    one process an accelerator, which sees that one alone. A row over all devices of a job: one process, which sees all.

    Args:
      workers: processes wanted; 0: one a core or accelerator. More than accelerators share them and their memory.
      sharding: "fsdp" if all devices train one model together, else "none".
    """
    kind, names = _devices()
    if sharding == "fsdp":
        return kind, [{}]
    if kind == "cpu":
        return kind, [{"NPROC": "1"}] * (workers or _cores())  # read by XLA's CPU client
    count = workers or max(len(names), 1)
    if count == 1 and len(names) < 2:
        return kind, [{}]
    shared = -(-count // max(len(names), 1))
    fraction = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / shared:.2f}")
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": fraction} if shared > 1 else {}
    return kind, [(names[i % len(names)] if names else {}) | memory for i in range(count)]


def _devices() -> tuple[Kind, list[dict[str, str]]]:
    """The kind, and for each accelerator the environment that shows it alone; none where they cannot be told apart."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    plugins = importlib.metadata.entry_points(group="jax_plugins")  # CUDA's; a TPU's has none
    tpu = importlib.util.find_spec("libtpu") is not None
    if wanted == "cpu" or not (wanted or plugins or tpu):
        return "cpu", []
    if tpu and (wanted == "tpu" or not plugins):
        return "accelerator", [_one_chip(chip) for chip in _tpu_chips()]
    return "accelerator", [{"CUDA_VISIBLE_DEVICES": name} for name in gpus()]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpus() -> Sequence[str]:
    """NVIDIA GPUs, as CUDA_VISIBLE_DEVICES names them, or as the driver lists them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE)


def _tpu_chips() -> Sequence[str]:
    if visible := os.environ.get("TPU_VISIBLE_CHIPS"):
        return visible.split(",")
    chips = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    return sorted((re.sub(r"\D", "", chip.name) for chip in chips), key=int)


def _one_chip(chip: str) -> dict[str, str]:
    """How libtpu is told that a process has one chip to itself."""
    return {
        "TPU_VISIBLE_CHIPS": chip,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
