"""Targets of many architectures with a draft: what is decoded is what the target alone decodes."""

from pathlib import Path

import pytest

from llamaspec.engine.ending import Ending
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.loading import Pair, load_pair
from llamaspec.options import LoadOptions
from llamaspec.runtime.arrays import IntArray
from llamaspec.text.detokenize import Pieces
from tests.miniature_targets import LAYERS, STREAMS, TARGETS, write_bigram_draft
from tests.native.layer_probe import Probe, compile_probe

import numpy as np

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(flash_attention="on", threads=1, context=256)
TOKENS = 96
PROMPT = [5, 9, 33, 2, 60, 17, 41, 8]
TAPS = (0, 2, LAYERS)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("targets"))


def decode(pair: Pair, prompt: IntArray, draft_max: int) -> Sequence:
    ending = Ending(pieces=Pieces(pair.model.vocab.piece), ends=frozenset(), limit=TOKENS)
    sequence = pair.engine.admit(Request(prompt, TOKENS, draft_max, ending))
    try:
        while sequence.finish_reason is None:
            pair.engine.step()
    finally:
        pair.engine.release(sequence.request)
    return sequence


@pytest.mark.parametrize("arch", sorted(TARGETS - STREAMS))
def test_a_draft_changes_no_token(arch: str, probe: Probe, tmp_path: Path) -> None:
    target, prompt = probe.model(arch), np.array(PROMPT, np.int32)
    alone = load_pair(target, None, OPTIONS)
    text = decode(alone, prompt, 0).tokens
    alone.close()
    pair = load_pair(target, write_bigram_draft(tmp_path / "d.gguf", TAPS, text[: TOKENS // 2]), OPTIONS)
    try:
        assert pair.drafter is not None
        done = decode(pair, prompt, pair.drafter.proposals)
        assert done.tokens == text
        assert decode(pair, prompt, 0).tokens == text
        accepted = sum(r.accepted for r in done.rounds)
        print(arch, len(set(text)), len(done.rounds), accepted)
        assert accepted > 0
    finally:
        pair.close()
