"""The loop: draft, verify, accept, commit, for every active sequence at once."""

import itertools
import logging
from collections.abc import Iterator
from functools import partial
from time import perf_counter

import numpy as np

from llamaspec.draft.drafter import NOTHING, Drafter, Proposal, Span
from llamaspec.engine.anew import Anew
from llamaspec.engine.doubt import NO_DOUBT, Doubt
from llamaspec.engine.drafted import DraftedRuns
from llamaspec.engine.logprobs import logprobs_of
from llamaspec.engine.pacing import Pacing
from llamaspec.engine.plain import PlainRuns
from llamaspec.engine.prompts import Prompts
from llamaspec.engine.queue import Queue
from llamaspec.engine.sequence import NO_SLOT, Request, Sequence
from llamaspec.engine.sharing import Around
from llamaspec.engine.slots import Held, Slots
from llamaspec.engine.store import Store
from llamaspec.engine.teacher import Teacher
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.trace import Round
from llamaspec.verify.accept import Verification, accept, certain_part

logger = logging.getLogger("llamaspec")


class Engine:
    """Runs up to `slots` sequences over one target context and, where there is one, a drafter;
    others wait their turn.

    Between steps, for every unfinished sequence that has a slot: the target's KV cache holds
    `n_past` positions and the drafter knows the features of exactly those. `doubt`: which choices
    of a pass over several rows are settled by single rows (exact mode, of one slot). `prompts`: how
    prompts are taken in. `pacing`: who chooses how much is drafted.

    A recurrent target goes back by one block at most, and only once a pass; where more has to go,
    its positions are computed anew (`anew.py`).
    """

    def __init__(
        self,
        target: TargetContext,
        drafter: Drafter | None,
        doubt: Doubt = NO_DOUBT,
        queue: int = 0,
        stored: int = 0,
    ) -> None:
        """Take what computes. queue: how many may wait for a slot. stored: the most bytes of texts
        that no slot holds any longer.
        """
        self.doubt = doubt
        self.pacing = Pacing()
        # the rule of acceptance; only benchmarks with scripted acceptance replace it
        self.accept = accept
        slots = target.shape.n_seq
        assert slots == 1 or not doubt, (
            "rows of other sequences would share the single rows' passes"
        )
        self._target = target
        self._drafter = drafter
        self._slots = Slots(slots)
        self._queue = Queue(queue)
        self._active: list[Sequence] = []
        rows = 1 + (drafter.proposals if drafter else 0)
        self._batch = Batch.create(max(target.shape.n_batch, slots * rows))
        self._plain = PlainRuns(target, drafter, self._batch)
        self._drafted = DraftedRuns.of(target, drafter)
        self._anew = Anew(target, self._batch, rows)
        self._teacher = Teacher(target, drafter)
        self.store = Store(stored)
        around = Around(self._slots, self._active, self.store)
        self.prompts = Prompts(target, self._teacher, self._batch, self._anew, around)

    @property
    def waiting(self) -> int:
        """How many sequences wait for a slot."""
        return len(self._queue)

    @property
    def active(self) -> int:
        """How many sequences have a slot."""
        return len(self._active)

    def submit(self, request: Request) -> Sequence:
        """Take a request in; it starts in one of the next steps. Raises QueueFullError."""
        sequence = Sequence(NO_SLOT, request)
        self._queue.add(sequence, self._slots.free)
        return sequence

    def admit(self, request: Request) -> Sequence:
        """Start a request at once and commit its first token. Raises DecodeError and SamplingError;
        the slot is free again then.
        """
        if not self._slots.free:
            raise LlamaSpecError(
                f"all {self._target.shape.n_seq} sequences are in use; "
                "finish or close a stream first"
            )
        sequence = Sequence(NO_SLOT, request)
        try:
            self._enter(sequence)
            while sequence.filling:
                self._fill([sequence])
            if sequence.failure is not None:
                raise sequence.failure
        except BaseException:
            self.release(request)
            raise
        return sequence

    def _enter(self, sequence: Sequence) -> None:
        request = sequence.request
        prompt = request.prompt if request.cache_prompt else None
        sequence.slot, sequence.held = self._slots.take(prompt)
        self._active.append(sequence)
        texts = min(self._target.shape.n_seq, len(self._active) + len(self._queue))
        self.pacing.begin(sequence, texts if self._teacher.spares else 1)

    def _fill(self, sequences: list[Sequence]) -> None:
        self._publish()
        self.prompts.fill(sequences)

    def step(self) -> None:
        """One part of prompts that are to be taken in, and one round for every other sequence that
        has a slot. Raises DecodeError where a round fails; who has a slot keeps it.
        """
        while self._slots.free and self._queue:
            self._enter(self._queue.take())
        filling = [s for s in self._active if s.filling]
        # who gets his first token in this step does not wait for a round to have it
        active = [s for s in self._active if s.finish_reason is None and not s.filling]
        if filling:
            self._fill(filling)
        if active:
            self._rounds(active)
        for sequence in [s for s in self._active if s.finish_reason is not None]:
            self.release(sequence.request)

    def _rounds(self, active: list[Sequence]) -> None:
        certain = [s for s in active if s.certain]
        for sequence in active:
            sequence.certain = False
        began, rounds = perf_counter() - self._spent, len(active[0].rounds)
        try:
            in_a_row = self._round(active)
        except BaseException:
            # Ctrl-C for one sequence must not leave rejected rows to the others
            for sequence in active:
                self._cut(sequence)
            raise
        for sequence in certain:
            sequence.certain = True
        spent = perf_counter() - self._spent - began
        self.pacing.observe_besides(active, spent, rounds, in_a_row=in_a_row)

    @property
    def _spent(self) -> float:
        return self._target.seconds + (self._drafter.seconds if self._drafter else 0.0)

    def release(self, request: Request) -> None:
        """Free the slot of a request, finished or not, or its place in the queue; its caches stay
        for a prompt that goes on from there. A second call does nothing.
        """
        if self._queue.remove(request):
            return
        for sequence in [s for s in self._active if s.request is request]:
            self._active.remove(sequence)
            self.pacing.end(sequence)
            self._slots.give_back(sequence.slot)
            if sequence.held is not None:
                self._slots.remember(sequence.slot, sequence.held)
                continue
            if self._target.closed:
                continue
            slot, length = sequence.slot, sequence.n_past
            certain = sequence.certain and not sequence.lost
            certain = certain and self._target.length(slot) == length
            if self._drafter is not None:
                self._drafter.keep(slot, length if certain else 0)
            if certain:
                text = np.array(sequence.text[:length], np.int32)
                prompt = min(length, len(request.prompt))
                self._slots.remember(slot, Held(text, prompt))
            else:
                self._target.truncate(slot, 0)

    def _round(self, active: list[Sequence]) -> bool:
        """A round, or several in native code; return whether it was these."""
        for sequence in active:
            if sequence.lost:
                self._rebuild(sequence, sequence.n_past)
        if self._run(active):
            return True
        alone = self.doubt.alone(active[0])
        replayed = self._replay(active[0]) if alone else 0
        proposed = [NOTHING] if alone else self._propose(active)
        for sequences, proposals in self._passes(active, proposed):
            before = self._target.seconds
            starts, choices = self._verify(sequences, proposals)
            self.pacing.observe_pass(sequences, proposals, self._target.seconds - before)
            verified = self._accept(sequences, proposals, starts, choices)
            if self.doubt:
                verified = [self._settle(sequences[0], verified[0])]
            self._commit(sequences, proposals, starts, verified, replayed)
        return False

    def _run(self, active: list[Sequence]) -> bool:
        """Several rounds at once, where nothing lies between them; return whether it was."""
        if self.doubt or self.accept is not accept:
            return False
        if 1 < len(active) < len(self._active):
            # who has just got his first token is not to wait for rounds of the others
            return False
        position, most = active[0].n_past, self._plain.ahead(active, self.pacing)
        if most < 2:
            return len(active) == 1 and self._run_drafted(active[0])
        kept, decoded = self._plain.run(active, self.pacing, most)
        for sequence, count in zip(active, kept, strict=True):
            if count < decoded:
                self._cut(sequence)
        if self._teacher.wants(active[0]):
            assert len(active) == 1, "texts that are drafted for go round by round"
            spans = [Span(active[0].slot, position, kept[0])]
            self._teacher.teach(partial(self._target.run_features, kept[0]), spans)
        return True

    def _run_drafted(self, sequence: Sequence) -> bool:
        runs = self._drafted
        if runs is None or not self._teacher.wants(sequence):
            return False
        start = runs.start(sequence, self.pacing)
        if start is None:
            return False
        went = False
        try:
            runs.run(sequence, self.pacing, start)
            went = True
        except Exception as error:
            # a round of the loop comes upon it again, and knows whose fault it is
            logger.debug("rounds in a row: %s", error)
            self._cut(sequence)
        finally:
            if not went or sequence.finish_reason is not None:
                # rounds after the text's end, or an interruption
                runs.drafter.keep(sequence.slot, sequence.n_past)
        if sequence.finish_reason is not None:
            self._cut(sequence)
        return went

    def _passes(
        self, active: list[Sequence], proposals: list[Proposal]
    ) -> Iterator[tuple[list[Sequence], list[Proposal]]]:
        """What is verified in one pass: all, or of a recurrent target blocks of one width."""
        if not self._target.recurrent:
            yield active, proposals
            return

        def width(pair: tuple[Sequence, Proposal]) -> int:
            return len(pair[1].ids)

        by_width = sorted(zip(active, proposals, strict=True), key=width)
        for _, group in itertools.groupby(by_width, width):
            sequences, blocks = zip(*group, strict=True)
            yield list(sequences), list(blocks)

    def _cut(self, sequence: Sequence) -> None:
        """Cut the target back to what a sequence has committed."""
        sequence.lost = True
        sequence.lost = not self._target.truncate(sequence.slot, sequence.n_past)

    def _rebuild(self, sequence: Sequence, length: int) -> None:
        self._anew.rebuild(sequence, length, single=bool(self.doubt))
        self._publish()

    def _replay(self, sequence: Sequence) -> int:
        replayed = self._anew.replay(sequence)
        self._publish()
        return replayed

    def _settle(self, sequence: Sequence, found: Verification) -> Verification:
        """Withhold what is in doubt, to be decided by a row alone in the next round."""
        if self._batch.size == 1 and sequence.clean == sequence.n_past:
            sequence.in_doubt = False
            sequence.clean += 1
            return found
        gaps = self._target.top2(self._batch.size)[1].tolist()
        certain = certain_part(found, gaps, self.doubt.bound)
        sequence.in_doubt = certain is not found
        sequence.near_ties += sequence.in_doubt
        return certain

    def _publish(self) -> None:
        self._teacher.publish(self._active)

    def _propose(self, active: list[Sequence]) -> list[Proposal]:
        widths = self.pacing.plan(active)
        if self._drafter is None or not (any(widths) or self._drafter.proposes_parked):
            return [NOTHING] * len(active)
        anchors = [
            sequence.place(width or sequence.request.draft_max, parked=not width)
            for sequence, width in zip(active, widths, strict=True)
        ]
        before = self._drafter.seconds
        try:
            offers = self._drafter.propose(anchors)
            self.pacing.observe_draft(active, offers, self._drafter.seconds - before)
            return self.pacing.cut(active, offers)
        except Exception as error:
            self._teacher.warn(error)
            return [NOTHING] * len(active)

    def _verify(
        self, active: list[Sequence], proposals: list[Proposal]
    ) -> tuple[list[int], list[int]]:
        """One pass over [anchor, d1..dl] of all sequences; return the first row of each, and the
        target's greedy choice of every row where a sequence wants it.
        """
        batch = self._batch
        batch.clear()
        starts = [
            batch.add_tokens([s.anchor, *p.ids], start=s.n_past, seq=s.slot, output=ALL_OUTPUT)
            for s, p in zip(active, proposals, strict=True)
        ]
        for sequence in active:
            if sequence.request.draw is None:
                return starts, self._target.decode_choose(batch, batch.size)
        self._target.decode(batch)
        return starts, []

    def _accept(
        self,
        active: list[Sequence],
        proposals: list[Proposal],
        starts: list[int],
        choices: list[int],
    ) -> list[Verification]:
        verified = []
        for sequence, proposal, start in zip(active, proposals, starts, strict=True):
            draw = sequence.request.draw
            target = choices[start:] if draw is None else sequence.draws(start, proposal)
            verified.append(self.accept(target, proposal.ids))
        return verified

    def _commit(
        self,
        active: list[Sequence],
        proposals: list[Proposal],
        starts: list[int],
        verified: list[Verification],
        replayed: int,
    ) -> None:
        rows: list[int] = []
        spans: list[Span] = []
        for sequence, proposal, start, result in zip(
            active, proposals, starts, verified, strict=True
        ):
            slot, position, anchor = sequence.slot, sequence.n_past, sequence.anchor
            ids, confidence = proposal.ids, proposal.confidence
            offered = max(len(ids), proposal.offered)
            logprobs = logprobs_of(self._target, sequence.request, result.tokens, start)
            kept = sequence.commit(result.tokens)
            sequence.logprobs += logprobs[:kept]
            accepted = min(result.accepted, kept)
            if kept or sequence.failure is None:
                counts = accepted, kept, replayed, offered, len(active)
                record = Round(position, anchor, ids, confidence, *counts)
                sequence.rounds.append(record)
            self.pacing.learn(sequence, proposal, result)
            if kept <= len(ids):
                self._cut(sequence)
            # a text's last rows too: the next turn then goes on from where plain decoding would
            if kept and self._teacher.wants(sequence):
                rows += range(start, start + kept)
                spans.append(Span(slot, position, kept))
        if rows:
            self._teacher.teach(partial(self._target.features_view, rows), spans)
