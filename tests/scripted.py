"""A drafter that knows what the target will say, and errs where it is told to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamaspec.draft.drafter import Anchor, NothingLearnt, Proposal

WIDEST = 5


@dataclass
class ScriptedDrafter(NothingLearnt):
    """Proposes, of a text that is the same as one of `texts` so far, what comes next: round by
    round as many ids as `widths` says, of which as many are right as `right` says.
    """

    texts: Sequence[Sequence[int]]
    widths: Sequence[int] = (WIDEST,)
    right: Sequence[int] = (0,)
    proposals: int = WIDEST
    reads_features: bool = False
    proposes_parked: bool = False
    seconds: float = 0.0
    rounds: dict[int, int] = field(default_factory=dict)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        return [self._next(anchor) for anchor in anchors]

    def _next(self, anchor: Anchor) -> Proposal:
        turn = self.rounds.get(anchor.seq, 0)
        self.rounds[anchor.seq] = turn + 1
        n = len(anchor.text)
        known = next(text for text in self.texts if list(text[:n]) == list(anchor.text))
        width = min(self.widths[turn % len(self.widths)], anchor.limit, len(known) - n)
        right = self.right[turn % len(self.right)]
        ids = known[n : n + width]
        return Proposal(tuple(t if i != right else (t + 1) % 50 + 3 for i, t in enumerate(ids)))
