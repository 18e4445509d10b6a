"""How much memory this process can still take of the machine, as the system says it."""

from collections.abc import Iterator
from pathlib import Path

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60


def available_bytes(proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """What can be had without swapping: what the system counts as available, or less where a
    control group's limit leaves less. None where the system does not say, as on macOS.

    Args:
        proc, groups: where Linux tells of processes and control groups.
    """
    lines = _lines(proc / "meminfo")
    found = [int(words[1]) * 1024 for words in lines if words[0] == "MemAvailable:"]
    left = [*found, *_left_by_limits(proc, groups)] if found else []
    return max(0, min(left)) if left else None


def _left_by_limits(proc: Path, groups: Path) -> Iterator[int]:
    for folder, limit, used in _limited(proc, groups):
        most, taken = _number(folder / limit), _number(folder / used)
        if most is None or taken is None or most >= _NO_LIMIT:
            continue
        # pages of files can be dropped, weights that are mapped among them
        cached = [int(words[1]) for words in _lines(folder / "memory.stat") if words[0] in _CACHED]
        yield most - taken + sum(cached)


_CACHED = {"inactive_file", "active_file", "total_inactive_file", "total_active_file"}


def _limited(proc: Path, groups: Path) -> Iterator[tuple[Path, str, str]]:
    """Folders of the control groups that this process is in, and their files of limit and use."""
    for words in _lines(proc / "self" / "cgroup"):
        _, _, rest = words[0].partition(":")
        controllers, _, path = rest.partition(":")
        old = "memory" in controllers.split(",")
        if old or not controllers:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            root = groups / "memory" if old else groups
            folder = root / path.lstrip("/")
            for each in (folder, *folder.parents):
                if each == root or root in each.parents:
                    yield each, *(names if old else ("memory.max", "memory.current"))


def _number(path: Path) -> int | None:
    for words in _lines(path):
        return int(words[0]) if words[0].isdecimal() else None
    return None


def _lines(path: Path) -> list[list[str]]:
    try:
        text = path.read_text()
    except OSError:
        return []
    return [words for line in text.splitlines() if (words := line.split())]
