"""A real server in another process, with the bundled pair or another."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO

from tests.e2e.terminal import COMMAND, environment

START_S = 120
READY = re.compile(
    r"llamaspec: ready at (http://\S+): (.+), n_ctx (\d+), (\d+) sequences, (\d+) MiB\n"
)
TOOL_TEMPLATE = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor -%}"
    "Call one as <tool_call>{...}</tool_call><|im_end|>\n{% endif -%}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{%- endfor %}{{- '<|im_end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""One that reads tools, which the bundled pair's own does not."""


@dataclass
class Server:
    """A server that answers. lines: what it has said on stderr."""

    url: str
    process: "subprocess.Popen[str]"
    ready: "re.Match[str]"
    lines: list[str]

    def stop(self, kind: signal.Signals = signal.SIGTERM, seconds: float = 60) -> int:
        """Tell it to stop; return its exit code."""
        self.process.send_signal(kind)
        return self.process.wait(seconds)


@contextmanager
def serving(*arguments: object, **changes: str) -> Iterator[Server]:
    """Start `llamaspec serve` on a free port; threads 1 unless said otherwise."""
    words = [os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments]
    process = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", "-t", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
    )
    lines: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    reader = Thread(target=_collect, args=(process.stderr, lines), daemon=True)
    reader.start()
    try:
        ready = READY.fullmatch(process.stdout.readline())
        assert ready is not None, (process.poll(), lines)
        yield Server(ready[1], process, ready, lines)
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(10)
        process.stdout.close()
        process.stderr.close()


def _collect(source: IO[str], lines: list[str]) -> None:
    lines += source
