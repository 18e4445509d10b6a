"""The seam between the loop and whatever proposes tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from numpy.random import Generator

from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.cache import State


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


class Span(NamedTuple):
    """`length` positions of a sequence, from `start` on."""

    seq: int
    start: int
    length: int


class Features(NamedTuple):
    """Target features of committed rows: rows [n, taps * width], and whose they are, in order.

    The rows may be borrowed: they are valid during `Drafter.commit` only.
    """

    rows: FloatArray
    spans: list[Span]

    def by_span(self) -> Iterator[tuple[Span, FloatArray]]:
        """The rows of each span."""
        first = 0
        for span in self.spans:
            yield span, self.rows[first : first + span.length]
            first += span.length

    def parts(self, size: int) -> Iterator["Features"]:
        """The same rows, at most `size` at a time."""
        if len(self.rows) <= size:
            yield self
            return
        for (seq, start, length), rows in self.by_span():
            for done in range(0, length, size):
                part = rows[done : done + size]
                yield Features(part, [Span(seq, start + done, len(part))])


@dataclass(frozen=True, slots=True)
class Saved:
    """What a drafter knew of a sequence, in memory of its own: the state of a cache, and features
    [n, taps * width] of the positions after it that were not computed on yet.
    """

    state: State | None = None
    waiting: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.state, self.waiting) if part is not None)


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

    @property
    def proposes_parked(self) -> bool:
        """Whether there can be a proposal for a parked sequence. Where there is none, it need not
        be asked for.
        """

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

    def knows(self, seq: int, length: int) -> int:
        """How many of the first `length` positions of a sequence it knows."""

    def copy(self, source: int, seq: int, length: int) -> int:
        """Know of `seq` what is known of the first `length` positions of another sequence, and
        nothing else; return how many these are.
        """

    def saved_size(self, seq: int) -> int | None:
        """The bytes of what `save` would return, None where nothing can be saved."""

    def save(self, seq: int) -> Saved:
        """What is known of a sequence."""

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        """Know of `seq` the first `length` positions of what was saved, and nothing else; return
        how many these are: fewer where it is damaged.
        """


class NothingLearnt:
    """The memory of a drafter that reads nothing but text: it knows whatever it is asked about."""

    def keep(self, seq: int, length: int) -> int:
        return length

    def commit(self, features: Features) -> None:
        """Nothing is read from features."""

    def knows(self, seq: int, length: int) -> int:
        return length

    def copy(self, source: int, seq: int, length: int) -> int:
        return self.keep(seq, length)

    def saved_size(self, seq: int) -> int | None:
        return 0

    def save(self, seq: int) -> Saved:
        return Saved()

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        return self.keep(seq, length)
