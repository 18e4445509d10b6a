"""The bundled pair's Markov head in the graph, in native code and in NumPy: the same proposals."""

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.options import Head
from llamaspec.session import load
from llamaspec.trace import Round

pytestmark = pytest.mark.native


def rounds(head: Head) -> list[list[Round]]:
    with load(head=head, threads=1) as session:
        messages = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]
        return [list(session.generate(m, max_tokens=64, draft_max=7).rounds) for m in messages]


@pytest.fixture(scope="module")
def of_numpy() -> list[list[Round]]:
    return rounds("python")


@pytest.mark.parametrize("head", ["native", "graph"])
def test_heads_propose_the_same_tokens_with_the_same_confidence(
    head: Head, of_numpy: list[list[Round]]
) -> None:
    both = zip(rounds(head), of_numpy, strict=True)
    pairs = [pair for a, b in both for pair in zip(a, b, strict=False)]
    assert len(pairs) > 20
    same = sum(a.draft == b.draft and a.start == b.start for a, b in pairs)
    assert same >= 0.99 * len(pairs)
    for a, b in pairs:
        if a.draft and a.draft == b.draft:
            assert a.confidence == pytest.approx(b.confidence, abs=0.01)
