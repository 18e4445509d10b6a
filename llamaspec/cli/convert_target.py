"""`llamaspec convert-target`: a target's checkpoint to a GGUF, with llama.cpp's converter."""

from pathlib import Path
from typing import Annotated

import typer

from llamaspec.cli.guard import guarded
from llamaspec.cli.quantize import clear_line, on_terminal, show_line


def convert_target(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="The checkpoint's folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF to write.")],
    outtype: Annotated[
        str, typer.Option("--outtype", help="f32, f16, bf16, q8_0, or auto.")
    ] = "auto",
    python: Annotated[
        Path | None,
        typer.Option("--python", help="Interpreter with torch and transformers; absent: this one."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace OUT where it exists.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show what the converter prints.")
    ] = False,
) -> None:
    """Convert a target's checkpoint with llama.cpp's own converter.

    It needs llama.cpp's sources (a checkout has them, else set LLAMASPEC_LLAMA_CPP) and torch.
    Python code in the checkpoint is never run.

    Exit code 0: done. 2: bad input, with the reason on stderr. 130: interrupted, nothing written.
    """
    with guarded():
        from llamaspec.convert.target_checkpoint import convert_target as convert

        live = not verbose and on_terminal()
        try:
            made = convert(
                source,
                output,
                outtype=outtype,
                python=python,
                overwrite=force,
                on_line=_say if verbose else show_line if live else None,
            )
        finally:
            if live:
                clear_line()
        typer.echo(
            f"{output}: {made.architecture}, {made.quantisation}, "
            f"{made.n_params / 1e6:,.1f} M weights, {made.size_bytes / 1e6:,.1f} MB"
        )


def _say(line: str) -> None:
    typer.echo(line, err=True)
