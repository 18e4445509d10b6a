"""The products and the attention of a few rows (patch 0012): bitwise those of single rows, whatever
the sizes, also where only a part of the rows or no kernel fits.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llamaspec.bench import shapes, synth
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model

pytestmark = pytest.mark.native

MOST = 33
IDS = [(7919 * i + 5) % 1000 for i in range(400)]
# width, heads, of keys, head, feed-forward: heads of every kernel and of none; sums of multiples of
# 64 numbers, of 32, and of many
SIZES = {
    "head-64": (256, 4, 2, 64, 320),
    "head-128": (128, 4, 1, 128, 704),
    "head-256": (192, 3, 3, 256, 96),
    "head-32": (64, 6, 2, 32, 2112),
}


@pytest.fixture(scope="module", params=[(s, q) for s in SIZES for q in synth.QUANTS], ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    size, quant = request.param
    width, heads, of_keys, head, feed_forward = SIZES[size]
    shape = replace(
        shapes.TINY,
        name=size,
        width=width,
        heads=heads,
        kv_heads=of_keys,
        head_width=head,
        feed_forward=feed_forward,
        vocabulary=1027,
    )
    folder: Path = tmp_path_factory.mktemp("few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, size, shape)
        return Model.load(synth.synthesise(size, quant, folder).target)


def rows(target: TargetContext, depth: int, count: int, width: int) -> FloatArray:
    """Logits of `count` rows after `depth` positions, computed `width` at a time."""
    batch, found = Batch.create(512), []
    target.truncate(0, 0)
    batch.add_tokens(IDS[:depth], start=0, seq=0, output=NO_OUTPUT)
    target.decode(batch)
    for start in range(depth, depth + count, width):
        part = IDS[start : min(start + width, depth + count)]
        batch.clear()
        batch.add_tokens(part, start=start, seq=0, output=ALL_OUTPUT)
        target.decode(batch)
        found.append(target.logits_view(len(part)).copy())
    return np.concatenate(found)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("depth", [1, 300])
def test_every_width_rounds_as_single_rows_do(model: Model, depth: int, threads: int) -> None:
    shape = ContextShape(512, 512, 1, MOST, threads, "on", "f16")
    with TargetContext.create(model, shape) as plain, TargetContext.create(model, shape) as target:
        # f16, bf16 and others are promised on request only: elsewhere than here they need it
        target.compute_rows_alike()
        single = rows(plain, depth, MOST, 1)
        assert np.isfinite(single).all()
        assert single.std() > 0.1
        for width in (2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 32):
            blocks = rows(target, depth, MOST, width)
            assert np.array_equal(single, blocks), (width, np.abs(single - blocks).max())
