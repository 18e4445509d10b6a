"""Targets of many architectures with a draft: what is decoded is what the target alone decodes."""

from pathlib import Path

import numpy as np
import pytest

from llamaspec.loading import load_pair
from llamaspec.options import LoadOptions
from tests.decoding import decode
from tests.miniature_targets import LAYERS, STREAMS, TARGETS, VOCABULARY, write_bigram_draft
from tests.native.layer_probe import Probe, compile_probe

pytestmark = pytest.mark.native

OPTIONS = LoadOptions(flash_attention="on", threads=1, context=256)
TOKENS = 40
PROMPTS = np.random.default_rng(3).integers(3, VOCABULARY, (3, 8), np.int32)
TAPS = (0, 2, LAYERS)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return compile_probe(tmp_path_factory.mktemp("targets"))


@pytest.mark.parametrize("arch", sorted(TARGETS - STREAMS - {"kimi-k3"}))
def test_a_draft_changes_no_token(arch: str, probe: Probe, tmp_path: Path) -> None:
    target = probe.model(arch)
    alone = load_pair(target, None, OPTIONS)
    try:
        texts = [decode(alone, prompt, TOKENS, 0).tokens for prompt in PROMPTS]
    finally:
        alone.close()
    # it proposes well where it has seen the text, and badly elsewhere
    draft = write_bigram_draft(tmp_path / "draft.gguf", TAPS, texts[0][: TOKENS // 2])
    pair = load_pair(target, draft, OPTIONS)
    try:
        assert pair.drafter is not None
        accepted = 0
        for prompt, text in zip(PROMPTS, texts, strict=True):
            done = decode(pair, prompt, TOKENS, pair.drafter.proposals)
            assert done.tokens == text
            assert decode(pair, prompt, TOKENS, 0).tokens == text
            accepted += sum(r.accepted for r in done.rounds)
        assert accepted > 0
    finally:
        pair.close()
