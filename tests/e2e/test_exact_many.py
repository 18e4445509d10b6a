"""Exact mode with several texts at once: each is what plain decoding gives it alone."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.errors import OptionError
from llamaspec.runtime.context import TargetContext
from llamaspec.runtime.quantize import quantize
from llamaspec.session import Session, load

pytestmark = pytest.mark.native

TOKENS = 48
TOGETHER = 5


def streamed(
    session: Session, prompt: str, seed: int, found: dict[str, Completion]
) -> Iterator[None]:
    """A text piece by piece, greedy or drawn."""
    message = [{"role": "user", "content": prompt}]
    heat = 0.9 if seed % 2 else 0.0
    for _ in session.stream(message, max_tokens=TOKENS, temperature=heat, seed=seed):
        yield
    assert session.last is not None
    found[prompt] = session.last


@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_k_m"])
@pytest.mark.parametrize("drafting", [True, False])
def test_texts_are_what_they_are_alone(kind: str, drafting: bool, tmp_path: Path) -> None:
    path = demo.target_path()
    if kind != "f32":
        path = tmp_path / "target.gguf"
        quantize(demo.target_path(), path, kind, threads=1)
    draft = demo.draft_path() if drafting else None
    alone: dict[str, Completion] = {}
    together: dict[str, Completion] = {}
    prompts = list(enumerate(prompt for _, prompt in PROMPTS[:TOGETHER]))
    # plain decoding, without a draft and by itself
    with load(path, threads=1, context=256, exact=True) as session:
        for seed, prompt in prompts:
            list(streamed(session, prompt, seed, alone))
    with load(path, draft, threads=2, context=256, exact=True, max_sequences=TOGETHER) as session:
        assert session.exactness.bitwise
        texts = [streamed(session, prompt, seed, together) for seed, prompt in prompts]
        list(itertools.zip_longest(*texts))
    assert [together[p].token_ids for _, p in prompts] == [alone[p].token_ids for _, p in prompts]
    if drafting:
        assert sum(c.stats.tau for c in together.values()) > TOGETHER


def test_what_is_not_computed_alike_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetContext, "compute_rows_alike", lambda self: None)
    with pytest.raises(OptionError, match="exact and max_sequences 12 go together"):
        load(threads=1, context=256, exact=True, max_sequences=12).close()
