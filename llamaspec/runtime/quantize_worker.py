"""The process in which llama.cpp quantises: `quantize_process` starts it and ends it.

stdin: the job, one JSON line; a second line starts it once its size is known; then nothing. stdin
that ends means that nobody waits any more. stdout: one JSON list a line, what happened first.
"""

import json
import logging
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any, TextIO

from llamaspec.ffi import ffi, lib
from llamaspec.runtime import log

_TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\] +(\S+)")
_SIZE = re.compile(r"quant size += +([\d.]+) MiB")
_POLL_S = 0.05


class _Reporter(logging.Handler):
    """Turns llama.cpp's lines into events."""

    def __init__(self, events: TextIO) -> None:
        super().__init__()
        self._events = events
        self.size_bytes = 0
        self.started = False

    def tell(self, *event: object) -> None:
        self._events.write(json.dumps(event) + "\n")
        self._events.flush()

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if found := _SIZE.search(line):
            self.size_bytes = int(float(found[1]) * 2**20)
        if not self.started:
            return
        if line:
            self.tell("log", line)
        if found := _TENSOR.match(line):
            self.tell("tensor", int(found[1]) - 1, int(found[2]), found[3])


def main() -> None:
    """Quantise as the job on stdin says; ends the process."""
    reporter = _Reporter(_own_stdout())
    log.logger.addHandler(reporter)
    log.logger.setLevel(logging.DEBUG)
    log.logger.propagate = False
    job = json.loads(sys.stdin.readline())
    lib.llama_backend_init()
    log.install()
    failure = _quantize(job, dry=True)
    if failure is None:
        reporter.tell("size", reporter.size_bytes)
        if not sys.stdin.readline():
            _leave(job)
        threading.Thread(target=_until_abandoned, args=(job,), daemon=True).start()
        reporter.started = True
        failure = _quantize(job, dry=False)
    reporter.tell(*(("done",) if failure is None else ("failed", failure)))


def _own_stdout() -> TextIO:
    # whatever native code prints goes to stderr, events alone go to stdout
    events = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    return events


def _until_abandoned(job: dict[str, Any]) -> None:
    while os.read(0, 1):
        pass
    _leave(job)


def _leave(job: dict[str, Any]) -> None:
    Path(job["output"]).unlink(missing_ok=True)
    os._exit(1)


def _quantize(job: dict[str, Any], *, dry: bool) -> str | None:
    """None, or llama.cpp's reason."""
    params = ffi.new("struct llama_model_quantize_params *")
    params[0] = lib.llama_model_quantize_default_params()
    params.nthread = job["threads"]
    params.ftype = getattr(
        lib, f"LLAMA_FTYPE_{'ALL' if job['type'] == 'F32' else 'MOSTLY'}_{job['type']}"
    )
    params.allow_requantize = job["requantize"]
    params.dry_run = dry
    patterns = [
        (ffi.new("char[]", f"^{name.replace('.', '[.]')}$".encode()), kind)
        for name, kind in job["kept"].items()
    ]
    overrides = ffi.new("struct llama_model_tensor_override[]", len(patterns) + 1)
    for entry, (pattern, kind) in zip(overrides, patterns, strict=False):
        entry.pattern, entry.type = pattern, getattr(lib, f"GGML_TYPE_{kind}")
    params.tt_overrides = overrides
    paths = os.fsencode(job["source"]), os.fsencode(job["output"])
    result: list[int] = []
    native = threading.Thread(
        target=lambda: result.append(lib.llama_model_quantize(*paths, params)), daemon=True
    )
    native.start()
    serious: list[str] = []
    while native.is_alive():
        native.join(_POLL_S)
        serious += log.drain()
    serious += log.drain()
    if result == [0]:
        return None
    return log.reason(serious).rpartition("failed to quantize: ")[2]
