"""Many texts at once are, token for token, what each is alone (exact mode)."""

from dataclasses import replace
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.bench.workloads import read
from llamaspec.completion import Completion
from llamaspec.options import GenerateSettings, LoadOptions
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt

pytestmark = pytest.mark.native

PER_CATEGORY = 3
TOKENS = 32
LOAD = LoadOptions(threads=1, context=512, exact=True, queue=0)
SETTINGS: dict[str, GenerateSettings] = {
    "chosen widths": {"max_tokens": TOKENS},
    "three proposals": {"max_tokens": TOKENS, "draft_max": 3},
    "plain": {"max_tokens": TOKENS, "draft_max": 0},
    "drawn": {"max_tokens": TOKENS, "temperature": 0.8, "seed": 7},
}


@pytest.fixture(scope="module")
def texts(shared: Path) -> list[Prompt]:
    prompts = read(str(shared / "models" / "prompts.jsonl"), PER_CATEGORY)
    return [[{"role": "user", "content": prompt.text}] for prompt in prompts]


def opened(count: int) -> Session:
    options = replace(LOAD, max_sequences=count)
    return load(demo.target_path(), demo.draft_path(), options=options)


@pytest.fixture(scope="module")
def alone(texts: list[Prompt]) -> dict[str, list[Completion]]:
    with opened(1) as session:
        return {
            name: [session.generate(text, **settings) for text in texts]
            for name, settings in SETTINGS.items()
        }


@pytest.mark.parametrize("count", [4, 8, 32])
def test_texts_at_once_are_those_alone(
    count: int, texts: list[Prompt], alone: dict[str, list[Completion]]
) -> None:
    with opened(count) as session:
        for name, settings in SETTINGS.items():
            done = session.generate_batch(texts, **settings)
            assert max(one.stats.texts for one in done) > min(count, 8) / 2
            for one, single in zip(done, alone[name], strict=True):
                assert one.token_ids == single.token_ids, name
                assert (one.text, one.finish_reason) == (single.text, single.finish_reason)


def test_drafts_are_as_good_as_alone(
    texts: list[Prompt], alone: dict[str, list[Completion]]
) -> None:
    def rate(done: list[Completion]) -> float:
        drafted = sum(one.stats.drafted for one in done)
        return sum(one.stats.accepted for one in done) / drafted

    with opened(8) as session:
        done = session.generate_batch(texts, **SETTINGS["three proposals"])
    assert abs(rate(done) - rate(alone["three proposals"])) <= 0.01
