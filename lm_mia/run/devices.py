"""Finds the devices of this machine without loading JAX, and assigns them to worker processes.

Each worker process sees only its own devices, one or a group of neighbouring ones, and makes models with them. Workers
do not communicate.
"""

import concurrent.futures
import dataclasses
import importlib.metadata
import importlib.util
import multiprocessing
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lm_mia import machine
from lm_mia.config import Config, number
from lm_mia.errors import UserError

_NUM_CPU_DEVICES = "JAX_NUM_CPU_DEVICES"
_MEMORY_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
# By number of chips of a group: their arrangement, as JAX's own tests with several processes per host set it.
_TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
_FIRST_TPU_PORT = (
    8476  # each group needs a port of its own: this one, plus the number of its first chip
)

# PCI identifiers, as JAX has them.
_PCI = Path("/sys/bus/pci/devices")
_GOOGLE_VENDOR = "0x1ae0"
_TPU_CHIPS = {
    "0x0027": "tpu v3",
    "0x005e": "tpu v4",
    "0x0062": "tpu v5p",
    "0x0063": "tpu v5e",
    "0x006f": "tpu v6e",
    "0x0076": "tpu v7x",
}


@dataclasses.dataclass(frozen=True)
class _Devices:
    """The devices of this machine."""

    kind: Literal["cpu", "gpu", "tpu"]
    names: list[str]
    """Empty if accelerators cannot be listed."""


@dataclasses.dataclass(frozen=True)
class WorkerDevices:
    """The devices of the worker processes of a command."""

    environments: list[dict[str, str]]
    """The environment variables of each worker, which must be set before it loads JAX."""
    devices_per_model: int
    """Number of devices of each worker; 0: all devices of the job."""
    num_devices: int
    """Number of devices of this machine; 0 if accelerators cannot be listed."""
    num_idle: int
    """Number of devices that no worker uses, since they are too few for another group."""


def assign(num_workers: int, devices_per_model: int) -> WorkerDevices:
    """Assigns the devices of this machine to worker processes.

    Each process sees only a group of `devices_per_model` neighbouring devices. With 0, there is one process, which sees
    all devices. On CPUs, there is one device per core, or as many as JAX_NUM_CPU_DEVICES says, and one thread per
    device: training several models at a time is faster than using several threads per model, and makes the results
    bitwise independent of the numbers of cores and workers.

    Args:
      num_workers: number of processes; 0: one per group. With one device per model, there may be more processes than
        devices; they then share the devices and their memory.
      devices_per_model: number of devices of a group; 0: all devices of the job.

    Raises:
      UserError: if the machine has too few devices.
    """
    devices = _devices()
    count = len(devices.names)
    if devices_per_model == 0:
        environment = _environment(devices.kind, devices.names) if devices.kind == "cpu" else {}
        return WorkerDevices([environment], 0, count, 0)
    if devices_per_model > 1:
        _check_groups(devices, num_workers, devices_per_model)
    groups = [
        devices.names[i : i + devices_per_model]
        for i in range(0, count - devices_per_model + 1, devices_per_model)
    ]
    num_processes = num_workers or max(len(groups), 1)
    environments = [_environment(devices.kind, group) for group in groups] or [{}]
    if devices.kind == "gpu" and num_processes == count == 1:
        environments = [{}]
    if devices.kind != "cpu" and num_processes > len(environments):
        fraction = f"{0.9 / -(-num_processes // len(environments)):.2f}"
        memory = {_MEMORY_FRACTION: os.environ.get(_MEMORY_FRACTION, fraction)}
        environments = [environment | memory for environment in environments]
    assigned = [environments[i % len(environments)] for i in range(num_processes)]
    return WorkerDevices(assigned, devices_per_model, count, count % devices_per_model)


def idle_message(assigned: WorkerDevices) -> str:
    """Returns a line for the log about devices that no worker uses."""
    return (
        f"compute.devices_per_model={assigned.devices_per_model}: {assigned.num_idle} of the {assigned.num_devices} "
        f"devices of this machine are idle, since they are too few for another group; to use all devices, set it to a "
        f"divisor of {assigned.num_devices}"
    )


def choose_devices_per_model(configs: Sequence[Config]) -> int:
    """Returns the number of devices that ``compute.devices_per_model`` means on this machine; 0: all of the job.

    "auto" is 1 on CPUs. The memory of an accelerator is read through JAX in a process of its own, which ends before
    workers start, since a process that has loaded JAX occupies the accelerator.

    Args:
      configs: configs with the same value of this field. "auto" is the number that suffices for all of them.

    Raises:
      UserError: if JAX finds no device.
    """
    requested = configs[0].compute.devices_per_model
    if requested != "auto":
        return number(requested)
    devices = _devices()
    count = len(devices.names)
    if devices.kind == "cpu" or (count < 2 and not _is_in_job_of_several_processes()):
        return 1
    environment = _environment(devices.kind, devices.names[:1]) if devices.names else {}
    environment |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
    ) as process:
        numbers = process.submit(_fewest_devices, configs, max(count, 1), environment).result()
    return 0 if 0 in numbers else max(numbers)


def _fewest_devices(
    configs: Sequence[Config], num_devices: int, environment: dict[str, str]
) -> list[int]:
    """Returns the number of devices that each config needs. It loads JAX, so it needs a process of its own."""
    os.environ |= environment
    from lm_mia.run import backend

    return [backend.fewest_devices(c, num_devices) for c in configs]


def _check_groups(devices: _Devices, num_workers: int, devices_per_model: int) -> None:
    """Raises UserError if the devices of the machine cannot form `num_workers` groups of several devices."""
    field = f"compute.devices_per_model={devices_per_model}"
    count = len(devices.names)
    if not count:
        raise UserError(
            f"{field}: the accelerators of this machine could not be listed; set CUDA_VISIBLE_DEVICES or "
            "TPU_VISIBLE_CHIPS to the numbers of the devices to use"
        )
    if devices_per_model > count:
        more = f", or {_NUM_CPU_DEVICES}={devices_per_model}" if devices.kind == "cpu" else ""
        raise UserError(
            f"{field}: must be at most {count}, the number of devices of this machine; set "
            f"--config.compute.devices_per_model={count}{more}, or start a job on several machines with "
            f"{devices_per_model} devices in total and --config.compute.devices_per_model=all"
        )
    if devices.kind == "tpu" and devices_per_model not in _TPU_BOUNDS:
        raise UserError(
            f"{field}: must be 0, 1, 2, 4 or 8 on TPUs, where the chips of a group form a rectangle; set "
            f"--config.compute.devices_per_model={max(k for k in _TPU_BOUNDS if k < devices_per_model)}"
        )
    if num_workers > count // devices_per_model:
        raise UserError(
            f"train.workers={num_workers}: must be at most {count // devices_per_model}, the number of groups of "
            f"{devices_per_model} devices of this machine; set --config.train.workers=auto"
        )


def _devices() -> _Devices:
    platforms = os.environ.get("JAX_PLATFORMS", "")
    plugins = importlib.metadata.entry_points(group="jax_plugins")  # CUDA has one, TPUs do not
    has_tpu = importlib.util.find_spec("libtpu") is not None
    if platforms == "cpu" or not (platforms or plugins or has_tpu):
        return _Devices("cpu", [f"{i}" for i in range(_num_cpu_devices())])
    if has_tpu and (platforms == "tpu" or not plugins):
        return _Devices("tpu", list(_tpu_chips()))
    return _Devices("gpu", list(machine.gpus()))


def _environment(kind: Literal["cpu", "gpu", "tpu"], names: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables that make exactly these devices visible to a process.

    A process on a host of a TPU slice would wait for all hosts of the slice, unless these variables say that it is the
    only one.
    """
    if kind == "gpu":
        return {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    if kind == "cpu":
        environment = {"NPROC": f"{len(names)}"}  # the number of threads of XLA
        if len(names) > 1 or _NUM_CPU_DEVICES in os.environ:
            environment[_NUM_CPU_DEVICES] = f"{len(names)}"
        return environment
    port = f"{_FIRST_TPU_PORT + int(names[0])}"
    return {
        "TPU_VISIBLE_CHIPS": ",".join(names),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _TPU_BOUNDS[len(names)],
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
        "TPU_PROCESS_PORT": port,
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
        "CLOUD_TPU_TASK_ID": "0",
    }


def _is_in_job_of_several_processes() -> bool:
    """Returns whether the scheduler, or the user, has started this process as one of several."""
    names = ("JAX_NUM_PROCESSES", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
    has_several = any(os.environ.get(name, "") not in ("", "1") for name in names)
    return has_several or "," in os.environ.get("TPU_WORKER_HOSTNAMES", "")


def _num_cpu_devices() -> int:
    requested = os.environ.get(_NUM_CPU_DEVICES, "")
    if requested in ("", "-1"):  # JAX's default is -1
        return machine.available_cores()
    if not (requested.isdecimal() and int(requested)):
        raise UserError(
            f"{_NUM_CPU_DEVICES}={requested!r}: must be a whole number, 1 or larger; unset it to use all cores"
        )
    return int(requested)


def accelerator() -> str:
    """Returns the name of this machine's first GPU or TPU chip, such as "NVIDIA H100 80GB HBM3"; "cpu": it has none."""
    devices = _devices()
    if devices.kind == "cpu" or not devices.names:
        return "cpu"
    if devices.kind == "gpu":
        names = re.findall(r"^GPU \d+: (.*?)(?: \(|$)", machine.list_gpus(), re.MULTILINE)
        return names[0] if names else "gpu"
    for folder in _PCI.iterdir():
        vendor, chip = ((folder / name).read_text().strip() for name in ("vendor", "device"))
        if vendor == _GOOGLE_VENDOR and chip in _TPU_CHIPS:
            return _TPU_CHIPS[chip]
    return "tpu"


def _tpu_chips() -> Sequence[str]:
    if visible := os.environ.get("TPU_VISIBLE_CHIPS"):
        return visible.split(",")
    chips = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev/vfio").glob("[0-9]*")]
    return sorted((re.sub(r"\D", "", chip.name) for chip in chips), key=int)
