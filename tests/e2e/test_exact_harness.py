"""Exact mode over weight types, attention and verify widths: no token may differ from plain
decoding. A slice of `python -m llamaspec.bench.exactness`.
"""

from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.bench.exactness import MODES, line, sweep
from llamaspec.bench.pairs import PROMPTS
from llamaspec.runtime.quantize import quantize

pytestmark = pytest.mark.native

TYPES = ("f32", "bf16", "q8_0", "q4_k_m")
TEXTS = [text for _, text in PROMPTS[2:3]]
TOKENS = 40


@pytest.mark.parametrize("name", TYPES)
def test_exact_mode_gives_plain_decodings_tokens(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "cache"))
    target = demo.target_path()
    if name != "f32":
        target = tmp_path / f"{name}.gguf"
        quantize(demo.target_path(), target, name, threads=1)
    tallies = list(sweep([target], TEXTS, tokens=TOKENS, threads=(1,), modes=MODES))
    with capsys.disabled():
        print()
        print("\n".join(map(line, tallies)))
    exact = [t for t in tallies if t.setting.mode == "exact"]
    near = [t for t in tallies if t.setting.mode == "near ties"]
    assert {t.setting.flash_attention for t in exact} == {"on", "off"}
    assert all(t.tokens == TOKENS * len(TEXTS) * 7 for t in tallies)
    assert [t.gaps for t in exact + near] == [[]] * len(exact + near)
    # a drafter that proposes nothing would be exact too
    assert all(t.rounds < 0.6 * t.tokens for t in exact)
    # by default, every type rounds differently with flash attention off; what differs is a near tie
    assert "off" in {t.setting.flash_attention for t in near}
    assert all(gap <= t.bound for t in tallies for gap in t.gaps)
