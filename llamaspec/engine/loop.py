"""The loop: draft, verify, accept, commit, for every active sequence at once."""

import itertools
import logging
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter

import numpy as np

from llamaspec.draft.drafter import NOTHING, Drafter, Features, Proposal, Span
from llamaspec.engine.anew import Anew
from llamaspec.engine.doubt import NO_DOUBT, Doubt
from llamaspec.engine.pacing import Pacing
from llamaspec.engine.plain import PlainRuns
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.engine.slots import Held, Slots
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, LAST_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.trace import Round, TokenLogprob
from llamaspec.verify.accept import Verification, accept, certain_part

logger = logging.getLogger("llamaspec")


class Engine:
    """Runs up to `slots` sequences over one target context and, where there is one, a drafter.

    Between steps, for every unfinished sequence: the target's KV cache holds `n_past` positions
    and the drafter knows the features of exactly those. `doubt`: which choices of a pass over
    several rows are settled by single rows (exact mode, of one slot). `prompt_end_twice`: decode
    the end of a prompt without features first, for its token: where the last layer's output is a
    feature, that layer computes all rows of a pass, and a prompt's last row unlike a row alone.
    `whole_parts`: of an earlier prompt's caches reuse only the parts of n_batch positions that the
    new prompt is split into as well (exact mode). `pacing`: who chooses how much is drafted.

    A recurrent target goes back by one block at most, and only once a pass; where more has to go,
    its positions are computed anew (`anew.py`).
    """

    prompt_end_twice = False
    whole_parts = False

    def __init__(
        self, target: TargetContext, drafter: Drafter | None, doubt: Doubt = NO_DOUBT
    ) -> None:
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
        self._active: list[Sequence] = []
        rows = 1 + (drafter.proposals if drafter else 0)
        self._batch = Batch.create(max(target.shape.n_batch, slots * rows))
        self._plain = PlainRuns(target, drafter, self._batch)
        self._anew = Anew(target, self._batch, rows)
        self._warned = False

    def admit(self, request: Request) -> Sequence:
        """Take a prompt in and commit its first token. Raises DecodeError; the slot is free again
        then.
        """
        if not self._slots:
            raise LlamaSpecError(
                f"all {self._target.shape.n_seq} sequences are in use; "
                "finish or close a stream first"
            )
        slot, held = self._slots.take(request.prompt if request.cache_prompt else None)
        sequence = Sequence(slot, request)
        self.pacing.begin(sequence)
        self._active.append(sequence)
        try:
            sequence.cached = self._keep(sequence, held)
            self._prefill(sequence)
        except BaseException:
            self.release(request)
            raise
        sequence.certain = True
        return sequence

    def step(self) -> None:
        """One round for every unfinished sequence."""
        active = [s for s in self._active if s.finish_reason is None]
        if not active:
            return
        certain = [s for s in active if s.certain]
        for sequence in active:
            sequence.certain = False
        began, rounds = perf_counter() - self._spent, len(active[0].rounds)
        try:
            self._round(active)
        except BaseException:
            # Ctrl-C for one sequence must not leave rejected rows to the others
            for sequence in active:
                self._cut(sequence)
            raise
        for sequence in certain:
            sequence.certain = True
        self.pacing.observe_besides(active, perf_counter() - self._spent - began, rounds)

    @property
    def _spent(self) -> float:
        return self._target.seconds + (self._drafter.seconds if self._drafter else 0.0)

    def release(self, request: Request) -> None:
        """Free the slot of a request, finished or not; its caches stay for a prompt that goes on
        from there. A second call does nothing.
        """
        for sequence in [s for s in self._active if s.request is request]:
            self._active.remove(sequence)
            self.pacing.end(sequence)
            self._slots.give_back(sequence.slot)
            if self._target.closed:
                continue
            slot, length = sequence.slot, sequence.n_past
            certain = sequence.certain and not sequence.lost
            certain = certain and self._target.length(slot) == length
            if self._drafter is not None:
                self._drafter.keep(slot, length if certain else 0)
            if certain:
                text = np.array(sequence.text[:length], np.int32)
                self._slots.remember(slot, Held(text, len(request.prompt)))
            else:
                self._target.truncate(slot, 0)

    def _round(self, active: list[Sequence]) -> None:
        for sequence in active:
            if sequence.lost:
                self._rebuild(sequence, sequence.n_past)
        if len(active) == 1 and self._run(active[0]):
            return
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

    def _run(self, sequence: Sequence) -> bool:
        """Several plain rounds at once, where nothing lies between them; return whether it was."""
        if self.doubt or self.accept is not accept:
            return False
        position, most = sequence.n_past, self._plain.ahead(sequence, self.pacing)
        if most < 2:
            return False
        kept, decoded = self._plain.run(sequence, self.pacing, most)
        if kept < decoded:
            self._cut(sequence)
        if sequence.request.draft_max > 0 and self._learns:
            spans = [Span(sequence.slot, position, kept)]
            self._teach(partial(self._target.run_features, kept), spans)
        return True

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

    def _keep(self, sequence: Sequence, held: Held) -> int:
        """Cut the caches of a slot to what they can keep of a prompt; return how many positions.

        The last token is left out: its row gives the first choice.
        """
        slot, request = sequence.slot, sequence.request
        kept = self._whole(min(held.common(request.prompt), len(request.prompt) - 1), held)
        if not request.cache_prompt:
            kept = 0
        if self._drafter is not None:
            known = self._drafter.keep(slot, kept)
            if self._learns and request.draft_max > 0:
                # what a request without the draft has not taught it comes from the target again
                kept = self._whole(known, held)
        # somebody else may have used the context meanwhile
        if not self._target.can_truncate(slot, kept) or self._target.length(slot) < kept:
            kept = 0
        if self._drafter is not None:
            self._drafter.keep(slot, kept)
        self._target.truncate(slot, kept)
        return kept

    def _whole(self, length: int, held: Held) -> int:
        """What a cold start would have computed in the same passes, where only that will do."""
        if not self.whole_parts:
            return length
        length = min(length, held.prompt)
        return length - length % self._target.shape.n_batch

    def _prefill(self, sequence: Sequence) -> None:
        request, batch = sequence.request, self._batch
        drafting = self._learns and request.draft_max > 0
        self._publish()
        first, end = 0, len(request.prompt)
        for start in range(sequence.cached, end, self._target.shape.n_batch):
            self._add_prompt(sequence, start)
            if start + batch.size == end:
                first = self._first(sequence, start, again=drafting and self.prompt_end_twice)
            else:
                self._target.decode(batch)
            if drafting:
                count = batch.size
                read = partial(self._target.features_view, list(range(count)))
                self._teach(read, [Span(sequence.slot, start, count)])
        sequence.commit([first])
        sequence.clean = end

    def _add_prompt(self, sequence: Sequence, start: int) -> None:
        """Make the prompt's part from `start` on the batch, with the last row's output wanted."""
        prompt = sequence.request.prompt
        part = prompt[start : start + self._target.shape.n_batch].tolist()
        output = LAST_OUTPUT if start + len(part) == len(prompt) else NO_OUTPUT
        self._batch.clear()
        self._batch.add_tokens(part, start=start, seq=sequence.slot, output=output)

    def _first(self, sequence: Sequence, start: int, *, again: bool) -> int:
        """Decode the end of a prompt, in the batch; return the first token."""
        batch, draw = self._batch, sequence.request.draw
        if again:
            self._target.publish(False)
        if draw is None:
            first = self._target.decode_choose(batch, 1)[0]
        else:
            self._target.decode(batch)
            first = draw(batch.size - 1, 0)
        sequence.logprobs += self._logprobs(sequence.request, [first], batch.size - 1)
        if again:
            if not self._target.truncate(sequence.slot, start):
                self._rebuild(sequence, start)
                self._add_prompt(sequence, start)
            self._publish()
            self._target.decode(batch)
        return first

    @property
    def _learns(self) -> bool:
        return self._drafter is not None and self._drafter.reads_features

    def _publish(self) -> None:
        wanted = self._learns and any(s.request.draft_max > 0 for s in self._active)
        self._target.publish(wanted)

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
            self._warn(error)
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
            logprobs = self._logprobs(sequence.request, result.tokens, start)
            kept = sequence.commit(result.tokens)
            sequence.logprobs += logprobs[:kept]
            accepted = min(result.accepted, kept)
            if kept or sequence.failure is None:
                record = Round(position, anchor, ids, confidence, accepted, kept, replayed, offered)
                sequence.rounds.append(record)
            self.pacing.learn(sequence, proposal, result)
            if kept <= len(ids):
                self._cut(sequence)
            # a text's last rows too: the next turn then goes on from where plain decoding would
            if kept and sequence.request.draft_max > 0:
                rows += range(start, start + kept)
                spans.append(Span(slot, position, kept))
        if rows and self._learns:
            self._teach(partial(self._target.features_view, rows), spans)

    def _logprobs(self, request: Request, tokens: list[int], start: int) -> list[TokenLogprob]:
        """The log-probabilities that a request wants of tokens from batch rows from `start` on."""
        if request.logprobs is None or not tokens:
            return []
        rows = list(range(start, start + len(tokens)))
        found, ids, top = self._target.logprobs(rows, tokens, request.logprobs)
        columns = tokens, found.tolist(), ids.tolist(), top.tolist()
        return [
            TokenLogprob(token, own, tuple(zip(others, values, strict=True)))
            for token, own, others, values in zip(*columns, strict=True)
        ]

    def _teach(self, read: Callable[[], FloatArray], spans: list[Span]) -> None:
        """Hand the features of committed rows to the drafter."""
        assert self._drafter is not None
        try:
            self._drafter.commit(Features(read(), spans))
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "the draft failed, decoding goes on without it for now: %s", error)
