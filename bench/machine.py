"""What a benchmark ran on and with."""

import datetime
import json
import os
import platform
import sys
from pathlib import Path

from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.ffi import LIBRARY_DIR, build_info
from llamaspec.processors import physical_cores, usable_processors
from llamaspec.runtime import backend

# what matrix kernels choose by
_FEATURES = (
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "sve", "bf16"),
)


def about(files: dict[str, Path]) -> dict[str, str]:
    """Versions, devices, processor and the files, as texts."""
    found = {
        "argv": " ".join(sys.argv),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "llamaspec": __version__,
        "llama.cpp": LLAMA_CPP_COMMIT,
        "native build (commit + patches)": build_info()[1],
        "build definitions": _definitions(),
        "python": f"{platform.python_version()} on {platform.platform()}",
        "cpu": cpu_name(),
        "cpu features": " ".join(cpu_features()) or "unknown",
        "cores": f"{physical_cores()} physical, {usable_processors()} usable processors",
        "devices": "; ".join(f"{d.name} {d.description}" for d in backend.devices()),
    }
    for name, path in files.items():
        found[name] = f"{path.name}, {path.stat().st_size} bytes"
    return found


def load_average() -> float:
    """Runnable processes over the last minute, 0 where the system does not say."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def cpu_name() -> str:
    """The processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """The features among those that kernels choose by."""
    there = set((_cpuinfo("flags") or _cpuinfo("Features")).split())
    return [name for name in _FEATURES if name in there]


def largest_cache() -> int:
    """Bytes of the largest cache that the system tells of, 0 where it tells of none."""
    found = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
            found.append(int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(found)


def _cpuinfo(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _definitions() -> str:
    try:
        record = json.loads((LIBRARY_DIR / "build.json").read_text())
        return " ".join(map(str, record.get("definitions", ())))
    except (OSError, ValueError, AttributeError):
        return "unknown"
