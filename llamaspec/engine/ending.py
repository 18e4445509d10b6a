"""Where a text ends, decided token by token, and the text itself."""

from collections.abc import Callable
from typing import Literal

from llamaspec.text.detokenize import StreamDetokenizer
from llamaspec.text.stop import StopMatcher

FinishReason = Literal["stop", "length"]


class Ending:
    """Watches the committed tokens of one sequence.

    The end-of-generation token counts as a token but adds no text; a stop text is cut off, the
    token that completes it is kept.
    """

    def __init__(
        self,
        *,
        piece: Callable[[int], bytes],
        is_end: Callable[[int], bool],
        limit: int,
        stop: tuple[str, ...],
    ) -> None:
        self._is_end = is_end
        self._limit = limit
        self._count = 0
        self._detokenizer = StreamDetokenizer(piece)
        self._matcher = StopMatcher(stop) if stop else None
        self._fresh: list[str] = []

    def push(self, token: int) -> FinishReason | None:
        """Take the next committed token; return why the text ends with it, or None."""
        self._count += 1
        if self._is_end(token):
            self._finish_text()
            return "stop"
        if self._add(self._detokenizer.push(token)):
            return "stop"
        if self._count >= self._limit:
            self._finish_text()
            return "length"
        return None

    def take(self) -> str:
        """Return the text that has become certain since the last call."""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def _add(self, text: str) -> bool:
        if self._matcher is None:
            self._fresh.append(text)
            return False
        emit, stopped = self._matcher.push(text)
        self._fresh.append(emit)
        return stopped

    def _finish_text(self) -> None:
        stopped = self._add(self._detokenizer.flush())
        if self._matcher is not None and not stopped:
            self._fresh.append(self._matcher.flush())
