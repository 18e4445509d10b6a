"""Measures what passes of a loaded pair cost, in its own contexts: alternating, medians.

Takes as long as its grid says: that of `quick` is for loading a pair.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.draft_context import BlockShape, DraftContext
from llamaspec.schedule.cost import CostCurve, Surface

Kind = Literal["verify", "draft", "injection"]
_SEED = 7
_IN_A_ROW = 2
_EVERY = 16


@dataclass(frozen=True, slots=True)
class DraftSide:
    """A draft's context, whose head runs in the graph, and the layout of its blocks."""

    context: DraftContext
    layout: BlockShape


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured.

    rows: of target passes, those first that are to be measured first. depths: positions in the KV
    cache before a pass. repeats: turns over all sizes, each turn after the first in another order.
    budget_s: seconds after which no further pass is begun, None for no limit; the first two at the
    first depth are always measured.
    """

    rows: tuple[int, ...]
    depths: tuple[int, ...] = (256,)
    repeats: int = 7
    budget_s: float | None = None


def quick(proposals: int, budget_s: float = 2.0) -> Grid:
    """The grid for loading a pair: one small depth, a time limit, and within it every width up to
    16 rows, as passes have steps. What there is no time for lies between what there was.
    """
    most = proposals + 1
    telling = (1, most, 2, (1 + most) // 2, (3 + most) // 4)
    rows = dict.fromkeys(n for n in (*telling, *range(3, min(most, _EVERY) + 1)) if 1 <= n <= most)
    return Grid(tuple(rows), (64,), 5, budget_s)


def measure(
    target: TargetContext,
    draft: DraftSide | None,
    grid: Grid,
    settings: tuple[tuple[str, str], ...] = (),
) -> CostCurve:
    """Measure passes of sequence 0, whose positions are gone afterwards in both contexts.

    Every size is visited in alternation with all others, and of a visit's passes the first is not
    counted: it builds the graph that the next ones reuse, as in a text. A block and an injection
    alternate, as they do in a text. Raises DecodeError, or AssertionError for rows or depths that
    the contexts have no room for.
    """
    assert max(grid.rows) <= target.shape.n_outputs, "more rows than the context puts out"
    assert max(grid.depths) + max(grid.rows) <= target.shape.n_ctx, "deeper than the context"
    work = _Work.over(target, draft, grid)
    started = time.perf_counter()

    def never() -> bool:
        return False

    def spent() -> bool:
        return grid.budget_s is not None and time.perf_counter() - started > grid.budget_s

    try:
        for depth in grid.depths:
            first = depth == grid.depths[0]
            if work.fill(depth, never if first else spent) < depth:
                break
            for turn in range(grid.repeats):
                work.turn(depth, spent, least=2 if first and turn == 0 else 0)
    finally:
        target.truncate(0, 0)
        if draft is not None:
            draft.context.truncate(0, 0)
    verify = work.surface("verify")
    assert verify is not None
    return CostCurve(verify, work.surface("draft"), work.surface("injection"), settings)


@dataclass
class _Work:
    """The passes themselves. times: seconds of every counted one, by kind, depth and size."""

    target: TargetContext
    draft: DraftSide | None
    grid: Grid
    rows: Batch
    blocks: Batch | None
    inject: Batch | None
    order: random.Random = field(default_factory=lambda: random.Random(_SEED))
    times: dict[tuple[str, int, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @classmethod
    def over(cls, target: TargetContext, draft: DraftSide | None, grid: Grid) -> "_Work":
        rows = Batch.create(max(target.shape.n_batch, max(grid.rows)))
        blocks = inject = None
        target.truncate(0, 0)
        target.publish(draft is not None)
        if draft is not None:
            draft.context.truncate(0, 0)
            blocks = Batch.create(draft.layout.proposals + draft.layout.first)
            inject = Batch.create(draft.context.shape.n_batch, draft.context.feature_width)
        return cls(target, draft, grid, rows, blocks, inject)

    def fill(self, depth: int, spent: Callable[[], bool]) -> int:
        """Bring both caches to `depth` positions, or as far as time allows; return how far."""
        length = self.target.length(0)
        while length < depth and not spent():
            count = min(depth - length, self.target.shape.n_batch)
            self._tokens(count, length, NO_OUTPUT)
            self.target.decode(self.rows)
            if self.draft is not None:
                self._inject(self.target.features_view(list(range(count))), length)
            length += count
        return length

    def turn(self, depth: int, spent: Callable[[], bool], *, least: int) -> None:
        """Visit every size once, in an order of its own; as long as time allows, but `least` of
        them.
        """
        chosen = list(self.grid.rows)
        if least == 0:
            self.order.shuffle(chosen)
        for number, rows in enumerate(chosen):
            if number >= least and spent():
                return
            # single rows follow one another in plain decoding, and find caches as they left them
            first, many = (2, 6) if rows == 1 else (1, _IN_A_ROW)
            for visit in range(first + many):
                self._back(depth)
                self._tokens(rows, self.target.length(0), ALL_OUTPUT)
                started = time.perf_counter()
                self.target.decode_choose(self.rows, rows)
                self._note("verify", depth, rows, started, counted=visit >= first)
            if self.draft is not None:
                self._draft_visit(self.draft, rows, depth)
            self._back(depth)

    def _back(self, depth: int) -> None:
        """Cut the target to `depth`; a recurrent one goes back within its last pass only, and so
        moves on by a position a pass.
        """
        length = self.target.length(0)
        if not self.target.recurrent:
            self.target.truncate(0, depth)
        elif length > depth:
            reach = range(max(depth, length - self.target.snapshots), length)
            self.target.truncate(0, next(filter(self._can_go, reach), length))

    def _can_go(self, length: int) -> bool:
        return self.target.can_truncate(0, length)

    def _draft_visit(self, draft: DraftSide, rows: int, depth: int) -> None:
        """Blocks of rows - 1 proposals, each followed by an injection of as many rows."""
        layout = draft.layout
        features = self.target.features_view(list(range(rows))).copy()
        width = min(max(1, rows - 1), layout.proposals)
        for visit in range(1 + _IN_A_ROW):
            started = time.perf_counter()
            self._block(draft, width, depth)
            counted = visit > 0 and rows - 1 in (width, 0)
            self._note("draft", depth, width, started, counted=counted)
            if rows > layout.proposals + 1:
                continue
            started = time.perf_counter()
            self._inject(features, depth)
            self._note("injection", depth, rows, started, counted=visit > 0)
            draft.context.truncate(0, depth)

    def _block(self, draft: DraftSide, width: int, depth: int) -> None:
        assert self.blocks is not None
        layout, batch = draft.layout, self.blocks
        masks = [layout.mask] * (width + layout.first - 1)
        anchor = self._ids(1, depth)
        batch.clear()
        output = NO_OUTPUT if layout.candidates else ALL_OUTPUT
        batch.add_tokens([*anchor, *masks], start=depth, seq=0, output=output)
        if layout.candidates:
            draft.context.decode_lattice(batch, layout.candidates)
        else:
            draft.context.decode_block(batch, batch.size, confidence=layout.confidence)

    def _inject(self, features: FloatArray, start: int) -> None:
        assert self.draft is not None
        assert self.inject is not None
        count = len(features)
        step = self.inject.capacity
        for first in range(0, count, step):
            part = features[first : first + step]
            positions = list(range(start + first, start + first + len(part)))
            self.inject.set_embeddings(np.ascontiguousarray(part), positions, [0] * len(part))
            self.draft.context.decode(self.inject)

    def _tokens(self, count: int, start: int, output: int) -> None:
        self.rows.clear()
        self.rows.add_tokens(self._ids(count, start), start=start, seq=0, output=output)

    def _ids(self, count: int, start: int) -> list[int]:
        # experts of a mixture are chosen by the tokens: the same ones would be read from caches
        size = self.target.model.vocab.size
        return [(start + i) * 7919 % size for i in range(count)]

    def _note(self, kind: Kind, depth: int, size: int, started: float, *, counted: bool) -> None:
        if counted:
            self.times[kind, depth, size].append(time.perf_counter() - started)

    def surface(self, kind: str) -> Surface | None:
        """Medians of what was noted of a kind, at the depths where every size was reached."""
        noted = sorted({key[1:] for key in self.times if key[0] == kind})
        if not noted:
            return None
        first = noted[0][0]
        sizes = [size for depth, size in noted if depth == first]
        depths = sorted({d for d, _ in noted if all((kind, d, s) in self.times for s in sizes)})
        seconds = tuple(
            tuple(median(self.times[kind, depth, size]) for size in sizes) for depth in depths
        )
        return Surface(tuple(depths), tuple(sizes), seconds)
