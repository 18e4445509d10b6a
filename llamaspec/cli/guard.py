"""What every command does about errors: one line on stderr and an exit code, never a traceback."""

import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

from llamaspec.errors import LlamaSpecError

BAD_INPUT = 2
INTERRUPTED = 130
TERMINATED = 143


@contextmanager
def guarded() -> Iterator[None]:
    """Turn errors into one line and exit code 2, Ctrl-C into 130, and output that nobody reads any
    more into a quiet end. A request to terminate ends the program as usual, but cleans up first.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except LlamaSpecError as error:
        raise _refusal(str(error)) from None
    except KeyboardInterrupt:
        typer.echo("", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except MemoryError as error:
        detail = f" ({error})" if str(error) else ""
        raise _refusal(f"there is not enough memory{detail}") from None
    except OSError as error:
        if not _from_output(error):
            raise _refusal(str(error) or type(error).__name__) from None
        _discard_output()
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(0) from None
        raise _refusal(f"the output cannot be written ({error.strerror or error})") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(*_: object) -> None:
    raise SystemExit(TERMINATED)


def _from_output(error: OSError) -> bool:
    # commands write with typer.echo, which flushes; what else they call may fail just as its writes
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is typer.echo.__code__ for frame, _ in frames)


def _refusal(text: str) -> typer.Exit:
    with suppress(OSError):  # from an stderr that takes nothing either
        line = " ".join(text.splitlines())
        # a file's own words must not steer the terminal
        plain = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
        typer.echo(f"llamaspec: {plain}", err=True)
    return typer.Exit(BAD_INPUT)


def _discard_output() -> None:
    # the interpreter would complain once more when it flushes stdout at exit
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def accept_any_text() -> None:
    """Let stdout print every character, as ? where its encoding lacks it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def show_log(verbose: bool) -> None:
    """Warnings go to stderr; with verbose also what llama.cpp says."""
    logger = logging.getLogger("llamaspec")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("llamaspec: %(message)s"))
        logger.addHandler(handler)
        # other libraries' loggers have handlers of their own
        logger.propagate = False
    logger.setLevel(logging.DEBUG if verbose else logging.WARNING)
    # which draft was chosen, what is converted: little, and worth knowing
    logging.getLogger("llamaspec.models").setLevel(logging.DEBUG if verbose else logging.INFO)
    # what llama.cpp says of a failure is in the error's own line
    logging.getLogger("llamaspec.native").setLevel(logging.DEBUG if verbose else logging.ERROR)
