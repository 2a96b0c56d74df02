"""The cores, the memory, the GPUs and the packages of this machine. Cores and memory are counted here only, since macOS
lacks some functions of Linux.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Sequence


def package_version(name: str) -> str:
    """Returns the version of an installed package; "not installed" if it is only on the path, or missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def available_cores() -> int:
    """Returns the number of CPU cores that this process may use; without CPU affinity, as on macOS, all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Returns the memory of this machine; if the system does not tell, the largest integer, as if it had no limit."""
    try:
        return os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES")  # macOS has no SC_PAGE_SIZE
    except (OSError, ValueError):
        return sys.maxsize


def gpus() -> Sequence[str]:
    """Returns the names of the NVIDIA GPUs: those in CUDA_VISIBLE_DEVICES if it is set, else those of the driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip()]
    return re.findall(r"^GPU (\d+):", list_gpus(), re.MULTILINE)


def list_gpus() -> str:
    """Returns a line for each GPU of the driver, such as "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5d...)"."""
    try:
        result = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout
