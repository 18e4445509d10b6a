"""500 requests, many of which go wrong in every way: all are accounted for, the rest is right."""

import asyncio
import random
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from llamaspec import demo
from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.errors import ContextFullError, DecodeError, LlamaSpecError, OptionError
from llamaspec.options import GenerateSettings, LoadOptions
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.session import Session, load
from llamaspec.text.prompt import Prompt

pytestmark = pytest.mark.native

REQUESTS = 500
AT_ONCE = 32
SLOTS = 4
FAILS_EVERY = 23
KINDS = (
    *("whole", "whole", "limit", "stop", "seed", "left", "cancelled", "task"),
    *("over-long", "wrong option", "wrong grammar"),
)
LOAD = LoadOptions(threads=1, context=256, exact=True, max_sequences=SLOTS, queue=REQUESTS)
TEXTS: list[Prompt] = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]


@dataclass(frozen=True)
class Asked:
    """A request, and what is to go wrong with it."""

    number: int
    kind: str

    @property
    def prompt(self) -> Prompt:
        return [1] * 400 if self.kind == "over-long" else TEXTS[self.number % len(TEXTS)]

    @property
    def settings(self) -> GenerateSettings:
        found: dict[str, GenerateSettings] = {
            "limit": {"max_tokens": 1 + self.number % 9},
            "stop": {"max_tokens": 24, "stop": ["e", "12"]},
            "seed": {"max_tokens": 16, "temperature": 0.7, "seed": self.number % 5},
            "wrong grammar": {"max_tokens": 9, "grammar": 'root ::= "a'},
            "left": {"max_tokens": 120},
            "cancelled": {"max_tokens": 120},
            "task": {"max_tokens": 120},
        }
        asked = found.get(self.kind, {"max_tokens": 24})
        # left to choose, a session of several texts may draft for none of them
        return {**asked, "draft_max": 7} if self.number % 2 else asked


Outcome = Completion | LlamaSpecError | None


async def ask(session: Session, asked: Asked) -> Outcome:
    """Have a request served, and let it go wrong; None where its reader went away."""
    event = threading.Event()
    if asked.kind == "wrong option":
        try:
            session.astream(asked.prompt, max_tokens=-1)
        except OptionError as error:
            return error
    stream = session.astream(asked.prompt, cancel=event, **asked.settings)
    seen = 0
    try:
        async for piece in stream:
            seen += len(piece.token_ids)
            if seen > asked.number % 20 and asked.kind in ("left", "task"):
                await stream.aclose()
                return None
            if seen > asked.number % 20 and asked.kind == "cancelled":
                event.set()
        return stream.completion
    except LlamaSpecError as error:
        return error


async def everything(session: Session, requests: list[Asked]) -> list[Outcome]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(asked: Asked) -> Outcome:
        async with places:
            if asked.kind != "task":
                return await ask(session, asked)
            # the task itself goes away, wherever it is
            task = asyncio.create_task(ask(session, asked))
            await asyncio.sleep(0.001 * (asked.number % 40))
            task.cancel()
            try:
                return await task
            except asyncio.CancelledError:
                return None

    return await asyncio.gather(*map(one, requests))


def resident() -> int:
    """Bytes of this process's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_whatever_goes_wrong_all_are_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(5)
    requests = [Asked(number, dice.choice(KINDS)) for number in range(REQUESTS)]
    original, passes = DraftContext._compute, 0

    def failing(self: DraftContext, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal passes
        passes += 1
        if passes % FAILS_EVERY == 0:
            raise DecodeError("scripted failure of the draft", 1)
        original(self, *arguments)

    with load(demo.target_path(), demo.draft_path(), options=LOAD) as session:
        alone = {
            asked: session.generate(asked.prompt, **asked.settings)
            for asked in {Asked(a.number % 180, a.kind) for a in requests}
            if asked.kind in ("whole", "limit", "stop", "seed")
        }
        monkeypatch.setattr(DraftContext, "_compute", failing)
        before = session.counters
        asyncio.run(everything(session, requests[:100]))
        start = resident()
        found = asyncio.run(everything(session, requests))
        grown = resident() - start
        after = session.counters

    assert passes > 2 * FAILS_EVERY
    kinds = Counter(asked.kind for asked in requests)
    for asked, outcome in zip(requests, found, strict=True):
        match asked.kind:
            case "over-long":
                assert isinstance(outcome, ContextFullError)
            case "wrong option" | "wrong grammar":
                assert isinstance(outcome, OptionError)
            case "cancelled":
                assert isinstance(outcome, Completion)
            case "left" | "task":
                assert outcome is None or isinstance(outcome, Completion)
            case _:
                assert isinstance(outcome, Completion)
                single = alone[Asked(asked.number % 180, asked.kind)]
                assert outcome.token_ids == single.token_ids
                assert outcome.text == single.text
    assert (after.active, after.waiting) == (0, 0)
    ended = after.finished + after.cancelled + after.failed
    assert ended == after.requests
    assert after.failed == before.failed
    refused = kinds["over-long"] + kinds["wrong option"] + kinds["wrong grammar"]
    assert after.requests - before.requests <= 600 - refused
    assert grown < 40 << 20
