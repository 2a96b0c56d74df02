"""The cores and the memory of this machine; they are counted here only, since macOS lacks some functions of Linux."""

import os
import sys


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
