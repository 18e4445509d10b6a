"""A round of several texts under way, and how they share its target pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamaspec.schedule.crowd_prices import CrowdPrices
from llamaspec.schedule.member import Member
from llamaspec.schedule.prefix import best_widths, first_fall_widths

_CLOSE = 0.005
"""Tokens a text by which unequal widths have to be better than equal ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A way to draft a round. width: of the blocks, 0 without any. even: all of them are verified,
    whatever their confidences. worth: in tokens, at the going rate.
    """

    width: int
    even: bool
    worth: float


@dataclass
class Scene:
    """The round under way. members: of its texts, None for those that are told what to draft.
    blocks: proposals to draft of each. depth: positions in the KV cache, on average. rate: the
    going one, in tokens a second of all. free: those that can be drafted for. tries: those that are
    drafted for to see whether it pays now. told: proposals of texts that are told. seconds, tokens:
    what the round takes, by its prices, and has brought to so many texts as have learnt.
    """

    members: Sequence[Member | None]
    blocks: list[int]
    depth: int
    rate: float
    plan: Plan = Plan(0, True, 0.0)
    free: list[Member] = field(default_factory=list)
    tries: list[Member] = field(default_factory=list)
    told: int = 0
    seconds: float = 0.0
    tokens: int = 0
    learnt: int = 0

    @property
    def texts(self) -> int:
        return len(self.members)


class SharedPass:
    """The prices of a round's target pass, by the proposals of texts that are free."""

    def __init__(self, prices: CrowdPrices, scene: Scene, count: int, rows: int) -> None:
        """count: of the texts that are free. rows: the most of the pass."""
        self._scene, self._count = scene, count
        self._table = prices.verify_all(scene.texts, scene.depth)
        self._ragged = prices.ragged
        self._room = min(rows - scene.texts, len(self._table) - 1) - scene.told
        self.row = max(0.0, self._table[-1] - self._table[0]) / max(1, len(self._table) - 1)

    def choose(
        self, survivals: list[list[float]], *, sampled: bool, levels: bool
    ) -> tuple[list[int], list[int]]:
        """How many proposals of each would pay, and how many to verify. sampled: some were drawn;
        levels: all have to have equal widths.
        """
        if not survivals:
            return [], []
        rows = self._count + max(0, self._room)
        share = first_fall_widths if sampled else best_widths
        paid = share(survivals, self._seconds, rows=rows, rate=self._scene.rate)
        if total := sum(paid):
            self.row = (self._seconds(self._count + total) - self._seconds(self._count)) / total
        if sampled:
            whole = [len(s) for s in survivals]
            # decided before anything was drawn
            return paid, whole if self._scene.plan.even and sum(whole) <= self._room else paid
        level = self._level(survivals)
        close = _CLOSE * self._scene.texts
        clear = self._worth(survivals, paid) > self._worth(survivals, level) + close
        return paid, paid if clear and not levels else level

    def _level(self, survivals: list[list[float]]) -> list[int]:
        """The best equal widths."""
        every = [[min(n, len(s)) for s in survivals] for n in range(1 + max(map(len, survivals)))]
        fitting = [widths for widths in every if sum(widths) <= self._room] or every[:1]
        return max(fitting, key=lambda widths: self._worth(survivals, widths))

    def _worth(self, survivals: list[list[float]], widths: list[int]) -> float:
        tokens = sum(sum(s[:n]) for s, n in zip(survivals, widths, strict=True))
        even = len({*widths}) == 1 and (self._count == self._scene.texts or not any(widths))
        seconds = self._table[self._scene.told + sum(widths)]
        if not even or self._scene.told:
            seconds *= self._ragged
        return tokens - self._scene.rate * seconds

    def _seconds(self, rows: int) -> float:
        """Of unequal widths, by the rows of free texts."""
        proposals = self._scene.told + rows - self._count
        return self._table[proposals] * (self._ragged if proposals else 1.0)
