"""Texts that no slot holds any longer, with what was computed of them, in memory of our own: the
least recently used go first.
"""

from dataclasses import dataclass

from llamaspec.draft.drafter import Saved
from llamaspec.engine.slots import Held
from llamaspec.runtime.cache import State


@dataclass(frozen=True, eq=False)
class Entry:
    """A text with the target's cache of it, and what the drafter knew: of its first `known`
    positions. draft: None where there is no drafter.
    """

    held: Held
    target: State
    draft: Saved | None
    known: int

    @property
    def nbytes(self) -> int:
        return entry_size(self.held, self.target.nbytes, self.draft.nbytes if self.draft else 0)

    def covers(self, held: Held, known: int) -> bool:
        """Whether a text is the beginning of this one, and nothing of it is known better."""
        if held.prompt > self.held.prompt or known > self.known:
            return False
        if len(held.text) > len(self.held.text):
            return False
        return held.common(self.held.text) == len(held.text)


def entry_size(held: Held, target: int, draft: int) -> int:
    """The bytes of an entry for a text, whose states have so many."""
    return held.text.nbytes + target + draft


class Store:
    """Entries of at most `limit` bytes together, 0 for none at all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        # the least recently used first
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[Entry]:
        """All of them, the least recently used first."""
        return list(self._entries)

    def touch(self, entry: Entry) -> None:
        """Say that an entry was used."""
        self._entries.remove(entry)
        self._entries.append(entry)

    def drop(self, entry: Entry) -> None:
        """Forget an entry."""
        self._entries.remove(entry)
        self.size -= entry.nbytes

    def clear(self) -> None:
        """Forget all of them."""
        self._entries.clear()
        self.size = 0

    def covers(self, held: Held, known: int) -> bool:
        """Whether a text is here already, of which the drafter knows so many positions. It counts
        as used then.
        """
        for entry in self._entries:
            if entry.covers(held, known):
                self.touch(entry)
                return True
        return False

    def make_room(self, size: int) -> bool:
        """Forget entries until there is room for one of so many bytes; return whether there is."""
        if size > self.limit:
            return False
        while self.size + size > self.limit:
            self.drop(self._entries[0])
        return True

    def add(self, entry: Entry) -> None:
        """Take in an entry for which there is room, instead of those that it covers."""
        assert self.size + entry.nbytes <= self.limit, "more than the store may hold"
        for other in [e for e in self._entries if entry.covers(e.held, e.known)]:
            self.drop(other)
        self._entries.append(entry)
        self.size += entry.nbytes
