"""JAX as a worker finds it: devices, the processes of a job, and the cache of compiled code."""

import dataclasses
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from lm_mia.errors import RendezvousError, UserError
from lm_mia.run.devices import gpus
from lm_mia.train import sharding

_HEARTBEAT_SECONDS = 60  # without which a process of a job is taken for dead


@dataclasses.dataclass(frozen=True)
class Backend:
    """What a worker computes on."""

    mesh: Mesh
    """The devices that share each row."""
    description: dict[str, Any]
    """For the log: platform, device, numbers of devices and processes, CPU cores, and the cache's folder."""
    new_compilations: Callable[[], dict[str, Any]]
    """What has been compiled since it was last asked: seconds, functions taken from the cache and compiled anew;
    empty, if nothing."""

    @property
    def is_primary(self) -> bool:
        """Whether this is the process of its job that decides, stores and reports."""
        return jax.process_index() == 0

    def broadcast(self, number: int) -> int:
        """The leading process's number, in all processes of the job."""
        if jax.process_count() == 1:
            return number
        return int(multihost_utils.broadcast_one_to_all(np.int32(number)))

    @functools.cached_property
    def local_mesh(self) -> Mesh:
        """Those of the devices that are this process's."""
        devices = self.mesh.devices.flat
        return sharding.make_mesh([d for d in devices if d.process_index == jax.process_index()])

    def local_samples(self, low: int, high: int) -> range:
        """Of samples low to high (exclusive), those that this process of the job is to score."""
        each = -(-(high - low) // jax.process_count())
        begin = min(low + jax.process_index() * each, high)
        return range(begin, min(begin + each, high))

    def all_gather(self, value_C: np.ndarray, samples: int) -> np.ndarray:
        """value_N2 from the parts of all processes, in all of them."""
        if jax.process_count() == 1:
            return value_C
        each = -(-samples // jax.process_count())
        filled = np.pad(value_C, (0, each - len(value_C)))
        return np.asarray(multihost_utils.process_allgather(filled)).reshape(-1)[:samples]


def start(mode: Literal["none", "fsdp"]) -> Backend:
    """Joins the job, if rows span it, and takes its devices; else takes the first device that this process sees.

    Code is compiled once and kept in JAX_COMPILATION_CACHE_DIR, or lm_mia's folder in the user's cache folder.

    A job's processes find each other by JAX_COORDINATOR_ADDRESS (host:port), JAX_NUM_PROCESSES and JAX_PROCESS_ID, or
    as `jax.distributed.initialize` does under SLURM, Open MPI, Kubernetes and on TPU pods; else there is one process.

    Raises:
      UserError: if there is no such device, or the processes do not find each other.
    """
    cache = _cache()
    compiled = _count_compilations()
    if mode == "fsdp":
        _join()
    try:
        devices = jax.devices() if mode == "fsdp" else jax.local_devices()[:1]
    except (RuntimeError, AssertionError) as error:
        wanted = os.environ.get("JAX_PLATFORMS", "")
        raise UserError(f"JAX_PLATFORMS={wanted!r}: no such device here; unset it") from error
    about = {"platform": devices[0].platform, "device": devices[0].device_kind}
    about |= {"devices": len(devices), "processes": jax.process_count()}
    about |= {"cpu_cores": os.cpu_count(), "cache": cache}
    return Backend(sharding.make_mesh(devices), about, compiled)


def memory_bytes() -> int | None:
    """Of this process's first device; None if it does not tell (a CPU)."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def _join() -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    said = [os.environ.get(name, "") for name in names]
    if any(said) and not (all(said) and said[1].isdecimal() and said[2].isdecimal()):
        told = ", ".join(f"{name}={value!r}" for name, value in zip(names, said, strict=True))
        raise UserError(f"{told}: must all be set, the last two to whole numbers, or none be")
    address, count, index = (said[0], int(said[1]), int(said[2])) if all(said) else (None,) * 3
    if address is not None and count is not None and index is not None:
        _check_job(address, count, index)
    try:
        jax.distributed.initialize(
            address,
            count,
            index,
            local_device_ids=_local_gpus(),
            heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        if not address and "coordinator_address should be defined" in str(error):
            return  # no cluster that JAX knows: a job of one process
        raise RendezvousError(
            f"compute.sharding='fsdp': the processes of the job did not find each other ({error})"
        ) from error


def _local_gpus() -> list[int] | None:
    """All of this machine's, where SLURM runs one task a node: JAX would take the first of them alone."""
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE") or os.environ.get(
        "SLURM_TASKS_PER_NODE", ""
    )
    if not re.fullmatch(r"1(\(x\d+\))?", tasks):
        return None
    return list(range(len(gpus()))) or None


def _check_job(address: str, count: int, index: int) -> None:
    """UserError, if no job can have such an address and such a process, at which JAX fails in ways of its own."""
    host, _, port = address.rpartition(":")
    bad = []
    if not (host and port.isdecimal() and 0 < int(port) < 2**16):
        rule = "must be host:port, the port a whole number from 1 to 65535"
        bad.append(f"JAX_COORDINATOR_ADDRESS={address!r}: {rule}; try 10.0.0.1:8476")
    if count < 1:
        bad.append(f"JAX_NUM_PROCESSES={count}: must be 1 or larger")
    elif index >= count:
        rule = f"must be less than JAX_NUM_PROCESSES={count}, since the first is 0"
        bad.append(f"JAX_PROCESS_ID={index}: {rule}")
    if bad:
        raise UserError("\n".join(bad))


def _cache() -> str:
    """Turns the cache on, and says where it is."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lm_mia" / "jax"
    )
    jax.config.update("jax_compilation_cache_dir", folder)
    # even small functions: hundreds of processes would compile them again
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return folder


def _count_compilations() -> Callable[[], dict[str, Any]]:
    counts = {"seconds": 0.0, "from_cache": 0, "anew": 0}

    def on_event(event: str, **_: Any) -> None:
        counts["from_cache"] += event == "/jax/compilation_cache/cache_hits"
        counts["anew"] += event == "/jax/compilation_cache/cache_misses"

    def on_duration(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counts["seconds"] += duration_secs

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)

    def since() -> dict[str, Any]:
        found = counts | {"seconds": round(counts["seconds"], 3)}
        counts.update(seconds=0.0, from_cache=0, anew=0)
        return found if found["from_cache"] or found["anew"] else {}

    return since
