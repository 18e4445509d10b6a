"""Which slots are free, and what the caches of each still hold of its last text."""

from dataclasses import dataclass

import numpy as np

from llamaspec.runtime.arrays import IntArray


@dataclass(frozen=True, slots=True)
class Held:
    """The text of the positions in a slot's target cache [n]. prompt: how many of them, from the
    first on, passes over a prompt have written.
    """

    text: IntArray
    prompt: int

    def common(self, prompt: IntArray) -> int:
        """How many tokens, from the first on, are a prompt's as well."""
        n = min(len(self.text), len(prompt))
        if not n:
            return 0
        differs = self.text[:n] != prompt[:n]
        first = int(differs.argmax())
        return first if differs[first] else n


NOTHING_HELD = Held(np.empty(0, np.int32), 0)


class Slots:
    """Slots of sequences, the least recently used first."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        self._held = [NOTHING_HELD] * count

    @property
    def free(self) -> int:
        """How many are free."""
        return len(self._free)

    def take(self, prompt: IntArray | None) -> tuple[int, Held]:
        """Take the free slot with the longest beginning in common with a prompt; return it with
        what it held, which is forgotten. prompt: None for one that nothing is kept for.

        A slot that would lose more than it keeps is worth it only where none is empty and half of
        the prompt is saved; else an empty slot is taken, or the least recently used one.
        """
        prompt = NOTHING_HELD.text if prompt is None else prompt
        common = {slot: self._held[slot].common(prompt) for slot in self._free}
        worth = [s for s in self._free if 2 * common[s] >= len(self._held[s].text) > 0]
        empty = [s for s in self._free if not len(self._held[s].text)]
        if not worth and not empty:
            worth = [s for s in self._free if 2 * common[s] >= len(prompt)]
        slot = max(worth, key=common.__getitem__) if worth else (empty or self._free)[0]
        self._free.remove(slot)
        held, self._held[slot] = self._held[slot], NOTHING_HELD
        return slot, held

    def texts(self) -> list[tuple[int, Held]]:
        """The free slots whose caches hold a text, each with it."""
        return [(slot, self._held[slot]) for slot in self._free if len(self._held[slot].text)]

    def give_back(self, slot: int) -> None:
        """Free a slot of whose caches nothing is known."""
        self._free.append(slot)

    def remember(self, slot: int, held: Held) -> None:
        """Say what the caches of a free slot hold."""
        self._held[slot] = held
