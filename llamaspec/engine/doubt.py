"""Exact mode where passes over several rows do not round as passes over one: which choices stand,
and when a sequence has to go on by single rows.
"""

from dataclasses import dataclass

from llamaspec.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Doubt:
    """Doubts every choice whose two largest logits lie no further apart than `bound`.

    bound: 0 doubts nothing. patience: tokens that a sequence has to come by for each near tie. A
    near tie costs a pass for every row that came from a block, so where they are frequent, single
    rows from the start are cheaper.
    """

    bound: float = 0.0
    patience: int = 128

    def __bool__(self) -> bool:
        return self.bound > 0

    def alone(self, sequence: Sequence) -> bool:
        """Whether the sequence's next row needs a pass of its own: to settle a near tie, because
        near ties were frequent, or because it draws, which any difference can change.
        """
        return bool(self) and (
            sequence.in_doubt
            or sequence.request.draw is not None
            or sequence.near_ties * self.patience > len(sequence.tokens)
        )


NO_DOUBT = Doubt()
