"""Several sequences with a KV cache each: every row is bitwise what it is where its sequence is
alone, in passes over any sequences with any numbers of rows, each of which is computed at once.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.errors import DecodeError
from llamaspec.ffi import lib
from llamaspec.options import CacheType, FlashAttention
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.describe import DraftDescription, describe
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.model import Model
from llamaspec.runtime.quantize import quantize
from tests.native_rig import random_features

pytestmark = pytest.mark.native

CELLS = 1024
# short, around what attention takes at once, and past 512 cells
DEPTHS = [3, 250, 40, 600, 61]
Pass = dict[int, int]
PASSES: list[Pass] = [
    {0: 1, 1: 8, 2: 3, 4: 1},
    {3: 2},
    {0: 4, 1: 4, 2: 4, 3: 4, 4: 4},
    # any order, gaps between them, and a pass that makes a sequence longer than 256 cells
    {4: 8, 1: 7, 3: 1},
    {2: 1, 0: 1, 3: 1},
    # attention in tiles for one, in single rows for others
    {0: 70, 3: 5, 2: 1},
    {1: 33, 4: 33},
    {0: 1, 1: 8, 2: 3, 3: 5, 4: 2},
]
"""Rows of the sequences of one pass each. All but one row of a sequence are dropped afterwards."""
KEPT = 2


def text(model: Model, seq: int) -> list[int]:
    """Ids of a sequence, unlike those of others."""
    _, prompt = PROMPTS[seq % len(PROMPTS)]
    ids: list[int] = model.vocab.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n").tolist()
    return (ids * (1 + CELLS // len(ids)))[seq : CELLS + seq]


class Texts:
    """Sequences of a context, each with its length, decoded pass by pass."""

    def __init__(self, context: TargetContext, depths: dict[int, int]) -> None:
        """depths: by sequence of the text; in a context of one, its own is 0."""
        self.context = context
        self.slots = {seq: 0 if context.shape.n_seq == 1 else seq for seq in depths}
        self.lengths = dict(depths)
        self.texts = {seq: text(context.model, seq) for seq in depths}
        self._batch = Batch.create(CELLS)
        for seq, depth in depths.items():
            for start in range(0, depth, 128):
                self._batch.clear()
                part = self.texts[seq][start : min(start + 128, depth)]
                slot = self.slots[seq]
                self._batch.add_tokens(part, start=start, seq=slot, output=NO_OUTPUT)
                context.decode(self._batch)

    def decode(self, rows: Pass) -> dict[int, FloatArray]:
        """Logits [rows, vocabulary] of each sequence."""
        self._batch.clear()
        starts = {}
        for seq, count in rows.items():
            start = self.lengths[seq]
            ids = self.texts[seq][start : start + count]
            slot = self.slots[seq]
            starts[seq] = self._batch.add_tokens(ids, start=start, seq=slot, output=ALL_OUTPUT)
        self.context.decode(self._batch)
        found = self.context.logits_view(self._batch.size)
        logits = {seq: found[starts[seq] :][:count].copy() for seq, count in rows.items()}
        for seq, count in rows.items():
            self.lengths[seq] += min(count, KEPT)
            self.context.truncate(self.slots[seq], self.lengths[seq])
            assert self.context.length(self.slots[seq]) == self.lengths[seq]
        return logits


def target(
    model: Model,
    n_seq: int,
    attention: FlashAttention = "on",
    threads: int = 1,
    cache: CacheType = "f16",
) -> TargetContext:
    shape = ContextShape(n_seq * CELLS, CELLS, n_seq, 128, threads, attention, cache)
    context = TargetContext.create(model, shape)
    context.compute_rows_alike()
    assert context.apart
    return context


@pytest.fixture(scope="module", params=["tiny", "f32", "bf16", "q8_0", "q4_k_m"])
def model(
    request: pytest.FixtureRequest, ggufs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    path = ggufs / "tiny-target-f32.gguf" if request.param == "tiny" else demo.target_path()
    if request.param in {"bf16", "q8_0", "q4_k_m"}:
        path = tmp_path_factory.mktemp("typed") / f"{request.param}.gguf"
        quantize(demo.target_path(), path, request.param, threads=1)
    loaded = Model.load(path)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["on", "off"])
def test_rows_are_what_they_are_alone(
    model: Model, attention: FlashAttention, threads: int
) -> None:
    expected = []
    for seq, depth in enumerate(DEPTHS):
        with target(model, 1, attention, threads) as single:
            alone = Texts(single, {seq: depth})
            expected.append([alone.decode({seq: p[seq]})[seq] for p in PASSES if seq in p])
    with target(model, len(DEPTHS), attention, threads) as context:
        together = Texts(context, dict(enumerate(DEPTHS)))
        turn = [0] * len(DEPTHS)
        for rows in PASSES:
            for seq, found in together.decode(rows).items():
                wanted = expected[seq][turn[seq]]
                turn[seq] += 1
                assert np.array_equal(found, wanted), (rows, seq, np.abs(found - wanted).max())


@pytest.mark.parametrize("cache", ["f32", "bf16", "q8_0"])
@pytest.mark.parametrize("attention", ["on", "off"])
def test_caches_of_other_types(ggufs: Path, attention: FlashAttention, cache: CacheType) -> None:
    if cache == "q8_0" and attention == "off":
        pytest.skip("a quantised cache needs flash attention")
    with Model.load(ggufs / "tiny-target-f32.gguf") as loaded:
        with target(loaded, 5, attention, 2, cache) as context:
            together = Texts(context, dict(enumerate(DEPTHS)))
            found = [together.decode(rows) for rows in PASSES]
        for seq, depth in enumerate(DEPTHS):
            with target(loaded, 1, attention, 2, cache) as single:
                alone = Texts(single, {seq: depth})
                for rows, logits in zip(PASSES, found, strict=True):
                    if seq in rows:
                        wanted = alone.decode({seq: rows[seq]})[seq]
                        assert np.array_equal(logits[seq], wanted), (rows, seq)


def test_rows_that_take_turns(ggufs: Path) -> None:
    """A batch can have its rows in any order."""
    with Model.load(ggufs / "tiny-target-f32.gguf") as loaded:
        for attention in ("on", "off"):
            found = []
            for turns in (False, True):
                with target(loaded, 3, attention) as context:
                    texts = Texts(context, {0: 20, 1: 30, 2: 10})
                    order = [(seq, i) for seq in range(3) for i in range(3 + seq)]
                    if turns:
                        order.sort(key=lambda at: at[1])
                    batch, rows = Batch.create(64), {}
                    for seq, i in order:
                        at = texts.lengths[seq] + i
                        ids = [texts.texts[seq][at]]
                        rows[seq, i] = batch.add_tokens(ids, start=at, seq=seq, output=ALL_OUTPUT)
                    context.decode(batch)
                    view = context.logits_view(batch.size)
                    found.append({key: view[row].copy() for key, row in rows.items()})
            assert all(np.array_equal(found[0][key], found[1][key]) for key in found[0])


def test_ragged_passes_are_computed_at_once_and_use_their_graphs_again(ggufs: Path) -> None:
    def reused(rows: Pass) -> int:
        before = int(lib.ls_graphs_reused(context.ptr))
        texts.decode(rows)
        return int(lib.ls_graphs_reused(context.ptr)) - before

    with (
        Model.load(ggufs / "tiny-target-f32.gguf") as loaded,
        target(loaded, 8) as context,
    ):
        texts = Texts(context, dict.fromkeys(range(8), 20))
        shapes: list[Pass] = [{1: 1, 2: 8, 3: 3, 5: 1}, {0: 2}, {6: 4, 7: 4}]
        for rows in shapes:
            reused(rows)
        # a pass of several parts would count several, and one of another graph none
        for _ in range(3):
            assert [reused(rows) for rows in shapes] == [1, 1, 1]
        # other sequences with other shares of as many rows
        assert reused({0: 5, 4: 2, 2: 2, 7: 4}) == 1
        assert reused({5: 2}) == 1
        assert reused({2: 7, 0: 1}) == 1


def test_each_sequence_has_its_share_of_cells(ggufs: Path) -> None:
    with Model.load(ggufs / "tiny-target-f32.gguf") as loaded:
        shape = ContextShape(3 * 256, 256, 3, 8, 1, "on", "f16")
        with TargetContext.create(loaded, shape) as context:
            batch = Batch.create(256)
            batch.add_tokens([5] * 256, start=0, seq=1, output=NO_OUTPUT)
            context.decode(batch)
            batch.clear()
            batch.add_tokens([5], start=256, seq=1, output=ALL_OUTPUT)
            with pytest.raises(DecodeError, match="no room"):
                context.decode(batch)
            batch.clear()
            for seq in (0, 2):
                batch.add_tokens([5] * 100, start=0, seq=seq, output=NO_OUTPUT)
            context.decode(batch)
            assert [context.length(seq) for seq in range(3)] == [100, 256, 100]
            context.truncate(1, 255)
            batch.clear()
            batch.add_tokens([5], start=255, seq=1, output=ALL_OUTPUT)
            context.decode(batch)
            assert context.length(1) == 256


class Block(NamedTuple):
    """What a draft says for one anchor, and how."""

    ids: list[int]
    confidence: list[float] | None
    logits: FloatArray


def draft_context(
    loaded: Model, other: TargetContext, found: DraftDescription, threads: int
) -> DraftContext:
    context = DraftContext.create(loaded, other.shape, other)
    context.configure(
        feature_width=found.feature_width,
        causal=found.causal,
        confidence=found.has_confidence_head,
    )
    assert context.apart
    return context


def inject(
    context: DraftContext, found: DraftDescription, parts: list[tuple[int, int, int]]
) -> None:
    """Features of several sequences in one decode: text, first position and rows of each."""
    rows: list[FloatArray] = []
    positions: list[int] = []
    seqs: list[int] = []
    for seq, start, count in parts:
        rows.append(random_features(found, seq, start + count)[start:])
        positions += range(start, start + count)
        seqs += [0 if context.shape.n_seq == 1 else seq] * count
    batch = Batch.create(len(positions), found.feature_width)
    batch.set_embeddings(np.ascontiguousarray(np.concatenate(rows)), positions, seqs)
    context.decode(batch)


def blocks(
    context: DraftContext, found: DraftDescription, wanted: Pass, lengths: list[int]
) -> dict[int, Block]:
    batch = Batch.create(64)
    starts = {}
    assert found.mask_token_id is not None
    for seq, width in wanted.items():
        ids = [20 + seq] + [found.mask_token_id] * (width - 1)
        slot = 0 if context.shape.n_seq == 1 else seq
        starts[seq] = batch.add_tokens(ids, start=lengths[seq], seq=slot, output=ALL_OUTPUT)
    confident = found.has_confidence_head
    ids, scores = context.decode_block(batch, batch.size, confidence=confident)
    logits = context.logits_view(batch.size).copy()
    spans = {seq: slice(starts[seq], starts[seq] + width) for seq, width in wanted.items()}
    return {
        seq: Block(ids[s], None if scores is None else scores[s], logits[s])
        for seq, s in spans.items()
    }


INJECTED = [
    [(0, 0, 3), (1, 0, 1), (2, 0, 9), (4, 0, 2)],
    [(3, 0, 30)],
    [(4, 2, 1), (2, 9, 4), (0, 3, 2)],
]
DRAFTED: list[Pass] = [
    {0: 1, 1: 7, 2: 3, 4: 2},
    {3: 5},
    {0: 4, 1: 4, 2: 4, 3: 4, 4: 4},
    {4: 6, 2: 7, 3: 2},
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["on", "off"])
@pytest.mark.parametrize("name", ["tiny-dspark", "tiny-dflash"])
def test_blocks_are_what_they_are_alone(
    ggufs: Path, name: str, attention: FlashAttention, threads: int
) -> None:
    path = ggufs / f"{name}-f32.gguf"
    found = describe(path).draft
    assert found is not None
    lengths = [0] * 5
    for parts in INJECTED:
        for seq, start, count in parts:
            lengths[seq] = start + count
    with (
        Model.load(ggufs / "tiny-target-f32.gguf") as teacher,
        Model.load(path) as loaded,
        target(teacher, 5, attention, threads) as others,
        draft_context(loaded, others, found, threads) as context,
    ):
        for parts in INJECTED:
            inject(context, found, parts)
        assert [context.length(seq) for seq in range(5)] == lengths
        together = [blocks(context, found, wanted, lengths) for wanted in DRAFTED]
        assert [context.length(seq) for seq in range(5)] == lengths
        for seq in range(5):
            with (
                target(teacher, 1, attention, threads) as other,
                draft_context(loaded, other, found, threads) as single,
            ):
                for parts in INJECTED:
                    for part in parts:
                        if part[0] == seq:
                            inject(single, found, [part])
                for wanted, drafted in zip(DRAFTED, together, strict=True):
                    if seq not in wanted:
                        continue
                    alone = blocks(single, found, {seq: wanted[seq]}, lengths)[seq]
                    assert drafted[seq].ids == alone.ids
                    assert drafted[seq].confidence == alone.confidence
                    assert np.array_equal(drafted[seq].logits, alone.logits)
