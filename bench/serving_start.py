"""Time from the command `llamaspec serve` to a server that answers.

python -m llamaspec.bench.serving_start [--repeats 7] [-m T -d D]
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from llamaspec.bench.machine import load_average
from llamaspec.errors import LlamaSpecError

_READY = re.compile(r"llamaspec: ready at http://\S+:(\d+): ")
_STOP_S = 60


@dataclass(frozen=True, slots=True)
class Started:
    """A server. seconds: from its start to its ready line."""

    process: "subprocess.Popen[str]"
    port: int
    seconds: float

    def rss_mib(self) -> float:
        """What it holds of memory; 0 where the system does not say."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except OSError:
            return 0.0
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def start(words: Sequence[str]) -> Iterator[Started]:
    """`llamaspec serve` on a free port, until the block ends. Raises LlamaSpecError where it does
    not start.
    """
    command = [sys.executable, "-m", "llamaspec", "serve", "--port", "0", *words]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
        ready = _READY.match(line)
        if ready is None:
            raise LlamaSpecError(f"the server did not start; it said {line!r}")
        yield Started(process, int(ready[1]), seconds)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(
    model: Annotated[Path | None, typer.Option("-m", "--model", help="Absent: bundled.")] = None,
    draft: Annotated[Path | None, typer.Option("-d", "--draft")] = None,
    repeats: Annotated[int, typer.Option(help="Starts, after one that warms the caches up.")] = 7,
) -> None:
    """Say how long a server takes to be ready."""
    words = ["-m", str(model)] if model else []
    words += ["-d", str(draft)] if draft else []
    with start(words) as first:
        print(f"first {first.seconds:.2f} s, load average {load_average():.1f}")
    found = []
    for _ in range(repeats):
        with start(words) as server:
            found.append(server.seconds)
    shown = " ".join(f"{seconds:.2f}" for seconds in found)
    print(f"median {median(found):.2f} s of {shown}")


if __name__ == "__main__":
    try:
        typer.run(main)
    except LlamaSpecError as error:
        raise SystemExit(f"llamaspec: {error}") from None
