"""Where a text ends, decided token by token, and the text itself."""

from collections.abc import Sequence, Set
from typing import Literal

from llamaspec.text.detokenize import Pieces, StreamDetokenizer
from llamaspec.text.stop import StopMatcher

FinishReason = Literal["stop", "length"]


class Ending:
    """Watches the committed tokens of one sequence.

    The end-of-generation token counts as a token but adds no text; a stop text is cut off, the
    token that completes it is kept.

    Attributes:
        reason: why the text has ended, None as long as it has not.
    """

    def __init__(
        self, *, pieces: Pieces, ends: Set[int], limit: int, stop: tuple[str, ...] = ()
    ) -> None:
        """Take the vocabulary's pieces and end tokens, the most tokens, and the stop texts."""
        self.reason: FinishReason | None = None
        self._ends = ends
        self._left = limit
        self._detokenizer = StreamDetokenizer(pieces)
        self._matcher = StopMatcher(stop) if stop else None
        self._fresh: list[str] = []

    def extend(self, tokens: Sequence[int]) -> int:
        """Take the next committed tokens up to where the text ends; return how many were taken."""
        push, fresh = self._detokenizer.push, self._fresh
        for taken, token in enumerate(tokens, 1):
            self._left -= 1
            if token in self._ends:
                return self._end("stop", taken)
            text = push(token)
            if self._matcher is not None:
                text, stopped = self._matcher.push(text)
                if stopped:
                    fresh.append(text)
                    self.reason = "stop"
                    return taken
            fresh.append(text)
            if not self._left:
                return self._end("length", taken)
        return len(tokens)

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def _end(self, reason: FinishReason, taken: int) -> int:
        self.reason = reason
        text = self._detokenizer.flush()
        if self._matcher is not None:
            text, stopped = self._matcher.push(text)
            text += "" if stopped else self._matcher.flush()
        self._fresh.append(text)
        return taken
