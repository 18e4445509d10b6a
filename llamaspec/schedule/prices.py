"""A cost curve as the loop asks it: a table lookup, refined by what passes really took."""

from dataclasses import dataclass, field

from llamaspec.schedule.cost import CostCurve

STEP = 256
"""Positions between two columns of the table."""
_LEARN = 0.02


@dataclass
class Prices:
    """Seconds of passes. rows: the most of a target pass. width: of the blocks drafted. pinned:
    what passes really take changes nothing.
    """

    curve: CostCurve
    rows: int
    width: int
    pinned: bool = False
    _verify: dict[int, list[float]] = field(default_factory=dict, repr=False)
    _draft: dict[int, float] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._factors = [1.0] * (self.rows + 1)

    def verify(self, rows: int, depth: int) -> float:
        """A target pass over so many rows."""
        return self._table(depth)[rows] * self._factors[rows]

    def verify_all(self, depth: int) -> list[float]:
        """Of every number of rows up to the most, from a place 0 on that means nothing."""
        return [a * b for a, b in zip(self._table(depth), self._factors, strict=True)]

    def draft(self, depth: int) -> float:
        """What drafting adds to a round: the block, and the features of committed rows."""
        column = depth // STEP
        found = self._draft.get(column)
        if found is None:
            at = column * STEP + STEP // 2
            found = self.curve.draft_s(self.width, at) + self.curve.injection_s(self.width, at)
            self._draft[column] = found
        return found

    def _table(self, depth: int) -> list[float]:
        column = depth // STEP
        table = self._verify.get(column)
        if table is None:
            at = column * STEP + STEP // 2
            table = [self.curve.verify_s(max(n, 1), at) for n in range(self.rows + 1)]
            self._verify[column] = table
        return table

    def observe(self, rows: int, depth: int, seconds: float) -> None:
        """Take in what a target pass took. One that something else held up counts little."""
        if self.pinned or seconds <= 0:
            return
        factor = self._factors[rows]
        ratio = seconds / (self._table(depth)[rows] * factor)
        self._factors[rows] = factor * (1 + _LEARN * (min(max(ratio, 0.5), 1.5) - 1))
