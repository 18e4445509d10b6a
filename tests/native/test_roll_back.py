"""Targets that keep a recurrent state, and those with a sliding window: whatever is accepted of
blocks of any width, the text is plain decoding's.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import llamaspec
from llamaspec.engine.doubt import Doubt
from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import DecodeError, IncompatibleDraftError
from llamaspec.ffi import lib
from llamaspec.loading import LOOKUP, DraftSource, Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import ALL_OUTPUT, NO_OUTPUT, Batch
from llamaspec.runtime.context import TargetContext
from llamaspec.text.detokenize import Pieces
from tests.decoding import decode
from tests.miniature_targets import LAYERS, ROLLING, STUCK, VOCABULARY, write_bigram_draft
from tests.native.layer_probe import Probe, compile_probe
from tests.scripted import WIDEST, ScriptedDrafter

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(flash_attention="on", threads=1, context=256)
# sums in the order of cells differ least so: texts of several sequences are those of single ones
STEADY = replace(OPTIONS, flash_attention="off", cache_type="f32")
PROMPT, TOKENS = 12, 180
SLIDING = ("cohere2", "exaone4", "gemma3", "gemma4", "gpt-oss", "granite_swa", "olmo2", "phi3")
SOME = ("deepseek4", "kimi-k3", "lfm2", "nemotron_h", "qwen35")
PROMPTS = np.random.default_rng(3).integers(3, VOCABULARY, (8, PROMPT), np.int32)
Draw = Callable[[int, int], int]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("recurrent"))


@contextmanager
def loaded(path: Path, draft: DraftSource, options: LoadOptions = OPTIONS) -> Iterator[Pair]:
    pair = load_pair(path, draft, options)
    try:
        yield pair
    finally:
        pair.close()


def script(pair: Pair, drafter: ScriptedDrafter) -> None:
    """Have a pair that was loaded with lookup draft by a script instead."""
    pair.engine._drafter = drafter


def mixed(texts: list[list[int]], seed: int) -> ScriptedDrafter:
    """Blocks of every width, right by every length, in no order."""
    choose = random.Random(seed)
    widths = [choose.randint(0, WIDEST) for _ in range(61)]
    return ScriptedDrafter(texts, widths, [choose.randint(0, WIDEST) for _ in range(67)])


def request(index: int, tokens: int, draft_max: int, draw: Draw | None = None) -> Request:
    ending = Ending(pieces=Pieces(lambda _: b""), ends=frozenset(), limit=tokens)
    return Request(PROMPTS[index], tokens, draft_max, ending, draw)


def run(pair: Pair, wanted: Request) -> Sequence:
    sequence = pair.engine.admit(wanted)
    try:
        while sequence.finish_reason is None:
            pair.engine.step()
    finally:
        pair.engine.release(wanted)
    return sequence


def drawing(pair: Pair, seed: int) -> Draw:
    """Draws at temperature 1: the largest of logits with Gumbel noise of the token's index."""

    def draw(row: int, index: int) -> int:
        noise = np.random.default_rng((seed, index)).gumbel(size=VOCABULARY)
        # of a prompt only the last row is put out
        row = row if index else 0
        return int((pair.context.logits_view(row + 1)[row] + noise).argmax())

    return draw


@pytest.mark.parametrize("arch", sorted(ROLLING | {*SLIDING}))
def test_every_accepted_length_in_any_order(arch: str, probe: Probe) -> None:
    path = probe.model(arch)
    with loaded(path, None) as plain:
        greedy = [decode(plain, PROMPTS[i], TOKENS, 0).text for i in range(2)]
        drawn = [run(plain, request(i, TOKENS, 0, drawing(plain, i))).text for i in range(2)]
        assert plain.context.snapshots == 0
    # a text that goes round in circles would be right with a wrong state too
    assert all(len({*text[-60:]}) > 5 for text in drawn)
    with loaded(path, LOOKUP) as pair:
        assert pair.context.snapshots == (7 if arch in ROLLING else 0)
        found = set()
        for i in range(2):
            script(pair, mixed(greedy, seed=i))
            done = run(pair, request(i, TOKENS, WIDEST))
            assert done.text == greedy[i]
            script(pair, mixed(drawn, seed=i))
            sampled = run(pair, request(i, TOKENS, WIDEST, drawing(pair, i)))
            assert sampled.text == drawn[i]
            assert not done.lost
            found |= {(r.accepted, len(r.draft)) for r in done.rounds + sampled.rounds}
    assert found == {(a, w) for w in range(WIDEST + 1) for a in range(w + 1)}


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("arch", [*SOME, "gemma3"])
def test_several_sequences_that_come_and_go(arch: str, slots: int, probe: Probe) -> None:
    path, lengths = probe.model(arch), [60, 25, 90, 40, 70, 33, 80, 50]
    with loaded(path, None, STEADY) as plain:
        texts = [decode(plain, PROMPTS[i], n, 0).text for i, n in enumerate(lengths)]
    choose = random.Random(slots)
    waiting = list(enumerate(lengths))
    choose.shuffle(waiting)
    active: list[tuple[int, Sequence]] = []
    with loaded(path, LOOKUP, replace(STEADY, sequences=slots)) as pair:
        script(pair, mixed(texts, slots))
        while waiting or active:
            while waiting and len(active) < slots and choose.random() < 0.7:
                i, n = waiting.pop()
                # one in four is decoded plainly beside the others
                active.append((i, pair.engine.admit(request(i, n, WIDEST if i % 4 else 0))))
            pair.engine.step()
            for i, sequence in [each for each in active if each[1].finish_reason]:
                assert sequence.text == texts[i]
                pair.engine.release(sequence.request)
                active.remove((i, sequence))
