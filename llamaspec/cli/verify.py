"""`llamaspec verify`: whether decoding with a draft gives the tokens of decoding without it."""

import json
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.placing import Rpc
from llamaspec.cli.quantize import clear_line, on_terminal, show_line
from llamaspec.errors import OptionError
from llamaspec.options import ALL_LAYERS, LoadOptions

if TYPE_CHECKING:
    from llamaspec.checking import Check, Divergence
    from llamaspec.session import Session
    from llamaspec.text.prompt import Prompt

_DIFFERS = 1


def verify(
    model: Annotated[
        str | None, typer.Option("-m", "--model", help="Target; absent: the bundled pair.")
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option("-d", "--draft", help="Its draft, or lookup: search the text, no model."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", help='A prompt a line, or JSON lines with a "prompt".'),
    ] = None,
    max_tokens: Annotated[int, typer.Option("-n", "--max-tokens", help="Of each text.")] = 128,
    exact: Annotated[bool, typer.Option("--exact", help="Check exact mode.")] = False,
    draft_max: Annotated[
        int | None, typer.Option("--draft-max", help="Most proposals a round; absent: the block.")
    ] = None,
    n_gpu_layers: Annotated[int, typer.Option("-ngl", help="Layers on the GPU.")] = ALL_LAYERS,
    rpc: Rpc = None,
    context: Annotated[int, typer.Option("-c", "--context", help="0: the model's.")] = 0,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    flash_attention: Annotated[
        str, typer.Option("--flash-attention", help="auto, on or off.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Decode prompts greedily with the draft and without it and compare the tokens.

    Exit code 0: the same, but for ties within the rounding measured here (with --exact: the
    same). 1: they differ. 2: bad input. 130: interrupted.
    """
    show_log(verbose)
    with guarded():
        options = LoadOptions(
            context=context,
            n_gpu_layers=n_gpu_layers,
            rpc=rpc,
            threads=threads,
            flash_attention=flash_attention,  # type: ignore[arg-type]
            exact=exact,
        )
        texts = read_prompts(prompts)
        from llamaspec.checking import check
        from llamaspec.session import load

        show = on_terminal() and not as_json
        with load(model, draft, options=options) as session:
            try:
                found = check(
                    session,
                    [asked(session, text) for text in texts],
                    max_tokens=max_tokens,
                    draft_max=draft_max,
                    on_prompt=progress if show else lambda done, total: None,
                )
            finally:
                if show:
                    clear_line()
        if as_json:
            typer.echo(json.dumps(_as_json(found), ensure_ascii=False))
        else:
            for line in _lines(found):
                typer.echo(line)
        if not found.passed:
            raise typer.Exit(_DIFFERS)


def read_prompts(file: Path | None) -> list[str]:
    """The prompts of a file, or the probe's own few. Raises OptionError."""
    if file is None:
        from llamaspec.bench.pairs import PROMPTS

        return [text for _, text in PROMPTS]
    try:
        lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise OptionError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise OptionError(f"{file}: is not UTF-8 text") from None
    found = [_prompt(file, line) if line.lstrip().startswith("{") else line for line in lines]
    if not found:
        raise OptionError(f"{file}: holds no prompt; give one a line")
    return found


def _prompt(file: Path, line: str) -> str:
    try:
        text = json.loads(line)["prompt"]
    except (ValueError, KeyError, RecursionError):
        text = None
    if not isinstance(text, str) or not text:
        raise OptionError(f'{file}: the line {line[:40]!r} is no JSON object with a "prompt"')
    return text


def asked(session: "Session", text: str) -> "Prompt":
    """A user's message where the target has a chat template, else the text as it is."""
    return [{"role": "user", "content": text}] if session.has_chat_template else text


def progress(done: int, total: int) -> None:
    """Show on the terminal how many prompts are done."""
    show_line(f"{done} of {total} prompts")


def _as_json(found: "Check") -> dict[str, Any]:
    report = {**asdict(found), "passed": found.passed}
    # JSON has no word for what a damaged model gives
    for item in (report, *report["divergences"]):
        item.update({k: None for k, v in item.items() if isinstance(v, float) and not isfinite(v)})
    return report


def _lines(found: "Check") -> list[str]:
    mode = "exact mode" if found.exact else "default mode"
    tau = (found.tokens - found.prompts) / max(1, found.rounds)
    lines = [
        f"{mode}: {found.exactness}",
        f"{found.prompts} prompts, {found.tokens} tokens compared, tau {tau:.2f}, "
        f"{found.accepted} of {found.drafted} proposals accepted, {found.replayed} rows replayed",
        *map(_told, found.divergences),
    ]
    if not found.divergences:
        return [*lines, "identical"]
    outside = sum(not d.inside for d in found.divergences)
    return [*lines, f"{len(found.divergences)} texts differ, {outside} not by a near tie"]


def _told(found: "Divergence") -> str:
    if found.drafted is None or found.plain is None:
        shorter = "with the draft" if found.drafted is None else "without it"
        return f"prompt {found.prompt}: the text {shorter} ends early, at token {found.position}"
    within = "within" if found.inside else "BEYOND"
    return (
        f"prompt {found.prompt}: token {found.position} is {found.drafted} with the draft and "
        f"{found.plain} without, whose two best were {found.gap:.2g} apart, {within} the bound"
    )
