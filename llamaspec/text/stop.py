"""Stop strings in a stream of text, found across the borders of its pieces."""

from collections import deque
from collections.abc import Sequence

from llamaspec.errors import OptionError


class _Watch:
    """Follows one stop string by the Knuth-Morris-Pratt automaton: constant time a character."""

    __slots__ = ("_text", "_widths", "matched")

    def __init__(self, text: str) -> None:
        self._text = text
        self.matched = 0
        self._widths = [0]
        for char in text[1:]:
            width = self._widths[-1]
            while width and text[width] != char:
                width = self._widths[width - 1]
            self._widths.append(width + (text[width] == char))

    def step(self, char: str) -> bool:
        """Take a character; return whether the stop string ends with it."""
        text, matched = self._text, self.matched
        while matched and text[matched] != char:
            matched = self._widths[matched - 1]
        self.matched = matched + (text[matched] == char)
        return self.matched == len(text)


class StopMatcher:
    """Cuts a stream before the first stop string to be completed.

    Text that may be the beginning of a stop string is held back until that is settled. Where two
    stop strings end at the same character the longer is cut. The result does not depend on how the
    text is divided into pieces.

    Attributes:
        kept: how many pushes have text in what was emitted, trailing ones without text left out.
            With one push a token, `ids[:kept]` are the tokens that the emitted text comes from.
    """

    def __init__(self, stop: str | Sequence[str]) -> None:
        """Take one or several stop strings. Raises OptionError for an empty one."""
        texts = (stop,) if isinstance(stop, str) else tuple(stop)
        for text in texts:
            if not isinstance(text, str) or not text:
                raise OptionError(f"stop string {text!r} is empty or no string; leave it out")
        self._watches = [_Watch(text) for text in dict.fromkeys(texts)]
        self._firsts = frozenset(text[0] for text in texts)
        self._held = ""
        self._stopped = False
        self._pushes = 0
        self._taken = 0
        # (position in the whole text, number of the push) of pushes not emitted yet
        self._waiting: deque[tuple[int, int]] = deque()
        self._emitted = 0
        self.kept = 0

    def push(self, text: str) -> tuple[str, bool]:
        """Take the text of one token; return what is certain now, and whether it ends here."""
        if self._stopped:
            return "", True
        self._pushes += 1
        if text:
            self._waiting.append((self._taken, self._pushes))
            self._taken += len(text)
        if not self._held and self._firsts.isdisjoint(text):
            return self._emit(text), False
        buffer, start = self._held + text, len(self._held)
        for end, char in enumerate(text, start + 1):
            # a list, not a generator: every watch must see every character
            if cut := max(
                [watch.matched for watch in self._watches if watch.step(char)], default=0
            ):
                self._stopped, self._held = True, ""
                return self._emit(buffer[: end - cut]), True
        held = max((watch.matched for watch in self._watches), default=0)
        certain = len(buffer) - held
        self._held = buffer[certain:]
        return self._emit(buffer[:certain]), False

    def flush(self) -> str:
        """End the stream: return what was held back, as it did not become a stop string."""
        held, self._held = self._held, ""
        for watch in self._watches:
            watch.matched = 0
        return self._emit(held)

    def _emit(self, text: str) -> str:
        self._emitted += len(text)
        while self._waiting and self._waiting[0][0] < self._emitted:
            self.kept = self._waiting.popleft()[1]
        return text
