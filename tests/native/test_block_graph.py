"""One block through llama.cpp's graph, against the reference on the checkpoint it came from."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from llamaspec.runtime.arrays import FloatArray
from tests.native_block import NativeBlock, run_block
from tests.reference import Block, Draft, load
from tests.reference.heads import MarkovHead, PlainHead

pytestmark = pytest.mark.native

VOCABULARY = 4096
NAMES = ["tiny-dspark", "tiny-dflash", "tiny-dspark-speculators"]
# (context rows, proposals): no context, one row, beyond llama.cpp's paddings of 32 and 256
SHAPES = [(0, 7), (1, 7), (5, 1), (5, 2), (33, 5), (70, 7), (300, 7)]
# both sides sum in float32, in different orders, and llama.cpp multiplies RoPE's angles up in
# float32: 1e-4 apart at 300 positions, of logits up to 20
TOLERANCE = 3e-4
CONFIDENCE_TOLERANCE = 1e-5


@pytest.fixture(scope="module", params=NAMES)
def draft(request: pytest.FixtureRequest, shared: Path) -> tuple[str, Draft]:
    models = shared / "models"
    return request.param, load(models / request.param, models / "tiny-target")


def both(
    draft: tuple[str, Draft], ggufs: Path, features: FloatArray, proposals: int
) -> tuple[NativeBlock, Block]:
    name, reference = draft
    anchor, length = 17 + 31 * proposals, proposals + reference.first
    context = reference.context(features)
    expected = reference.block(context, anchor, len(features), length)
    files = ggufs / f"{name}-f32.gguf", ggufs / "tiny-target-f32.gguf"
    return run_block(*files, features, anchor, length), expected


def random_features(draft: tuple[str, Draft], n: int) -> FloatArray:
    width = 256 * len(draft[1].taps)
    rows = np.random.default_rng(n).normal(scale=3, size=(n, width))
    return rows.astype(np.float32)


def target_ids(draft: Draft) -> npt.NDArray[np.int64]:
    """The target id of every column of the draft's logits."""
    assert isinstance(draft.head, MarkovHead | PlainHead)
    return np.arange(VOCABULARY) if draft.head.d2t is None else draft.head.d2t


@pytest.mark.parametrize(("n", "proposals"), SHAPES)
def test_native_rows_are_the_references(
    draft: tuple[str, Draft], ggufs: Path, n: int, proposals: int
) -> None:
    native, expected = both(draft, ggufs, random_features(draft, n), proposals)
    assert np.abs(native.base - expected.base).max() < TOLERANCE
    assert np.abs(native.hidden - expected.hidden).max() < TOLERANCE
    assert native.ids == expected.ids
    rows, first = native.logits, draft[1].first
    assert rows is not None
    d2t = target_ids(draft[1])
    assert np.abs(rows[first:, d2t] - expected.logits).max() < TOLERANCE
    assert np.all(np.delete(rows, d2t, axis=1) == -np.inf)
    # the row that is read past has no head's part
    assert np.abs(rows[:first, d2t] - expected.base[:first]).max(initial=0) < TOLERANCE
    if expected.confidence is None:
        assert native.confidence is None
    else:
        assert native.confidence == pytest.approx(expected.confidence, abs=CONFIDENCE_TOLERANCE)


def test_the_comparison_notices_a_feature_row_out_of_place(
    draft: tuple[str, Draft], ggufs: Path
) -> None:
    features = random_features(draft, 40)
    native, _ = both(draft, ggufs, features, 7)
    _, moved = both(draft, ggufs, features[[1, 0, *range(2, 40)]], 7)
    assert np.abs(native.base - moved.base).max() > 10 * TOLERANCE
