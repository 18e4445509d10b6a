"""Completions that another thread or task ends: what there is agrees, and nothing else suffers."""

import asyncio
import threading
from typing import Any

import pytest

from llamaspec import Completion, Session, load
from llamaspec.bench.pairs import PROMPTS
from llamaspec.options import GenerateSettings

pytestmark = pytest.mark.native

MESSAGES = [{"role": "user", "content": PROMPTS[2][1]}]
OTHER = [{"role": "user", "content": PROMPTS[0][1]}]
SETTINGS: list[GenerateSettings] = [
    {"draft_max": 3},
    {"draft_max": 0},
    {"temperature": 1.0, "seed": 4, "draft_max": 3},
    {"temperature": 1.0, "seed": 4, "accept": "block", "draft_max": 3},
    {},
]


def agrees(session: Session, done: Completion, whole: Completion) -> None:
    """Ids, text, log-probabilities, statistics and both caches end at the same place."""
    n = len(done.token_ids)
    assert done.finish_reason == "cancelled"
    assert 0 < n < len(whole.token_ids)
    assert done.token_ids == whole.token_ids[:n]
    assert whole.text.startswith(done.text)
    assert done.logprobs is not None
    assert [p.token_id for p in done.logprobs] == list(done.token_ids)
    assert done.stats.completion_tokens == n
    assert sum(r.committed for r in done.rounds) == n - 1
    pair = session._pair
    held = done.stats.prompt_tokens + n - 1
    assert max(pair.context.length(slot) for slot in range(pair.options.max_sequences)) == held


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("after", [1, 3])
def test_a_stream_that_is_cancelled_between_rounds(settings: GenerateSettings, after: int) -> None:
    with load(threads=1, context=512) as session:
        asked: dict[str, Any] = {"max_tokens": 80, "logprobs": 0, "cache_prompt": False, **settings}
        whole = session.generate(MESSAGES, **asked)
        event, pieces = threading.Event(), []
        for piece in session.stream(MESSAGES, cancel=event, **asked):
            pieces.append(piece)
            if len(pieces) == after:
                event.set()
        assert session.last is not None
        agrees(session, session.last, whole)
        assert "".join(p.text for p in pieces) == session.last.text
        assert sum((p.token_ids for p in pieces), ()) == session.last.token_ids
        # the next turn goes on from what there is
        again = session.generate(MESSAGES, **{**asked, "cache_prompt": True})
        assert again.token_ids == whole.token_ids
        assert again.stats.cached_tokens > 0


def test_a_generation_that_another_thread_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    with load(threads=1, context=512) as session:
        whole = session.generate(MESSAGES, max_tokens=80, draft_max=1, logprobs=0)
        event, started, found = threading.Event(), threading.Event(), []
        step = session._pair.engine.step

        def slowly() -> None:
            step()
            started.set()
            event.wait(10)

        monkeypatch.setattr(session._pair.engine, "step", slowly)

        def work() -> None:
            found.append(
                session.generate(MESSAGES, cancel=event, max_tokens=80, draft_max=1, logprobs=0)
            )

        thread = threading.Thread(target=work)
        thread.start()
        assert started.wait(10)
        event.set()
        thread.join(10)
        agrees(session, found[0], whole)


def test_a_task_that_is_cancelled_and_its_neighbour() -> None:
    with load(threads=1, context=512, max_sequences=2) as session:
        expected = session.generate(OTHER, max_tokens=40, draft_max=2)

        async def cancelled() -> None:
            event = threading.Event()
            work = asyncio.to_thread(
                session.generate, MESSAGES, cancel=event, max_tokens=400, draft_max=1
            )
            task = asyncio.create_task(work)
            await asyncio.sleep(0)
            event.set()
            done = await task
            assert done.finish_reason == "cancelled"

        async def both() -> Completion:
            neighbour = asyncio.to_thread(session.generate, OTHER, max_tokens=40, draft_max=2)
            _, done = await asyncio.gather(cancelled(), neighbour)
            return done

        assert asyncio.run(both()).token_ids == expected.token_ids
        assert session._pair.engine._active == []


def test_a_text_that_has_ended_cannot_be_cancelled() -> None:
    with load(threads=1, context=512) as session:
        event = threading.Event()
        stream = session.stream(OTHER, cancel=event, max_tokens=1)
        next(stream)
        event.set()
        list(stream)
        assert session.last is not None
        assert session.last.finish_reason == "length"


def test_what_was_held_back_comes_out() -> None:
    with load(threads=1, context=512) as session:
        whole = session.generate(MESSAGES, max_tokens=40, draft_max=0)
        # a stop text that never comes holds back what may be its beginning
        stop = whole.text[:12] + "\0"
        event, pieces = threading.Event(), []
        for piece in session.stream(
            MESSAGES, cancel=event, max_tokens=40, draft_max=0, stop=[stop]
        ):
            pieces.append(piece)
            if sum(len(p.token_ids) for p in pieces) == 2:
                event.set()
        assert session.last is not None
        assert session.last.finish_reason == "cancelled"
        assert len(session.last.token_ids) == 2
        assert whole.text.startswith(session.last.text)
        assert session.last.text
