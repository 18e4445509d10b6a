"""Several sequences in one engine: each text as if it were alone."""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from llamaspec.bench.pairs import PROMPTS
from llamaspec.completion import Completion
from llamaspec.errors import DecodeError
from llamaspec.options import GenerateSettings
from llamaspec.runtime.context import Context
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.session import Session, load
from tests.decoding import one_by_one

pytestmark = pytest.mark.native

TOKENS = 40
BLOCK = 7


def messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def streamed(session: Session, prompt: str, done: dict[str, Completion]) -> Iterator[None]:
    """Stream a prompt piece by piece and keep its Completion."""
    for _ in session.stream(messages(prompt), max_tokens=TOKENS, draft_max=BLOCK):
        yield
    assert session.last is not None
    done[prompt] = session.last


def test_interleaved_streams_are_what_single_ones_are() -> None:
    alone: dict[str, Completion] = {}
    together: dict[str, Completion] = {}
    with load(threads=1, context=256) as session:
        for _, prompt in PROMPTS:
            list(streamed(session, prompt, alone))
    with load(threads=1, context=256, max_sequences=len(PROMPTS)) as session:
        list(itertools.zip_longest(*(streamed(session, p, together) for _, p in PROMPTS)))
    for prompt, single in alone.items():
        assert single.token_ids == together[prompt].token_ids
        assert single.text == together[prompt].text
    # drafting for many at once must not cost acceptance
    tau = [sum(c.stats.tau for c in runs.values()) for runs in (alone, together)]
    assert tau[1] >= 0.95 * tau[0]


def test_a_failure_that_hits_two_sequences_is_made_good_in_the_one_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter([False, False, True])
    with load(threads=1, context=256, max_sequences=2) as session:
        (_, first), (_, second) = PROMPTS[2], PROMPTS[3]
        leaving = session.stream(messages(first), max_tokens=TOKENS, draft_max=BLOCK)
        staying = session.stream(messages(second), max_tokens=TOKENS, draft_max=BLOCK)
        next(leaving)
        next(staying)

        def compute(self: Context, *arguments: Any) -> None:  # noqa: ANN401
            if isinstance(self, DraftContext) and next(failures, False):
                raise DecodeError("scripted failure", 1)
            original(self, *arguments)

        original = Context._compute
        monkeypatch.setattr(Context, "_compute", compute)
        # the third decode of the draft injects what both sequences committed
        next(leaving)
        next(leaving)
        leaving.close()
        list(staying)
        assert session.last is not None
        drafted = [len(r.draft) for r in session.last.rounds]
        assert drafted.count(0) <= 2, drafted
        plain = session.generate(messages(second), max_tokens=TOKENS, draft_max=0)
        assert plain.token_ids == tuple(
            session.generate(messages(second), max_tokens=TOKENS).token_ids
        )


def test_threads_get_their_own_completions() -> None:
    with load(threads=1, context=128, max_sequences=2) as session:
        prompts = [PROMPTS[0][1], PROMPTS[2][1]]
        expected = [session.generate(p, max_tokens=6).token_ids for p in prompts]
        wrong: list[tuple[int, ...]] = []

        def work(index: int) -> None:
            for _ in range(150):
                found = session.generate(prompts[index], max_tokens=6).token_ids
                if found != expected[index]:
                    wrong.append(found)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert wrong == []


def test_a_step_costs_every_sequence_that_waited_for_it() -> None:
    with load(threads=1, context=256, max_sequences=2) as session:
        first = session.stream(messages(PROMPTS[2][1]), max_tokens=TOKENS)
        second = session.stream(messages(PROMPTS[3][1]), max_tokens=TOKENS)
        next(first)
        next(second)
        # all steps are taken by the second, and they move the first on as well
        list(second)
        moved = session.last
        list(first)
        assert session.last is not None
        assert moved is not None
        assert session.last.stats.verify_s >= 0.9 * moved.stats.verify_s


def test_a_finished_sequence_is_not_charged_for_the_others() -> None:
    with load(threads=1, context=256, max_sequences=2) as session:
        short = session.stream(messages(PROMPTS[2][1]), max_tokens=2)
        long = session.stream(messages(PROMPTS[3][1]), max_tokens=TOKENS)
        next(short)
        (run,) = session._running._runs
        next(long)
        next(long)
        # that step finished the short one, which nobody has read on
        assert run.ended
        spent = replace(run.spent)
        list(long)
        assert run.spent == spent
        list(short)


def test_an_injection_that_failed_after_it_was_done_is_made_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = iter([False, False, True])
    original = Context._compute

    def compute(self: Context, *arguments: Any) -> None:  # noqa: ANN401
        original(self, *arguments)
        if isinstance(self, DraftContext) and next(failures, False):
            raise DecodeError("scripted failure", 1)

    with load(threads=1, context=256) as session:
        settings: GenerateSettings = {"max_tokens": TOKENS, "draft_max": BLOCK}
        healthy = session.generate(messages(PROMPTS[2][1]), **settings)
        monkeypatch.setattr(Context, "_compute", compute)
        # a stream's rounds go one by one
        done = one_by_one(session, messages(PROMPTS[2][1]), **settings)
    assert next(failures, None) is None
    assert done.token_ids == healthy.token_ids
    drafted = [len(r.draft) for r in done.rounds[:-1]]
    assert drafted.count(0) <= 1, drafted
