"""`llamaspec quantize`: write a target or a draft in another type."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llamaspec.cli.guard import guarded, show_log

if TYPE_CHECKING:
    from llamaspec.runtime.quantize import QuantizeReport

_LINE_WIDTH = 79


def quantize(
    source: Annotated[str, typer.Argument(metavar="IN", help="A GGUF, target or draft.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF to write.")],
    type_name: Annotated[
        str, typer.Argument(metavar="TYPE", help="Q4_K_M, Q8_0, F16 ... as in llama-quantize.")
    ],
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT where it exists.")] = False,
    requantize: Annotated[
        bool, typer.Option("--requantize", help="Take a file that is quantised already.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Write a target or a draft in another type.

    Of a draft, fc and the heads' small projections stay at 16 bits.

    Exit code 0: done. 2: bad input, with the reason on stderr. 130: interrupted, OUT as before.
    """
    from llamaspec.models import find_target

    show_log(verbose)
    with guarded():
        from llamaspec.runtime.quantize import Permit
        from llamaspec.runtime.quantize import quantize as run

        permit = Permit(overwrite=force, requantize=requantize)
        show = None if verbose or not on_terminal() else _show
        try:
            report = run(
                find_target(source).path,
                output,
                type_name,
                threads=threads,
                permit=permit,
                on_progress=show,
            )
        finally:
            if show is not None:
                clear_line()
        typer.echo(_spoken(report))


def on_terminal() -> bool:
    """Whether a line that changes can be shown on stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def show_line(text: str) -> None:
    """Show one line of progress in place of the last."""
    typer.echo(f"\r{text[:_LINE_WIDTH]:{_LINE_WIDTH}}", nl=False, err=True)


def clear_line() -> None:
    """Take the line of progress away."""
    show_line("")
    typer.echo("\r", nl=False, err=True)


def _show(done: int, total: int, name: str) -> None:
    show_line(f"quantising {done}/{total} ({done / total:.0%}) {name}")


def _spoken(report: "QuantizeReport") -> str:
    before, after = report.source_bytes, report.output_bytes
    types = ", ".join(f"{name} {count}" for name, count in report.tensor_types.items())
    return (
        f"{report.output}: {report.type_name}, {before / 1e6:,.1f} MB -> {after / 1e6:,.1f} MB "
        f"({after / before:.0%}); tensors: {types}"
    )
