"""Where a text ends, decided token by token, and the text itself."""

from collections import deque
from collections.abc import Sequence, Set
from typing import Literal

from llamaspec.text.detokenize import Pieces, StreamDetokenizer
from llamaspec.text.stop import StopMatcher

FinishReason = Literal["stop", "length", "cancelled"]
EndReason = Literal["stop", "length", "cancelled", "error"]


class Ending:
    """Watches the committed tokens of one sequence.

    The end-of-generation token counts as a token but adds no text; a stop text is cut off, the
    token that completes it is kept.

    Attributes:
        reason: why the text has ended, None as long as it has not. "error": no token could follow.
    """

    def __init__(
        self, *, pieces: Pieces, ends: Set[int], limit: int, stop: tuple[str, ...] = ()
    ) -> None:
        """Take the vocabulary's pieces and end tokens, the most tokens, and the stop texts."""
        self.reason: EndReason | None = None
        self._ends = ends
        self._left = limit
        self._detokenizer = StreamDetokenizer(pieces)
        self._matcher = StopMatcher(stop) if stop else None
        self._fresh: list[str] = []
        # of tokens that are not committed yet: the text they make certain, and why it ends there
        self._ahead: deque[tuple[str, EndReason | None]] = deque()

    @property
    def ends(self) -> Set[int]:
        """The tokens that end a text."""
        return self._ends

    def extend(self, tokens: Sequence[int]) -> int:
        """Take the next committed tokens up to where the text ends; return how many were taken."""
        for taken, token in enumerate(tokens, 1):
            text, self.reason = self._ahead.popleft() if self._ahead else self._read(token)
            self._fresh.append(text)
            if self.reason is not None:
                return taken
        return len(tokens)

    def ends_with(self, ahead: int, token: int) -> bool:
        """Whether the text ends with a token that is `ahead` places after the committed ones and
        that will be committed; asked in order, 0 first.
        """
        if ahead == len(self._ahead):
            self._ahead.append(self._read(token))
        return self._ahead[ahead][1] is not None

    def cancel(self) -> None:
        """End the text after the committed tokens, unless it has ended."""
        if self.reason is None:
            self.reason = "cancelled"
            # tokens that were read ahead have gone through the detokenizer, and are no part of it
            if not self._ahead:
                self._fresh.append(self._rest())

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def _read(self, token: int) -> tuple[str, EndReason | None]:
        self._left -= 1
        if token in self._ends:
            return self._rest(), "stop"
        text = self._detokenizer.push(token)
        if self._matcher is not None:
            text, stopped = self._matcher.push(text)
            if stopped:
                return text, "stop"
        return (text, None) if self._left else (text + self._rest(), "length")

    def _rest(self) -> str:
        """What was held back, at the end of the tokens."""
        text = self._detokenizer.flush()
        if self._matcher is not None:
            text, stopped = self._matcher.push(text)
            text += "" if stopped else self._matcher.flush()
        return text
