"""`llamaspec chat`: a conversation in the terminal, or one turn a line from a pipe."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llamaspec.cli.guard import BAD_INPUT, guarded, show_log
from llamaspec.cli.placing import Draft, Model
from llamaspec.cli.run import run
from llamaspec.cli.sharing import generate_options, load_options, with_options_of
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from llamaspec.cli.conversation import Conversation

_SHARED = """
draft_max lookup cost_curve exact schedule temperature seed stop top_k top_p min_p typical_p
repeat_penalty
repeat_last_n presence_penalty frequency_penalty dry_multiplier dry_base dry_allowed_length
dry_penalty_last_n dry_sequence_breaker logit_bias accept grammar json_schema n_gpu_layers
n_gpu_layers_draft device device_draft split_mode rpc context threads head
"""
_HISTORY = "chat-history"
_MARK = "> "
_HELP = """\
/stats    what the last answer took, and how full the context is
/plain    answer without the draft, or with it again
/reset    forget the conversation
/help     this
/exit     leave, as Ctrl-D does
Ctrl-C stops an answer. Alt-Enter begins a new line. // begins a message with one slash."""


@with_options_of(run, _SHARED.split())
def chat(
    model: Model = None,
    draft: Draft = None,
    system: Annotated[
        str | None, typer.Option("--system", help="What stands before the conversation.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", help="Of an answer; 0: what the context takes.")
    ] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Begin without the draft.")] = False,
    tint: Annotated[
        bool, typer.Option("--tint", help="Tint what the draft proposed and the target accepted.")
    ] = False,
    history: Annotated[
        Path | None,
        typer.Option("--history", help="File of what was typed; absent: in the user's cache."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show llama.cpp's log too.")
    ] = False,
    **given: Any,  # noqa: ANN401
) -> None:
    """Talk with a model; the caches keep the conversation from turn to turn.

    In a terminal /help lists the commands. From a pipe every line is a turn.

    Exit code 0: left. 2: bad input, or a line of a pipe that could not be answered.
    """
    show_log(verbose)
    with guarded():
        options = load_options(given)
        if max_tokens < 0:
            raise OptionError(f"max_tokens is {max_tokens}; it must be 0 or more")
        generate = generate_options(given, max_tokens=max_tokens or 1)
        from llamaspec.cli.conversation import Conversation
        from llamaspec.session import load

        with load(model, draft, options=options) as session:
            if not session.has_chat_template:
                raise ModelLoadError("the model has no chat template; llamaspec run takes text")
            talk = Conversation(session, generate, system=system, whole=not max_tokens)
            talk.drafting = not plain and session.draft_limit > 0
            if sys.stdin.isatty() and sys.stdout.isatty():
                _converse(talk, _reader(history), tint=tint)
            elif not _answer_lines(talk):
                raise typer.Exit(BAD_INPUT)


def _converse(talk: "Conversation", typed: "PromptSession[str]", *, tint: bool) -> None:
    _say("/help lists the commands, Ctrl-D leaves")
    while True:
        try:
            text = typed.prompt(_MARK)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip() in ("/exit", "/quit"):
            return
        try:
            _turn(talk, text, tint=tint, terminal=True)
        except KeyboardInterrupt:  # the second one in an answer
            _say("stopped at once; this message is forgotten")


def _answer_lines(talk: "Conversation") -> bool:
    """Whether every line could be answered."""
    done = True
    for line in _lines():
        if line.strip() in ("/exit", "/quit"):
            break
        done = _turn(talk, line, tint=False, terminal=False) and done
    return done


def _lines() -> Iterator[str]:
    if sys.stdin is None:
        return
    for raw in sys.stdin.buffer:
        if line := raw.decode("utf-8", "replace").rstrip("\r\n"):
            yield line


def _turn(talk: "Conversation", text: str, *, tint: bool, terminal: bool) -> bool:
    """One message or command; whether it could be answered."""
    message = text.strip()
    if not message:
        return True
    if message.startswith("/") and not message.startswith("//"):
        return _command(talk, message)
    try:
        talk.answer(message.removeprefix("/"), tint=tint, terminal=terminal)
    except LlamaSpecError as error:
        _say(str(error))
        return False
    return True


def _command(talk: "Conversation", word: str) -> bool:
    if word == "/stats":
        for line in talk.statistics():
            _say(line)
    elif word == "/plain":
        _say(talk.toggle())
    elif word == "/reset":
        talk.reset()
        _say("the conversation is forgotten")
    elif word == "/help":
        typer.echo(_HELP, err=True)
    else:
        _say(f"{word}: there is no such command; /help lists them")
        return False
    return True


def _reader(history: Path | None) -> "PromptSession[str]":
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return PromptSession(history=_history(history), key_bindings=keys)


def _history(asked: Path | None) -> Any:  # noqa: ANN401
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from llamaspec.runtime.store import cache_dir

    file = asked or cache_dir() / _HISTORY
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # what was said is for its writer alone
        file.touch(mode=0o600)
        with file.open("ab"):
            pass
    except OSError as error:
        _say(f"{file}: what is typed is not kept ({error.strerror or error})")
        return InMemoryHistory()
    return FileHistory(str(file))


def _say(line: str) -> None:
    typer.echo(f"llamaspec: {line}", err=True)
