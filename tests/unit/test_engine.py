"""The loop against a scripted target: every accepted length, every ending, several sequences,
failures.
"""

import logging
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.draft.drafter import Features, Span
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.errors import DecodeError, LlamaSpecError
from llamaspec.text.detokenize import Pieces
from tests.unit.fakes import FakeDrafter, FakeTarget, Rule

pytestmark = pytest.mark.native

END = 999
PROMPT = 11


def truth(position: int) -> int:
    return 100 + position % 50


def wrong_every(n: int) -> Rule:
    return lambda p: -1 if p % n == 0 else truth(p)


def engine(target: FakeTarget, drafter: FakeDrafter | None) -> Engine:
    return Engine(cast(Any, target), cast(Any, drafter))


def request(
    limit: int, *, draft_max: int = 4, stop: tuple[str, ...] = (), prompt: int = PROMPT
) -> Request:
    ending = Ending(pieces=Pieces(lambda t: f"{t} ".encode()), ends={END}, limit=limit, stop=stop)
    ids = np.arange(prompt, dtype=np.int32)
    return Request(ids, limit, draft_max, ending, together=True)


def finish(loop: Engine, *sequences: Sequence) -> None:
    while any(s.finish_reason is None for s in sequences):
        loop.step()


@pytest.mark.parametrize("wrong", [1, 2, 3, 4, 5, 1000])
@pytest.mark.parametrize("limit", [1, 2, 3, 9, 30])
def test_the_text_is_the_targets_whatever_the_draft_guesses(wrong: int, limit: int) -> None:
    target, drafter = FakeTarget(truth), FakeDrafter(wrong_every(wrong))
    loop = engine(target, drafter)
    sequence = loop.admit(request(limit))
    finish(loop, sequence)
    expected = [truth(PROMPT - 1 + i) for i in range(limit)]
    assert sequence.tokens == expected
    assert sequence.finish_reason == "length"
    assert sum(r.committed for r in sequence.rounds) + 1 == limit
    cache = list(range(PROMPT)) + expected[:-1]
    assert [target.cache[0][p] for p in range(len(target.cache[0]))] == cache


def test_between_rounds_cache_features_and_n_past_agree() -> None:
    target, drafter = FakeTarget(truth), FakeDrafter(wrong_every(3))
    loop = engine(target, drafter)
    sequence = loop.admit(request(40))
    while sequence.finish_reason is None:
        assert len(target.cache[0]) == drafter.known[0] == sequence.n_past
        loop.step()
    assert len(target.cache[0]) == sequence.n_past


@pytest.mark.parametrize("end_at", range(PROMPT - 1, PROMPT + 14))
def test_an_end_token_inside_a_block_ends_text_rounds_and_cache_there(end_at: int) -> None:
    def rule(p: int) -> int:
        return END if p == end_at else truth(p)

    target = FakeTarget(rule)
    loop = engine(target, FakeDrafter(rule))
    sequence = loop.admit(request(100))
    finish(loop, sequence)
    expected = [truth(p) for p in range(PROMPT - 1, end_at)]
    assert sequence.tokens == [*expected, END]
    assert sequence.finish_reason == "stop"
    assert sequence.request.ending.take() == "".join(f"{t} " for t in expected)
    assert len(target.cache[0]) == sequence.n_past == PROMPT + len(expected)
    last = sequence.rounds[-1] if sequence.rounds else None
    if last:
        # the end token was proposed: it counts as accepted, and nothing after it does
        assert last.accepted == min(last.committed, len(last.draft))


@pytest.mark.parametrize("stop", ["115", "5 116", "7 11", "113 114 115 116 117 118"])
def test_a_stop_text_ends_the_same_way_with_and_without_a_draft(stop: str) -> None:
    found = []
    for drafter in (None, FakeDrafter(truth), FakeDrafter(wrong_every(2))):
        loop = engine(FakeTarget(truth), drafter)
        sequence = loop.admit(request(60, stop=(stop,)))
        finish(loop, sequence)
        found.append((sequence.request.ending.take(), sequence.tokens, sequence.finish_reason))
    assert found[0] == found[1] == found[2]
    text = "".join(f"{truth(p)} " for p in range(PROMPT - 1, 80))
    assert found[0][0] == text[: text.index(stop)]
    assert found[0][2] == "stop"


def test_an_ending_inside_a_block_beats_the_limit_later_in_it() -> None:
    loop = engine(FakeTarget(truth), FakeDrafter(truth))
    sequence = loop.admit(request(4, stop=("112",)))
    finish(loop, sequence)
    assert (sequence.finish_reason, len(sequence.tokens)) == ("stop", 3)


def test_sequences_of_different_lengths_do_not_disturb_each_other() -> None:
    target = FakeTarget(truth, slots=3)
    loop = engine(target, FakeDrafter(wrong_every(4), slots=3))
    first = loop.admit(request(25, prompt=5))
    second = loop.admit(request(7, prompt=PROMPT, draft_max=0))
    loop.step()
    third = loop.admit(request(33, prompt=20, draft_max=2))
    finish(loop, first, second, third)
    for sequence, prompt in ((first, 5), (second, PROMPT), (third, 20)):
        expected = [truth(prompt - 1 + i) for i in range(len(sequence.tokens))]
        assert sequence.tokens == expected
    assert all(len(r.draft) == 0 for r in second.rounds)
    assert max(len(r.draft) for r in third.rounds) == 2


def test_a_full_house_refuses_and_a_released_slot_starts_cold() -> None:
    target = FakeTarget(truth)
    loop = engine(target, FakeDrafter(truth))
    first = loop.admit(request(10))
    with pytest.raises(LlamaSpecError, match="in use"):
        loop.admit(request(10))
    loop.release(first.request)
    second = loop.admit(request(10))
    assert (second.cached, len(target.cache[0])) == (0, PROMPT)
    finish(loop, second)
    assert len(second.tokens) == 10


def test_a_failing_draft_costs_rounds_but_no_token_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    drafter = FakeDrafter(truth, fail_propose={2, 3, 5}, fail_commit={4})
    loop = engine(FakeTarget(truth), drafter)
    with caplog.at_level(logging.WARNING, "llamaspec"):
        sequence = loop.admit(request(40))
        finish(loop, sequence)
    assert sequence.tokens == [truth(PROMPT - 1 + i) for i in range(40)]
    assert [len(r.draft) for r in sequence.rounds[:5]] == [4, 0, 0, 4, 0]
    assert len(caplog.records) == 1


def test_a_failing_target_is_an_error_and_leaves_the_slot_usable() -> None:
    target = FakeTarget(truth, fail_at=1)
    loop = engine(target, FakeDrafter(truth))
    with pytest.raises(DecodeError, match="scripted"):
        loop.admit(request(10))
    sequence = loop.admit(request(10))
    finish(loop, sequence)
    assert len(sequence.tokens) == 10


def test_plain_decoding_does_not_ask_for_features() -> None:
    target, drafter = FakeTarget(truth), FakeDrafter(truth)
    loop = engine(target, drafter)
    sequence = loop.admit(request(5, draft_max=0))
    finish(loop, sequence)
    assert not target.published
    assert drafter.committed == 0
    loop.release(sequence.request)
    loop.admit(request(5))
    assert target.published


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7])
def test_features_in_parts(size: int) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    features = Features(rows, [Span(0, 5, 4), Span(1, 9, 2)])
    parts = list(features.parts(size))
    assert max(len(part.rows) for part in parts) <= size
    assert np.concatenate([part.rows for part in parts]).tolist() == rows.tolist()
    found = [
        (span.seq, span.start + i)
        for part in parts
        for span, its in part.by_span()
        for i in range(len(its))
    ]
    assert found == [(0, 5), (0, 6), (0, 7), (0, 8), (1, 9), (1, 10)]


def test_an_interruption_leaves_no_rejected_rows_to_the_others() -> None:
    target = FakeTarget(truth, slots=2)
    loop = engine(target, FakeDrafter(wrong_every(3), slots=2))
    first, second = loop.admit(request(30)), loop.admit(request(30, prompt=7))
    loop.step()
    interrupted = False

    def interrupt(request: Request) -> Callable[[list[int]], int]:
        def extend(tokens: list[int]) -> int:
            nonlocal interrupted
            interrupted = True
            raise KeyboardInterrupt

        return extend

    first.request.ending.extend = interrupt(first.request)  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.step()
    assert interrupted
    loop.release(first.request)
    assert len(target.cache[second.slot]) == second.n_past
    finish(loop, second)
    assert second.tokens == [truth(6 + i) for i in range(30)]


@pytest.mark.parametrize("snapshots", [0, 1, 2, 4])
@pytest.mark.parametrize("wrong", [1, 2, 3, 5, 1000])
def test_a_state_that_cannot_go_back_is_computed_anew(wrong: int, snapshots: int) -> None:
    target = FakeTarget(truth, slots=2, recurrent=True, snapshots=snapshots)
    loop = engine(target, FakeDrafter(wrong_every(wrong), slots=2))
    sequences = [loop.admit(request(n, prompt=n)) for n in (25, 40)]
    while any(s.finish_reason is None for s in sequences):
        loop.step()
        for s in sequences:
            # what is lost is empty until the next round
            assert len(target.cache[s.slot]) == (0 if s.lost else s.n_past)
            if s.lost:
                assert snapshots < 4
    for s in sequences:
        assert s.tokens == [truth(len(s.request.prompt) - 1 + i) for i in range(len(s.tokens))]
    assert snapshots < 4 or not any(s.lost for s in sequences)


def test_blocks_of_other_widths_are_verified_apart_where_there_is_a_state() -> None:
    for recurrent, most in ((False, 1), (True, 2)):
        target = FakeTarget(truth, slots=3, recurrent=recurrent, snapshots=4)
        loop = engine(target, FakeDrafter(truth, slots=3))
        wanted = [request(40, draft_max=n, prompt=5) for n in (4, 2, 4)]
        sequences = [loop.admit(each) for each in wanted]
        before = target.decoded
        loop.step()
        assert target.decoded - before == most
        finish(loop, *sequences)
        assert len({tuple(s.tokens) for s in sequences}) == 1
