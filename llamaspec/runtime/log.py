"""llama.cpp's log, forwarded to the logger "llamaspec.native". Quiet unless that logger is enabled.

llama.cpp's informational lines arrive as DEBUG: to see them, set the level of "llamaspec.native"
to DEBUG before loading.
"""

import logging
import threading

from llamaspec.ffi import ffi, lib

logger = logging.getLogger("llamaspec.native")

# ggml_log_level: debug 1, info 2, warning 3, error 4. Errors are told by the exceptions that quote
# them, and what is a warning to llama.cpp is often routine: neither is one here
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
_NATIVE_WARN = 3
_NATIVE_DEBUG = 1
_LINE_SIZE = 4096
_lock = threading.Lock()


def install() -> None:
    """Send llama.cpp's log to the queue that `drain` empties, from the level that the logger
    shows.
    """
    verbose = logger.isEnabledFor(logging.DEBUG)
    lib.ls_log_install(_NATIVE_DEBUG if verbose else _NATIVE_WARN)


def drain() -> list[str]:
    """Forward what llama.cpp has logged since the last call; return the warnings and errors among
    it.
    """
    serious: list[str] = []
    level, text = ffi.new("int *"), ffi.new("char[]", _LINE_SIZE)
    with _lock:
        while lib.ls_log_next(level, text, _LINE_SIZE):
            line = ffi.string(text).decode("utf-8", "replace").rstrip()
            if level[0] >= _NATIVE_WARN and line:
                serious.append(line)
            logger.log(_LEVELS.get(level[0], logging.DEBUG), "%s", line)
    return serious


def reason(lines: list[str]) -> str:
    """The most telling of llama.cpp's own lines, or what the shim caught, or nothing."""
    caught = ffi.string(lib.ls_last_error()).decode("utf-8", "replace")
    told = [line for line in lines if "error" in line.lower() or "failed" in line.lower()]
    return (caught or (told or lines or ["no reason given"])[0]).strip()
