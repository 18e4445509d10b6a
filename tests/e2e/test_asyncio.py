"""Many tasks at once over one session: pieces, errors, leaving, closing."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.engine.loop import Engine
from llamaspec.errors import (
    ClosedError,
    ContextFullError,
    DecodeError,
    LlamaSpecError,
    OptionError,
    QueueFullError,
)
from llamaspec.session import Session, load

pytestmark = pytest.mark.native

TOKENS = 24
TEXTS = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]
SECONDS = 120.0


def loaded(**settings: Any) -> Session:  # noqa: ANN401
    return load(threads=1, context=256, **{"max_sequences": 4, **settings})


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds one by one, that take so long that no text is over before it is left."""
    original = Engine._round
    monkeypatch.setattr(Engine, "_run", lambda *_: False)

    def slow(self: Engine, *arguments: Any) -> bool:  # noqa: ANN401
        time.sleep(0.03)
        return original(self, *arguments)

    monkeypatch.setattr(Engine, "_round", slow)


async def until(done: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, "it does not come"
        await asyncio.sleep(0.01)


async def read(session: Session, number: int, **options: Any) -> Completion:  # noqa: ANN401
    stream = session.astream(TEXTS[number % len(TEXTS)], max_tokens=TOKENS, **options)
    pieces = [piece async for piece in stream]
    assert "".join(piece.text for piece in pieces) == stream.completion.text
    assert sum((p.token_ids for p in pieces), ()) == stream.completion.token_ids
    return stream.completion


def test_pieces_that_are_held_back_are_the_same_text_in_fewer() -> None:
    async def pieces(session: Session) -> tuple[list[int], Completion]:
        stream = session.astream(TEXTS[0], max_tokens=TOKENS, draft_max=0)
        counts = [len(piece.token_ids) async for piece in stream]
        return counts, stream.completion

    with loaded() as session:
        each, expected = asyncio.run(pieces(session))
        assert len(each) >= 2
        session.stream_every_s = 1000.0
        held, done = asyncio.run(pieces(session))
        # the first comes at once, and the rest with the end
        assert held == [1, len(done.token_ids) - 1]
        assert done.token_ids == expected.token_ids


def test_texts_of_many_tasks_are_those_of_single_calls() -> None:
    with loaded() as session:
        alone = [session.generate(text, max_tokens=TOKENS) for text in TEXTS]

        async def everything() -> list[Completion]:
            return await asyncio.gather(*(read(session, i) for i in range(3 * len(TEXTS))))

        found = asyncio.run(everything())
        for number, done in enumerate(found):
            assert done.text == alone[number % len(TEXTS)].text
        counters = session.counters
        assert (counters.active, counters.waiting, counters.failed) == (0, 0, 0)
        assert counters.requests == counters.finished == 4 * len(TEXTS)
        assert any(done.stats.queue_s > 0 for done in found)
        assert any(done.stats.texts > 1 for done in found)
        assert session.last in found


def test_the_event_loop_is_free_while_texts_come() -> None:
    async def main(session: Session) -> int:
        turns = 0
        task = asyncio.create_task(session.agenerate(TEXTS[0], max_tokens=100))
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    with loaded() as session:
        assert asyncio.run(main(session)) > 10


def test_errors_come_with_the_first_piece() -> None:
    async def first(session: Session, prompt: Any, **options: Any) -> None:  # noqa: ANN401
        await anext(session.astream(prompt, **options))

    with loaded() as session:
        with pytest.raises(ContextFullError):
            asyncio.run(first(session, [1] * 300))
        with pytest.raises(OptionError):
            session.astream("x", max_tokens=0)
        with pytest.raises(OptionError, match="grammar"):
            asyncio.run(first(session, "x", grammar='root ::= "a'))
    with pytest.raises(ClosedError):
        asyncio.run(first(session, "x"))


def test_an_unfinished_stream_has_no_completion_and_a_read_one_ends() -> None:
    async def main(session: Session) -> None:
        stream = session.astream(TEXTS[0], max_tokens=TOKENS)
        with pytest.raises(LlamaSpecError, match="under way"):
            _ = stream.completion
        assert [piece async for piece in stream]
        assert [piece async for piece in stream] == []

    with loaded() as session:
        asyncio.run(main(session))


def test_a_full_queue_refuses_and_the_others_go_on() -> None:
    async def main(session: Session) -> list[Completion | BaseException]:
        tasks = [session.agenerate(TEXTS[0], max_tokens=60) for _ in range(12)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    with loaded(max_sequences=1, queue=1) as session:
        found = asyncio.run(main(session))
        refused = [one for one in found if isinstance(one, QueueFullError)]
        served = [one for one in found if isinstance(one, Completion)]
        assert refused
        assert len(refused) + len(served) == 12
        assert len({done.text for done in served}) == 1


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("how", ["close", "drop", "cancel"])
def test_leaving_early_frees_the_place_and_disturbs_nobody(how: str) -> None:
    async def main(session: Session) -> Completion:
        staying = asyncio.create_task(session.agenerate(TEXTS[1], max_tokens=150))
        stream = session.astream(TEXTS[0], max_tokens=200)
        await anext(stream)
        if how == "close":
            await stream.aclose()
        elif how == "drop":
            del stream
            gc.collect()
        else:
            task = asyncio.create_task(session.agenerate(TEXTS[2], max_tokens=200))
            await stream.aclose()
            await until(lambda: session.counters.requests == 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gone = 1 if how != "cancel" else 2
        await until(lambda: session.counters.cancelled == gone)
        return await staying

    with loaded() as session:
        alone = session.generate(TEXTS[1], max_tokens=150)
        session_counters = session.counters
        assert session_counters.finished == 1
    with loaded() as session:
        done = asyncio.run(main(session))
        assert done.text == alone.text
        assert session.counters.active == 0


@pytest.mark.usefixtures("slowly")
def test_a_cancel_event_ends_the_text_with_what_there_is() -> None:
    async def main(session: Session) -> Completion:
        event = threading.Event()
        stream = session.astream(TEXTS[0], max_tokens=200, cancel=event)
        await anext(stream)
        event.set()
        async for _ in stream:
            pass
        return stream.completion

    with loaded() as session:
        done = asyncio.run(main(session))
        assert done.finish_reason == "cancelled"
        assert 0 < len(done.token_ids) < 200


@pytest.mark.usefixtures("slowly")
def test_a_session_that_is_closed_ends_its_streams() -> None:
    async def main(session: Session) -> None:
        stream = session.astream(TEXTS[0], max_tokens=200)
        await anext(stream)
        await asyncio.to_thread(session.close)
        with pytest.raises(ClosedError):
            async for _ in stream:
                pass

    asyncio.run(main(loaded()))


@pytest.mark.parametrize("failures", [1, 10**6])
def test_one_failing_step_is_tried_again_and_two_end_the_texts(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count = Engine._round, 0

    def failing(self: Engine, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal count
        count += 1
        if count <= failures:
            raise DecodeError("scripted failure", 1)
        original(self, *arguments)

    async def main(session: Session) -> list[Completion | BaseException]:
        tasks = [session.agenerate(text, max_tokens=TOKENS) for text in TEXTS[:3]]
        return await asyncio.gather(*tasks, return_exceptions=True)

    with loaded() as session:
        alone = [session.generate(text, max_tokens=TOKENS) for text in TEXTS[:3]]
        monkeypatch.setattr(Engine, "_round", failing)
        found = asyncio.run(main(session))
        if failures == 1:
            assert [one.text for one in found if isinstance(one, Completion)] == [
                one.text for one in alone
            ]
        else:
            assert all(isinstance(one, DecodeError) for one in found)
            monkeypatch.setattr(Engine, "_round", original)
            assert session.generate(TEXTS[0], max_tokens=TOKENS).text == alone[0].text
            assert session.counters.active == 0


def test_threads_and_tasks_share_a_session() -> None:
    with loaded() as session:
        alone = [session.generate(text, max_tokens=TOKENS).text for text in TEXTS]
        found: dict[int, str] = {}

        def threaded(number: int) -> None:
            found[number] = session.generate(TEXTS[number], max_tokens=TOKENS).text

        threads = [threading.Thread(target=threaded, args=(i,)) for i in range(len(TEXTS))]
        for thread in threads:
            thread.start()

        async def main() -> list[Completion]:
            return await asyncio.gather(*(read(session, i) for i in range(len(TEXTS))))

        done = asyncio.run(main())
        for thread in threads:
            thread.join()
        assert [one.text for one in done] == alone
        assert [found[i] for i in range(len(TEXTS))] == alone


# --- batches


def test_a_batch_gives_completions_in_order_whatever_the_queue_holds() -> None:
    with loaded(max_sequences=3, queue=1) as session:
        alone = [session.generate(text, max_tokens=TOKENS) for text in TEXTS]
        found = session.generate_batch(TEXTS * 3, max_tokens=TOKENS)
        assert [one.text for one in found] == [one.text for one in alone] * 3
        assert session.generate_batch([]) == []


def test_a_batch_with_a_bad_prompt_does_not_begin() -> None:
    with loaded() as session:
        with pytest.raises(ContextFullError):
            session.generate_batch([*TEXTS, [1] * 300], max_tokens=TOKENS)
        assert session.counters.requests == 0


def test_a_batch_that_is_interrupted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    original, count = Engine._round, 0

    def interrupted(self: Engine, *arguments: Any) -> None:  # noqa: ANN401
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        original(self, *arguments)

    with loaded() as session:
        monkeypatch.setattr(Engine, "_round", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.generate_batch(TEXTS, max_tokens=TOKENS)
        counters = session.counters
        assert (counters.active, counters.waiting) == (0, 0)
        done = session.generate_batch(TEXTS[:2], max_tokens=TOKENS)
        assert all(one.text for one in done)
