"""`llamaspec pull`: download a model, and get its draft ready."""

from pathlib import Path
from typing import Annotated

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.models import size
from llamaspec.cli.quantize import clear_line, on_terminal, show_line


def pull(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="owner/repo[@revision][:quantisation or file].")
    ],
    draft: Annotated[
        str | None,
        typer.Option("-d", "--draft", help="Its draft too: a name, a folder, or auto."),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Say more of it.")] = False,
) -> None:
    """Download a model into the Hub's cache; with -d also its draft, converted where needed.

    What is there already is not fetched again, and a broken download goes on where it stopped.

    Exit code 0: all of it is here. 2: it cannot be had, with the reason. 130: interrupted.
    """
    show_log(verbose)
    with guarded():
        from llamaspec.models import find_draft, find_target
        from llamaspec.runtime.describe import check_pair, check_target, describe

        target = find_target(name)
        found = describe(target.path)
        check_target(found)
        typer.echo(f"target: {_told(target.path, found.size_bytes)}")
        if draft is None:
            return
        try:
            path = find_draft(draft, target, _show if on_terminal() else None)
        finally:
            if on_terminal():
                clear_line()
        described = describe(path)
        check_pair(found, described)
        typer.echo(f"draft: {_told(path, described.size_bytes)}")


def _told(path: Path, count: int) -> str:
    return f"{path} ({size(count)})"


def _show(done: int, total: int) -> None:
    show_line(f"converting: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({done / total:.0%})")
