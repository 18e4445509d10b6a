"""A text in stretches: which of it the draft proposed."""

from collections import deque
from collections.abc import Iterable

from llamaspec.serve.replies import Span
from llamaspec.text.detokenize import Pieces, StreamDetokenizer


class Spans:
    """Goes along with one text as it comes: its tokens, and its text, which lags behind them."""

    def __init__(self, pieces: Pieces) -> None:
        self._tokens = StreamDetokenizer(pieces)
        # characters of tokens whose text has not come, and whether they were proposals
        self._waiting: deque[tuple[int, bool]] = deque()

    def push(self, tokens: Iterable[tuple[int, bool]]) -> None:
        """Take tokens, each with whether it was an accepted proposal."""
        for token, accepted in tokens:
            self._waiting.append((len(self._tokens.push(token)), accepted))

    def take(self, text: str) -> list[Span]:
        """Divide the next text; stretches of one kind are one."""
        found: list[Span] = []
        while text:
            count, accepted = self._waiting.popleft() if self._waiting else (len(text), False)
            part, text = text[:count], text[count:]
            if count > len(part):
                self._waiting.appendleft((count - len(part), accepted))
            if not part:
                continue
            if found and found[-1]["accepted"] == accepted:
                found[-1]["text"] += part
            else:
                found.append({"text": part, "accepted": accepted})
        return found
