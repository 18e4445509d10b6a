"""Plain greedy rounds in a row, in one native call: between the passes of a small target the loop
would cost as much again.
"""

from collections.abc import Sequence as Several
from dataclasses import dataclass

from llamaspec.draft.drafter import Drafter
from llamaspec.engine.pacing import Pacing
from llamaspec.engine.sequence import Sequence
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.trace import Round

SECONDS = 0.02
"""What Ctrl-C and other texts may wait for, beside the pass or round under way."""


@dataclass(frozen=True)
class PlainRuns:
    """Rounds of a sequence that is alone, or of several that nothing is drafted for. batch: memory
    for a row of each.
    """

    target: TargetContext
    drafter: Drafter | None
    batch: Batch

    def ahead(self, active: Several[Sequence], pacing: Pacing) -> int:
        """How many such rounds lie ahead between which there is nothing to decide."""
        if self.target.recurrent or not all(s.request.in_a_row for s in active):
            return 0
        left = min(s.request.limit - len(s.tokens) for s in active)
        if all(self._undrafted(s) for s in active):
            return left
        assert self.drafter is not None
        if len(active) > 1 or self.drafter.proposes_parked:
            return 0
        return min(pacing.idle(active[0]), left)

    def _undrafted(self, sequence: Sequence) -> bool:
        return self.drafter is None or sequence.request.draft_max == 0 or sequence.spared

    def run(self, active: Several[Sequence], pacing: Pacing, most: int) -> tuple[list[int], int]:
        """Go through `most` of them at most; return how many each sequence committed, and how many
        rows of each were decoded: those after an end still have to leave the cache. Raises
        DecodeError.
        """
        batch, target, texts = self.batch, self.target, len(active)
        batch.clear()
        for s in active:
            batch.add_tokens([s.anchor], start=s.n_past, seq=s.slot, output=ALL_OUTPUT)
        before = target.seconds
        ends = set[int]().union(*(s.request.ending.ends for s in active))
        found = target.decode_run(batch, most, ends, SECONDS)
        rounds, kept = len(found[0]), []
        pacing.went_plainly(active, rounds, (target.seconds - before) / rounds)
        for s, tokens in zip(active, found, strict=True):
            position, anchors = s.n_past, [s.anchor, *tokens]
            taken = s.commit(tokens)
            s.rounds += [
                Round(position + i, anchors[i], (), None, 0, 1, texts=texts) for i in range(taken)
            ]
            pacing.skip(s, taken)
            kept.append(taken)
        return kept, rounds
