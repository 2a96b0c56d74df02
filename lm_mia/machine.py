"""The cores, the memory and the packages of this machine; cores and memory are counted here only, since macOS lacks
some functions of Linux.
"""

import importlib.metadata
import os
import sys


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
