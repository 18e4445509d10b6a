"""Sessions with drafts whose head is gated, recurrent or DFlash2's selector: nothing but speed may
depend on it.
"""

import json
from itertools import zip_longest
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec.completion import Completion
from llamaspec.errors import OptionError
from llamaspec.options import Head, LoadOptions
from llamaspec.runtime.describe import describe
from llamaspec.session import Session, load
from tests.converted import make
from tests.e2e import test_oracles as oracles
from tests.rewrite import As, rewrite

pytestmark = pytest.mark.native

NAMES = ["gated", "rnn", "dflash2"]
HEADS: list[Head] = ["graph", "python"]
# f32 caches and no flash attention: drafts are compared with drafts
EXACT: dict[str, Any] = {"cache_type": "f32", "flash_attention": "off", "threads": 1}
TOKENS = 64
WIDTH, TOP_K, RANK, KERNEL, GROUP = 256, 4, 8, 2, 16


def add_dflash2(source: Path, path: Path, scale: float) -> Path:
    """A trained DFlash draft with convolutions and a selector: with scale 0 they change nothing."""
    rng = np.random.default_rng(3)

    def made(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    same = np.zeros((2, KERNEL, WIDTH), np.float32)
    same[:, 0] = 1
    with_head = {
        "selector_predecessor.weight": 10 * made(4096, RANK),
        "selector_successor.weight": 10 * made(4096, RANK),
        "selector_hidden.weight": made(RANK, WIDTH),
    }
    for layer in range(describe(source).n_layer):
        for part in ("attn", "ffn"):
            at = f"blk.{layer}.{part}_conv"
            with_head[f"{at}_base"] = same + made(2, KERNEL, WIDTH)
            with_head[f"{at}_proj.weight"] = made(2 * KERNEL * WIDTH // GROUP, WIDTH)
    sizes = {
        "dflash.selector_top_k": TOP_K,
        "dflash.selector_rank": RANK,
        "dflash.conv_kernel_size": KERNEL,
        "dflash.conv_group_size": GROUP,
    }
    whole = {key: As(size, gguf.GGUFValueType.UINT32) for key, size in sizes.items()}
    return rewrite(source, path, whole, with_head)


@pytest.fixture(scope="module")
def drafts(shared: Path, ggufs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, models = tmp_path_factory.mktemp("heads"), shared / "models"
    found = {name: folder / f"{name}.gguf" for name in ("gated", "rnn")}
    for name, path in found.items():
        make(models / f"tiny-dspark-{name}", models / "tiny-target", path)
    plain = ggufs / "tiny-dflash-f32.gguf"
    found["dflash2"] = add_dflash2(plain, folder / "dflash2.gguf", 0.02)
    found["neutral"] = add_dflash2(plain, folder / "neutral.gguf", 0.0)
    found["nan"] = add_dflash2(plain, folder / "nan.gguf", np.nan)
    return found


@pytest.fixture(scope="module")
def prompts(shared: Path) -> list[str]:
    lines = (shared / "models" / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines[:: len(lines) // 6]][:6]


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_plain_and_speculative_texts_are_the_same(
    name: str, head: Head, drafts: dict[str, Path], ggufs: Path, prompts: list[str]
) -> None:
    options = LoadOptions(head=head, flash_attention="on", threads=1)
    tokens = rounds = 0
    with load(ggufs / "tiny-target-f32.gguf", drafts[name], options=options) as session:
        for prompt in prompts:
            fast, slow = (
                session.generate(
                    chat(prompt), max_tokens=TOKENS, draft_max=most, cache_prompt=False
                )
                for most in (session.draft_limit, 0)
            )
            assert fast.token_ids == slow.token_ids
            tokens += len(fast.token_ids) - 1
            rounds += len(fast.rounds)
    # a draft that proposes nothing right would pass too
    assert tokens / rounds > 1.3


def drafted(done: Completion) -> dict[int, tuple[int, ...]]:
    return {record.start: record.draft for record in done.rounds}


@pytest.mark.parametrize("name", NAMES)
def test_both_heads_propose_the_same(
    name: str, drafts: dict[str, Path], ggufs: Path, prompts: list[str]
) -> None:
    found = []
    for head in HEADS:
        options = LoadOptions(head=head, **EXACT)
        with load(ggufs / "tiny-target-f32.gguf", drafts[name], options=options) as session:
            most = session.draft_limit
            found.append(
                [session.generate(chat(p), max_tokens=TOKENS, draft_max=most) for p in prompts]
            )
    total = same = 0
    for graph, python in zip(*found, strict=True):
        assert graph.token_ids == python.token_ids
        of_python = {record.start: record for record in python.rounds}
        for record in graph.rounds:
            other = of_python.get(record.start)
            total += other is not None
            if other is None or other.draft != record.draft:
                continue
            same += 1
            if record.draft:
                assert record.confidence == pytest.approx(other.confidence, abs=0.01)
    assert total > 20
    assert same >= 0.99 * total


def run_together(session: Session, prompts: list[str], widths: list[int]) -> list[Completion]:
    """All prompts at once, each with proposals of its own width."""
    done: dict[int, Completion] = {}

    def streamed(index: int) -> Any:  # noqa: ANN401
        stream = session.stream(chat(prompts[index]), max_tokens=TOKENS, draft_max=widths[index])
        for _ in stream:
            yield
        assert session.last is not None
        done[index] = session.last

    for _ in zip_longest(*(streamed(i) for i in range(len(prompts)))):
        pass
    return [done[i] for i in range(len(prompts))]


@pytest.mark.parametrize("name", NAMES)
def test_sequences_of_different_widths_draft_what_they_draft_alone(
    name: str, drafts: dict[str, Path], ggufs: Path, prompts: list[str]
) -> None:
    widths = [1, 2, 4, 7, 3, 5]
    options = LoadOptions(max_sequences=len(prompts), context=512, **EXACT)
    with load(ggufs / "tiny-target-f32.gguf", drafts[name], options=options) as session:
        alone = [
            session.generate(chat(prompt), max_tokens=TOKENS, draft_max=width)
            for prompt, width in zip(prompts, widths, strict=True)
        ]
        together = run_together(session, prompts, widths)
    for one, of_many in zip(alone, together, strict=True):
        assert one.token_ids == of_many.token_ids
        assert drafted(one) == drafted(of_many)
        assert any(record.draft for record in one.rounds)


@pytest.mark.parametrize("name", NAMES)
def test_heads_that_only_the_graph_computes_are_not_taken_for_vanilla_ones(
    name: str, drafts: dict[str, Path], ggufs: Path
) -> None:
    with pytest.raises(OptionError, match=r"head is 'native', and .*; take 'auto' or 'graph'"):
        load(ggufs / "tiny-target-f32.gguf", drafts[name], options=LoadOptions(head="native"))


@pytest.mark.parametrize("head", HEADS)
def test_a_selector_without_weight_leaves_a_dflash_draft_as_it_is(
    head: Head, drafts: dict[str, Path], ggufs: Path, shared: Path
) -> None:
    lines = oracles.oracle(shared, "oracle-tiny-dflash.public.jsonl")[::4]
    options = LoadOptions(head=head, **EXACT)
    with load(ggufs / "tiny-target-f32.gguf", drafts["neutral"], options=options) as session:
        rollouts = [(line, oracles.complete(session, line)) for line in lines]
    oracles.test_the_text_is_the_targets_own_greedy_text(rollouts)
    oracles.test_rounds_propose_what_the_reference_proposes(rollouts)
    oracles.test_accepted_counts_are_the_references(rollouts)


@pytest.mark.parametrize("head", HEADS)
def test_a_selector_of_nan_leaves_the_text_alone(
    head: Head, drafts: dict[str, Path], ggufs: Path, prompts: list[str]
) -> None:
    options = LoadOptions(head=head, threads=1)
    with load(ggufs / "tiny-target-f32.gguf", drafts["nan"], options=options) as session:
        done = session.generate(chat(prompts[0]), max_tokens=20, draft_max=session.draft_limit)
        plain = session.generate(chat(prompts[0]), max_tokens=20, draft_max=0)
    assert done.token_ids == plain.token_ids
