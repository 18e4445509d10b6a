"""Texts and their tokens as JSON: the whole of them, or chunk by chunk of a stream."""

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.completion import Completion, Piece
from llamaspec.serve.asked import Asked
from llamaspec.serve.figures import extra_of, timings_of, usage_of
from llamaspec.serve.replies import (
    AssistantMessage,
    CallDelta,
    CallReply,
    ChatChoice,
    ChatLogprobs,
    ChatReply,
    Extra,
    Finish,
    TextChoice,
    TextLogprobs,
    TextReply,
    TopToken,
)
from llamaspec.serve.served import Served
from llamaspec.serve.spans import Spans
from llamaspec.serve.tools import Call, CallReader
from llamaspec.trace import TokenLogprob

FINGERPRINT = f"llamaspec-{__version__}-{LLAMA_CPP_COMMIT[:8]}"
_LEAST = -9999.0
"""In place of minus infinity, for which JSON has no word; OpenAI's own choice."""


class Wording:
    """Writes the replies of one request."""

    def __init__(self, served: Served, asked: Asked) -> None:
        self._served = served
        self._asked = asked
        self._drafts = served.drafts and asked.settings.get("draft_max") != 0
        prefix, kind = (
            ("chatcmpl", "chat.completion") if asked.chat else ("cmpl", "text_completion")
        )
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": served.name,
            "system_fingerprint": FINGERPRINT,
        }
        if asked.stream and asked.chat:
            self._head["object"] = "chat.completion.chunk"

    def reply(self, done: Sequence[Completion]) -> ChatReply | TextReply:
        """Everything, when all texts are done."""
        choice = self._chat_choice if self._asked.chat else self._text_choice
        found: Any = {
            **self._head,
            "choices": [choice(index, one) for index, one in enumerate(done)],
            "usage": usage_of(done, len(self._asked.prompts)),
            "timings": timings_of(done, drafts=self._drafts),
            "llamaspec": extra_of(done, drafts=self._drafts),
        }
        reply: ChatReply | TextReply = found
        return reply

    def texts(self) -> list["Text"]:
        """The state of every text of a stream."""
        count = self._asked.n * len(self._asked.prompts)
        pieces = self._served.pieces
        return [Text(index, Spans(pieces), self._reader()) for index in range(count)]

    def chunk(self, text: "Text", piece: Piece) -> list[dict[str, Any]]:
        """What a piece of a text adds to a stream; nothing where it only adds to what is held."""
        said, calls = text.read(piece.text)
        ends = self._served.ends
        pairs = zip(piece.token_ids, piece.accepted, strict=True)
        kept = [(token, accepted) for token, accepted in pairs if token not in ends]
        chosen = [p for p in piece.logprobs or () if p.token_id not in ends]
        text.waiting += chosen
        text.tokens += [token for token, _ in kept]
        text.accepted += sum(accepted for _, accepted in kept)
        text.spans.push(kept)
        if not said and not calls and not self._asked.tokens:
            return []
        extra: Extra | None = None
        if self._asked.tokens:
            extra = {"token_ids": text.tokens, "accepted": text.accepted}
            text.tokens, text.accepted = [], 0
            if text.reader is None:
                extra["spans"] = text.spans.take(said)
        return self._deltas(text, said, calls, None, extra)

    def last(self, text: "Text", done: Completion) -> list[dict[str, Any]]:
        """The end of a text of a stream."""
        said, calls = text.finish()
        found = self._deltas(text, said, calls, None, None) if said or calls or text.waiting else []
        closing = self._deltas(
            text,
            "",
            [],
            _finish(done, called=text.called > 0),
            extra_of([done], drafts=self._drafts),
        )
        closing[-1]["timings"] = timings_of([done], drafts=self._drafts)
        return found + closing

    def usage(self, done: Sequence[Completion]) -> dict[str, Any]:
        """The chunk after all texts, where it was asked for."""
        return {
            **self._head,
            "choices": [],
            "usage": usage_of(done, len(self._asked.prompts)),
            "timings": timings_of(done, drafts=self._drafts),
        }

    def _reader(self) -> CallReader | None:
        return self._asked.tools.reader() if self._asked.tools else None

    def _deltas(
        self,
        text: "Text",
        said: str,
        calls: list[Call],
        finish: Finish | None,
        extra: Extra | None,
    ) -> list[dict[str, Any]]:
        choice: dict[str, Any] = {"index": text.index, "finish_reason": finish, "logprobs": None}
        logprobs, text.waiting = text.waiting, []
        if self._asked.chat:
            delta: dict[str, Any] = {} if text.begun else {"role": "assistant", "content": ""}
            if said:
                delta["content"] = said
            if calls:
                delta["tool_calls"] = [text.numbered(call) for call in calls]
            choice["delta"] = delta
            if logprobs:
                choice["logprobs"] = self._chat_logprobs(logprobs)
        else:
            choice["text"] = said
            if logprobs:
                choice["logprobs"], text.length = self._text_logprobs(logprobs, text.length)
        text.begun = True
        found: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._asked.usage:
            found["usage"] = None
        if extra is not None:
            found["llamaspec"] = extra
        return [found]

    def _chat_choice(self, index: int, done: Completion) -> ChatChoice:
        content = done.text
        calls: list[Call] = []
        if (reader := self._reader()) is not None:
            said, calls = reader.push(done.text)
            rest, more = reader.finish()
            content, calls = said + rest, calls + more
        message: AssistantMessage = {
            "role": "assistant",
            "content": content or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        logprobs = self._chosen(done)
        return {
            "index": index,
            "message": message,
            "logprobs": None if logprobs is None else self._chat_logprobs(logprobs),
            "finish_reason": _finish(done, called=bool(calls)),
        }

    def _text_choice(self, index: int, done: Completion) -> TextChoice:
        logprobs = self._chosen(done)
        return {
            "index": index,
            "text": done.text,
            "logprobs": None if logprobs is None else self._text_logprobs(logprobs, 0)[0],
            "finish_reason": "stop" if done.finish_reason == "stop" else "length",
        }

    def _chosen(self, done: Completion) -> list[TokenLogprob] | None:
        if done.logprobs is None:
            return None
        return [one for one in done.logprobs if one.token_id not in self._served.ends]

    def _chat_logprobs(self, logprobs: Iterable[TokenLogprob]) -> ChatLogprobs:
        return {
            "content": [
                {
                    **self._token(one.token_id, one.logprob),
                    "top_logprobs": [self._token(*other) for other in one.top],
                }
                for one in logprobs
            ],
            "refusal": None,
        }

    def _text_logprobs(
        self, logprobs: Sequence[TokenLogprob], start: int
    ) -> tuple[TextLogprobs, int]:
        found: TextLogprobs = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for one in logprobs:
            text = self._text(one.token_id)
            found["tokens"].append(text)
            found["token_logprobs"].append(_number(one.logprob))
            found["top_logprobs"].append(
                {self._text(other): _number(value) for other, value in one.top}
            )
            found["text_offset"].append(start)
            start += len(text)
        return found, start

    def _token(self, token: int, logprob: float) -> TopToken:
        raw = self._served.piece(token)
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": _number(logprob),
            "bytes": list(raw),
        }

    def _text(self, token: int) -> str:
        return self._served.piece(token).decode("utf-8", "replace")


@dataclass
class Text:
    """One text of a stream. begun: its first chunk is out; waiting, tokens, accepted: what the next
    chunk carries; length: characters so far.
    """

    index: int
    spans: Spans
    reader: CallReader | None
    begun: bool = False
    called: int = 0
    length: int = 0
    accepted: int = 0
    tokens: list[int] = field(default_factory=list)
    waiting: list[TokenLogprob] = field(default_factory=list)

    def read(self, text: str) -> tuple[str, list[Call]]:
        return (text, []) if self.reader is None else self.reader.push(text)

    def finish(self) -> tuple[str, list[Call]]:
        return ("", []) if self.reader is None else self.reader.finish()

    def numbered(self, call: Call) -> CallDelta:
        self.called += 1
        return {"index": self.called - 1, **_call(call)}


def _call(call: Call) -> CallReply:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(done: Completion, *, called: bool) -> Finish:
    if done.finish_reason != "stop":
        # the end of its time is one of its length
        return "length"
    return "tool_calls" if called else "stop"


def _number(value: float) -> float:
    return value if isfinite(value) else _LEAST
