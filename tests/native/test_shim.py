"""What the shim reduces, against NumPy over the same rows; what it refuses."""

from collections.abc import Iterator

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.ffi import ffi, lib
from llamaspec.runtime.batch import ALL_OUTPUT, LAST_OUTPUT, NO_OUTPUT, Batch, Row
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model

pytestmark = pytest.mark.native

ROWS = 8


@pytest.fixture(scope="module")
def target() -> Iterator[TargetContext]:
    model = Model.load(demo.target_path())
    context = TargetContext.create(model, ContextShape(256, 256, 2, 2 * ROWS, 1, "on", "f16"))
    context.set_taps((2, 5, 9))
    context.publish(True)
    yield context
    model.close()


@pytest.fixture
def batch(target: TargetContext) -> Batch:
    """Eight rows of each of two sequences."""
    rows = Batch.create(4 * ROWS)
    for seq in (0, 1):
        target.truncate(seq, 0)
        ids = list(range(100 + seq, 100 + seq + ROWS))
        rows.add_tokens(ids, start=0, seq=seq, output=ALL_OUTPUT)
    return rows


def test_choices_and_gaps_are_those_of_the_rows(target: TargetContext, batch: Batch) -> None:
    chosen = target.decode_choose(batch, 2 * ROWS)
    logits = target.logits_view(2 * ROWS)
    assert chosen == logits.argmax(axis=1).tolist()
    ids, gap = target.top2(2 * ROWS)
    ordered = np.sort(logits, axis=1)
    assert ids.tolist() == chosen
    assert np.array_equal(gap, ordered[:, -1] - ordered[:, -2])


def test_features_are_gathered_row_by_row_in_tap_order(target: TargetContext, batch: Batch) -> None:
    target.decode(batch)
    rows = [0, 3, 9, 15]
    everything = target.features_view(list(range(2 * ROWS))).copy()
    assert np.array_equal(target.features_view(rows), everything[rows])
    width = target.model.n_embd
    assert everything.shape == (2 * ROWS, 3 * width)
    # the taps are different layers: a row that repeats one of them would be a gathering fault
    taps = everything.reshape(2 * ROWS, 3, width)
    assert not np.array_equal(taps[:, 0], taps[:, 1])
    assert not np.array_equal(taps[:, 1], taps[:, 2])


def test_a_batch_holds_what_was_put_in_and_no_more() -> None:
    batch = Batch.create(3)
    batch.add_tokens([7, 8], start=5, seq=1, output=LAST_OUTPUT)
    batch.add_tokens([9], start=0, seq=0, output=NO_OUTPUT)
    assert batch.rows() == [Row(7, 5, 1, False), Row(8, 6, 1, True), Row(9, 0, 0, False)]
    with pytest.raises(AssertionError, match="do not fit"):
        batch.add_tokens([1], start=0, seq=0, output=NO_OUTPUT)
    embeddings = Batch.create(2, 4)
    embeddings.set_embeddings(np.ones((2, 4), np.float32), [3, 4], [0, 0])
    assert [row.position for row in embeddings.rows()] == [3, 4]
    with pytest.raises(AssertionError, match="do not fit"):
        embeddings.set_embeddings(np.ones((3, 4), np.float32), [3, 4, 5], [0, 0, 0])


def test_a_tap_outside_the_layers_is_refused_and_not_an_abort(target: TargetContext) -> None:
    for tap in (-1, 11, 2**30):
        assert lib.ls_set_taps(target.ptr, [tap], 1, True) < 0
        assert b"tap outside" in ffi.string(lib.ls_last_error())
