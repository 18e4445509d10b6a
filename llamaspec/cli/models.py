"""`llamaspec models`: what is here, which pairs are known, and what fits this machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from llamaspec.cli.guard import guarded, show_log

if TYPE_CHECKING:
    from llamaspec.models.shelf import Here, Known
    from llamaspec.runtime.backend import Device


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Also say which files cannot be read, and why.")
    ] = False,
) -> None:
    """List the models that are here and the pairs that are known, and say what fits this machine.

    The names are what -m and -d take. Nothing is downloaded.
    """
    show_log(verbose)
    with guarded():
        from llamaspec.models import shelf
        from llamaspec.runtime.backend import devices

        there = devices()
        here, known = shelf.here(there), shelf.known(there)
        if as_json:
            lists = {
                "devices": [asdict(device) for device in there],
                "here": [asdict(one) | {"path": str(one.path)} for one in here],
                "known": [asdict(one) for one in known],
            }
            typer.echo(json.dumps(lists, indent=2, ensure_ascii=False))
            return
        for line in [*_memory(there), "", *_here(here), "", *_known(known)]:
            typer.echo(line)


def size(count: int) -> str:
    """Bytes for people; ? where not known."""
    if not count:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _memory(there: "Sequence[Device]") -> list[str]:
    return [
        f"{device.name}: {device.free_bytes / 2**30:.1f} of {device.total_bytes / 2**30:.1f} GiB "
        f"free ({device.description})"
        for device in there
    ]


def _here(found: "Sequence[Here]") -> list[str]:
    rows = []
    for one in found:
        notes = [f"for {one.made_for}"] if one.made_for else []
        notes += ["of an older converter, not used"] if one.stale else []
        fits = f"{one.verdict} ({one.device})" if one.device else one.verdict
        rows.append((one.name, one.kind, one.quantisation, size(one.size), fits, ", ".join(notes)))
    return ["Here:", *_columns(rows)]


def _known(found: "Sequence[Known]") -> list[str]:
    rows = []
    for one in found:
        got = [name for name, has in (("-m", one.has_target), ("-d", one.has_draft)) if has]
        sizes = f"{size(one.target_size)} + {size(one.draft_size)}"
        notes = f"licence: {one.licence}" + (f"; {' and '.join(got)} here" if got else "")
        target = one.gguf or f"a GGUF of {one.target}"
        rows.append((target, f"-d {one.draft}", one.kind, sizes, one.verdict, notes))
    head = "Known pairs (target in Q4_K_M, draft as published; llamaspec pull gets them):"
    return [head, *_columns(rows)]


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    padded = ([f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows)
    return ["  " + "  ".join(cells).rstrip() for cells in padded]
