"""Runs llama.cpp's quantiser in a process of its own.

llama.cpp's call cannot be stopped, holds every thread until it ends, and may end the process on
what it did not expect. A child can be killed at Ctrl-C, and takes nobody with it.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import IO

from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.child import ended_after

# by name: this process needs no native code
_logger = logging.getLogger("llamaspec.native")
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from llamaspec.runtime.quantize_worker import main; main()"
)


@dataclass(frozen=True, slots=True)
class Job:
    """One file to quantise: paths, the file's type, and the tensors that keep another."""

    source: str
    output: str
    type: str
    threads: int
    requantize: bool
    kept: dict[str, str]


class QuantizerFailedError(LlamaSpecError):
    """The child did not end well; the text is the reason alone."""


def run_job(
    job: Job,
    *,
    on_size: Callable[[int], None],
    on_tensor: Callable[[int, int, str], None],
) -> None:
    """Quantise in a child, and wait for it. Whatever is raised here, the child is gone then.

    Args:
        job: what to do.
        on_size: called once before anything is written, with the bytes that the tensors will take;
            may raise.
        on_tensor: called as a tensor begins, with those done, all, and its name.

    Raises:
        QuantizerFailedError: llama.cpp refused, or its process ended.
    """
    with _child() as (child, errors):
        assert child.stdin is not None
        assert child.stdout is not None
        _send(child.stdin, json.dumps(asdict(job)))
        for line in child.stdout:
            if not line.endswith("\n"):  # it was killed at its last word
                break
            kind, *values = json.loads(line)
            if kind == "size":
                on_size(*values)
                _send(child.stdin, "go")
            elif kind == "tensor":
                on_tensor(*values)
            elif kind == "log":
                _logger.debug("%s", *values)
            elif kind == "failed":
                raise QuantizerFailedError(*values)
            elif kind == "done":
                return
        raise QuantizerFailedError(_last_words(child.wait(), errors))


@contextmanager
def _child() -> "Iterator[tuple[subprocess.Popen[str], IO[bytes]]]":
    command = [sys.executable, "-c", _START, *sys.path]
    with tempfile.TemporaryFile() as errors:
        # a session of its own: Ctrl-C is for this process, which then ends the child
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="ascii",
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
            start_new_session=True,
        )
        with ended_after(child):
            yield child, errors


def _send(stdin: IO[str], line: str) -> None:
    with suppress(OSError):  # a child that is gone is seen at its output
        stdin.write(line + "\n")
        stdin.flush()


def _last_words(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if "GGML_ASSERT" in line or "fatal" in line] or lines[-1:]
    how = f"with exit code {code}"
    if code < 0:
        how = f"by signal {-code} ({signal.strsignal(-code)})"
    return f"its process ended {how}" + (f": {told[0].strip()}" if told else "")
