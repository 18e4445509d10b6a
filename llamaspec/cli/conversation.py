"""A conversation: its messages, its next answer as it comes, and what the last one took."""

import signal
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

from llamaspec.errors import ContextFullError

if TYPE_CHECKING:
    from llamaspec.completion import Completion, Piece
    from llamaspec.options import GenerateOptions
    from llamaspec.session import Session
    from llamaspec.text.prompt import Message

_TINT, _UNTINT = "\x1b[36m", "\x1b[0m"


class Conversation:
    """Messages so far, and the session that answers them.

    Attributes:
        messages: what was said, the system's words first.
        drafting: whether the draft is used.
        last: the newest answer's Completion, None before the first.
    """

    def __init__(
        self, session: "Session", options: "GenerateOptions", *, system: str | None, whole: bool
    ) -> None:
        """Begin one. whole: an answer may take what the context has left."""
        self._session = session
        self._options = options
        self._whole = whole
        self._before: list[Message] = (
            [{"role": "system", "content": system}] if system is not None else []
        )
        self.messages = list(self._before)
        self.drafting = session.draft_limit > 0
        self.last: Completion | None = None

    def reset(self) -> None:
        """Forget what was said, but for the system's words."""
        self.messages = list(self._before)

    def toggle(self) -> str:
        """Use the draft where it was not used, and the other way round; says which."""
        if not self._session.draft_limit:
            return "there is no draft; every answer is plain"
        self.drafting = not self.drafting
        return "answers are drafted" if self.drafting else "answers are plain, without the draft"

    def answer(self, text: str, *, tint: bool, terminal: bool) -> None:
        """Ask, and print the answer as it comes; in a terminal Ctrl-C ends it, and what there is
        stays.

        Raises:
            LlamaSpecError: it cannot be answered; the conversation is as it was before.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        writer = Writer(self._session, tint=tint, terminal=terminal)
        try:
            done = self._answered(asked, writer, stoppable=terminal)
        except ContextFullError:
            raise ContextFullError(
                f"the context of {self._session.n_ctx} positions is full; /reset begins anew, a "
                "larger -c holds more"
            ) from None
        finally:
            writer.end()
        self.last = done
        self.messages = [*asked, {"role": "assistant", "content": done.text}]
        if line := self._ended(done):
            typer.echo(f"llamaspec: {line}", err=True)

    def _answered(
        self, asked: "list[Message]", writer: "Writer", *, stoppable: bool
    ) -> "Completion":
        changes: dict[str, Any] = {} if self.drafting else {"draft_max": 0}
        if self._whole:
            changes["max_tokens"] = self._session.n_ctx
        settings = asdict(replace(self._options, **changes))
        cancel = threading.Event()
        stream = self._session.stream(asked, cancel=cancel, **settings)
        with _stopping(cancel) if stoppable else nullcontext():
            while True:
                try:
                    writer.write(next(stream))
                except StopIteration as end:
                    done: Completion = end.value
                    return done
                except BaseException:
                    stream.close()
                    raise

    def _ended(self, done: "Completion") -> str:
        stats = done.stats
        if done.finish_reason == "cancelled":
            return "stopped"
        if done.finish_reason != "length":
            return ""
        if stats.prompt_tokens + stats.completion_tokens >= self._session.n_ctx:
            return f"the context of {self._session.n_ctx} positions is full; /reset begins anew"
        return f"cut after {stats.completion_tokens} tokens (-n)"

    def statistics(self) -> list[str]:
        """What the last answer took, a line each."""
        if self.last is None:
            return ["there is no answer yet"]
        stats = self.last.stats
        used = stats.prompt_tokens + stats.completion_tokens
        speed = (
            f"{stats.completion_tokens} tokens in {stats.total_s:.2f} s: "
            f"{stats.tokens_per_second:.1f} tokens/s, the first after "
            f"{stats.time_to_first_token_s:.2f} s"
        )
        drafted = (
            f"tau {stats.tau:.2f}, {stats.accepted} of {stats.drafted} proposals accepted"
            if stats.drafted
            else "nothing was drafted"
        )
        return [
            speed,
            drafted,
            f"prompt: {stats.prompt_tokens} tokens, {stats.cached_tokens} of them cached",
            f"context: {used} of {self._session.n_ctx} positions",
        ]


class Writer:
    """Prints an answer's pieces; accepted proposals in another colour where that is wanted."""

    def __init__(self, session: "Session", *, tint: bool, terminal: bool) -> None:
        from llamaspec.text.detokenize import Pieces, StreamDetokenizer

        self._tint, self._terminal = tint, terminal
        self._tokens = StreamDetokenizer(Pieces(session.vocab.piece))
        self._spans: deque[tuple[int, bool]] = deque()
        self._open = False

    def write(self, piece: "Piece") -> None:
        """One round: all its tokens but the last are accepted proposals."""
        if not self._tint:
            self._print(piece.text)
            return
        for index, token in enumerate(piece.token_ids):
            drafted = index < len(piece.token_ids) - 1
            self._spans.append((len(self._tokens.push(token)), drafted))
        text = piece.text
        # the text lags behind its tokens
        while text:
            count, drafted = self._spans.popleft() if self._spans else (len(text), False)
            part, text = text[:count], text[count:]
            if count > len(part):
                self._spans.appendleft((count - len(part), drafted))
            if part:
                self._print(f"{_TINT}{self._plain(part)}{_UNTINT}" if drafted else part, drafted)

    def end(self) -> None:
        """Close the line."""
        if self._open:
            typer.echo()
        self._open = False

    def _print(self, text: str, ready: bool = False) -> None:
        if text:
            self._open = True
            typer.echo(text if ready else self._plain(text), nl=False, color=self._tint or None)

    def _plain(self, text: str) -> str:
        """A model's words must not steer the terminal."""
        if not self._terminal:
            return text
        return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in text)


@contextmanager
def _stopping(cancel: threading.Event) -> Iterator[None]:
    """Ctrl-C ends the answer before its next round; a second one does not wait for that."""

    def stop(*_: object) -> None:
        if cancel.is_set():
            raise KeyboardInterrupt
        cancel.set()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
