"""`llamaspec inspect`: what GGUF files are, and whether two of them fit."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import guarded
from llamaspec.errors import OptionError

if TYPE_CHECKING:
    from llamaspec.runtime.describe import FileDescription

DOES_NOT_FIT = 1
_LABEL_WIDTH = 16


def inspect(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE [FILE]", help="One GGUF, or a target and its draft."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a GGUF is, or whether two fit.

    With two files also every reason if they do not.

    Exit code 0: they fit, or there is one file. 1: they do not fit. 2: a file cannot be read.
    """
    from llamaspec.models import find_target
    from llamaspec.runtime.describe import describe

    with guarded():
        if len(files) > 2:
            raise OptionError(f"{len(files)} files were given; inspect takes one or two")
        found = [describe(find_target(file).path) for file in files]
        verdict = _verdict(found) if len(found) == 2 else None
        if as_json:
            typer.echo(json.dumps(_as_json(found, verdict), indent=2, ensure_ascii=False))
        else:
            typer.echo("\n\n".join([*map(_table, found), *([_spoken(verdict)] if verdict else [])]))
        if verdict and verdict["problems"]:
            raise typer.Exit(DOES_NOT_FIT)


def _verdict(found: Sequence["FileDescription"]) -> dict[str, list[str]]:
    from llamaspec.runtime.describe import pair_notes, pair_problems

    target, draft = found
    if target.draft is not None and draft.draft is None:
        target, draft = draft, target
    return {"problems": pair_problems(target, draft), "notes": pair_notes(target, draft)}


def _as_json(
    found: Sequence["FileDescription"], verdict: dict[str, list[str]] | None
) -> dict[str, Any]:
    from dataclasses import asdict

    files = []
    for description in found:
        fields = asdict(description) | {"path": str(description.path)}
        if (draft := description.draft) is not None:
            fields["draft"] |= {
                "method": draft.method,
                "layout": draft.layout,
                "proposals": draft.proposals,
                "has_confidence_head": draft.has_confidence_head,
            }
        files.append(fields)
    return {"files": files, "fits": not verdict["problems"], **verdict} if verdict else files[0]


def _spoken(verdict: dict[str, list[str]]) -> str:
    problems, notes = verdict["problems"], verdict["notes"]
    head = "They do not fit:" if problems else "They fit."
    return "\n".join(
        [head, *(f"  - {text}" for text in problems), *(f"  note: {text}" for text in notes)]
    )


def _table(description: "FileDescription") -> str:
    rows = _common_rows(description)
    if description.draft is not None:
        rows += _draft_rows(description)
    lines = [f"  {label:<{_LABEL_WIDTH}}{value}" for label, value in rows]
    return "\n".join([f"{description.path}: {_sentence(description)}", *lines])


def _sentence(description: "FileDescription") -> str:
    draft = description.draft
    if draft is None:
        if description.kind == "target":
            return "a model that generates text by itself (a target)"
        return "neither a target nor a draft that llamaspec runs"
    taps = len(draft.taps)
    width = draft.feature_width // taps if taps else 0
    return f"a {draft.method} draft for a target of width {width}, not standalone"


def _common_rows(description: "FileDescription") -> list[tuple[str, str]]:
    size = description.size_bytes / 1e6
    params = description.n_params / 1e6
    types = sorted(description.tensor_bytes.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} {size_ / 1e6:.1f} MB" for name, size_ in types[:4])
    return [
        ("name", description.name),
        ("architecture", description.architecture),
        ("weights", f"{params:,.1f} M, {size:,.1f} MB"),
        ("quantisation", f"{description.quantisation} ({shown})"),
        ("layers x width", f"{description.n_layer} x {description.width}"),
        ("vocabulary", f"{description.n_vocab} tokens, {description.tokenizer or 'no tokenizer'}"),
        ("context", str(description.context_length)),
        ("chat template", "yes" if description.has_chat_template else "no"),
        *([("converted from", ", ".join(description.source))] if description.source else []),
    ]


def _draft_rows(description: "FileDescription") -> list[tuple[str, str]]:
    draft = description.draft
    assert draft is not None
    own = {True: "its own", False: "the target's"}
    head = {"none": "none", "selector": "DFlash2 selector"}.get(
        draft.head, f"{draft.head}, rank {draft.markov_rank}"
    )
    full = draft.draft_vocabulary == draft.target_vocabulary
    reduced = f"{draft.draft_vocabulary} of the target's {draft.target_vocabulary} tokens"
    return [
        ("features", f"{draft.feature_width}: inputs of target layers {list(draft.taps)}"),
        ("block", f"{draft.block_size} slots, {draft.layout}: {draft.proposals} proposals"),
        ("Markov head", head),
        ("confidence head", "yes" if draft.has_confidence_head else "no"),
        ("proposes from", "the target's whole vocabulary" if full else reduced),
        ("embedding", own[draft.own_embedding]),
        ("output head", _head_owner(description)),
        ("mask token", "missing" if draft.mask_token_id is None else str(draft.mask_token_id)),
        ("in the block", "causal attention" if draft.causal else "attention both ways"),
    ]


def _head_owner(description: "FileDescription") -> str:
    draft = description.draft
    assert draft is not None
    if draft.own_head:
        return "its own"
    return "its own embedding" if draft.own_embedding else "the target's"
