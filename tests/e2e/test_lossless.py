"""The bundled pair: with the draft and without it, the same tokens."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import IntArray
from llamaspec.text.detokenize import Pieces

pytestmark = pytest.mark.native

PROMPTS = 64
TOKENS = 128


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    loaded = load_pair(
        demo.target_path(), demo.draft_path(), LoadOptions(flash_attention="on", threads=2)
    )
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def prompts(shared: Path) -> list[str]:
    """Prompts of all categories in turn, none of them an oracle's."""
    by_category: dict[str, list[str]] = {}
    for line in (shared / "models" / "prompts.jsonl").read_text().splitlines():
        item = json.loads(line)
        by_category.setdefault(item["category"], []).append(item["prompt"])
    turns = zip(*(texts[8:] for texts in by_category.values()), strict=True)
    return [text for turn in turns for text in turn][:PROMPTS]


def decode(pair: Pair, ids: IntArray, draft_max: int) -> tuple[list[int], int]:
    """Tokens and rounds of a text that does not end before TOKENS tokens."""
    # past the end of its answer the model is unsure of itself: near ties are what could differ
    ending = Ending(pieces=Pieces(pair.model.vocab.piece), ends=frozenset(), limit=TOKENS)
    sequence = pair.engine.admit(Request(ids, TOKENS, draft_max, ending))
    try:
        while sequence.finish_reason is None:
            pair.engine.step()
    finally:
        pair.engine.release(sequence.request)
    return sequence.tokens, len(sequence.rounds)


def test_speculative_and_plain_outputs_are_identical(
    pair: Pair, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(prompts) == PROMPTS
    assert pair.drafter is not None
    identical, total, rounds = 0, 0, 0
    for prompt in prompts:
        text = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        ids = pair.model.vocab.tokenize(text)
        fast, n_rounds = decode(pair, ids, pair.drafter.proposals)
        slow, n_steps = decode(pair, ids, 0)
        assert n_steps == TOKENS - 1
        rounds += n_rounds
        identical += sum(a == b for a, b in zip(fast, slow, strict=True))
        total += TOKENS
    tau = (total - PROMPTS) / rounds
    with capsys.disabled():
        print(f"\nlossless: {identical} of {total} tokens identical, tau {tau:.2f}")
    # a draft that proposes nothing would be identical too
    assert tau > 1.5
    assert identical == total


def test_contexts_beyond_what_attention_does_in_one_piece(pair: Pair, prompts: list[str]) -> None:
    assert pair.drafter is not None
    vocab = pair.model.vocab
    chats = [f"<|im_start|>user\n{p}<|im_end|>\n<|im_start|>assistant\n" for p in prompts]
    for start in range(0, 40, 10):
        # single rows over 512 positions and more used to be computed unlike blocks of rows
        ids = vocab.tokenize("".join(chats[start:] + chats[:start]))[: 450 + 20 * start]
        fast, n_rounds = decode(pair, ids, pair.drafter.proposals)
        slow, _ = decode(pair, ids, 0)
        assert fast == slow
        assert n_rounds < TOKENS - 1
