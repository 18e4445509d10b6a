"""A process of ours that must not outlive its use."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def ended_after(child: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """Kill a child with piped stdin and stdout when the block ends, however it ends."""
    try:
        yield child
    finally:
        child.kill()
        for stream in (child.stdin, child.stdout):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        child.wait()
