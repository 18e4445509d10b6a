"""A scripted target and drafter: the loop's logic without weights."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import SimpleNamespace
from zlib import crc32

import numpy as np

from llamaspec.draft.drafter import Anchor, Features, Proposal, Saved
from llamaspec.errors import DecodeError
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.cache import State

N_BATCH = 8
A_POSITION = 40
"""Bytes of a position in what a target saves."""
Rule = Callable[[int], int]


@dataclass
class FakeTarget:
    """Its next token after position p is rule(p), whatever the tokens were. Keeps a KV cache of
    token ids.
    """

    rule: Rule
    slots: int = 1
    closed: bool = False
    published: bool = False
    decoded: int = 0
    fail_at: int = -1
    seconds: float = 0.0
    recurrent: bool = False
    snapshots: int = 0
    can_save: bool = True

    def __post_init__(self) -> None:
        self.low: dict[int, int] = {}
        self.shape = SimpleNamespace(n_seq=self.slots, n_batch=N_BATCH)
        self.cache: dict[int, dict[int, int]] = {slot: {} for slot in range(self.slots)}
        self._out: list[int] = []
        self._rows: list[tuple[int, int]] = []

    def decode(self, batch: Batch) -> None:
        self.decoded += 1
        if self.decoded == self.fail_at:
            raise DecodeError("scripted failure", 1)
        self._out, self._rows = [], []
        for seq in {row.seq for row in batch.rows()}:
            # where a recurrent state can go back to: never behind the pass
            rows = sum(row.seq == seq for row in batch.rows())
            self.low[seq] = len(self.cache[seq]) + max(1, rows - self.snapshots)
        for row in batch.rows():
            assert row.position == len(self.cache[row.seq]), "positions come without gaps"
            self.cache[row.seq][row.position] = row.token
            self._rows.append((row.seq, row.position))
            if row.output:
                self._out.append(self.rule(row.position))

    def decode_choose(self, batch: Batch, n_rows: int) -> list[int]:
        self.decode(batch)
        return self._out[:n_rows]

    def decode_run(
        self, batch: Batch, most: int, ends: Collection[int], seconds: float
    ) -> list[list[int]]:
        rows = batch.rows()
        found: list[list[int]] = [[] for _ in rows]
        self.run_rows: list[tuple[int, int]] = []
        while len(found[0]) < min(most, N_BATCH // len(rows)):
            try:
                chosen = self.decode_choose(batch, len(rows))
            except DecodeError:
                if not found[0]:
                    raise
                break
            self.run_rows += self._rows
            batch.clear()
            for row, tokens, token in zip(rows, found, chosen, strict=True):
                tokens.append(token)
                at = row.position + len(tokens)
                batch.add_tokens([token], start=at, seq=row.seq, output=1)
            if any(token in ends for token in chosen):
                break
        return found

    def run_features(self, count: int) -> FloatArray:
        return np.array(self.run_rows[:count], np.float32)

    def features_view(self, rows: list[int]) -> FloatArray:
        # a feature row says where it is from, so that the drafter can check what it is given
        return np.array([self._rows[row] for row in rows], np.float32)

    def truncate(self, seq: int, length: int) -> bool:
        held = len(self.cache[seq])
        there = not self.recurrent or self.low.get(seq, 0) <= length <= held
        self.cache[seq] = {p: t for p, t in self.cache[seq].items() if there and p < length}
        if length < held:
            self.low[seq] = len(self.cache[seq])
        return there or length == 0

    def can_truncate(self, seq: int, length: int) -> bool:
        return True

    def length(self, seq: int) -> int:
        return len(self.cache[seq])

    def copy(self, source: int, seq: int, length: int) -> None:
        assert not self.recurrent
        assert source != seq
        assert length <= len(self.cache[source]), "positions that are not there"
        self.cache[seq] = {p: t for p, t in self.cache[source].items() if p < length}

    def state_size(self, seq: int) -> int:
        return A_POSITION * len(self.cache[seq])

    def save(self, seq: int) -> State:
        tokens = np.array([self.cache[seq][p] for p in range(self.length(seq))], np.int32)
        data = np.repeat(tokens.view(np.uint8), A_POSITION // 4)
        return State(data, len(tokens), crc32(data.data))

    def restore(self, seq: int, state: State) -> bool:
        self.cache[seq] = {}
        if crc32(state.data.data) == state.checksum:
            tokens = state.data[:: A_POSITION // 4].copy().view(np.int32)
            self.cache[seq] = dict(enumerate(tokens.tolist()))
        return len(self.cache[seq]) == state.length

    def publish(self, wanted: bool) -> None:
        self.published = wanted


@dataclass
class FakeDrafter:
    """Proposes guess(p) for the token after position p, block by block, and checks what it is
    told.
    """

    guess: Rule
    proposals: int = 4
    reads_features: bool = True
    proposes_parked: bool = False
    seconds: float = 0.0
    slots: int = 1
    fail_propose: set[int] = field(default_factory=set)
    fail_commit: set[int] = field(default_factory=set)
    proposed: int = 0
    committed: int = 0

    def __post_init__(self) -> None:
        self.known = dict.fromkeys(range(self.slots), 0)

    def keep(self, seq: int, length: int) -> int:
        self.known[seq] = min(self.known[seq], length)
        return self.known[seq]

    def knows(self, seq: int, length: int) -> int:
        return min(self.known[seq], length)

    def copy(self, source: int, seq: int, length: int) -> int:
        assert source != seq
        self.known[seq] = min(self.known[source], length)
        return self.known[seq]

    def saved_size(self, seq: int) -> int | None:
        return self.known[seq]

    def save(self, seq: int) -> Saved:
        return Saved(State(np.zeros(self.known[seq], np.uint8), self.known[seq], 0))

    def restore(self, seq: int, saved: Saved, length: int) -> int:
        assert saved.state is not None
        self.known[seq] = min(saved.state.length, length)
        return self.known[seq]

    def commit(self, features: Features) -> None:
        self.committed += 1
        assert sum(span.length for span in features.spans) == len(features.rows)
        for (seq, start, count), rows in features.by_span():
            assert rows.tolist() == [[seq, start + i] for i in range(count)]
            assert self.known[seq] == start, "committed positions come without gaps"
            self.known[seq] = start + count
        if self.committed in self.fail_commit:
            raise DecodeError("scripted failure of the draft", 1)

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        self.proposed += 1
        if self.proposed in self.fail_propose:
            raise DecodeError("scripted failure of the draft", 1)
        for anchor in anchors:
            assert self.known[anchor.seq] == anchor.position
        return [
            Proposal(tuple(self.guess(a.position + i) for i in range(min(a.limit, self.proposals))))
            for a in anchors
        ]
