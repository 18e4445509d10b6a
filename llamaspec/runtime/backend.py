"""llama.cpp's global state and the devices that it finds. Nothing happens at import."""

import threading
from dataclasses import dataclass

from llamaspec.ffi import LIBRARY_DIR, ffi, lib
from llamaspec.runtime import log

_lock = threading.Lock()
_ready = False


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can compute on; memory in bytes, as the backend reports it."""

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int


def initialise() -> None:
    """Load the backends beside the compiled module, once a process."""
    global _ready
    with _lock:
        log.install()
        if not _ready:
            lib.llama_backend_init()
            lib.ls_load_backends(str(LIBRARY_DIR).encode())
            _ready = True
    log.drain()


def devices() -> list[Device]:
    """Return every device of every backend that could be loaded."""
    initialise()
    kinds = {
        lib.GGML_BACKEND_DEVICE_TYPE_CPU: "cpu",
        lib.GGML_BACKEND_DEVICE_TYPE_GPU: "gpu",
        lib.GGML_BACKEND_DEVICE_TYPE_IGPU: "igpu",
        lib.GGML_BACKEND_DEVICE_TYPE_ACCEL: "accelerator",
    }
    found = []
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    for index in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(index)
        lib.ggml_backend_dev_memory(device, free, total)
        found.append(
            Device(
                name=ffi.string(lib.ggml_backend_dev_name(device)).decode(),
                description=ffi.string(lib.ggml_backend_dev_description(device)).decode(),
                kind=kinds.get(lib.ggml_backend_dev_type(device), "other"),
                free_bytes=free[0],
                total_bytes=total[0],
            )
        )
    return found
