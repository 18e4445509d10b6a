"""The loop: draft, verify, accept, commit, for every active sequence at once."""

import logging

from llamaspec.draft.drafter import NOTHING, Anchor, Drafter, Features, Proposal
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import LlamaSpecError
from llamaspec.runtime.batch import ALL_OUTPUT, LAST_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.trace import Round, TokenLogprob
from llamaspec.verify.accept import Verification, accept

logger = logging.getLogger("llamaspec")


class Engine:
    """Runs up to `slots` sequences over one target context and, where there is one, a drafter.

    Between steps, for every unfinished sequence: the target's KV cache holds `n_past` positions
    and the drafter knows the features of exactly those.
    """

    def __init__(self, target: TargetContext, drafter: Drafter | None) -> None:
        slots = target.shape.n_seq
        self._target = target
        self._drafter = drafter
        self._free = list(reversed(range(slots)))
        self._active: list[Sequence] = []
        widest = drafter.proposals if drafter else 0
        self._batch = Batch.create(max(target.shape.n_batch, slots * (widest + 1)))
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
            proposals = self._propose(active)
            starts, choices = self._verify(active, proposals)
            verified = self._accept(active, proposals, starts, choices)
            self._commit(active, proposals, starts, verified)
        except BaseException:
            # Ctrl-C for one sequence must not leave rejected rows to the others
            for sequence in active:
                self._target.truncate(sequence.slot, sequence.n_past)
            raise

    def release(self, request: Request) -> None:
        """Free the slot of a request, finished or not. A second call does nothing."""
        for sequence in [s for s in self._active if s.request is request]:
            self._active.remove(sequence)
            self._free.append(sequence.slot)
            if not self._target.closed:
                self._clear(sequence)

    def _clear(self, sequence: Sequence) -> None:
        self._target.truncate(sequence.slot, 0)
        if self._drafter is not None:
            self._drafter.reset(sequence.slot)

    def _prefill(self, sequence: Sequence) -> None:
        request, batch = sequence.request, self._batch
        drafting = self._drafter is not None and request.draft_max > 0
        self._publish()
        step = self._target.shape.n_batch
        prompt = request.prompt.tolist()
        first = 0
        for start in range(0, len(prompt), step):
            part = prompt[start : start + step]
            last = start + step >= len(prompt)
            output = LAST_OUTPUT if last else NO_OUTPUT
            batch.clear()
            batch.add_tokens(part, start=start, seq=sequence.slot, output=output)
            if last and request.draw is None:
                first = self._target.decode_choose(batch, 1)[0]
            else:
                self._target.decode(batch)
            if drafting:
                count = len(part)
                positions = list(range(start, start + count))
                self._learn(list(range(count)), [sequence.slot] * count, positions)
        if request.draw is not None:
            first = request.draw(batch.size - 1, 0)
        sequence.logprobs += self._logprobs(request, [first], batch.size - 1)
        sequence.commit([first])

    def _publish(self) -> None:
        wanted = self._drafter is not None and any(s.request.draft_max > 0 for s in self._active)
        self._target.publish(wanted)

    def _propose(self, active: list[Sequence]) -> list[Proposal]:
        if self._drafter is None:
            return [NOTHING] * len(active)
        anchors = [
            Anchor(s.slot, s.anchor, s.n_past, s.request.draft_max, s.draft_limit) for s in active
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
            if kept:
                sequence.rounds.append(Round(position, anchor, ids, confidence, accepted, kept))
            if kept <= len(ids):
                self._target.truncate(slot, position + kept)
            if sequence.finish_reason is None and sequence.request.draft_max > 0:
                rows += range(start, start + kept)
                seqs += [slot] * kept
                positions += range(position, position + kept)
        if rows and self._drafter is not None:
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
