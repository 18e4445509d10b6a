"""The processors that this process may run on."""

import os
from pathlib import Path


def usable_processors() -> int:
    """The logical processors this process may run on."""
    return len(_allowed()) or os.cpu_count() or 1


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


_BEFORE = _affinity()
_PINNING = "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"


def _allowed() -> set[int]:
    # told to pin threads, OpenMP takes the thread that loads it for its first, and leaves it one
    pinned = any(os.environ.get(name) for name in _PINNING)
    return _affinity() | _BEFORE if pinned else _affinity()


def physical_cores() -> int:
    """The physical cores this process may run on: hyper-threads slow matrix products down."""
    cores = set()
    for cpu in _allowed():
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(siblings.read_text())
        except OSError:
            return usable_processors()
    return len(cores) or usable_processors()
