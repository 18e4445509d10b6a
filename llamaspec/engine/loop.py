"""The loop: draft, verify, accept, commit, for every active sequence at once."""

import itertools
import logging
from collections.abc import Iterator

from llamaspec.draft.drafter import NOTHING, Anchor, Drafter, Features, Proposal
from llamaspec.engine.doubt import NO_DOUBT, Doubt
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import LlamaSpecError
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

    A recurrent target goes back by one block at most, and only once a pass; where more has to go,
    its positions are computed anew (`_rebuild`).
    """

    prompt_end_twice = False

    def __init__(
        self, target: TargetContext, drafter: Drafter | None, doubt: Doubt = NO_DOUBT
    ) -> None:
        self.doubt = doubt
        slots = target.shape.n_seq
        assert slots == 1 or not doubt, (
            "rows of other sequences would share the single rows' passes"
        )
        self._target = target
        self._drafter = drafter
        self._free = list(reversed(range(slots)))
        self._active: list[Sequence] = []
        widest = drafter.proposals if drafter else 0
        self._rows = widest + 1
        self._batch = Batch.create(max(target.shape.n_batch, slots * self._rows))
        self._warned = False

    def admit(self, request: Request) -> Sequence:
        """Take a prompt in and commit its first token. Raises DecodeError; the slot is free again
        then.
        """
        if not self._free:
            raise LlamaSpecError(
                f"all {self._target.shape.n_seq} sequences are in use; "
                "finish or close a stream first"
            )
        sequence = Sequence(self._free.pop(), request)
        self._active.append(sequence)
        try:
            self._clear(sequence)
            self._prefill(sequence)
        except BaseException:
            self.release(request)
            raise
        return sequence

    def step(self) -> None:
        """One round for every unfinished sequence."""
        active = [s for s in self._active if s.finish_reason is None]
        if not active:
            return
        try:
            self._round(active)
        except BaseException:
            # Ctrl-C for one sequence must not leave rejected rows to the others
            for sequence in active:
                self._cut(sequence)
            raise

    def release(self, request: Request) -> None:
        """Free the slot of a request, finished or not. A second call does nothing."""
        for sequence in [s for s in self._active if s.request is request]:
            self._active.remove(sequence)
            self._free.append(sequence.slot)
            if not self._target.closed:
                self._clear(sequence)

    def _round(self, active: list[Sequence]) -> None:
        for sequence in active:
            if sequence.lost:
                self._rebuild(sequence, sequence.n_past)
        alone = self.doubt.alone(active[0])
        replayed = self._replay(active[0]) if alone else 0
        proposed = [NOTHING] if alone else self._propose(active)
        for sequences, proposals in self._passes(active, proposed):
            starts, choices = self._verify(sequences, proposals)
            verified = self._accept(sequences, proposals, starts, choices)
            if self.doubt:
                verified = [self._settle(sequences[0], verified[0])]
            self._commit(sequences, proposals, starts, verified, replayed)

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
        """Compute the first `length` positions of the text anew, in passes that round as those did
        that computed them first; the drafter knows them already.
        """
        batch, slot, prompt = self._batch, sequence.slot, len(sequence.request.prompt)
        sequence.lost = True
        self._target.truncate(slot, 0)
        self._target.publish(False)
        start = 0
        while start < length:
            inside = start < prompt
            step = self._target.shape.n_batch if inside else 1 if self.doubt else self._rows
            end = min(start + step, length, prompt if inside else length)
            output = NO_OUTPUT if inside else ALL_OUTPUT
            batch.clear()
            batch.add_tokens(sequence.text[start:end], start=start, seq=slot, output=output)
            self._target.decode(batch)
            start = end
        sequence.lost = False
        self._publish()

    def _replay(self, sequence: Sequence) -> int:
        """Decode again, one by one, the rows that blocks have put into the KV cache; return how
        many.
        """
        # a round that failed half-way may have counted a row that is gone again
        sequence.clean = min(sequence.clean, sequence.n_past)
        batch, rows = self._batch, range(sequence.clean, sequence.n_past)
        if rows:
            if not self._target.truncate(sequence.slot, sequence.clean):
                self._rebuild(sequence, sequence.clean)
            # plain decoding publishes no features
            self._target.publish(False)
        for position in rows:
            token = sequence.text[position]
            batch.clear()
            batch.add_tokens([token], start=position, seq=sequence.slot, output=ALL_OUTPUT)
            self._target.decode(batch)
            sequence.clean = position + 1
        if rows:
            self._publish()
        return len(rows)

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

    def _clear(self, sequence: Sequence) -> None:
        self._target.truncate(sequence.slot, 0)
        if self._drafter is not None:
            self._drafter.reset(sequence.slot)

    def _prefill(self, sequence: Sequence) -> None:
        request, batch = sequence.request, self._batch
        drafting = self._learns and request.draft_max > 0
        self._publish()
        first, end = 0, len(request.prompt)
        for start in range(0, end, self._target.shape.n_batch):
            self._add_prompt(sequence, start)
            if start + batch.size == end:
                first = self._first(sequence, start, again=drafting and self.prompt_end_twice)
            else:
                self._target.decode(batch)
            if drafting:
                count = batch.size
                positions = list(range(start, start + count))
                self._learn(list(range(count)), [sequence.slot] * count, positions)
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
        if self._drafter is None:
            return [NOTHING] * len(active)
        anchors = [
            Anchor(s.slot, s.anchor, s.n_past, s.request.draft_max, s.draft_limit, s.text)
            for s in active
        ]
        try:
            return self._drafter.propose(anchors)
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
            target = choices[start:] if draw is None else sequence.draws(start)
            verified.append(accept(target, proposal.ids))
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
        seqs: list[int] = []
        positions: list[int] = []
        for sequence, proposal, start, result in zip(
            active, proposals, starts, verified, strict=True
        ):
            slot, position, anchor = sequence.slot, sequence.n_past, sequence.anchor
            ids, confidence = proposal
            logprobs = self._logprobs(sequence.request, result.tokens, start)
            kept = sequence.commit(result.tokens)
            sequence.logprobs += logprobs[:kept]
            accepted = min(result.accepted, kept)
            if kept or sequence.failure is None:
                record = Round(position, anchor, ids, confidence, accepted, kept, replayed)
                sequence.rounds.append(record)
            if kept <= len(ids):
                self._cut(sequence)
            if sequence.finish_reason is None and sequence.request.draft_max > 0:
                rows += range(start, start + kept)
                seqs += [slot] * kept
                positions += range(position, position + kept)
        if rows and self._learns:
            self._learn(rows, seqs, positions)

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

    def _learn(self, rows: list[int], seqs: list[int], positions: list[int]) -> None:
        """Hand the features of committed rows of the last batch to the drafter."""
        assert self._drafter is not None
        try:
            self._drafter.commit(Features(self._target.features_view(rows), seqs, positions))
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        logger.log(level, "the draft failed, decoding goes on without it for now: %s", error)
