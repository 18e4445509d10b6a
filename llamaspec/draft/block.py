"""Block drafts, DSpark and DFlash: one non-causal pass over [anchor, mask, ...] proposes a whole
block.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from llamaspec.draft.chance import roll, spread, tempered
from llamaspec.draft.drafter import NOTHING, Anchor, Dice, Features, Proposal, Saved
from llamaspec.draft.heads import DraftHead
from llamaspec.draft.waiting import Waiting
from llamaspec.runtime.arrays import ByteArray, FloatArray, IntArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.rounds import Drafted, Rounds, Start

MOST_WAITING = 64
"""Rows of committed positions that wait for the next proposal; more are injected at once."""
_A_BLOCK = 16
"""Rows at once that can be those of a verify pass."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a draft's block is laid out.

    proposals: most ids a block gives. first: the first row that proposes: 0 where the anchor's own
    row does (anchor-first), 1 where it is read past (bonus-anchor). confidence: whether the graph
    returns confidences. candidates: how many a row's selector has in the graph, 0 without one.
    d2t: the target id of every draft row, None for a full vocabulary.
    """

    proposals: int
    first: int
    mask: int
    vocabulary: int
    confidence: bool
    candidates: int = 0
    d2t: IntArray | None = None


class BlockDrafter:
    """A draft context, its layout and, where the head runs in Python, that head.

    The K/V of committed positions comes from injected target features, a block's own K/V is dropped
    at once. Features of a few rows wait until a proposal of their sequence needs them, so that a
    sequence that is not drafted for costs nothing.
    """

    reads_features = True
    proposes_parked = False

    def __init__(
        self, context: DraftContext, layout: BlockLayout, head: DraftHead | None = None
    ) -> None:
        shape = context.shape
        self._context = context
        self._layout = layout
        self._head = head
        self._own_seconds = 0.0
        self._blocks = Batch.create(shape.n_seq * (layout.proposals + layout.first))
        self._inject = Batch.create(shape.n_batch, context.feature_width)
        self._masks = [layout.mask] * (layout.proposals + layout.first)
        self._waiting = Waiting(context.feature_width, MOST_WAITING)
        # positions that the cache holds, and the sequences where a failure may have left more
        self._learnt = [0] * shape.n_seq
        self._unsure: set[int] = set()
        self._drawn: _Drawn | None = None
        self._rounds: Rounds | None = None

    @property
    def context(self) -> DraftContext:
        return self._context

    @property
    def layout(self) -> BlockLayout:
        return self._layout

    @property
    def proposals(self) -> int:
        return self._layout.proposals

    @property
    def seconds(self) -> float:
        return self._context.seconds + self._own_seconds

    def keep(self, seq: int, length: int) -> int:
        self._waiting.drop(seq, length)
        self._learnt[seq] = min(self._learnt[seq], length)
        if not self._context.closed:
            # also what an injection that failed may have left beyond
            self._context.truncate(seq, self._learnt[seq])
        return self.known(seq)

    def known(self, seq: int) -> int:
        """How many positions of a sequence the draft has features of, in its cache or waiting."""
        return max(self._learnt[seq], self._waiting.end(seq) or 0)

    def knows(self, seq: int, length: int) -> int:
        return min(self.known(seq), length)

    def copy(self, source: int, seq: int, length: int) -> int:
        if self._context.closed:
            return self.keep(seq, 0)
        self._forget(seq)
        learnt = min(self._learnt[source], length)
        self._context.copy(source, seq, learnt)
        self._learnt[seq] = learnt
        self._waiting.copy(source, seq, length)
        self._waiting.drop_below(seq, learnt)
        return self.known(seq)

    def saved_size(self, seq: int) -> int | None:
        if self._context.closed or not self._context.can_save:
            return None
        self._sure(seq)
        return self._context.state_size(seq) + self._waiting.rows(seq).nbytes

    def save(self, seq: int) -> Saved:
        self._sure(seq)
        return Saved(self._context.save(seq), self._waiting.rows(seq))

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        self._forget(seq)
        state, waiting = saved.state, saved.waiting
        if state is None or self._context.closed or not self._context.restore(seq, state):
            return 0
        self._learnt[seq] = state.length
        if waiting is not None and len(waiting):
            self._waiting.add(seq, state.length, waiting)
        return self.keep(seq, length)

    def _forget(self, seq: int) -> None:
        # whatever interrupts what follows, nothing is taken for known
        self._learnt[seq] = 0
        self._unsure.add(seq)
        self._waiting.drop(seq)

    def _sure(self, seq: int) -> None:
        """Have the cache hold what was learnt and nothing else, and the rest wait."""
        self._waiting.drop_below(seq, self._learnt[seq])
        self._context.truncate(seq, self._learnt[seq])

    def commit(self, features: Features) -> None:
        rows = len(features.rows)
        # prompts do not wait: they would make a text's first block late
        if rows <= _A_BLOCK and rows + len(self._waiting) <= MOST_WAITING:
            self._wait(features)
            return
        parts = list(features.parts(self._inject.capacity))
        try:
            self._learn_waiting(self._waiting.every())
            while parts:
                self._learn(parts[0])
                parts.pop(0)
        except BaseException:
            # what cannot be injected waits, to be made good in a later round
            for part in parts:
                self._wait(part)
            raise

    def _wait(self, features: Features) -> None:
        for (seq, start, _), rows in features.by_span():
            # behind a gap, which an interruption can leave, rows are of no use
            if start == self.known(seq):
                self._waiting.add(seq, start, rows)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        wanted = [
            a for a in anchors if a.limit > 0 and not a.parked and self.known(a.seq) == a.position
        ]
        if not wanted:
            return [NOTHING] * len(anchors)
        self._learn_waiting({a.seq for a in wanted})
        proposals = self._decode(wanted)
        if len(wanted) == len(anchors):
            return proposals
        found = dict(zip((a.seq for a in wanted), proposals, strict=True))
        return [found.get(a.seq, NOTHING) for a in anchors]

    @property
    def runs(self) -> bool:
        """Whether `run` is possible: the head is native or in the graph."""
        return self._head is None and not self._layout.candidates

    def run(self, target: TargetContext, start: Start) -> list[Drafted]:
        """Go through rounds in one native call, each from where the one before ended, and learn
        their features. Raises DecodeError where the first one fails.
        """
        assert self.runs, "a block that native code cannot choose"
        seq, layout = start.seq, self._layout
        if self._rounds is None:
            self._rounds = Rounds(target, self._context, layout)
        if seq in self._unsure or start.position - self._learnt[seq] > layout.proposals + 1:
            self._learn_waiting({seq})
        features = self._waiting.of({seq})
        # until it is known how far the cache goes
        self._unsure.add(seq)
        run = self._rounds.run(start, None if features is None else features.rows)
        self._learnt[seq] = run.learnt
        if not run.failed:
            self._unsure.discard(seq)
        self._waiting.drop(seq)
        self._waiting.add(seq, run.learnt, run.waiting)
        return run.rounds

    def _decode(self, anchors: list[Anchor]) -> list[Proposal]:
        batch, layout = self._blocks, self._layout
        batch.clear()
        # nothing but the lattice is read of a selector's rows
        output = NO_OUTPUT if layout.candidates else ALL_OUTPUT
        spans = []
        for anchor in anchors:
            masks = self._masks[: min(anchor.width, layout.proposals) + layout.first - 1]
            block = [anchor.token, *masks]
            row = batch.add_tokens(block, start=anchor.position, seq=anchor.seq, output=output)
            first = row + layout.first
            spans.append((first, min(first + anchor.limit, row + len(block))))
        if self._head is not None:
            return self._decode_with_head(self._head, anchors, spans)
        if layout.candidates:
            ids = self._context.decode_lattice(batch, layout.candidates)
            return [Proposal(tuple(ids[start:end])) for start, end in spans]
        if any(anchor.dice for anchor in anchors):
            return self._decode_drawn(anchors, spans)
        ids, scores = self._context.decode_block(batch, batch.size, confidence=layout.confidence)
        return [
            Proposal(tuple(ids[start:end]), None if scores is None else tuple(scores[start:end]))
            for start, end in spans
        ]

    def _decode_drawn(self, anchors: list[Anchor], spans: list[tuple[int, int]]) -> list[Proposal]:
        batch, layout, context = self._blocks, self._layout, self._context
        total, vocabulary = batch.size, context.model.vocab.size
        if self._drawn is None:
            self._drawn = _Drawn.create(batch.capacity, vocabulary, layout)
        started = perf_counter()
        drawn = self._drawn
        pairs = zip(anchors, spans, strict=True)
        drawn.fill([(a.dice, *span) for a, span in pairs if a.dice is not None])
        self._own_seconds += perf_counter() - started
        noise, flags = drawn.noise[:total], drawn.flags[:total]
        ids, scores = context.decode_drawn(batch, noise, flags, confidence=layout.confidence)
        started = perf_counter()
        logits = context.logits_view(total)
        proposals = []
        for anchor, (start, end) in zip(anchors, spans, strict=True):
            odds = None
            if anchor.dice is not None:
                rows = logits[start:end, drawn.columns]
                odds = tempered(rows, anchor.dice.temperature)
                odds = spread(odds, layout.d2t, vocabulary)
            confidence = None if scores is None else tuple(scores[start:end])
            proposals.append(Proposal(tuple(ids[start:end]), confidence, odds))
        self._own_seconds += perf_counter() - started
        return proposals

    def _decode_with_head(
        self, head: DraftHead, anchors: list[Anchor], spans: list[tuple[int, int]]
    ) -> list[Proposal]:
        try:
            self._context.decode(self._blocks)
            return self._read_with_head(head, anchors, spans)
        finally:
            for anchor in anchors:
                self._context.truncate(anchor.seq, anchor.position)

    def _read_with_head(
        self, head: DraftHead, anchors: list[Anchor], spans: list[tuple[int, int]]
    ) -> list[Proposal]:
        started = perf_counter()
        total = self._blocks.size
        base = self._context.logits_view(total)[:, : self._layout.vocabulary]
        hidden = self._context.hidden_view(total)
        proposals = []
        for anchor, (start, end) in zip(anchors, spans, strict=True):
            noise = None
            if anchor.dice is not None:
                shape = end - start, self._layout.vocabulary
                noise = roll(anchor.dice, np.empty(shape, np.float32))
            chain = head.chain(base[start:end], hidden[start:end], anchor.token, noise)
            confidence = None if chain.confidence is None else tuple(chain.confidence.tolist())
            odds = chain.odds
            if odds is not None:
                odds = spread(odds, self._layout.d2t, self._context.model.vocab.size)
            proposals.append(Proposal(tuple(chain.ids.tolist()), confidence, odds))
        self._own_seconds += perf_counter() - started
        return proposals

    def _learn_waiting(self, seqs: set[int]) -> None:
        if not self._waiting:
            return
        if seqs & self._unsure:
            # an interruption may have left rows here that the cache holds already
            for seq in seqs:
                self._waiting.drop_below(seq, self._learnt[seq])
        features = self._waiting.of(seqs)
        for part in features.parts(self._inject.capacity) if features else ():
            self._learn(part)

    def _learn(self, features: Features) -> None:
        positions: list[int] = []
        seqs: list[int] = []
        for seq, start, count in features.spans:
            if seq in self._unsure:
                self._context.truncate(seq, self._learnt[seq])
            self._unsure.add(seq)
            positions += range(start, start + count)
            seqs += [seq] * count
        self._inject.set_embeddings(features.rows, positions, seqs)
        self._context.decode(self._inject)
        for seq, start, count in features.spans:
            self._learnt[seq] = end = start + count
            self._waiting.drop_below(seq, end)
            self._unsure.discard(seq)


@dataclass(frozen=True)
class _Drawn:
    """Memory for the noise of a pass: noise [rows, V], 0 where nothing is drawn, and flags [rows],
    1 where something is; columns of the draft's vocabulary, and scratch [rows, Vd] for it.
    """

    noise: FloatArray
    flags: ByteArray
    columns: IntArray | slice
    scratch: FloatArray | None

    @classmethod
    def create(cls, rows: int, vocabulary: int, layout: BlockLayout) -> "_Drawn":
        noise = np.zeros((rows, vocabulary), np.float32)
        flags = np.zeros(rows, np.int8)
        if layout.d2t is None and layout.vocabulary == vocabulary:
            return cls(noise, flags, slice(None), None)
        columns = slice(layout.vocabulary) if layout.d2t is None else layout.d2t
        scratch = np.empty((layout.proposals, layout.vocabulary), np.float32)
        return cls(noise, flags, columns, scratch)

    def fill(self, wanted: list[tuple[Dice, int, int]]) -> None:
        """Roll the dice for rows start to end of each, and for no others."""
        before = self.flags.copy()
        self.flags[:] = 0
        for dice, start, end in wanted:
            self.flags[start:end] = 1
            if self.scratch is None:
                roll(dice, self.noise[start:end])
            else:
                self.noise[start:end, self.columns] = roll(dice, self.scratch[: end - start]).rows
        self.noise[before > self.flags] = 0
