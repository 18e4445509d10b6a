"""`llamaspec run`: complete one prompt, with the draft, without it, or both."""

import json
import secrets
import sys
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec import demo
from llamaspec.cli import sampling
from llamaspec.cli.explain import explanation
from llamaspec.cli.guard import guarded, show_log
from llamaspec.cli.placing import Draft, Model, Rpc
from llamaspec.cli.sharing import AUTO, generate_options, load_options
from llamaspec.errors import OptionError
from llamaspec.options import (
    ALL_LAYERS,
    DEFAULT_MAX_TOKENS,
    MAX_SEED,
    GenerateOptions,
)

if TYPE_CHECKING:
    from llamaspec.completion import Completion
    from llamaspec.session import Session
    from llamaspec.text.prompt import Prompt

_WARM_UP_TOKENS = 8
_DEFAULTS = GenerateOptions()


@dataclass(frozen=True)
class _Job:
    prompt: "Prompt"
    options: GenerateOptions

    def arguments(self, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
        return asdict(replace(self.options, **changes))


def run(
    prompt: Annotated[
        str | None,
        typer.Argument(help="The prompt, in quotes; absent: stdin, else the bundled pair's own."),
    ] = None,
    model: Model = None,
    draft: Draft = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", help="Most tokens to generate.")
    ] = DEFAULT_MAX_TOKENS,
    draft_max: Annotated[
        str, typer.Option("--draft-max", help="Most proposals a round, or auto: as many as pay.")
    ] = AUTO,
    lookup: Annotated[
        bool,
        typer.Option(
            "--lookup", help="Beside the draft, look up what followed in the text before."
        ),
    ] = False,
    cost_curve: Annotated[
        str | None,
        typer.Option("--cost-curve", help="What passes cost, of `bench cost`; absent: measured."),
    ] = None,
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            help="What auto takes: auto, what pays; full, whole blocks; P, the surer than P.",
        ),
    ] = AUTO,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how many proposals were verified, and why.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Decode without the draft.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode with and without the draft and compare.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Plain decoding's text, token for token, at any cost.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    prompt_ids: Annotated[
        Path | None,
        typer.Option("--prompt-ids", help="File of token ids, a JSON list or separated by spaces."),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temp", help="0 is greedy.")
    ] = _DEFAULTS.temperature,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the draws; absent: a fresh one.")
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", help="Text that ends the completion; may be repeated."),
    ] = None,
    top_k: sampling.TopK = _DEFAULTS.top_k,
    top_p: sampling.TopP = _DEFAULTS.top_p,
    min_p: sampling.MinP = _DEFAULTS.min_p,
    typical_p: sampling.TypicalP = _DEFAULTS.typical_p,
    repeat_penalty: sampling.RepeatPenalty = _DEFAULTS.repeat_penalty,
    repeat_last_n: sampling.RepeatLastN = _DEFAULTS.repeat_last_n,
    presence_penalty: sampling.PresencePenalty = _DEFAULTS.presence_penalty,
    frequency_penalty: sampling.FrequencyPenalty = _DEFAULTS.frequency_penalty,
    dry_multiplier: sampling.DryMultiplier = _DEFAULTS.dry_multiplier,
    dry_base: sampling.DryBase = _DEFAULTS.dry_base,
    dry_allowed_length: sampling.DryAllowedLength = _DEFAULTS.dry_allowed_length,
    dry_penalty_last_n: sampling.DryPenaltyLastN = _DEFAULTS.dry_penalty_last_n,
    dry_sequence_breaker: sampling.DrySequenceBreakers = None,
    logit_bias: sampling.LogitBias = None,
    accept: sampling.Accept = _DEFAULTS.accept,
    grammar: sampling.Grammar = None,
    json_schema: sampling.JsonSchema = None,
    logprobs: sampling.Logprobs = None,
    n_gpu_layers: Annotated[
        int, typer.Option("-ngl", help="Target layers on the GPU, -1 for all.")
    ] = ALL_LAYERS,
    n_gpu_layers_draft: Annotated[
        int, typer.Option("-ngld", help="Draft layers on the GPU, -1 for all.")
    ] = ALL_LAYERS,
    device: Annotated[
        str | None, typer.Option("--device", help="The target's devices, as doctor lists; or cpu.")
    ] = None,
    device_draft: Annotated[
        str | None, typer.Option("--device-draft", help="The draft's; absent: all there are.")
    ] = None,
    split_mode: Annotated[
        str, typer.Option("--split-mode", help="The target over several: layer, none, row, tensor.")
    ] = "layer",
    rpc: Rpc = None,
    context: Annotated[
        int,
        typer.Option(
            "-c",
            "--context",
            help="Positions for prompt and completion; 0: the model's, at most 4096.",
        ),
    ] = 0,
    fit: Annotated[
        bool, typer.Option("--fit", help="The longest context that fits the free memory, up to -c.")
    ] = False,
    threads: Annotated[int, typer.Option("-t", "--threads", help="0: the physical cores.")] = 0,
    head: Annotated[
        str,
        typer.Option("--head", help="Where the Markov head runs: auto, native, graph or python."),
    ] = "auto",
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw", help="Use the model's chat template or not; absent: where it has one."
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
) -> None:
    """Complete a prompt; the text streams as it is accepted.

    Exit code 0: done. 2: bad input, with the reason on stderr. 130: interrupted.
    """
    given = locals()
    show_log(verbose)
    with guarded():
        if plain and compare:
            raise OptionError(
                "--plain and --compare exclude each other; --compare decodes plainly too"
            )
        # what can be refused is refused before anything is loaded
        options = load_options(given)
        # one prompt a process, but for comparisons, which start cold
        generate = generate_options(given, cache_prompt=False)
        if compare and accept != "match" and temperature > 0:
            raise OptionError(
                f"--compare compares texts and --accept {accept} gives others than the target's "
                "own draws; use --accept match"
            )
        if compare and seed is None:
            generate = replace(generate, seed=secrets.randbelow(MAX_SEED + 1))
        asked = _prompt(prompt, prompt_ids, bundled=model is None, quiet=as_json)
        from llamaspec.session import load

        with load(model, draft, options=options) as session:
            job = _Job(_in_chat(asked, session, chat), generate)
            done = _execute(session, job, compare=compare, as_json=as_json)
            if explain and not as_json:
                for line in explanation(done, session, generate):
                    _say(line)


def _execute(session: "Session", job: _Job, *, compare: bool, as_json: bool) -> "Completion":
    """Complete the prompt and print it; return what a closing line is about."""
    if compare:
        if not session.draft_limit:
            raise OptionError("--compare needs a draft to compare with; give one with -d")
        _warm_up(session, job)
    done = _complete(session, job, show=not as_json)
    other = session.generate(job.prompt, **job.arguments(draft_max=0)) if compare else None
    if as_json:
        typer.echo(json.dumps(_as_json(done, other), ensure_ascii=False))
        return done
    _say(_closing_line(done))
    if other is not None:
        for line in _comparison(done, other):
            _say(line)
    return done


def _warm_up(session: "Session", job: _Job) -> None:
    # the first passes read the files from disk; neither side of a comparison should pay for that
    for draft_max in (0, job.options.draft_max):
        few = job.arguments(draft_max=draft_max, max_tokens=_WARM_UP_TOKENS)
        session.generate(job.prompt, **few)


def _complete(session: "Session", job: _Job, *, show: bool) -> "Completion":
    for piece in session.stream(job.prompt, **job.arguments()):
        if show:
            typer.echo(piece.text, nl=False)
    if show:
        typer.echo()
    assert session.last is not None
    return session.last


def _prompt(text: str | None, ids: Path | None, *, bundled: bool, quiet: bool) -> "Prompt":
    if ids is not None:
        if text is not None:
            raise OptionError("give either a prompt or --prompt-ids, not both")
        return _read_ids(ids)
    if text == "":
        raise OptionError("the prompt is empty; give at least one character")
    if text is not None:
        return text
    if piped := _piped():
        return piped
    if bundled:
        if not quiet:
            _say(f'no prompt was given; using the bundled pair\'s: "{demo.PROMPT}"')
        return demo.PROMPT
    raise OptionError("there is no prompt; give one as an argument, with --prompt-ids or on stdin")


def _piped() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    try:
        piped = sys.stdin.buffer.read()
    except OSError as error:
        raise OptionError(f"stdin cannot be read ({error.strerror or error})") from None
    # bytes that are no UTF-8 stay recognisable for what takes the prompt apart
    return piped.decode("utf-8", "surrogateescape")


def _read_ids(path: Path) -> list[int]:
    try:
        text = path.read_text("utf-8")
        is_json = text.lstrip().startswith("[")
        found = json.loads(text) if is_json else [int(word) for word in text.split()]
        if any(type(item) is not int for item in found):
            raise ValueError
        return found
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise OptionError(f"{path}: not a list of token ids, such as [1, 2, 3] or 1 2 3") from None


def _in_chat(prompt: "Prompt", session: "Session", chat: bool | None) -> "Prompt":
    if not isinstance(prompt, str):
        return prompt
    wanted = session.has_chat_template if chat is None else chat
    return [{"role": "user", "content": prompt}] if wanted else prompt


def _closing_line(done: "Completion") -> str:
    stats = done.stats
    line = (
        f"{stats.completion_tokens} tokens in {stats.total_s:.2f} s: "
        f"{stats.tokens_per_second:.1f} tokens/s"
    )
    if not stats.drafted:
        offered = any(record.offered for record in done.rounds)
        return line + (", no proposal was worth verifying" if offered else ", no draft")
    return f"{line}, tau {stats.tau:.2f}, accept rate {stats.accept_rate:.0%}"


def _comparison(done: "Completion", other: "Completion") -> list[str]:
    fast, slow = done.stats.tokens_per_second, other.stats.tokens_per_second
    same = done.token_ids == other.token_ids
    ratio = fast / slow if slow else 0.0
    return [
        f"plain: {_closing_line(other)}",
        f"outputs {'identical' if same else 'DIFFER'}, "
        f"{fast:.1f} against {slow:.1f} tokens/s: {ratio:.2f} x plain decoding",
    ]


def _as_json(done: "Completion", other: "Completion | None") -> dict[str, Any]:
    result = _fields(done)
    if other is not None:
        result["plain"] = _fields(other)
        result["identical"] = done.token_ids == other.token_ids
    return result


def _fields(done: "Completion") -> dict[str, Any]:
    result = asdict(done)
    for record in result["rounds"]:
        # a damaged draft gives NaN, which JSON has no word for
        if record["confidence"] is not None:
            record["confidence"] = [_number(c) for c in record["confidence"]]
    for token in result["logprobs"] or ():
        token["logprob"] = _number(token["logprob"])
        token["top"] = [[other, _number(value)] for other, value in token["top"]]
    return result


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def _say(line: str) -> None:
    typer.echo(f"llamaspec: {line}", err=True)
