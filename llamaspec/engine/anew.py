"""Positions of a text that are computed a second time: because single rows have to have written
them (exact mode), or because a recurrent state could not go back to them.
"""

from dataclasses import dataclass

from llamaspec.engine.sequence import Sequence
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext


@dataclass(frozen=True, slots=True)
class Anew:
    """Computes with the target's batch, without features: the drafter knows them already, and plain
    decoding publishes none. The caller turns their publication on again.

    rows: the most of a verify pass of one sequence.
    """

    target: TargetContext
    batch: Batch
    rows: int

    def rebuild(self, sequence: Sequence, length: int, *, single: bool) -> None:
        """Compute the first `length` positions of the text, in passes that round as those did that
        computed them first; what was generated row by row if `single`, else in blocks.
        """
        slot, prompt = sequence.slot, len(sequence.request.prompt)
        sequence.lost = True
        self.target.truncate(slot, 0)
        self.target.publish(False)
        start = 0
        while start < length:
            inside = start < prompt
            step = self.target.shape.n_batch if inside else 1 if single else self.rows
            end = min(start + step, length, prompt if inside else length)
            self._decode(sequence, start, end, NO_OUTPUT if inside else ALL_OUTPUT)
            start = end
        sequence.lost = False

    def replay(self, sequence: Sequence) -> int:
        """Compute, one by one, the rows that blocks have put into the KV cache; return how many."""
        # a round that failed half-way may have counted a row that is gone again
        sequence.clean = min(sequence.clean, sequence.n_past)
        rows = range(sequence.clean, sequence.n_past)
        if rows:
            if not self.target.truncate(sequence.slot, sequence.clean):
                self.rebuild(sequence, sequence.clean, single=True)
            self.target.publish(False)
        for position in rows:
            self._decode(sequence, position, position + 1, ALL_OUTPUT)
            sequence.clean = position + 1
        return len(rows)

    def _decode(self, sequence: Sequence, start: int, end: int, output: int) -> None:
        self.batch.clear()
        tokens = sequence.text[start:end]
        self.batch.add_tokens(tokens, start=start, seq=sequence.slot, output=output)
        self.target.decode(self.batch)
