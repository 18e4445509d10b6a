"""How fast memory can be read: the floor under every pass that reads all weights."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

from llamaspec.bench.machine import largest_cache

LEAST_BYTES = 256 << 20
MOST_BYTES = 2 << 30
REPEATS = 7


def read_bandwidth(threads: int, size: int | None = None) -> float:
    """Bytes a second that `threads` threads read of a buffer larger than all caches; the median of
    some passes. NumPy's maximum of integers is one load and one comparison a vector, and leaves
    the interpreter's lock alone.
    """
    total = size or min(MOST_BYTES, max(LEAST_BYTES, 4 * largest_cache() * max(1, threads // 2)))
    parts = [np.zeros(total // threads // 8, np.int64) for _ in range(threads)]
    for part in parts:
        part.fill(1)  # untouched pages all are one page
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(np.max, parts))
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - started)
    return sum(part.nbytes for part in parts) / median(seconds)
