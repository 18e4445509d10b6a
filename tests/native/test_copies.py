"""What a KV cache holds of a sequence, copied to another one, and saved and put back: every bit of
what follows is as it was.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamaspec.draft.drafter import Anchor, Features, Proposal, Span
from llamaspec.errors import DecodeError
from llamaspec.ffi import lib
from llamaspec.options import CacheType, FlashAttention
from llamaspec.runtime import cache as cache_module
from llamaspec.runtime import context as context_module
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model
from tests.miniature_targets import VOCABULARY
from tests.native.layer_probe import Probe, compile_probe
from tests.native.test_ragged import pairs as pairs
from tests.native.test_sampled_drafts import LENGTHS, Pairs, drafter
from tests.native_rig import rig

pytestmark = pytest.mark.native

CELLS = 512
LONG, SHORT = 300, 210
TEXT = np.random.default_rng(8).integers(3, VOCABULARY, LONG).tolist()
OTHER = np.random.default_rng(9).integers(3, VOCABULARY, LONG).tolist()
NEXT = [5, 9, 33, 4]
KINDS: list[tuple[CacheType, FlashAttention]] = [
    ("f16", "on"),
    ("q8_0", "on"),
    ("f32", "on"),
    ("f16", "off"),
    ("bf16", "off"),
]


class Pool:
    """The native library, with one cache for all sequences, as where there is a GPU."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(lib, name)

    def ls_context_new(self, model: Any, params: Any) -> Any:  # noqa: ANN401
        params.kv_apart = False
        return lib.ls_context_new(model, params)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("sliding"))


@pytest.fixture(params=["apart", "pool"])
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "pool":
        monkeypatch.setattr(context_module, "lib", Pool())
    return bool(request.param == "apart")


def made(model: Model, cache: CacheType = "f16", attention: FlashAttention = "on") -> TargetContext:
    shape = ContextShape(4 * CELLS, CELLS, 4, 16, 1, attention, cache)
    return TargetContext.create(model, shape)


def fill(context: TargetContext, seq: int, ids: list[int], start: int = 0) -> None:
    batch = Batch.create(len(ids))
    batch.add_tokens(ids, start=start, seq=seq, output=NO_OUTPUT)
    context.decode(batch)


def rows(context: TargetContext, seq: int, length: int) -> FloatArray:
    """The logits of what comes next, after which the sequence is as it was."""
    batch = Batch.create(len(NEXT))
    batch.add_tokens(NEXT, start=length, seq=seq, output=ALL_OUTPUT)
    context.decode(batch)
    found = context.logits_view(len(NEXT)).copy()
    context.truncate(seq, length)
    return found


def same(found: FloatArray, wanted: FloatArray, apart: bool) -> None:
    """Bit by bit, but for a cache for all sequences, which sums in the order of its cells."""
    if apart:
        assert np.array_equal(found, wanted)
    else:
        np.testing.assert_allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize(("cache", "attention"), KINDS)
def test_a_beginning_is_copied(
    ggufs: Path, apart: bool, cache: CacheType, attention: FlashAttention
) -> None:
    with (
        Model.load(ggufs / "tiny-target-f32.gguf") as model,
        made(model, cache, attention) as context,
    ):
        assert context.apart == apart
        fill(context, 0, TEXT)
        fill(context, 1, OTHER)
        fill(context, 3, OTHER[:40])
        before = rows(context, 0, LONG)
        context.copy(0, 1, SHORT)
        assert [context.length(seq) for seq in range(4)] == [LONG, SHORT, 0, 40]
        copied = rows(context, 1, SHORT)
        same(rows(context, 0, LONG), before, apart)
        context.copy(1, 2, SHORT)
        same(rows(context, 2, SHORT), copied, apart)
        # each goes its own way
        fill(context, 1, OTHER[:30], SHORT)
        same(rows(context, 2, SHORT), copied, apart)
        same(rows(context, 0, LONG), before, apart)
        context.truncate(0, SHORT)
        same(rows(context, 0, SHORT), copied, apart)
        context.copy(3, 0, 0)
        assert context.length(0) == 0


@pytest.mark.parametrize(("cache", "attention"), KINDS)
def test_a_text_is_saved_and_put_back(
    ggufs: Path, apart: bool, cache: CacheType, attention: FlashAttention
) -> None:
    with (
        Model.load(ggufs / "tiny-target-f32.gguf") as model,
        made(model, cache, attention) as context,
    ):
        fill(context, 0, TEXT)
        fill(context, 2, OTHER)
        whole = rows(context, 0, LONG)
        assert context.can_save
        size = context.state_size(0)
        state = context.save(0)
        assert (state.length, state.nbytes) == (LONG, size)
        context.truncate(0, SHORT)
        cut = rows(context, 0, SHORT)
        # to where another text was, and to where it came from
        for seq in (2, 0):
            assert context.restore(seq, state)
            assert context.length(seq) == LONG
            same(rows(context, seq, LONG), whole, apart)
            context.truncate(seq, SHORT)
            same(rows(context, seq, SHORT), cut, apart)
        # what is put back is saved as it was
        context.restore(1, state)
        again = context.save(1)
        assert again.length == LONG
        # of a sequence's number, which is in it, nothing else depends
        assert again.nbytes == state.nbytes


def test_a_text_is_put_back_in_another_context(ggufs: Path) -> None:
    with Model.load(ggufs / "tiny-target-f32.gguf") as model:
        with made(model) as context:
            fill(context, 3, TEXT)
            whole, state = rows(context, 3, LONG), context.save(3)
        with made(model) as context:
            assert context.restore(0, state)
            assert np.array_equal(rows(context, 0, LONG), whole)


def test_nothing_is_a_state_too(ggufs: Path) -> None:
    with Model.load(ggufs / "tiny-target-f32.gguf") as model, made(model) as context:
        fill(context, 1, TEXT)
        assert context.restore(1, context.save(0))
        assert context.length(1) == 0


@pytest.mark.parametrize("at", [0, 5, 100, 5000, -1])
def test_damage_is_noticed(ggufs: Path, at: int) -> None:
    with Model.load(ggufs / "tiny-target-f32.gguf") as model, made(model) as context:
        fill(context, 0, TEXT)
        fill(context, 1, OTHER)
        state = context.save(0)
        state.data[at] ^= 64
        assert not context.restore(1, state)
        assert (context.length(0), context.length(1)) == (LONG, 0)


@pytest.mark.parametrize("at", [0, 8, 12])
def test_what_llama_cpp_refuses_leaves_the_sequence_empty(
    ggufs: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_checksum", lambda data: 0)
    with Model.load(ggufs / "tiny-target-f32.gguf") as model, made(model) as context:
        fill(context, 0, TEXT)
        fill(context, 1, OTHER)
        before = rows(context, 0, LONG)
        state = context.save(0)
        # the magic number, how many caches there are, how many cells of the first one
        state.data[at] ^= 64
        assert not context.restore(1, state)
        assert context.length(1) == 0
        assert np.array_equal(rows(context, 0, LONG), before)
        fill(context, 1, TEXT)
        assert np.array_equal(rows(context, 1, LONG), before)


def test_a_state_that_is_not_written_is_an_error(
    ggufs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:  # noqa: ANN401
            return getattr(lib, name)

        def llama_state_seq_get_data_ext(self, *_: object) -> int:
            return 0

    with Model.load(ggufs / "tiny-target-f32.gguf") as model, made(model) as context:
        fill(context, 0, TEXT)
        monkeypatch.setattr(cache_module, "lib", Failing())
        with pytest.raises(DecodeError, match=r"tiny-target-f32\.gguf: a sequence cannot be saved"):
            context.save(0)


def test_a_sliding_window_is_copied_and_not_saved(probe: Probe, apart: bool) -> None:
    with Model.load(probe.model("gemma3")) as model, made(model) as context:
        assert not context.can_save
        fill(context, 0, TEXT[:100])
        context.copy(0, 1, 60)
        copied = rows(context, 1, 60)
        fill(context, 1, OTHER[:50], 60)
        if context.can_truncate(0, 60):
            context.truncate(0, 60)
            same(rows(context, 0, 60), copied, apart)
        else:
            assert not apart


def test_recurrent_state_is_not_saved(probe: Probe) -> None:
    with Model.load(probe.model("qwen35")) as model, made(model) as context:
        assert not context.can_save


def test_kept_graphs_outlive_a_copy(ggufs: Path) -> None:
    with Model.load(ggufs / "tiny-target-f32.gguf") as model, made(model) as context:
        fill(context, 0, TEXT[:SHORT])
        for _ in range(2):
            rows(context, 0, SHORT)
        before = int(lib.ls_graphs_reused(context.ptr))
        context.copy(0, 1, SHORT)
        rows(context, 1, SHORT)
        assert int(lib.ls_graphs_reused(context.ptr)) == before + 1


# --- drafts


@pytest.mark.parametrize("name", ["tiny-dspark", "tiny-dflash"])
@pytest.mark.parametrize("waiting", [0, 5])
@pytest.mark.parametrize("length", [40, 33, 20])
def test_what_a_draft_knows_is_copied_saved_and_put_back(
    pairs: Pairs, name: str, waiting: int, length: int
) -> None:
    draft, target = pairs[name]
    # few enough to wait for the next proposal
    learnt = 40 - waiting
    length = min(length, 40)
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        maker = drafter(of, draft)
        random = np.random.default_rng(4)
        features = random.normal(scale=3, size=(40, of.draft.feature_width)).astype(np.float32)

        def teach(seq: int, end: int) -> None:
            maker.keep(seq, 0)
            for start, stop in ((0, min(learnt, end)), (learnt, end)):
                if stop > start:
                    span = Span(seq, start, stop - start)
                    maker.commit(Features(features[start:stop], [span]))

        def proposed(seq: int) -> Proposal:
            width = of.draft.proposals
            return maker.propose([Anchor(seq, 21, length, width, width)])[0]

        actions: list[Callable[[], int]] = []
        teach(0, 40)
        actions.append(lambda: maker.copy(0, 1, length))
        teach(3, 40)
        size, saved = maker.saved_size(3), maker.save(3)
        assert saved.nbytes == size
        maker.keep(3, 0)
        actions.append(lambda: maker.restore(2, saved, length))
        actions.append(lambda: maker.restore(3, saved, length))
        found = []
        for seq, action in zip((1, 2, 3), actions, strict=True):
            assert action() == maker.known(seq) == maker.knows(seq, 99) == length
            found.append(proposed(seq))
        # the source knows as much as before, and proposes the same from there
        assert maker.knows(0, 99) == 40
        assert maker.knows(0, 7) == 7
        assert maker.keep(0, length) == length
        expected = proposed(0)
        assert len(expected.ids) == of.draft.proposals
        assert found == [expected] * 3


def test_a_draft_that_is_damaged_knows_nothing(pairs: Pairs) -> None:
    draft, target = pairs["tiny-dspark"]
    with rig(draft, target, [0] * len(LENGTHS)) as of:
        maker = drafter(of, draft)
        saved = maker.save(2)
        assert saved.state is not None
        assert saved.state.length == LENGTHS[2]
        saved.state.data[-1] ^= 1
        assert maker.restore(1, saved, LENGTHS[2]) == 0
        assert of.context.length(1) == maker.known(1) == 0
        # and of a draft that is closed nothing is copied
        of.context.close()
        assert maker.copy(2, 1, 5) == 0
        assert maker.saved_size(2) is None
