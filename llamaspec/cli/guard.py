"""What every command does about errors: one line on stderr and an exit code, never a traceback."""

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from llamaspec.errors import LlamaSpecError

BAD_INPUT = 2
INTERRUPTED = 130


@contextmanager
def guarded() -> Iterator[None]:
    """Turn our own errors into exit code 2, Ctrl-C into 130, and a closed pipe into a quiet end."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except LlamaSpecError as error:
        typer.echo(f"llamaspec: {error}", err=True)
        raise typer.Exit(BAD_INPUT) from None
    except KeyboardInterrupt:
        typer.echo("", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(0) from None
    except OSError as error:
        _discard_output()
        typer.echo(f"llamaspec: the output cannot be written ({error.strerror or error})", err=True)
        raise typer.Exit(BAD_INPUT) from None


def _discard_output() -> None:
    # the interpreter would complain once more when it flushes stdout at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def accept_any_text() -> None:
    """Let stdout print every character, as ? where its encoding lacks it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def show_log(verbose: bool) -> None:
    """Warnings go to stderr; with verbose also what llama.cpp says."""
    logging.basicConfig(format="llamaspec: %(message)s", level=logging.WARNING)
    if verbose:
        logging.getLogger("llamaspec").setLevel(logging.DEBUG)
    else:
        # what llama.cpp says of a failure is in the error's own line
        logging.getLogger("llamaspec.native").setLevel(logging.ERROR)
