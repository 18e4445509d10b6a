"""Plain greedy rounds in a row, in one native call: between the passes of a small target the loop
would cost as much again.
"""

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
    """Rounds of a sequence that is alone. batch: memory for a row."""

    target: TargetContext
    drafter: Drafter | None
    batch: Batch

    def ahead(self, sequence: Sequence, pacing: Pacing) -> int:
        """How many such rounds lie ahead between which there is nothing to decide."""
        request, drafter = sequence.request, self.drafter
        left = request.limit - len(sequence.tokens)
        if not request.in_a_row:
            return 0
        if self.target.recurrent:
            return 0
        if drafter is None or request.draft_max == 0 or sequence.spared:
            return left
        return 0 if drafter.proposes_parked else min(pacing.idle(sequence), left)

    def run(self, sequence: Sequence, pacing: Pacing, most: int) -> tuple[int, int]:
        """Go through `most` of them at most; return how many were committed, and how many rows
        were decoded: those after an end still have to leave the cache. Raises DecodeError.
        """
        batch, target, position = self.batch, self.target, sequence.n_past
        batch.clear()
        batch.add_tokens([sequence.anchor], start=position, seq=sequence.slot, output=ALL_OUTPUT)
        before, ends = target.seconds, sorted(sequence.request.ending.ends)
        tokens = target.decode_run(batch, most, ends, SECONDS)
        spent = (target.seconds - before) / len(tokens)
        anchors = [sequence.anchor, *tokens]
        kept = sequence.commit(tokens)
        sequence.rounds += [Round(position + i, anchors[i], (), None, 0, 1) for i in range(kept)]
        pacing.observe_plain(position, spent, len(tokens))
        pacing.skip(sequence, kept)
        return kept, len(tokens)
