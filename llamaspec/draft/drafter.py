"""The seam between the loop and whatever proposes tokens."""

from dataclasses import dataclass
from typing import Protocol

from llamaspec.runtime.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Anchor:
    """A request for a proposal: sequence slot, last committed token, its position, block width and
    most ids wanted.
    """

    seq: int
    token: int
    position: int
    width: int
    limit: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """ids d1..dL and, where the draft has a confidence head, a confidence each."""

    ids: tuple[int, ...] = ()
    confidence: tuple[float, ...] | None = None


NOTHING = Proposal()


@dataclass(frozen=True, slots=True)
class Features:
    """Target features of committed rows: rows [n, taps * width], and the slot and position of each
    [n].
    """

    rows: FloatArray
    seq: IntArray
    position: IntArray


class Drafter(Protocol):
    """Proposes tokens for many sequences at once.

    Between rounds the drafter knows the features of exactly the positions below the anchor's,
    and nothing else.
    """

    @property
    def proposals(self) -> int:
        """The most ids that a proposal can hold."""

    @property
    def seconds(self) -> float:
        """Wall time spent computing so far."""

    def begin(self, seq: int) -> None:
        """Start a sequence in a slot that holds nothing."""

    def commit(self, features: Features) -> None:
        """Learn committed rows. Positions of a sequence come in order and without a gap."""

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        """Return a proposal for every anchor, in order."""

    def reset(self, seq: int) -> None:
        """Forget a sequence."""

    def close(self) -> None:
        """Release native memory."""
