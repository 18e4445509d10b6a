"""The seam between the loop and whatever proposes tokens."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from numpy.random import Generator

from llamaspec.runtime.arrays import FloatArray


@dataclass(frozen=True)
class Dice:
    """Draw proposals at a temperature > 0, with a generator that is moved on by it."""

    temperature: float
    random: Generator


class Anchor(NamedTuple):
    """A request for a proposal: sequence slot, last committed token, its position, ids that the
    block has room for (its width, which a block draft's ids depend on), and most ids wanted.
    text: prompt and output so far, the anchor last; borrowed, not to be changed.
    dice: to draw the ids from the draft's distribution; None takes the likeliest. parked: a
    proposal is welcome if no pass has to be computed for it.
    """

    seq: int
    token: int
    position: int
    width: int
    limit: int
    text: Sequence[int] = ()
    dice: Dice | None = None
    parked: bool = False


class Proposal(NamedTuple):
    """ids d1..dL and, where the draft has a confidence head, a confidence each.

    odds [L, target vocabulary]: where the ids were drawn, the distribution that each was drawn
    from, given the anchor and the ids before it; None where nothing was left to chance.
    offered: how many ids there were before the proposal was cut, 0 where it was not. cheap: no pass
    was computed for it.
    """

    ids: tuple[int, ...] = ()
    confidence: tuple[float, ...] | None = None
    odds: FloatArray | None = None
    offered: int = 0
    cheap: bool = False

    def first(self, width: int) -> "Proposal":
        """The same with its first `width` ids at most; `offered` says how many there were."""
        confidence = None if self.confidence is None else self.confidence[:width]
        odds = None if self.odds is None else self.odds[:width]
        return Proposal(self.ids[:width], confidence, odds, len(self.ids), self.cheap)


NOTHING = Proposal()


class Features(NamedTuple):
    """Target features of committed rows: rows [n, taps * width], slot and position of each.

    The rows may be borrowed: they are valid during `Drafter.commit` only.
    """

    rows: FloatArray
    seq: list[int]
    position: list[int]

    def parts(self, size: int) -> Iterator["Features"]:
        """The same rows, at most `size` at a time."""
        for start in range(0, len(self.seq), size):
            part = slice(start, start + size)
            yield Features(self.rows[part], self.seq[part], self.position[part])

    def only(self, seqs: Collection[int]) -> "Features":
        """The rows of the given sequences."""
        return self.where(lambda seq, _: seq in seqs)

    def where(self, wanted: Callable[[int, int], bool]) -> "Features":
        """The rows whose sequence and position are wanted; the same object where all are."""
        pairs = zip(self.seq, self.position, strict=True)
        kept = [i for i, (seq, position) in enumerate(pairs) if wanted(seq, position)]
        if len(kept) == len(self.seq):
            return self
        positions = [self.position[i] for i in kept]
        return Features(self.rows[kept], [self.seq[i] for i in kept], positions)

    def copy(self) -> "Features":
        """The same with rows of its own."""
        return Features(self.rows.copy(), self.seq, self.position)


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

    @property
    def reads_features(self) -> bool:
        """Whether `commit` is wanted; a drafter that reads text alone spares the target that."""

    def commit(self, features: Features) -> None:
        """Learn committed rows, now or when a proposal needs them. Positions of a sequence come in
        order and without a gap. Raises where learning fails; the rows then count as known.
        """

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        """Return a proposal for every anchor, in order."""

    def keep(self, seq: int, length: int) -> int:
        """Forget all but the first `length` positions of a sequence; return how many of these it
        knows. A later commit goes on from there.
        """
