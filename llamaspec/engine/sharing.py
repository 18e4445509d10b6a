"""What of a prompt need not be computed: its slot's caches hold it, or another sequence's, or the
store; or soon will, because a prompt that begins alike is being taken in.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from llamaspec.engine.sequence import Sequence
from llamaspec.engine.slots import NOTHING_HELD, Held, Slots
from llamaspec.engine.store import Entry, Store, entry_size
from llamaspec.engine.teacher import Teacher
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.arrays import IntArray
from llamaspec.runtime.context import TargetContext

logger = logging.getLogger("llamaspec")

LEAST_COPIED = 32
"""Positions that have to be saved by it before caches are copied."""
LEAST_AWAITED = 64
"""Positions that a prompt has to be spared before it waits for another one."""
LEAST_SAVED = 64
"""Positions that have to be lost to a slot before its text goes to the store."""


@dataclass(frozen=True)
class Around:
    """The others: what free slots hold, who has a slot, and the texts in the store."""

    slots: Slots
    active: list[Sequence]
    store: Store


class _Source(NamedTuple):
    """Where the first `length` positions of a prompt are: in a slot, or in the store."""

    length: int
    held: Held
    place: int | Entry


_NOWHERE = _Source(0, NOTHING_HELD, -1)


class Sharing:
    """Decides what a prompt starts from, once, when its turn to be taken in comes.

    whole(length, held): how much of so many positions may be taken, exact mode's parts for one.
    """

    def __init__(
        self,
        target: TargetContext,
        teacher: Teacher,
        around: Around,
        whole: Callable[[int, Held], int],
    ) -> None:
        self._target = target
        self._teacher = teacher
        self._slots, self._active, self._store = around.slots, around.active, around.store
        self._whole = whole

    def waits(self, sequence: Sequence, ahead: list[Sequence]) -> bool:
        """Whether a prompt had better wait for one of those ahead of it, which begins alike and is
        not taken in as far yet.
        """
        if sequence.behind is not None:
            other, length = sequence.behind
            if other.filling and other.filled < length and other in self._active:
                return True
            sequence.behind = None
        if sequence.held is None or not self._shares(sequence):
            return False
        length, leader = self._leader(sequence, ahead)
        if leader is None or length < self._best(sequence).length + LEAST_AWAITED:
            return False
        sequence.behind = leader, length
        return True

    def settle(self, sequence: Sequence) -> None:
        """Have the caches of a sequence's slot hold what there is of its prompt, and nothing else.

        The prompt's last token is left out: its row gives the first choice. What fails is computed.
        """
        held, sequence.held = sequence.held, None
        if held is None:
            return
        try:
            sequence.filled = self._take(sequence, held)
        except LlamaSpecError as error:
            logger.debug("a prompt is computed from its beginning: %s", error)
            self.forget(sequence)
        except BaseException:
            self.forget(sequence)
            raise
        sequence.cached = sequence.filled
        sequence.certain = True

    def forget(self, sequence: Sequence) -> None:
        """Empty the caches of a sequence whose prompt is being taken in."""
        sequence.cached = sequence.filled = 0
        if self._teacher.drafter is not None:
            self._teacher.drafter.keep(sequence.slot, 0)
        self._target.truncate(sequence.slot, 0)

    def _shares(self, sequence: Sequence) -> bool:
        alone = self._target.shape.n_seq == 1 and not len(self._store)
        return sequence.request.cache_prompt and not self._target.recurrent and not alone

    def _take(self, sequence: Sequence, held: Held) -> int:
        slot = sequence.slot
        best = self._best(sequence) if self._shares(sequence) else _NOWHERE
        elsewhere = best.length >= LEAST_COPIED and (
            best.length >= LEAST_COPIED + self._source(sequence, held, slot).length
        )
        if elsewhere and isinstance(best.place, Entry):
            # before room is made for what the slot loses
            self._store.touch(best.place)
        self._save(slot, held, held.common(sequence.request.prompt))
        return self._fetch(sequence, best) if elsewhere else self._keep(sequence, held)

    def _fetch(self, sequence: Sequence, source: _Source) -> int:
        slot, length, drafter = sequence.slot, source.length, self._teacher.drafter
        known = 0
        if isinstance(source.place, Entry):
            if not self._target.restore(slot, source.place.target):
                self._store.drop(source.place)
                raise LlamaSpecError("what the store held of it is damaged")
            if drafter is not None and source.place.draft is not None:
                known = drafter.restore(slot, source.place.draft, length)
        else:
            self._target.copy(source.place, slot, length)
            if drafter is not None:
                known = drafter.copy(source.place, slot, length)
        if self._teacher.wants(sequence) and known < length:
            if isinstance(source.place, Entry):
                self._store.drop(source.place)
            length = self._whole(known, source.held)
        return self._cut(slot, length)

    def _keep(self, sequence: Sequence, held: Held) -> int:
        slot, drafter = sequence.slot, self._teacher.drafter
        kept = self._common(sequence, held)
        if drafter is not None:
            known = drafter.keep(slot, kept)
            if self._teacher.wants(sequence):
                # what a request without the draft has not taught it comes from the target again
                kept = self._whole(known, held)
        return self._cut(slot, kept)

    def _cut(self, slot: int, kept: int) -> int:
        kept = kept if self._there(slot, kept) else 0
        if self._teacher.drafter is not None:
            self._teacher.drafter.keep(slot, kept)
        self._target.truncate(slot, kept)
        return kept

    def _common(self, sequence: Sequence, held: Held) -> int:
        """How many positions of a text a prompt can start from, as far as the target goes."""
        request = sequence.request
        if not request.cache_prompt:
            return 0
        return self._whole(min(held.common(request.prompt), len(request.prompt) - 1), held)

    def _best(self, sequence: Sequence) -> _Source:
        """The longest beginning of a prompt that is anywhere, in its own slot as long as nothing is
        decided about that.
        """
        places: list[tuple[int | Entry, Held]] = [*self._texts(sequence.request.prompt)]
        places += [(entry, entry.held) for entry in self._store.entries()]
        found = [
            self._source(sequence, held, place)
            for place, held in places
            if place != sequence.slot or sequence.held is not None
        ]
        return max(found, key=lambda source: source.length, default=_NOWHERE)

    def _source(self, sequence: Sequence, held: Held, place: int | Entry) -> _Source:
        length = self._common(sequence, held)
        if length and self._teacher.wants(sequence):
            length = self._whole(min(length, self._known(place, length)), held)
        if length and not isinstance(place, Entry) and not self._there(place, length):
            length = 0
        return _Source(length, held, place)

    def _there(self, slot: int, length: int) -> bool:
        # somebody else may have used the context meanwhile
        return self._target.can_truncate(slot, length) and self._target.length(slot) >= length

    def _known(self, place: int | Entry, length: int) -> int:
        if isinstance(place, Entry):
            return place.known
        assert self._teacher.drafter is not None
        return self._teacher.drafter.knows(place, length)

    def _texts(self, prompt: IntArray) -> Iterator[tuple[int, Held]]:
        yield from self._slots.texts()
        for sequence in self._active:
            if (held := self._held(sequence, prompt)) is not None:
                yield sequence.slot, held

    def _held(self, other: Sequence, like: IntArray) -> Held | None:
        """What the caches of a sequence hold for certain, as far as a prompt can be like it."""
        if other.held is not None or not other.certain or other.lost:
            return other.held
        prompt, length = other.request.prompt, other.n_past
        if self._target.length(other.slot) != length:
            return None
        begun = Held(prompt[:length], min(length, len(prompt)))
        if length <= len(prompt) or begun.common(like) < len(prompt):
            return begun
        new = np.array(other.text[len(prompt) : length], np.int32)
        return Held(np.concatenate([prompt, new]), len(prompt))

    def _leader(self, sequence: Sequence, ahead: list[Sequence]) -> tuple[int, Sequence | None]:
        found: tuple[int, Sequence | None] = 0, None
        for other in ahead:
            if self._teacher.wants(sequence) and not self._teacher.wants(other):
                continue
            prompt = other.request.prompt
            length = self._common(sequence, Held(prompt, len(prompt)))
            if length > max(found[0], other.filled):
                found = length, other
        return found

    def _save(self, slot: int, held: Held, common: int) -> None:
        """Keep in the store what a slot is about to lose, where it is worth it."""
        lost = len(held.text) - common
        store, target, drafter = self._store, self._target, self._teacher.drafter
        if not store.limit or lost < LEAST_SAVED or not target.can_save:
            return
        if target.length(slot) != len(held.text):
            return
        known = drafter.knows(slot, len(held.text)) if drafter is not None else 0
        drafts = drafter.saved_size(slot) if drafter is not None else 0
        if drafts is None or store.covers(held, known):
            return
        if not store.make_room(entry_size(held, target.state_size(slot), drafts)):
            return
        try:
            draft = drafter.save(slot) if drafter is not None else None
            store.add(Entry(held, target.save(slot), draft, known))
        except LlamaSpecError as error:
            logger.debug("a text is not kept: %s", error)
