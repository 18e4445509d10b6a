"""Graphs that are kept, and features that wait: the same proposals as without."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from llamaspec.draft.block import MOST_WAITING, BlockDrafter
from llamaspec.draft.drafter import NOTHING, Anchor, Dice, Features, Proposal, Span
from llamaspec.errors import DecodeError
from llamaspec.ffi import lib
from llamaspec.runtime.batch import ALL_OUTPUT, Batch
from llamaspec.runtime.draft_context import DraftContext
from tests.checkpoints import write
from tests.converted import give_tables
from tests.native.test_ragged import DRAFTS
from tests.native.test_ragged import pairs as pairs
from tests.native.test_sampled_drafts import LENGTHS, drafter
from tests.native_rig import Rig, rig

pytestmark = pytest.mark.native

ROUNDS = 6
TOLERANCE = 1e-4
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "mrope": ("zlab", {"mrope": True}),
    "windows-mixed": ("zlab", {"sliding": True}),
    "sinks": ("zlab", {"sinks": True}),
    "specforge-mrope": ("specforge", {"mrope": True}),
}
"""Positions of four parts; layers with a window beside others; attention sinks."""
TEMPERATURES = [None, 0.7, 1.0, None, 0.3, 1.5]

Pairs = dict[str, tuple[Path, Path]]


class One(NamedTuple):
    name: str
    of: Rig
    path: Path


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    found = {}
    for name, (packaging, variation) in MORE.items():
        folder = tmp_path_factory.mktemp(name)
        ready = give_tables(write(packaging, folder / "pair", **variation), folder)
        found[name] = ready.convert("draft.gguf"), ready.target
    return found


@pytest.fixture(scope="module", params=[*DRAFTS, *MORE])
def one(request: pytest.FixtureRequest, pairs: Pairs, more: Pairs) -> Iterator[One]:
    draft, target = (pairs | more)[request.param]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        yield One(request.param, of, draft)


@pytest.fixture(scope="module")
def vanilla(pairs: Pairs) -> Iterator[One]:
    draft, target = pairs["tiny-dspark"]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        yield One("tiny-dspark", of, draft)


def text(made: BlockDrafter, of: Rig, *, drawn: bool = False) -> list[Proposal]:
    """What is proposed in rounds where some sequences learn some rows and some ask."""
    random = np.random.default_rng(3)
    lengths = list(LENGTHS)
    dice = [Dice(t, np.random.default_rng(i)) if t else None for i, t in enumerate(TEMPERATURES)]
    found = []
    for turn in range(ROUNDS):
        spans = []
        for seq in range(len(lengths)):
            count = (seq + turn) % 4
            if count:
                spans.append(Span(seq, lengths[seq], count))
            lengths[seq] += count
        total = sum(span.length for span in spans)
        rows = random.normal(scale=3, size=(total, of.draft.feature_width))
        made.commit(Features(rows.astype(np.float32), spans))
        asked = [seq for seq in (3, 0, 4, 1, 2) if (seq + turn) % 3]
        anchors = []
        for seq in asked:
            width = 1 + (seq + turn) % of.draft.proposals
            anchor = Anchor(seq, 20 + seq + turn, lengths[seq], width, width)
            anchors.append(anchor._replace(dice=dice[seq] if drawn else None))
        found += made.propose(anchors)
        for seq in asked:
            # the block's rows are gone and all rows before it there
            assert of.context.length(seq) == made.known(seq) == lengths[seq]
        if turn == ROUNDS // 2:
            lengths[4] -= 2
            assert made.keep(4, lengths[4]) == lengths[4]
    return found


def test_many_rows_do_not_wait(vanilla: One) -> None:
    made = drafter(vanilla.of, vanilla.path)
    made.keep(0, 0)
    width = vanilla.of.draft.feature_width
    for position in range(MOST_WAITING + 1):
        row = np.zeros((1, width), np.float32)
        made.commit(Features(row, [Span(0, position, 1)]))
        assert made.known(0) == position + 1
        assert vanilla.of.context.length(0) <= position + 1
    assert vanilla.of.context.length(0) > 0


def test_rows_behind_a_gap_are_passed_over(vanilla: One) -> None:
    width = vanilla.of.draft.feature_width
    expected, made = drafter(vanilla.of, vanilla.path).known(2), drafter(vanilla.of, vanilla.path)
    made.commit(Features(np.zeros((1, width), np.float32), [Span(2, expected + 1, 1)]))
    assert made.known(2) == expected
    assert made.propose([Anchor(2, 21, expected + 2, 4, 4)]) == [NOTHING]
    made.commit(Features(np.zeros((1, width), np.float32), [Span(2, expected, 1)]))
    assert len(made.propose(asked(made))[0].ids) == 4


def asked(made: BlockDrafter, seq: int = 2) -> list[Anchor]:
    return [Anchor(seq, 21, made.known(seq), 4, 4)]


@pytest.mark.parametrize("late", [False, True])
def test_a_failure_leaves_features_waiting(
    vanilla: One, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(8).normal(size=(2, vanilla.of.draft.feature_width))
    features = Features(rows.astype(np.float32), [Span(2, LENGTHS[2], 2)])
    healthy = drafter(vanilla.of, vanilla.path)
    healthy.commit(features)
    expected = healthy.propose(asked(healthy))
    made = drafter(vanilla.of, vanilla.path)
    made.commit(features)
    known = made.known(2)
    decode = DraftContext.decode

    def fail(self: DraftContext, batch: Batch) -> None:
        if late:
            decode(self, batch)
        raise DecodeError("scripted failure", 1)

    with monkeypatch.context() as patch:
        patch.setattr(DraftContext, "decode", fail)
        for _ in range(2):
            with pytest.raises(DecodeError):
                made.propose(asked(made))
    assert made.known(2) == known == LENGTHS[2] + 2
    (found,) = made.propose(asked(made))
    assert found.ids == expected[0].ids
    assert vanilla.of.context.length(2) == known
    assert not made._unsure


@pytest.mark.parametrize("drawn", [False, True])
def test_kept_graphs_change_nothing(one: One, drawn: bool) -> None:
    if drawn and one.name == "dflash2":
        pytest.skip("a lattice is not drawn from")
    context = one.of.context
    found = text(drafter(one.of, one.path), one.of, drawn=drawn)
    lib.ls_keep_graphs(context.ptr, 0, 0)
    try:
        expected = text(drafter(one.of, one.path), one.of, drawn=drawn)
    finally:
        lib.ls_keep_graphs(context.ptr, 8, 16)
    assert sum(len(f.ids) for f in found) > 20
    for f, e in zip(found, expected, strict=True):
        # the same operations in the same order
        assert (f.ids, f.confidence) == (e.ids, e.confidence)
        assert (f.odds is None) == (e.odds is None)
        if f.odds is not None and e.odds is not None:
            assert np.array_equal(f.odds, e.odds)


def test_rows_that_wait_are_learnt_as_rows_that_do_not(one: One) -> None:
    found = text(drafter(one.of, one.path), one.of)
    at_once = drafter(one.of, one.path)
    commit = at_once.commit

    def eager(features: Features) -> None:
        commit(features)
        at_once._learn_waiting(at_once._waiting.every())

    at_once.commit = eager  # type: ignore[method-assign]
    expected = text(at_once, one.of)
    assert [f.ids for f in found] == [e.ids for e in expected]
    for f, e in zip(found, expected, strict=True):
        if f.confidence is not None:
            assert f.confidence == pytest.approx(e.confidence, abs=TOLERANCE)


def test_shapes_that_take_turns_use_their_graphs_again(vanilla: One) -> None:
    context, draft = vanilla.of.context, vanilla.of.draft
    drafter(vanilla.of, vanilla.path)
    context.truncate(0, 0)
    rows = Batch.create(4, draft.feature_width)
    block = Batch.create(8)
    turns = 5

    def turn(count: int) -> None:
        features = np.ones((count, draft.feature_width), np.float32)
        rows.set_embeddings(features, list(range(count)), [0] * count)
        context.decode(rows)
        block.clear()
        block.add_tokens([5, 6, 6], start=count, seq=0, output=ALL_OUTPUT)
        context.decode_block(block, 3, confidence=True)
        context.truncate(0, 0)

    def reused(kept: int) -> int:
        lib.ls_keep_graphs(context.ptr, kept, 16)
        before = int(lib.ls_graphs_reused(context.ptr))
        for _ in range(turns):
            for count in (1, 2, 3):
                turn(count)
        return int(lib.ls_graphs_reused(context.ptr)) - before

    passes = 2 * 3 * turns
    try:
        assert reused(0) == 0
        # three counts of rows and a block
        assert reused(4) == passes - 4
        # too few for all of them: rows never meet a graph of theirs, blocks do
        assert 0 < reused(2) < passes - 4
    finally:
        lib.ls_keep_graphs(context.ptr, 8, 16)
        context.truncate(0, 0)
