"""What is known of one text among several that are decoded together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

SMOOTH, TRIED = 0.05, 0.2
"""How much one round counts; one of a text that is drafted for now and then only."""
_PRIOR, _KEEP = 6.0, 0.97
_TRUST = 0.5, 1.5
_REMEMBER, _FEW = 0.996, 4.0


@dataclass
class Member:
    """Running means of a text's drafted rounds, by how many proposals n a block has [block + 1].

    given: how many of n are accepted. chosen: how many of those that are worth a row each, rows:
    how many these are. seen: drafted rounds. nap: rounds until it is drafted for again, None while
    it is. patience: of the next nap. hits, hoped: proposals accepted lately, and expected to be.
    stated: survivals of what is verified in the round under way, as the draft states them;
    expected: how many of these are accepted if it is right of this text. given_up: it is not to be
    drafted for any more, so that its features need not be kept.
    """

    given: list[float]
    chosen: list[float]
    rows: list[float]
    seen: int = 0
    nap: int | None = None
    patience: int = 0
    hits: float = _PRIOR
    hoped: float = _PRIOR
    stated: list[float] = field(default_factory=list)
    expected: float = 0.0
    given_up: bool = False

    @classmethod
    def hopeful(cls, width: int) -> "Member":
        """Of a draft that nothing is known of: it is good until it is known better."""
        given = [0.0]
        for n in range(width):
            given.append(given[-1] + 0.8 * 0.9**n)
        return cls(given, [*given], [float(n) for n in range(width + 1)])

    def like(self) -> "Member":
        """A text that begins where this one is."""
        return Member([*self.given], [*self.chosen], [*self.rows])

    @property
    def truth(self) -> float:
        """What of the expected is really accepted in this text."""
        least, most = _TRUST
        return min(max(self.hits / self.hoped, least), most)

    def see(self, survival: Sequence[float], paid: int, weight: float) -> None:
        """Take in a block, and how many of its proposals were worth their rows."""
        most = min(len(survival), len(self.given) - 1)
        given = chosen = 0.0
        ahead = [self._beyond(values, most) for values in (self.given, self.chosen, self.rows)]
        for n in range(1, most + 1):
            given += survival[n - 1]
            chosen += survival[n - 1] if n <= paid else 0.0
            self.given[n] += weight * (given - self.given[n])
            self.chosen[n] += weight * (chosen - self.chosen[n])
            self.rows[n] += weight * (min(n, paid) - self.rows[n])
        for values, more in zip((self.given, self.chosen, self.rows), ahead, strict=True):
            values[most + 1 :] = [values[most] + further for further in more]

    def learn(self, accepted: int) -> None:
        """Take in how many of the verified proposals were accepted, of `expected`."""
        self.hits = _KEEP * self.hits + (1 - _KEEP) * _PRIOR + accepted
        self.hoped = _KEEP * self.hoped + (1 - _KEEP) * _PRIOR + self.expected
        self.expected = 0.0

    @staticmethod
    def _beyond(values: list[float], most: int) -> list[float]:
        return [value - values[most] for value in values[most + 1 :]]


class Survivors:
    """By how much more or less survives than is stated, by position, of all texts: chances that
    are a little wrong each are very wrong as products.
    """

    def __init__(self, width: int) -> None:
        self._hits = [0.0] * width
        self._hoped = [0.0] * width

    def corrected(self, stated: Sequence[float], truth: float) -> list[float]:
        """Survivals as they turn out, in a text of which so much more is accepted than usual."""
        found, factor, least = [], 1.0, 1.0
        for a, hits, hoped in zip(stated, self._hits, self._hoped, strict=False):
            # what is known of a position's predecessor goes for itself until more is
            factor = (hits + _FEW * factor) / (hoped + _FEW)
            least = min(least, a * factor * truth)
            found.append(least)
        return found

    def learn(self, stated: Sequence[float], accepted: int) -> None:
        """Take in how many proposals were accepted of those verified."""
        for i, a in enumerate(stated):
            self._hits[i] = _REMEMBER * self._hits[i] + (i < accepted)
            self._hoped[i] = _REMEMBER * self._hoped[i] + a
