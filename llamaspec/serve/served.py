"""The model that is served: a session, and what endpoints ask of it."""

import asyncio
import threading
import time
from functools import cached_property

from llamaspec.errors import OptionError
from llamaspec.runtime.arrays import IntArray
from llamaspec.serve.problems import context_length
from llamaspec.serve.settings import ServeSettings
from llamaspec.serve.tools import Style, style_of
from llamaspec.session import Session
from llamaspec.text.detokenize import Pieces, StreamDetokenizer
from llamaspec.text.prompt import Chat, Prompt

_AT_ONCE = 2000
"""Characters of a text that is tokenised in less time than a thread takes to wake up."""
_RENDERED_S = 0.005
"""Within which a chat was rendered, for the next one not to need a thread."""


class Served:
    """A session with its settings. Anything slow runs in a thread, so that others are answered."""

    def __init__(self, session: Session, settings: ServeSettings, name: str) -> None:
        self.session = session
        self.settings = settings
        self.name = name
        self.created = int(time.time())
        self.ends = session.vocab.ends
        self.pieces = Pieces(session.vocab.piece)
        self._pieces: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._quick = False
        self._in_threads = 0

    @property
    def n_ctx(self) -> int:
        return self.session.n_ctx

    @property
    def drafts(self) -> bool:
        """There is a draft."""
        return self.session.draft_limit > 0

    @cached_property
    def style(self) -> Style | None:
        """How the model calls functions, None where it does not."""
        return style_of(self.session.template_source)

    async def find_style(self) -> Style | None:
        """`style`; the first use compiles the template."""
        if "style" in self.__dict__:
            return self.style
        return await asyncio.to_thread(lambda: self.style)

    async def tokenize(self, prompt: Prompt) -> IntArray:
        """Token ids [n] of a prompt. Raises OptionError."""
        short = _length(prompt) < _AT_ONCE
        # who is in a thread may hold what others would wait for
        if short and not self._in_threads and (isinstance(prompt, str) or self._quick):
            return self.session.tokenize(prompt)
        self._in_threads += 1
        started = time.perf_counter()
        try:
            return await asyncio.to_thread(self.session.tokenize, prompt)
        finally:
            self._in_threads -= 1
            if short:
                # a template is a program, and what it takes is its own affair
                self._quick = time.perf_counter() - started < _RENDERED_S

    async def tokenize_text(self, text: str, add_special: bool) -> list[int]:
        """Token ids of text, with what the model wants around a prompt or without. Raises
        OptionError.
        """

        def work() -> list[int]:
            ids = self.session.vocab.tokenize(text, add_special=add_special)
            return [int(token) for token in ids]

        return work() if len(text) < _AT_ONCE else await asyncio.to_thread(work)

    async def fitting(self, prompt: Prompt) -> IntArray:
        """Token ids [n] of a prompt that leaves room for a text. Raises ApiError, OptionError."""
        param = "messages" if isinstance(prompt, Chat) else "prompt"
        ids = await self.tokenize(prompt)
        if not len(ids):
            raise OptionError("the prompt is empty; give at least one token")
        if len(ids) >= self.n_ctx:
            raise context_length(self.n_ctx, len(ids), param)
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes of a token, of control tokens their names."""
        found = self._pieces.get(token)
        if found is None:
            found = self._pieces[token] = self.session.vocab.piece(token, special=True)
        return found

    def detokenize(self, tokens: list[int]) -> str:
        """The text of tokens. Raises OptionError for a token outside the vocabulary."""
        size = self.session.vocab.size
        for token in tokens:
            if token >= size:
                raise OptionError(f"token id {token} lies outside the vocabulary of {size}")
        stream = StreamDetokenizer(Pieces(self.piece))
        return "".join(map(stream.push, tokens)) + stream.flush()


def _length(prompt: Prompt) -> int:
    """Characters of a prompt, at least; of one that says more than messages, too many to matter."""
    if isinstance(prompt, str):
        return len(prompt)
    if not isinstance(prompt, Chat) or prompt.tools or prompt.variables:
        return _AT_ONCE
    return sum(len(str(message.get("content", ""))) for message in prompt.messages)
