"""The Markov head in the graph and the one in NumPy propose the same, on the bundled pair."""

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


def test_both_heads_propose_the_same_tokens_with_the_same_confidence() -> None:
    graph, python = rounds("graph"), rounds("python")
    pairs = [p for a, b in zip(graph, python, strict=True) for p in zip(a, b, strict=False)]
    assert len(pairs) > 20
    same = sum(a.draft == b.draft and a.start == b.start for a, b in pairs)
    assert same >= 0.99 * len(pairs)
    for a, b in pairs:
        if a.draft and a.draft == b.draft:
            assert a.confidence == pytest.approx(b.confidence, abs=0.01)
