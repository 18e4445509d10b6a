"""Prompts are taken in by parts, between rounds: what caches hold of them is kept, the rest is
computed, and the last row gives the first token.
"""

from functools import partial
from typing import NamedTuple

from llamaspec.draft.drafter import Span
from llamaspec.engine.anew import Anew
from llamaspec.engine.logprobs import logprobs_of
from llamaspec.engine.sequence import Sequence
from llamaspec.engine.sharing import Around, Sharing
from llamaspec.engine.slots import Held
from llamaspec.engine.teacher import Teacher
from llamaspec.errors import LlamaSpecError, SamplingError
from llamaspec.runtime.batch import LAST_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext


class _Part(NamedTuple):
    """Positions of a prompt in a pass. row: of the batch, the first. ends: whether they are the
    prompt's last.
    """

    sequence: Sequence
    row: int
    start: int
    length: int
    ends: bool

    @property
    def last(self) -> int:
        return self.row + self.length - 1


class Prompts:
    """Takes prompts in with the target's batch.

    part: the most positions of one prompt in a pass. exact: every prompt in the passes that it
    would have had alone from a cold start; of an earlier one only such parts are reused.
    end_twice: decode the end of a prompt without features first, for its token: where the last
    layer's output is a feature, that layer computes all rows of a pass, and a prompt's last row
    unlike a row alone.
    """

    def __init__(
        self, target: TargetContext, teacher: Teacher, batch: Batch, anew: Anew, around: Around
    ) -> None:
        self.part: int = target.shape.n_batch
        self.exact = False
        self.end_twice = False
        self._target = target
        self._teacher = teacher
        self._batch = batch
        self._anew = anew
        self._sharing = Sharing(target, teacher, around, self._whole)

    def fill(self, sequences: list[Sequence]) -> None:
        """Compute the next part of the first of these prompts, and with it what fits of others, but
        for those that had better wait.

        What fails ends the sequences it was for, each with the error as its `failure`.
        """
        chosen = self._choose(sequences)
        for part in chosen:
            part.sequence.certain = False
        try:
            self._fill(chosen)
        except LlamaSpecError as error:
            for part in chosen:
                if part.sequence.finish_reason is None:
                    part.sequence.fail(error)
        except BaseException:
            # Ctrl-C: what is not known to be there is computed again
            for part in chosen:
                if part.sequence.filling:
                    self._sharing.forget(part.sequence)
            raise

    def _choose(self, sequences: list[Sequence]) -> list[_Part]:
        alone = self.exact or self._target.recurrent
        parts: list[_Part] = []
        rows = 0
        for ahead, sequence in enumerate(sequences):
            if parts and (alone or rows >= self._target.shape.n_batch):
                break
            if self._sharing.waits(sequence, sequences[:ahead]):
                continue
            self._sharing.settle(sequence)
            left = len(sequence.request.prompt) - sequence.filled
            length = min(left, self.part, self._target.shape.n_batch - rows)
            parts.append(_Part(sequence, rows, sequence.filled, length, ends=length == left))
            rows += length
        return parts

    def _fill(self, parts: list[_Part]) -> None:
        batch, target = self._batch, self._target
        taught = [part for part in parts if self._teacher.wants(part.sequence)]
        again = self.end_twice and bool(taught) and parts[0].ends
        self._add(parts)
        if again:
            target.publish(False)
        ending = [part for part in parts if part.ends]
        first: dict[int, int] = {}
        if any(part.sequence.request.draw is None for part in ending):
            choices = target.decode_choose(batch, len(ending))
        else:
            target.decode(batch)
            choices = [0] * len(ending)
        for part, choice in zip(ending, choices, strict=True):
            first[part.sequence.slot] = self._first(part, choice)
        if again:
            self._anew_with_features(parts)
        if taught:
            rows = [row for part in taught for row in range(part.row, part.last + 1)]
            spans = [Span(part.sequence.slot, part.start, part.length) for part in taught]
            self._teacher.teach(partial(target.features_view, rows), spans)
        for sequence, _, start, length, ends in parts:
            sequence.filled = start + length
            if ends and sequence.failure is None:
                sequence.begin(first[sequence.slot])
            sequence.certain = sequence.failure is None

    def _add(self, parts: list[_Part]) -> None:
        self._batch.clear()
        for sequence, _, start, length, ends in parts:
            tokens = sequence.text[start : start + length]
            output = LAST_OUTPUT if ends else NO_OUTPUT
            self._batch.add_tokens(tokens, start=start, seq=sequence.slot, output=output)

    def _first(self, part: _Part, choice: int) -> int:
        """The first token. Where none can follow at all, the sequence fails."""
        sequence, request = part.sequence, part.sequence.request
        try:
            if request.draw is not None:
                choice = request.draw(part.last, 0)
            sequence.logprobs = logprobs_of(self._target, request, [choice], part.last)
        except SamplingError as error:
            sequence.fail(error)
        return choice

    def _anew_with_features(self, parts: list[_Part]) -> None:
        sequence, start = parts[0].sequence, parts[0].start
        if not self._target.truncate(sequence.slot, start):
            self._anew.rebuild(sequence, start, single=self.exact)
            self._add(parts)
        self._target.publish(True)
        self._target.decode(self._batch)

    def _whole(self, length: int, held: Held) -> int:
        """What a cold start would have computed in the same passes, where only that will do."""
        if not self.exact:
            return length
        length = min(length, held.prompt)
        return length - length % self.part
