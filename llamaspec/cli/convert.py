"""`llamaspec convert`: a published draft to GGUF."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import guarded
from llamaspec.cli.quantize import clear_line, on_terminal, show_line
from llamaspec.errors import OptionError

if TYPE_CHECKING:
    from llamaspec.convert import Report

_LABEL_WIDTH = 16


def convert(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="The draft: a folder, a repository of the Hub, an old GGUF."
        ),
    ],
    target: Annotated[
        str, typer.Option("--target", help="Its target: a folder, a repository or a GGUF.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The GGUF to write.")],
    outtype: Annotated[
        str, typer.Option("--outtype", help="auto (as published), f32, bf16, q8_0, q4_k_m, ...")
    ] = "auto",
    revision: Annotated[
        str | None, typer.Option("--hf-revision", help="Branch, tag or commit of the draft.")
    ] = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="Write embedding and head, whoever's they are.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Replace a setting of config.json."),
    ] = None,
    drop_unexpected: Annotated[
        bool, typer.Option("--drop-unexpected", help="Leave unknown tensors out; not refuse them.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace OUTPUT where it exists.")] = False,
) -> None:
    """Convert a published draft to a GGUF that runs here and in llama.cpp.

    Known: DeepSpec (Qwen3, Gemma 4), z-lab DFlash and DFlash2, speculators, SpecForge, LFM2,
    DeepSeek-V4's embedded drafts, and GGUFs of older or vendors' layouts.

    Exit code 0: done. 2: bad input, with the reason on stderr; no file is left.
    """
    with guarded():
        from llamaspec.convert import Job, Wishes
        from llamaspec.convert import convert as run
        from llamaspec.convert.fetch import fetch_draft, fetch_target
        from llamaspec.runtime.staged import check_output

        check_output(output, force)
        wishes = Wishes(standalone, drop_unexpected, _settings(settings or []))
        source, origin = fetch_draft(checkpoint, revision)
        place = fetch_target(target, None, weights=standalone)
        job = Job(source, place, output, outtype, wishes, force, origin)
        try:
            report = run(job, _show if on_terminal() else None)
        finally:
            if on_terminal():
                clear_line()
        typer.echo(_table(report))


def _settings(texts: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, value = _setting(text)
        if name in found:
            raise OptionError(f"--set {name} is given twice; give it once")
        found[name] = value
    return found


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionError(f"--set {text}: not of the form KEY=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _show(done: int, total: int) -> None:
    show_line(f"writing {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({done / total:.0%})")


def _table(report: "Report") -> str:
    plan, config = report.plan, report.plan.config
    kind, rank = config.markov
    anchor_first = bool(rank) if config.anchor_first is None else config.anchor_first
    layout = "anchor-first" if anchor_first else "bonus-anchor"
    types = sorted(report.types.items(), key=lambda item: -item[1])
    gone: dict[str, int] = {}
    for why in plan.left_out.values():
        gone[why] = gone.get(why, 0) + 1
    rows = [
        ("packaging", plan.packaging),
        ("layers x width", f"{config.shape.layers} x {config.shape.width}"),
        ("features", f"inputs of target layers {list(config.taps)} of {report.target.layers}"),
        ("block", f"{config.block} slots, {layout}, mask {config.mask}"),
        ("Markov head", f"{kind}, rank {rank}" if rank else "none"),
        ("vocabulary", f"{config.draft_vocabulary} of {config.shape.vocabulary} tokens"),
        ("RoPE", f"theta {config.rope.theta:g}" + (", scaled" if config.rope.scaling else "")),
        ("tensors", f"{len(plan.tensors)}, {report.size / 1e6:,.1f} MB"),
        ("types", ", ".join(f"{name} {size / 1e6:,.1f} MB" for name, size in types)),
        *(("left out", f"{count}: {why}") for why, count in gone.items()),
        *(("note", note) for note in plan.notes),
    ]
    lines = [f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in rows]
    return "\n".join([f"{report.output}: a draft for {report.target.path.name}", *lines])
