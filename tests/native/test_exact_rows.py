"""A pass over several rows gives bitwise what passes over one row give, with flash attention on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model

pytestmark = pytest.mark.native

WIDEST = 8
ROWS = 24


@pytest.fixture(scope="module", params=["bundled", "tiny-target-f32.gguf", "tiny-target-q8_0.gguf"])
def target(request: pytest.FixtureRequest) -> Iterator[TargetContext]:
    path: Path = demo.target_path()
    if request.param != "bundled":
        path = request.getfixturevalue("ggufs") / request.param
    model = Model.load(path, n_gpu_layers=0)
    shape = ContextShape(512, 512, 1, WIDEST, 1, "on", "f16")
    yield TargetContext.create(model, shape)
    model.close()


def logits(target: TargetContext, ids: list[int], *, prompt: int, width: int) -> FloatArray:
    """Logits of the rows after the prompt, computed `width` at a time."""
    batch = Batch.create(512)
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


@pytest.mark.parametrize("width", range(2, WIDEST + 1))
def test_blocks_are_bitwise_equal_to_single_rows(target: TargetContext, width: int) -> None:
    for _, prompt in PROMPTS:
        ids = target.model.vocab.tokenize(f"<|im_start|>user\n{prompt} {prompt}").tolist()
        start = len(ids) - ROWS
        single = logits(target, ids, prompt=start, width=1)
        blocks = logits(target, ids, prompt=start, width=width)
        assert single.shape[0] == ROWS
        assert np.array_equal(single, blocks), np.abs(single - blocks).max()
