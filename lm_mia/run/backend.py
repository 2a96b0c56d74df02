"""The JAX backend of a worker: its devices, the processes of its job, and the compilation cache."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lm_mia import config
from lm_mia.data.reading_cache import user_cache_folder
from lm_mia.errors import RendezvousError, UserError
from lm_mia.machine import available_cores, gpus
from lm_mia.model import kinds, memory, transformer
from lm_mia.train import execution
from lm_mia.train import sharding as shardings
from lm_mia.train.optimizer import check_optimizer

_HEARTBEAT_SECONDS = (
    60  # a process of a job that sends no heartbeat for this long is considered dead
)


@dataclasses.dataclass(frozen=True)
class Backend:
    """The devices of a worker, and how it communicates with the other processes of its job.

    A job is a group of processes that train and score each model together (``compute.devices_per_model=all``).
    Otherwise, each worker is a job of its own.
    """

    mesh: Mesh
    """The devices that share each model."""
    description: dict[str, Any]
    """For the log: platform, device, devices, processes, CPU cores, and folder of the compilation cache."""
    new_compilations: Callable[[], dict[str, Any]]
    """Returns the seconds of compilation since the last call, and the numbers of functions that were compiled and read
    from the cache; empty if there were none."""

    @property
    def is_primary(self) -> bool:
        """Whether this is the first process of its job, which decides, writes and reports."""
        return jax.process_index() == 0

    def broadcast(self, number: int) -> int:
        """Returns the primary process's number, in every process of the job."""
        if jax.process_count() == 1:
            return number
        return int(multihost_utils.broadcast_one_to_all(np.int32(number)))

    @functools.cached_property
    def local_mesh(self) -> Mesh:
        """The devices of the mesh that belong to this process."""
        devices = self.mesh.devices.flat
        return shardings.make_mesh([d for d in devices if d.process_index == jax.process_index()])

    def local_samples(self, low: int, high: int) -> range:
        """Returns the part of the samples low to high (exclusive) that this process scores."""
        samples_per_process = -(-(high - low) // jax.process_count())
        begin = min(low + jax.process_index() * samples_per_process, high)
        return range(begin, min(begin + samples_per_process, high))

    def all_gather(self, value_C: np.ndarray, num_samples: int) -> np.ndarray:
        """Returns the concatenated values of all processes, in every process.

        Args:
          value_C: the values of the samples that `local_samples` gave to this process.
          num_samples: number of samples of all processes.
        """
        if jax.process_count() == 1:
            return value_C
        samples_per_process = -(-num_samples // jax.process_count())
        padded = np.pad(value_C, (0, samples_per_process - len(value_C)))
        return np.asarray(multihost_utils.process_allgather(padded)).reshape(-1)[:num_samples]


def start(devices_per_model: int) -> Backend:
    """Initializes JAX in this process and returns its backend.

    If `devices_per_model` is 1 or more, the backend has this many devices of this process, and does not communicate
    with other processes. If it is 0, the process joins its job, and the backend has all devices of the job. The
    processes of a job connect through JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or as
    `jax.distributed.initialize` does under SLURM, Open MPI, Kubernetes and on TPU pods. Without any of these, the job
    has one process.

    The compilation cache is the folder JAX_COMPILATION_CACHE_DIR, or lm_mia's folder in the user's cache folder.

    Raises:
      UserError: if the requested platform has no device, or the processes of the job cannot connect to each other.
    """
    cache = _enable_compilation_cache()
    new_compilations = _count_compilations()
    if devices_per_model == 0:
        _join_job()
    local_devices = _local_devices()
    devices = local_devices[:devices_per_model] if devices_per_model else jax.devices()
    assert len(devices) >= devices_per_model, (devices, devices_per_model)
    description = {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
        "processes": jax.process_count(),
        "cpu_cores": available_cores(),
        "cache": cache,
    }
    return Backend(shardings.make_mesh(devices), description, new_compilations)


def fewest_devices(c: config.Config, num_devices: int) -> int:
    """Returns the smallest number of devices whose memory suffices for a model of a config; 0: one machine has too few.

    Args:
      c: the config.
      num_devices: number of devices of the machine, each of which has as much memory as the first device of this
        process.

    Raises:
      UserError: if the requested platform has no device.
    """
    device = _local_devices()[0]
    model_config = transformer.ModelConfig.from_settings(
        c.model, c.tokenizer.vocab_size, c.population.length_tokens
    )
    attention, _ = execution.attention_of(c.compute, model_config, device.platform)
    state_bytes = check_optimizer(c.optimizer, kinds.build(model_config))
    return memory.fewest_devices(
        dataclasses.replace(kinds.size(model_config), state_bytes=state_bytes),
        attention,
        c.train.batch_size,
        config.number(c.compute.micro_batch_size),
        device.platform,
        memory_bytes() or memory.UNKNOWN_BYTES,
        num_devices,
    )


def _local_devices() -> list[Any]:
    """Returns the devices of this process; raises UserError if the requested platform has none."""
    try:
        return jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        platforms = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(
            f"JAX_PLATFORMS={platforms!r}: this machine has no such device; unset it"
        ) from error


def memory_bytes() -> int | None:
    """Returns the memory of this process's first device, or None if it does not report it (a CPU)."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def _join_job() -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    values = [os.environ.get(name, "") for name in names]
    if any(values) and not (all(values) and values[1].isdecimal() and values[2].isdecimal()):
        settings = ", ".join(f"{n}={value!r}" for n, value in zip(names, values, strict=True))
        raise UserError(
            f"{settings}: set all three, the last two to whole numbers, or none of them"
        )
    address: str | None = None
    num_processes: int | None = None
    process_index: int | None = None
    if all(values):
        address, num_processes, process_index = values[0], int(values[1]), int(values[2])
        _check_job(address, num_processes, process_index)
    try:
        jax.distributed.initialize(
            address,
            num_processes,
            process_index,
            local_device_ids=_local_gpus(),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        if not address and "coordinator_address should be defined" in str(error):
            return  # JAX detects no cluster, so the job has one process
        raise RendezvousError(
            f"compute.devices_per_model=all: the processes of the job could not connect to each other ({error}); check "
            "that all of them are running and can reach the first one"
        ) from error


def _local_gpus() -> list[int] | None:
    """Returns the indices of all GPUs of this node if SLURM runs one task per node; JAX would use only the first."""
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    if not re.fullmatch(r"1(\(x\d+\))?", tasks):
        return None
    return list(range(len(gpus()))) or None


def _check_job(address: str, num_processes: int, process_index: int) -> None:
    """Raises UserError for settings that JAX would reject with unclear messages."""
    host, _, port = address.rpartition(":")
    problems = []
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        problems.append(
            f"JAX_COORDINATOR_ADDRESS={address!r}: must be host:port with a port from 1 to 65535; try 10.0.0.1:8476"
        )
    if num_processes < 1:
        problems.append(f"JAX_NUM_PROCESSES={num_processes}: must be at least 1")
    elif process_index >= num_processes:
        problems.append(
            f"JAX_PROCESS_ID={process_index}: must be less than JAX_NUM_PROCESSES={num_processes}; the first is 0"
        )
    if problems:
        raise UserError("\n".join(problems))


def _enable_compilation_cache() -> str:
    """Enables JAX's persistent compilation cache, and returns its folder, or why there is none."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if not folder:
        folder = str(user_cache_folder() / "jax")
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as error:  # JAX would print a warning of two lines in each worker
            return f"none, since {folder} cannot be made ({error.strerror})"
    jax.config.update("jax_compilation_cache_dir", folder)
    # Small functions are cached, too, since hundreds of processes would otherwise compile them again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _count_compilations() -> Callable[[], dict[str, Any]]:
    """Starts counting compilations; returns a function that returns and resets the counts."""
    counts = {"seconds": 0.0, "from_cache": 0, "compiled": 0}

    def on_event(event: str, **_: Any) -> None:
        counts["from_cache"] += event == "/jax/compilation_cache/cache_hits"
        counts["compiled"] += event == "/jax/compilation_cache/cache_misses"

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counts["seconds"] += duration_secs

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)

    def new_compilations() -> dict[str, Any]:
        result = counts | {"seconds": round(counts["seconds"], 3)}
        counts.update(seconds=0.0, from_cache=0, compiled=0)
        return result if result["from_cache"] or result["compiled"] else {}

    return new_compilations
