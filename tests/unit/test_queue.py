"""Who waits, whose turn it is, and prompts that come in by parts between rounds."""

import random
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.queue import Queue
from llamaspec.engine.sequence import NO_SLOT, Request, Sequence
from llamaspec.errors import DecodeError, QueueFullError
from llamaspec.text.detokenize import Pieces
from tests.unit.fakes import N_BATCH, FakeDrafter, FakeTarget

pytestmark = pytest.mark.native


def truth(position: int) -> int:
    return 100 + position % 50


def asked(limit: int = 4, *, prompt: int = 5, priority: int = 0, draft_max: int = 4) -> Request:
    pieces = Pieces(lambda t: f"{t} ".encode())
    ending = Ending(pieces=pieces, ends=frozenset(), limit=limit)
    ids = np.arange(prompt, dtype=np.int32)
    return Request(ids, limit, draft_max, ending, priority=priority)


def engine(target: FakeTarget, queue: int = 100, *, draft: bool = True) -> Engine:
    drafter = FakeDrafter(truth, slots=target.slots) if draft else None
    return Engine(cast(Any, target), cast(Any, drafter), queue=queue)


def finish(loop: Engine, *sequences: Sequence, most: int = 500) -> None:
    for _ in range(most):
        if all(s.finish_reason is not None for s in sequences):
            return
        loop.step()
    raise AssertionError("some text does not come to its end")


def right(sequence: Sequence) -> bool:
    prompt = len(sequence.request.prompt)
    return sequence.tokens == [truth(prompt - 1 + i) for i in range(sequence.request.limit)]


# --- the queue


def served(queue: Queue) -> list[Sequence]:
    return [queue.take() for _ in range(len(queue))]


def test_the_higher_priority_goes_first_and_else_who_came_first() -> None:
    queue = Queue(10)
    sequences = [Sequence(NO_SLOT, asked(priority=p)) for p in (0, 5, 0, -1, 5)]
    for sequence in sequences:
        queue.add(sequence)
    assert [sequences.index(s) for s in served(queue)] == [1, 4, 0, 2, 3]


def test_nobody_is_overtaken_for_ever() -> None:
    queue = Queue(10)
    patient = Sequence(NO_SLOT, asked(priority=-1))
    queue.add(patient)
    turns = 0
    while turns < 1000:
        turns += 1
        # those who came later are ahead of it as long as they are not too many
        queue.add(Sequence(NO_SLOT, asked(priority=5)))
        if queue.take() is patient:
            break
    assert 10 < turns < 200


def test_a_full_queue_says_so_and_takes_one_for_every_free_slot() -> None:
    loop = engine(FakeTarget(truth, slots=2), queue=1)
    for _ in range(3):
        loop.submit(asked())
    with pytest.raises(QueueFullError, match="3 requests wait already and the queue holds 1"):
        loop.submit(asked())
    loop.step()
    assert (loop.active, loop.waiting) == (2, 1)
    with pytest.raises(QueueFullError, match="1 requests wait"):
        loop.submit(asked())


def test_who_leaves_the_queue_is_not_served() -> None:
    loop = engine(FakeTarget(truth))
    first, second, third = (loop.submit(asked()) for _ in range(3))
    loop.step()
    loop.release(second.request)
    finish(loop, first, third)
    assert (second.slot, second.tokens) == (NO_SLOT, [])
    assert right(first)
    assert right(third)


# --- the loop


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("draft", [True, False])
def test_more_requests_than_slots_are_all_served(slots: int, draft: bool) -> None:
    random_ = random.Random(3)
    target = FakeTarget(truth, slots=slots)
    loop = engine(target, draft=draft)
    sequences = [
        loop.submit(asked(random_.randint(1, 12), prompt=random_.randint(1, 30))) for _ in range(30)
    ]
    finish(loop, *sequences)
    assert all(map(right, sequences))
    assert (loop.active, loop.waiting) == (0, 0)


def test_a_finished_text_gives_its_slot_back_though_nobody_reads_it() -> None:
    loop = engine(FakeTarget(truth))
    first, second = loop.submit(asked()), loop.submit(asked())
    finish(loop, second)
    assert right(first)
    loop.release(first.request)
    assert right(second)


def test_rounds_go_on_while_a_long_prompt_comes_in() -> None:
    loop = engine(FakeTarget(truth, slots=2), draft=False)
    first = loop.submit(asked(30))
    loop.step()
    second = loop.submit(asked(3, prompt=5 * N_BATCH))
    lengths = []
    while second.filling:
        lengths.append(len(first.tokens))
        loop.step()
    # a round of the first for each of five parts
    assert lengths == [1, 2, 3, 4, 5]
    finish(loop, first, second)
    assert right(first)
    assert right(second)


def test_short_prompts_share_a_pass_and_a_recurrent_target_takes_one_at_a_time() -> None:
    for recurrent, passes in ((False, 1), (True, 3)):
        target = FakeTarget(truth, slots=3, recurrent=recurrent)
        loop = engine(target, draft=False)
        sequences = [loop.submit(asked(prompt=2)) for _ in range(3)]
        loop.step()
        while any(s.filling for s in sequences):
            loop.prompts.fill([s for s in sequences if s.filling])
        assert target.decoded == passes
        finish(loop, *sequences)
        assert all(map(right, sequences))


def test_a_text_is_one_token_long_after_the_step_that_took_its_prompt() -> None:
    loop = engine(FakeTarget(truth))
    sequence = loop.submit(asked())
    loop.step()
    assert len(sequence.tokens) == 1


def test_a_prompt_that_fails_ends_its_text_and_no_other() -> None:
    target = FakeTarget(truth, slots=2)
    loop = engine(target)
    first = loop.submit(asked(30))
    loop.step()
    second = loop.submit(asked())
    target.fail_at = target.decoded + 1
    loop.step()
    assert second.finish_reason == "error"
    assert isinstance(second.failure, DecodeError)
    third = loop.submit(asked())
    finish(loop, first, third)
    assert right(first)
    assert right(third)


@pytest.mark.parametrize("when", range(1, 7))
def test_ctrl_c_in_a_prompt_is_made_good_by_the_next_step(when: int) -> None:
    target = FakeTarget(truth, slots=2)
    loop = engine(target)
    sequences = [loop.submit(asked(6, prompt=2 * N_BATCH + 3)) for _ in range(2)]
    original, calls = target.features_view, 0

    def interrupted(rows: list[int]) -> Any:  # noqa: ANN401
        nonlocal calls
        calls += 1
        if calls == when:
            raise KeyboardInterrupt
        return original(rows)

    target.features_view = interrupted  # type: ignore[method-assign]
    for _ in range(40):
        try:
            loop.step()
        except KeyboardInterrupt:
            continue
    assert all(map(right, sequences))


def test_who_is_cancelled_while_his_prompt_comes_in_leaves_what_is_there() -> None:
    target = FakeTarget(truth, slots=1)
    loop = engine(target)
    request = asked(prompt=4 * N_BATCH)
    sequence = loop.submit(request)
    loop.step()
    loop.step()
    request.ending.cancel()
    loop.release(request)
    assert (sequence.filled, target.length(0)) == (2 * N_BATCH, 2 * N_BATCH)
    assert loop.active == 0
