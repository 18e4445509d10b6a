"""Block drafts, DSpark and DFlash: one non-causal pass over [anchor, mask, ...] proposes a whole
block.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from llamaspec.draft.drafter import NOTHING, Anchor, Features, Proposal
from llamaspec.draft.heads import MarkovHead
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.context import DraftContext


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How a draft's block is laid out.

    proposals: most ids a block gives. first: the first row that proposes: 0 where the anchor's
    own row does (anchor-first), 1 where it is read past (bonus-anchor). confidence: whether the
    graph returns confidences.
    """

    proposals: int
    first: int
    mask: int
    vocabulary: int
    confidence: bool


class BlockDrafter:
    """A draft context, its layout and, where the Markov head runs in Python, that head.

    The K/V of committed positions comes from injected target features; a block's own K/V is
    dropped at once.
    """

    def __init__(
        self, context: DraftContext, layout: BlockLayout, head: MarkovHead | None = None
    ) -> None:
        shape = context.shape
        self._context = context
        self._layout = layout
        self._head = head
        self._head_seconds = 0.0
        width = context.feature_width
        self._blocks = Batch(shape.n_seq * (layout.proposals + layout.first))
        self._inject = Batch(shape.n_batch, width)
        self._pending: list[Features] = []
        self._known = [0] * shape.n_seq

    @property
    def proposals(self) -> int:
        return self._layout.proposals

    @property
    def seconds(self) -> float:
        return self._context.seconds + self._head_seconds

    def begin(self, seq: int) -> None:
        self.reset(seq)

    def reset(self, seq: int) -> None:
        self._pending = [f for f in self._pending if not np.any(f.seq == seq)]
        self._known[seq] = 0
        if not self._context.closed:
            self._context.truncate(seq, 0)

    def close(self) -> None:
        self._context.close()

    def commit(self, features: Features) -> None:
        step = self._inject.capacity
        for start in range(0, len(features.rows), step):
            part = slice(start, start + step)
            self._pending.append(
                Features(features.rows[part], features.seq[part], features.position[part])
            )
        self._flush()

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        self._flush()
        wanted = [a for a in anchors if a.limit > 0 and self._known[a.seq] == a.position]
        if not wanted:
            return [NOTHING] * len(anchors)
        # one width for all: the graph's Markov head is right only for blocks of equal length
        width = min(max(a.width for a in wanted), self._layout.proposals)
        rows = self._decode(wanted, width + self._layout.first)
        found = dict(zip((a.seq for a in wanted), self._read(wanted, rows), strict=True))
        return [found.get(a.seq, NOTHING) for a in anchors]

    def _decode(self, anchors: list[Anchor], rows: int) -> int:
        batch = self._blocks
        batch.clear()
        block = np.full(rows, self._layout.mask, np.int32)
        for anchor in anchors:
            block[0] = anchor.token
            batch.add_tokens(block, start=anchor.position, seq=anchor.seq, output=True)
        try:
            self._context.decode(batch)
        finally:
            for anchor in anchors:
                self._context.truncate(anchor.seq, anchor.position)
        return rows

    def _read(self, anchors: list[Anchor], rows: int) -> list[Proposal]:
        if self._head is not None:
            return self._read_with_head(self._head, anchors, rows)
        total = rows * len(anchors)
        ids = self._context.argmax(total).tolist()
        scores = self._context.confidence(total).tolist() if self._layout.confidence else None
        proposals = []
        for n, anchor in enumerate(anchors):
            start = n * rows + self._layout.first
            end = min(start + anchor.limit, (n + 1) * rows)
            confidence = None if scores is None else tuple(scores[start:end])
            proposals.append(Proposal(tuple(ids[start:end]), confidence))
        return proposals

    def _read_with_head(self, head: MarkovHead, anchors: list[Anchor], rows: int) -> list[Proposal]:
        started = perf_counter()
        total = rows * len(anchors)
        base = self._context.logits_view(total)[:, : self._layout.vocabulary]
        hidden = self._context.hidden_view(total)
        proposals = []
        for n, anchor in enumerate(anchors):
            start = n * rows + self._layout.first
            end = min(start + anchor.limit, (n + 1) * rows)
            chain = head.chain(base[start:end], hidden[start:end], anchor.token)
            confidence = None if chain.confidence is None else tuple(chain.confidence.tolist())
            proposals.append(Proposal(tuple(chain.ids.tolist()), confidence))
        self._head_seconds += perf_counter() - started
        return proposals

    def _flush(self) -> None:
        # what could not be injected stays pending, so that a failed decode is made good in the
        # next round
        while self._pending:
            features = self._pending[0]
            batch = self._inject
            batch.set_embeddings(features.rows, features.position, features.seq)
            self._context.decode(batch)
            self._pending.pop(0)
            for seq, position in zip(
                features.seq.tolist(), features.position.tolist(), strict=True
            ):
                self._known[seq] = position + 1
