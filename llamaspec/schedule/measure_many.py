"""Measures what passes over several texts cost, in a loaded pair's own contexts and some time."""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.schedule.cost import Surface
from llamaspec.schedule.crowd_prices import By, CrowdCurve
from llamaspec.schedule.measure import DraftSide

_SEED = 7
_DEPTH = 64
_TURNS = 5
_FILL = 0.3
"""Of the time, what filling the caches may take; texts beyond it begin from empty ones."""
_LEAST = 8
"""Positions that every text has at least."""

Key = tuple[str, int, int]
"""A kind of pass, its texts, and their width or rows."""


def measure_many(
    target: TargetContext,
    draft: DraftSide | None,
    texts: int,
    proposals: int,
    budget_s: float = 2.5,
) -> CrowdCurve:
    """Measure passes over up to `texts` sequences with up to `proposals` proposals each, whose
    positions are gone afterwards in both contexts.

    After `budget_s` seconds no further pass is begun; those over all texts without proposals and
    with all are always measured. Raises DecodeError.
    """
    work = _Work(target, draft, texts, proposals, time.perf_counter() + budget_s)
    try:
        work.fill(_FILL * budget_s)
        for turn in range(_TURNS):
            work.turn(always=2 if turn == 0 else 0)
    finally:
        for seq in range(texts):
            target.truncate(seq, 0)
            if draft is not None:
                draft.context.truncate(seq, 0)
    return work.curve()


@dataclass
class _Work:
    """The passes. times: seconds of every counted one. end: when time is over."""

    target: TargetContext
    draft: DraftSide | None
    texts: int
    proposals: int
    end: float
    order: random.Random = field(default_factory=lambda: random.Random(_SEED))
    times: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        shape = self.target.shape
        self.rows = Batch.create(max(shape.n_batch, self.texts * (1 + self.proposals)))
        self.starts = [0] * self.texts
        for seq in range(self.texts):
            self.target.truncate(seq, 0)
            if self.draft is not None:
                self.draft.context.truncate(seq, 0)
        self.target.publish(self.draft is not None)
        if self.draft is not None:
            context, layout = self.draft.context, self.draft.layout
            self.blocks = Batch.create(self.texts * (layout.proposals + layout.first))
            self.inject = Batch.create(context.shape.n_batch, context.feature_width)

    def fill(self, seconds: float) -> None:
        """Give every text some positions in both caches, as many as time allows."""
        until = time.perf_counter() + seconds
        depth = min(_DEPTH, self.target.shape.n_ctx // self.texts - self.proposals - 2)
        for seq in range(self.texts):
            count = max(1, depth if time.perf_counter() < until else min(_LEAST, depth))
            self.rows.clear()
            self.rows.add_tokens(self._ids(count, seq), start=0, seq=seq, output=NO_OUTPUT)
            self.target.decode(self.rows)
            if self.draft is not None:
                self._inject([(seq, 0, count)])
            self.starts[seq] = count

    def turn(self, *, always: int) -> None:
        """Visit every kind of pass once as long as time allows, in an order of its own unless time
        could be too short for all.
        """
        visits = self._visits()
        if not always:
            self.order.shuffle(visits)
        for number, (key, once) in enumerate(visits):
            if number >= always and time.perf_counter() > self.end:
                return
            # the first builds what the other reuses, as in a text
            self.times[key] += [once() for _ in range(2)]

    def _visits(self) -> list[tuple[Key, Callable[[], float]]]:
        """Every kind of pass, what matters most first."""
        few = max(2, self.texts // 3)
        widths = [*dict.fromkeys((0, self.proposals, 1, min(3, self.proposals)))]
        uneven = [0 if seq % 2 else 2 for seq in range(self.texts)]
        found = [self._of_target(self.texts, width) for width in widths[:2]]
        if self.draft is not None:
            own = self.draft.layout.proposals
            wide = [*dict.fromkeys((own, 1, min(3, own)))]
            found += [self._of_draft(self.texts, width) for width in wide[:2]]
        found += [self._of_target(self.texts, width) for width in widths[2:]]
        if self.draft is not None:
            for rows in (1, 4):
                once = partial(self._injection, rows)
                found.append((("injection", self.texts, rows), once))
        if self.proposals >= 2 and not self.target.recurrent:
            found.append((("ragged", self.texts, sum(uneven)), partial(self._verify, uneven)))
        if few < self.texts:
            found += [self._of_target(few, width) for width in widths[:3]]
        if self.draft is not None:
            found += [self._of_draft(self.texts, width) for width in wide[2:]]
            if few < self.texts:
                found += [self._of_draft(few, width) for width in wide[:2]]
        return found

    def _of_target(self, texts: int, width: int) -> tuple[Key, Callable[[], float]]:
        return ("verify", texts, width), partial(self._verify, [width] * texts)

    def _of_draft(self, texts: int, width: int) -> tuple[Key, Callable[[], float]]:
        return ("draft", texts, width), partial(self._block, texts, width)

    def _verify(self, widths: list[int]) -> float:
        self.rows.clear()
        for seq, width in enumerate(widths):
            start = self.target.length(seq)
            ids = self._ids(width + 1, seq + start)
            self.rows.add_tokens(ids, start=start, seq=seq, output=ALL_OUTPUT)
        started = time.perf_counter()
        self.target.decode_choose(self.rows, self.rows.size)
        spent = time.perf_counter() - started
        for seq in range(len(widths)):
            self._back(seq)
        return spent

    def _back(self, seq: int) -> None:
        """Cut a text to where it began; a recurrent one as far as it can go."""
        length, start = self.target.length(seq), self.starts[seq]
        if self.target.recurrent:
            reach = range(max(start, length - self.target.snapshots), length)
            start = next((n for n in reach if self.target.can_truncate(seq, n)), length)
        self.target.truncate(seq, start)

    def _block(self, texts: int, width: int) -> float:
        assert self.draft is not None
        layout, batch, context = self.draft.layout, self.blocks, self.draft.context
        masks = [layout.mask] * (width + layout.first - 1)
        output = NO_OUTPUT if layout.candidates else ALL_OUTPUT
        batch.clear()
        for seq in range(texts):
            block = [*self._ids(1, seq), *masks]
            batch.add_tokens(block, start=self.starts[seq], seq=seq, output=output)
        started = time.perf_counter()
        if layout.candidates:
            context.decode_lattice(batch, layout.candidates)
        else:
            context.decode_block(batch, batch.size, confidence=layout.confidence)
        return time.perf_counter() - started

    def _injection(self, rows: int) -> float:
        assert self.draft is not None
        spent = self._inject([(seq, self.starts[seq], rows) for seq in range(self.texts)])
        for seq in range(self.texts):
            self.draft.context.truncate(seq, self.starts[seq])
        return spent

    def _inject(self, spans: list[tuple[int, int, int]]) -> float:
        """Features of so many rows of each text; which they are does not matter."""
        assert self.draft is not None
        spent, step = 0.0, self.inject.capacity
        places = [(seq, start + i) for seq, start, count in spans for i in range(count)]
        for first in range(0, len(places), step):
            part = places[first : first + step]
            features = np.full((len(part), self.draft.context.feature_width), 0.1, np.float32)
            self.inject.set_embeddings(features, [p for _, p in part], [seq for seq, _ in part])
            started = time.perf_counter()
            self.draft.context.decode(self.inject)
            spent += time.perf_counter() - started
        return spent

    def _ids(self, count: int, start: int) -> list[int]:
        # experts of a mixture are chosen by the tokens: the same ones would be read from caches
        size = self.target.model.vocab.size
        return [(start + i) * 7919 % size for i in range(count)]

    def curve(self) -> CrowdCurve:
        """What was measured. There is time for a few passes of a kind: something else holds some
        of them up, and the shortest tells best.
        """
        injection = {n * rows: s for (_, n, rows), s in self._shortest("injection").items()}
        found = CrowdCurve(
            self._by("verify", rows=True),
            self._by("draft", rows=False),
            _surface(injection) if injection else None,
        )
        for (_, texts, more), seconds in self._shortest("ragged").items():
            even = dict(found.verify)[texts].at(texts + more)
            found = replace(found, ragged=min(max(seconds / even, 1.0), 1.5))
        return found

    def _shortest(self, kind: str) -> dict[Key, float]:
        return {key: min(s) for key, s in sorted(self.times.items()) if key[0] == kind}

    def _by(self, kind: str, *, rows: bool) -> By:
        sizes: dict[int, dict[int, float]] = defaultdict(dict)
        for (_, texts, width), seconds in self._shortest(kind).items():
            sizes[texts][texts * (1 + width) if rows else width] = seconds
        # what time was too short for says nothing of slopes
        return tuple((n, _surface(found)) for n, found in sorted(sizes.items()) if len(found) > 1)


def _surface(seconds: dict[int, float]) -> Surface:
    sizes = sorted(seconds)
    found = [seconds[size] for size in sizes]
    for i, (less, more) in enumerate(pairwise(sizes)):
        # a pass is no dearer than its parts, however long something else held it up
        found[i + 1] = min(found[i + 1], found[i] * more / less)
    return Surface((_DEPTH,), tuple(sizes), (tuple(found),))
