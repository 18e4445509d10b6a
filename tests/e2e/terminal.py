"""The command line as a user has it: another process, its exit code and what it printed."""

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.conftest import ROOT

COMMAND = (sys.executable, "-m", "llamaspec")
SECONDS = 120


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with the checkout importable from any folder."""
    # OpenBLAS's threads are most of what NumPy's import costs
    fixed = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **fixed, **changes}


def llamaspec(
    *arguments: object, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    words = [*COMMAND, *(os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments)]
    done = subprocess.run(
        words, input=stdin, capture_output=True, timeout=SECONDS, env=env or environment()
    )
    return subprocess.CompletedProcess(
        words, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def together(
    commands: Mapping[str, Sequence[object]],
) -> "dict[str, subprocess.CompletedProcess[str]]":
    """Run several commands, two at a time; the result of each by its name."""
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(llamaspec, *words) for name, words in commands.items()}
    return {name: done.result() for name, done in running.items()}


def shown_to_a_terminal(words: Sequence[str], env: Mapping[str, str]) -> bytes:
    """What a command that succeeds writes on stderr where that is a terminal of 24 x 100."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    shown = b""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=theirs, env=env) as running:
        os.close(theirs)
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how a terminal that nobody writes to any more ends
            pass
        assert running.wait(SECONDS) == 0
    os.close(ours)
    return shown


def refusal(done: "subprocess.CompletedProcess[str]") -> str:
    """The one line on stderr of a command that refused its input; fails where it did not."""
    assert (done.returncode, done.stdout) == (2, ""), (done.returncode, done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith("llamaspec: "), line
    return line.removeprefix("llamaspec: ")
