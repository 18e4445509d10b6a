"""A pass over several rows gives bitwise what passes over one row give: by default with flash
attention on and weights in f32 or q8_0, on request with flash attention off and other types too.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.options import FlashAttention
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model
from llamaspec.runtime.quantize import quantize

pytestmark = pytest.mark.native

WIDEST = 8
ROWS = 24
LONG = 700


@pytest.fixture(scope="module", params=["bundled", "tiny-target-f32.gguf", "tiny-target-q8_0.gguf"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    path: Path = demo.target_path()
    if request.param != "bundled":
        path = request.getfixturevalue("ggufs") / request.param
    loaded = Model.load(path)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module", params=[1, 2], ids=["1-thread", "2-threads"])
def target(request: pytest.FixtureRequest, model: Model) -> TargetContext:
    return TargetContext.create(model, ContextShape(1024, 1024, 1, 32, request.param, "on", "f16"))


def logits(target: TargetContext, ids: list[int], *, prompt: int, width: int) -> FloatArray:
    """Logits of the rows after the prompt, computed `width` at a time."""
    batch = Batch.create(1024)
    target.truncate(0, 0)
    batch.add_tokens(ids[:prompt], start=0, seq=0, output=NO_OUTPUT)
    target.decode(batch)
    found = []
    for start in range(prompt, len(ids), width):
        part = ids[start : start + width]
        batch.clear()
        batch.add_tokens(part, start=start, seq=0, output=ALL_OUTPUT)
        target.decode(batch)
        found.append(target.logits_view(len(part)).copy())
    return np.concatenate(found)


def text(target: TargetContext, least: int) -> list[int]:
    """Token ids of the prompts, again and again until there are enough."""
    vocab = target.model.vocab
    ids: list[int] = []
    while len(ids) < least:
        for _, prompt in PROMPTS:
            ids += vocab.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n").tolist()
    return ids


# a long context takes another way through attention, a wide pass another through f32 weights
@pytest.mark.parametrize("length", [ROWS + 20, LONG], ids=["short", "long"])
@pytest.mark.parametrize("width", [*range(2, WIDEST + 1), ROWS])
def test_blocks_are_bitwise_equal_to_single_rows(
    target: TargetContext, width: int, length: int
) -> None:
    ids = text(target, length)[:length]
    single = logits(target, ids, prompt=length - ROWS, width=1)
    blocks = logits(target, ids, prompt=length - ROWS, width=width)
    assert single.shape[0] == ROWS
    assert np.array_equal(single, blocks), np.abs(single - blocks).max()


TYPES = ["f32", "bf16", "f16", "q8_0", "q4_k_m", "q5_k_m", "q6_k", "q4_0", "q5_0"]


@pytest.fixture(scope="module", params=TYPES)
def typed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = demo.target_path()
    if request.param != "f32":
        path = tmp_path_factory.mktemp("typed") / f"{request.param}.gguf"
        quantize(demo.target_path(), path, request.param, threads=1)
    return Model.load(path)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["on", "off"])
def test_rows_alike_are_bitwise_equal_to_single_rows(
    typed: Model, attention: FlashAttention, threads: int
) -> None:
    shape = ContextShape(1024, 1024, 1, 32, threads, attention, "f16")
    with TargetContext.create(typed, shape) as plain, TargetContext.create(typed, shape) as alike:
        alike.compute_rows_alike()
        for length in (ROWS + 20, LONG):
            ids = text(plain, length)[:length]
            # what plain decoding gives: single rows without the switch, prompts too
            single = logits(plain, ids, prompt=length - ROWS, width=1)
            for width in (1, 2, 3, 4, 5, 7, 8, ROWS):
                blocks = logits(alike, ids, prompt=length - ROWS, width=width)
                assert np.array_equal(single, blocks), (width, np.abs(single - blocks).max())
