"""llama.cpp's global state and the devices that it finds. Nothing happens at import."""

import ctypes
import threading
from dataclasses import dataclass

from llamaspec.errors import LlamaSpecError
from llamaspec.ffi import LIBRARY_DIR, REBUILD, ffi, lib
from llamaspec.runtime import log

_lock = threading.Lock()
_ready = False


@dataclass(frozen=True, slots=True)
class Device:
    """One device that llama.cpp can compute on; memory in bytes, as the backend reports it.

    kind: cpu, gpu, igpu, accelerator, remote (of an RPC server, whose address is the description).
    """

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int

    @property
    def is_gpu(self) -> bool:
        return self.kind in ("gpu", "igpu")

    @property
    def is_remote(self) -> bool:
        return self.kind == "remote"


def initialise() -> None:
    """Load the backends beside the compiled module, once a process."""
    global _ready
    with _lock:
        log.install()
        if not _ready:
            lib.llama_backend_init()
            if lib.ls_load_backends(str(LIBRARY_DIR).encode()) < 1:
                raise LlamaSpecError(f"no backend can be loaded: {_why()}; {REBUILD}")
            _ready = True
    log.drain()


def _why() -> str:
    # ggml passes over what it cannot load without a word; the dynamic linker knows the reason
    reasons = []
    for path in sorted(LIBRARY_DIR.glob("*ggml-cpu*")):
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            reasons.append(str(error))
    return "; ".join(reasons) or f"there is none for this processor in {LIBRARY_DIR}"


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
