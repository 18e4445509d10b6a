"""Exact mode against a target whose blocks round differently: near ties are decided by rows alone,
over a cache that single rows have written.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.engine.doubt import Doubt
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import DecodeError, OptionError
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray, IntArray
from llamaspec.runtime.batch import Batch
from llamaspec.text.detokenize import Pieces
from llamaspec.verify.accept import Verification, certain_part
from tests.unit.fakes import N_BATCH, FakeDrafter, FakeTarget

pytestmark = pytest.mark.native

PROMPT = 11
LIMIT = 60
BOUND = 0.1
WRONG = 777


@dataclass
class NoisyTarget(FakeTarget):
    """At every `tie`-th position two tokens are nearly tied, and the wrong one wins in a pass over
    several rows, and over a cache into which any such pass has written.
    """

    tie: int = 9
    dirty: set[int] = field(default_factory=set)

    def decode(self, batch: Batch) -> None:
        rows = batch.rows()
        self.dirty = {p for p in self.dirty if p in self.cache[0]}
        super().decode(batch)
        # a prompt is the same pass for plain decoding
        block = len(rows) > 1 and all(row.output for row in rows)
        if block:
            self.dirty |= {row.position for row in rows}
        self._gap = []
        for n, row in enumerate(row for row in rows if row.output):
            tied = row.position % self.tie == 0
            self._gap.append(BOUND / 2 if tied else 1.0)
            if tied and (block or self.dirty & set(range(row.position + 1))):
                self._out[n] = WRONG

    def top2(self, n_rows: int) -> tuple[IntArray, FloatArray]:
        ids = np.array(self._out[:n_rows], np.int32)
        return ids, np.array(self._gap[:n_rows], np.float32)


def truth(position: int) -> int:
    return 100 + position % 50


def start(target: NoisyTarget, drafter: FakeDrafter | None, doubt: Doubt) -> tuple[Engine, Any]:
    loop = Engine(cast(Any, target), cast(Any, drafter), doubt)
    ending = Ending(pieces=Pieces(lambda t: b"x"), ends=frozenset(), limit=LIMIT)
    draft_max = 4 if drafter else 0
    request = Request(np.arange(PROMPT, dtype=np.int32), LIMIT, draft_max, ending)
    return loop, loop.admit(request)


def finish(loop: Engine, sequence: Sequence) -> list[int]:
    while sequence.finish_reason is None:
        loop.step()
    return sequence.tokens


EXPECTED = [truth(PROMPT - 1 + i) for i in range(LIMIT)]


@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("tie", [2, 5, 9, 20])
@pytest.mark.parametrize("patience", [0, 8, 128])
def test_near_ties_fall_as_in_plain_decoding(wrong: int, tie: int, patience: int) -> None:
    target = NoisyTarget(truth, tie=tie)
    drafter = FakeDrafter(lambda p: -1 if p % wrong == 0 else truth(p))
    loop, sequence = start(target, drafter, Doubt(BOUND, patience))
    assert finish(loop, sequence) == EXPECTED
    assert [target.cache[0][p] for p in sorted(target.cache[0])] == [*range(PROMPT), *EXPECTED[:-1]]
    assert sum(r.committed for r in sequence.rounds) + 1 == LIMIT


def test_without_doubt_the_same_target_decides_otherwise() -> None:
    loop, sequence = start(NoisyTarget(truth), FakeDrafter(truth), Doubt())
    assert WRONG in finish(loop, sequence)


def test_plain_decoding_of_the_same_target_is_what_is_expected() -> None:
    loop, sequence = start(NoisyTarget(truth), None, Doubt())
    assert finish(loop, sequence) == EXPECTED


def test_a_row_alone_over_rows_of_blocks_would_not_do() -> None:
    target = NoisyTarget(truth)
    loop, sequence = start(target, FakeDrafter(truth), Doubt(BOUND, 0))
    while not sequence.in_doubt:
        loop.step()
    assert target.dirty, "blocks have written below the near tie"
    before = sequence.n_past
    loop.step()
    assert sequence.rounds[-1].replayed == before - PROMPT
    assert sequence.clean == sequence.n_past == before + 1
    assert not target.dirty & set(target.cache[0])


def test_what_is_certain_in_the_block_is_committed_at_once() -> None:
    loop, sequence = start(NoisyTarget(truth, tie=13), FakeDrafter(truth), Doubt(BOUND, 0))
    loop.step()
    # rows 11 and 12 stand, row 13 is nearly tied
    assert (sequence.rounds[0].accepted, sequence.rounds[0].committed) == (2, 2)
    assert sequence.in_doubt
    loop.step()
    assert (sequence.rounds[1].draft, sequence.rounds[1].committed) == ((), 1)


def test_where_near_ties_are_frequent_the_text_goes_on_by_single_rows() -> None:
    drafter = FakeDrafter(truth)
    loop, sequence = start(NoisyTarget(truth, tie=4), drafter, Doubt(BOUND, 128))
    finish(loop, sequence)
    assert sequence.near_ties == 1
    assert drafter.proposed == 1
    assert sum(r.replayed for r in sequence.rounds) <= 4


def test_drafting_is_taken_up_again_once_near_ties_were_rare() -> None:
    drafter = FakeDrafter(truth)
    loop, sequence = start(NoisyTarget(truth, tie=13), drafter, Doubt(BOUND, 6))
    finish(loop, sequence)
    assert drafter.proposed > 2


def test_the_drafter_misses_no_position_meanwhile() -> None:
    drafter = FakeDrafter(truth)
    loop, sequence = start(NoisyTarget(truth, tie=7), drafter, Doubt(BOUND, 0))
    while sequence.finish_reason is None:
        assert drafter.known[0] == sequence.n_past
        loop.step()


def test_a_draw_gets_a_row_of_its_own() -> None:
    target, drafter, sizes = NoisyTarget(truth), FakeDrafter(truth), []
    loop = Engine(cast(Any, target), cast(Any, drafter), Doubt(BOUND))

    def draw(row: int, _: int) -> int:
        sizes.append(len(target._rows))
        return target._out[-1]

    ending = Ending(pieces=Pieces(lambda t: b"x"), ends=frozenset(), limit=LIMIT)
    request = Request(np.arange(3, dtype=np.int32), LIMIT, 4, ending, draw)
    finish(loop, loop.admit(request))
    assert sizes == [3] + [1] * (LIMIT - 1)
    assert not target.dirty


@pytest.mark.parametrize("at", range(4, 14))
def test_a_failure_while_rows_are_decoded_again_is_made_good(at: int) -> None:
    target = NoisyTarget(truth, fail_at=at)
    loop, sequence = start(target, FakeDrafter(truth), Doubt(BOUND, 0))
    with pytest.raises(DecodeError):
        finish(loop, sequence)
    assert finish(loop, sequence) == EXPECTED


def test_the_certain_part_ends_before_the_first_close_choice() -> None:
    found = Verification(2, [5, 6, 7])
    assert certain_part(found, [1, 1, 1, 0], BOUND) is found
    assert certain_part(found, [1, 1, BOUND], BOUND) == Verification(2, [5, 6])
    assert certain_part(found, [1, 0, 1], BOUND) == Verification(1, [5])
    assert certain_part(found, [0, 1, 1], BOUND) == Verification(0, [])
    assert certain_part(found, [float("nan"), 1, 1], BOUND) == Verification(0, [])


def test_exact_is_a_truth_value() -> None:
    with pytest.raises(OptionError, match="exact is 1"):
        LoadOptions(exact=1)  # type: ignore[arg-type]


@dataclass
class LastLayerTarget(FakeTarget):
    """A prompt's last row comes out otherwise while features are published."""

    def decode(self, batch: Batch) -> None:
        super().decode(batch)
        if self.published and batch.size > 1 and not batch.rows()[0].output:
            self._out = [WRONG for _ in self._out]


@pytest.mark.parametrize("prompt", [3, 8, 11, 16, 17])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_prompts_token_can_be_taken_before_its_features(prompt: int, drawn: bool) -> None:
    for twice in (False, True):
        target, drafter = LastLayerTarget(truth), FakeDrafter(truth)
        loop = Engine(cast(Any, target), cast(Any, drafter))
        loop.prompts.end_twice = twice
        ending = Ending(pieces=Pieces(lambda t: b"x"), ends=frozenset(), limit=LIMIT)
        draw = (lambda row, _, t=target: t._out[-1]) if drawn else None
        request = Request(np.arange(prompt, dtype=np.int32), LIMIT, 4, ending, draw)
        sequence = loop.admit(request)
        # a last part of one row is computed alone either way
        assert (sequence.tokens[0] == truth(prompt - 1)) == (twice or prompt % N_BATCH == 1)
        assert drafter.known[0] == len(target.cache[0]) == prompt
