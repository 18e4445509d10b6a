"""A cost curve as the loop asks it: a table lookup, refined by what passes really took."""

from dataclasses import dataclass, field

from llamaspec.schedule.cost import CostCurve

STEP = 256
"""Positions between two columns of the table."""
_LEARN, _LEARN_OWN = 0.02, 0.01


class Besides:
    """What rounds take beside passes, those that draft and the others: a mean at first, which then
    follows slowly. One that was held up counts as twice the usual at most.
    """

    def __init__(self) -> None:
        self._seconds = [0.0, 0.0]
        self._seen = [0, 0]

    def at(self, *, drafted: bool) -> float:
        """Seconds, 0 where none was seen."""
        return self._seconds[drafted]

    def see(self, seconds: float, *, drafted: bool, times: int = 1) -> None:
        """Take in a round, or so many of so many seconds each."""
        known, seen = self._seconds[drafted], self._seen[drafted]
        if seen:
            seconds = min(seconds, 2 * known)
        share = max(1 - (1 - _LEARN) ** times, times / (seen + times))
        self._seconds[drafted] += share * (seconds - known)
        self._seen[drafted] += times


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
        # by how much passes differ from the curve now: what slows a machine down slows all of them,
        # and while one kind is not seen the others tell; the rest is a kind's own: plain passes
        # find the caches as the one before left them, others as a draft did
        self._speed = self._single = self._several = self._block = 1.0
        self._besides, self._in_a_row = Besides(), Besides()

    def plain(self, depth: int) -> float:
        """A target pass over one row, after others like it."""
        return self._table(depth)[1] * self._speed * self._single

    def verify(self, rows: int, depth: int) -> float:
        """A target pass over so many rows, after a draft's."""
        return self._table(depth)[rows] * self._speed * self._several

    def verify_all(self, depth: int) -> list[float]:
        """Of every number of rows up to the most, from a place 0 on that means nothing."""
        factor = self._speed * self._several
        return [seconds * factor for seconds in self._table(depth)]

    def draft(self, width: int, depth: int) -> float:
        """What drafting so many proposals adds to a round: the block, and the features of what the
        round before committed.
        """
        return self._drafts(depth)[width] * self._speed * self._block

    def draft_all(self, depth: int) -> list[float]:
        """Of every number of proposals up to the most; 0 of none."""
        factor = self._speed * self._block
        return [seconds * factor for seconds in self._drafts(depth)]

    def _drafts(self, depth: int) -> list[float]:
        column = depth // STEP
        table = self._draft.get(column)
        if table is None:
            at, curve = column * STEP + STEP // 2, self.curve
            table = [curve.draft_s(n, at) + curve.injection_s(n, at) for n in range(self.width + 1)]
            self._draft[column] = table
        return table

    def besides(self, *, drafted: bool, in_a_row: bool = False) -> float:
        """What a round takes beside passes; 0 where it was never seen. in_a_row: as one of several
        in native code, if such were seen.
        """
        found = self._in_a_row.at(drafted=drafted) if in_a_row else 0.0
        return found or self._besides.at(drafted=drafted)

    def observe_besides(self, seconds: float, *, drafted: bool, in_a_row: int = 0) -> None:
        """Take in what a round took beside passes, or each of so many in a row in native code. One
        that was held up counts little.
        """
        if self.pinned:
            return
        if in_a_row:
            self._in_a_row.see(seconds, drafted=drafted, times=in_a_row)
        else:
            self._besides.see(seconds, drafted=drafted)

    def _table(self, depth: int) -> list[float]:
        column = depth // STEP
        table = self._verify.get(column)
        if table is None:
            at = column * STEP + STEP // 2
            table = [self.curve.verify_s(max(n, 1), at) for n in range(self.rows + 1)]
            self._verify[column] = table
        return table

    def observe_plain(self, depth: int, seconds: float, times: int = 1) -> None:
        """Take in what plain passes took, on the average of so many. Those that something else held
        up count little.
        """
        self._single *= self._changed(seconds, self.plain(depth), times)

    def observe(self, rows: int, depth: int, seconds: float) -> None:
        """Likewise of a target pass after a draft's."""
        self._several *= self._changed(seconds, self.verify(rows, depth), 1)

    def observe_draft(self, width: int, depth: int, seconds: float) -> None:
        """Likewise of a block with the features before it."""
        self._block *= self._changed(seconds, self.draft(width, depth), 1)

    def _changed(self, seconds: float, expected: float, times: int) -> float:
        """Move the speed; return by how much what is a kind's own moves."""
        if self.pinned or seconds <= 0 or expected <= 0:
            return 1.0
        off = min(max(seconds / expected, 0.5), 1.5) - 1
        self._speed *= (1 + _LEARN * off) ** times
        return float((1 + _LEARN_OWN * off) ** times)
