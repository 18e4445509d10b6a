"""Who waits for a slot, and whose turn it is."""

from dataclasses import dataclass, field

from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import QueueFullError

_PATIENCE = 64
"""How often a request may be overtaken before its priority no longer counts."""


@dataclass(eq=False)
class _Place:
    sequence: Sequence
    number: int
    overtaken: int = 0

    @property
    def rank(self) -> tuple[bool, int, int]:
        starved = self.overtaken >= _PATIENCE
        return starved, 0 if starved else self.sequence.request.priority, -self.number


@dataclass
class Queue:
    """Waiting sequences: the higher priority first, then in the order of arrival. Who was overtaken
    often enough goes first whatever his priority. limit: how many may wait.
    """

    limit: int
    _places: list[_Place] = field(default_factory=list)
    _number: int = 0

    def __len__(self) -> int:
        return len(self._places)

    def add(self, sequence: Sequence, room: int = 0) -> None:
        """Take a sequence in. room: slots that are free, for which nobody has to wait. Raises
        QueueFullError.
        """
        if len(self._places) >= self.limit + room:
            raise QueueFullError(
                f"{len(self._places)} requests wait already and the queue holds {self.limit}; "
                "try again later, or load with a longer queue or more max_sequences"
            )
        self._number += 1
        self._places.append(_Place(sequence, self._number))

    def take(self) -> Sequence:
        """Take out whose turn it is."""
        place = max(self._places, key=lambda place: place.rank)
        self._places.remove(place)
        for other in self._places:
            other.overtaken += other.number < place.number
        return place.sequence

    def remove(self, request: Request) -> bool:
        """Take a request out; return whether it waited."""
        before = len(self._places)
        self._places = [p for p in self._places if p.sequence.request is not request]
        return len(self._places) < before
