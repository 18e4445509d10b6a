"""A cost curve as the loop asks it: a table lookup, refined by what passes really took."""

from dataclasses import dataclass, field

from llamaspec.schedule.cost import CostCurve

STEP = 256
"""Positions between two columns of the table."""
_LEARN = 0.02


@dataclass
class Prices:
    """Seconds of passes. rows: the most of a target pass. width: the most proposals of a block.
    pinned: what passes really take changes nothing.
    """

    curve: CostCurve
    rows: int
    width: int
    pinned: bool = False
    _verify: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _draft: dict[int, list[float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._factors = [1.0] * (self.rows + 1)
        self._draft_factors = [1.0] * (self.width + 1)

    def verify(self, rows: int, depth: int) -> float:
        """A target pass over so many rows."""
        column = depth // STEP
        table = self._verify.get(column)
        if table is None:
            at = column * STEP + STEP // 2
            table = [self.curve.verify_s(max(n, 1), at) for n in range(self.rows + 1)]
            self._verify[column] = table
        return table[rows] * self._factors[rows]

    def draft(self, width: int, depth: int) -> float:
        """What drafting so many proposals adds to a round: the block, and the features of what the
        round before committed.
        """
        column = depth // STEP
        table = self._draft.get(column)
        if table is None:
            at, curve = column * STEP + STEP // 2, self.curve
            table = [curve.draft_s(n, at) + curve.injection_s(n, at) for n in range(self.width + 1)]
            self._draft[column] = table
        return table[width] * self._draft_factors[width]

    def observe(self, rows: int, depth: int, seconds: float) -> None:
        """Take in what a target pass took. One that something else held up counts little."""
        self._learn(self._factors, rows, seconds, self.verify(rows, depth))

    def observe_draft(self, width: int, depth: int, seconds: float) -> None:
        """Likewise of a block with the features before it."""
        self._learn(self._draft_factors, width, seconds, self.draft(width, depth))

    def _learn(self, factors: list[float], at: int, seconds: float, expected: float) -> None:
        if self.pinned or seconds <= 0 or expected <= 0:
            return
        factors[at] *= 1 + _LEARN * (min(max(seconds / expected, 0.5), 1.5) - 1)
