"""What prompts begin with in common is computed once: copied between slots, waited for, and kept
in memory when a slot loses it.
"""

import random
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.engine import sharing
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.engine.slots import Held
from llamaspec.engine.store import Entry, Store, entry_size
from llamaspec.errors import DecodeError
from llamaspec.runtime.cache import State
from tests.unit.fakes import A_POSITION, N_BATCH, FakeDrafter
from tests.unit.test_engine_reuse import (
    VOCABULARY,
    ReadingDrafter,
    ReadingTarget,
    agree,
    request,
    run,
)

pytestmark = pytest.mark.native

COMMON = list(range(100, 300))
ROOM = 1 << 20
CASES = 300


def loop_of(target: ReadingTarget, drafter: FakeDrafter | None, stored: int = 0) -> Engine:
    return Engine(cast(Any, target), cast(Any, drafter), queue=99, stored=stored)


def both(slots: int, stored: int = 0) -> tuple[Engine, ReadingTarget, ReadingDrafter]:
    target = ReadingTarget(lambda _: 0, slots=slots)
    drafter = ReadingDrafter(target, 5, slots=slots)
    return loop_of(target, drafter, stored), target, drafter


def alone(asked: Request, exact: bool = False) -> Sequence:
    """The same request by itself, from nothing."""
    loop, _, _ = both(1)
    loop.prompts.exact = exact
    settings = {"draft_max": asked.draft_max, "cache_prompt": asked.cache_prompt}
    return run(loop, request(asked.prompt.tolist(), asked.limit, **settings))


def finish(loop: Engine) -> None:
    while loop.active or loop.waiting:
        loop.step()


def rows(target: ReadingTarget) -> int:
    return sum(len(split) for split in target.splits)


# --- from slot to slot


@pytest.mark.parametrize("slots", [2, 3])
def test_a_prompt_goes_on_from_an_active_sequence(slots: int) -> None:
    loop, target, drafter = both(slots)
    first = loop.admit(request([*COMMON, 1, 2, 3], 20))
    loop.step()
    target.splits.clear()
    asked = request([*COMMON, 4, 5], 10)
    second = loop.admit(asked)
    assert second.cached == len(COMMON)
    assert rows(target) == 2
    assert drafter.known[second.slot] == second.n_past
    finish(loop)
    assert second.tokens == alone(asked).tokens
    assert second.rounds[0].draft
    # and it disturbs the other one not at all
    assert first.tokens == alone(first.request).tokens
    agree(loop, target, drafter)


def test_a_prompt_goes_on_from_what_a_free_slot_holds() -> None:
    loop, target, _ = both(3)
    run(loop, request([*COMMON, 1], 30))
    keeping = loop._slots.texts()[0][0]
    # most of the slot's own text would be lost, so that the prompt gets an empty slot
    second = run(loop, request([*COMMON[:100], 7, 8], 10))
    assert (second.cached, second.slot != keeping) == (100, True)
    third = run(loop, request([*COMMON, 1, 9], 10))
    assert third.cached >= 201
    agree(loop, target, None)


@pytest.mark.parametrize("common", [sharing.LEAST_COPIED - 1, sharing.LEAST_COPIED])
def test_a_little_is_computed_again_rather_than_copied(common: int) -> None:
    loop, _, _ = both(2)
    loop.admit(request(COMMON, 20))
    second = loop.admit(request([*COMMON[:common], 7, 8], 5))
    assert second.cached == (common if common >= sharing.LEAST_COPIED else 0)


def test_a_text_that_is_all_there_is_computed_by_its_last_row() -> None:
    loop, target, _ = both(2)
    loop.admit(request(COMMON, 20))
    target.splits.clear()
    second = loop.admit(request(COMMON, 20))
    assert second.cached == len(COMMON) - 1
    assert rows(target) == 1


@pytest.mark.parametrize("cold", [0, 1])
def test_who_asks_for_a_cold_start_takes_nothing_from_others(cold: int) -> None:
    loop, _, _ = both(2)
    loop.admit(request(COMMON, 20, cache_prompt=cold != 0))
    second = loop.admit(request([*COMMON, 1], 5, cache_prompt=cold != 1))
    assert second.cached == (0 if cold else len(COMMON))


def test_recurrent_targets_share_nothing() -> None:
    target = ReadingTarget(lambda _: 0, slots=2, recurrent=True)
    loop = loop_of(target, None, ROOM)
    target.can_save = False
    asked = [request([*COMMON, i], 5, draft_max=0) for i in range(2)]
    sequences = [loop.submit(each) for each in asked]
    finish(loop)
    assert [s.cached for s in sequences] == [0, 0]
    assert len(loop.store) == 0


def test_what_the_draft_does_not_know_comes_from_the_target_again() -> None:
    loop, _, drafter = both(2)
    loop.admit(request([*COMMON, 1], 20, draft_max=0))
    second = loop.admit(request([*COMMON, 2], 20))
    assert second.cached == 0
    assert drafter.known[second.slot] == len(COMMON) + 1
    # and the other way round it is known
    third, _, _ = both(2)
    third.admit(request([*COMMON, 1], 20))
    assert third.admit(request([*COMMON, 2], 20, draft_max=0)).cached == len(COMMON)


@pytest.mark.parametrize("common", [0, 33, 64, 71, 199])
def test_in_whole_parts_a_shared_prompt_has_the_passes_of_a_cold_start(common: int) -> None:
    loop, target, _ = both(2)
    loop.prompts.exact = True
    loop.admit(request(COMMON, 20))
    target.splits.clear()
    asked = request([*COMMON[:common], *range(300, 340)], 4)
    second = loop.admit(asked)
    whole = common - common % N_BATCH
    assert second.cached == (whole if whole >= sharing.LEAST_COPIED else 0)
    assert [p[0] for p in target.splits] == list(range(second.cached, common + 40, N_BATCH))
    finish(loop)
    assert second.tokens == alone(asked, exact=True).tokens


def test_a_text_that_is_not_certain_is_no_source() -> None:
    loop, target, _ = both(3)
    loop.admit(request(COMMON, 30))
    target.fail_at = target.decoded + 1
    with pytest.raises(DecodeError):
        loop.step()
    asked = request([*COMMON, 1], 5)
    assert loop.admit(asked).cached == 0


def test_a_copy_that_fails_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, target, drafter = both(2)
    loop.admit(request(COMMON, 20))

    def fail(*_: object) -> int:
        raise DecodeError("scripted", 1)

    monkeypatch.setattr(drafter, "copy", fail)
    asked = request([*COMMON, 1], 9)
    second = loop.admit(asked)
    assert second.cached == 0
    finish(loop)
    assert second.tokens == alone(asked).tokens
    agree(loop, target, drafter)


@pytest.mark.parametrize("where", ["copy", "restore", "save"])
def test_an_interruption_leaves_nothing_half_done(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, target, drafter = both(2, ROOM)
    for text in (COMMON, list(range(400, 600)), list(range(600, 800))):
        run(loop, request(text, 5))
    if where == "copy":
        loop.admit(request(list(range(600, 830)), 5))
    original = getattr(target, where)

    def interrupt(*arguments: Any) -> None:  # noqa: ANN401
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(target, where, interrupt)
    text = {"copy": list(range(600, 800)), "restore": COMMON, "save": list(range(800, 1000))}[where]
    asked = request([*text, 1], 9)
    with pytest.raises(KeyboardInterrupt):
        loop.admit(asked)
    monkeypatch.undo()
    finish(loop)
    agree(loop, target, drafter)
    again = request([*text, 1], 9)
    assert run(loop, again).tokens == alone(again).tokens


# --- together


def roomy(slots: int) -> tuple[Engine, ReadingTarget, ReadingDrafter]:
    """With room in every pass for another prompt beside the first one."""
    loop, target, drafter = both(slots)
    loop.prompts.part = N_BATCH // 2
    return loop, target, drafter


@pytest.mark.parametrize("slots", [8, 3])
@pytest.mark.parametrize("exact", [False, True])
def test_prompts_that_begin_alike_and_come_together_are_computed_once(
    slots: int, exact: bool
) -> None:
    loop, target, drafter = both(slots)
    loop.prompts.exact = exact
    asked = [request([*COMMON, i, i + 1], 6, draft_max=4) for i in range(8)]
    sequences = [loop.submit(each) for each in asked]
    finish(loop)
    assert [s.cached for s in sequences] == [0] + [len(COMMON)] * 7
    filled = sum(p < len(COMMON) for split in target.splits for p in split)
    assert filled == len(COMMON)
    for sequence in sequences:
        expected = alone(sequence.request, exact)
        assert sequence.tokens == expected.tokens
        # the draft knows what it knows of a text alone
        assert [r.accepted for r in sequence.rounds] == [r.accepted for r in expected.rounds]
    agree(loop, target, drafter)


@pytest.mark.parametrize("common", [sharing.LEAST_AWAITED - 1, sharing.LEAST_AWAITED])
def test_nobody_waits_for_a_little(common: int) -> None:
    loop, _, _ = roomy(2)
    first = loop.submit(request([*COMMON[:common], *range(500, 560)], 4))
    second = loop.submit(request([*COMMON[:common], 1], 4))
    loop.step()
    assert first.filling
    assert (second.behind is not None) == (common >= sharing.LEAST_AWAITED)
    finish(loop)
    assert second.cached == (common if common >= sharing.LEAST_AWAITED else 0)


def test_nobody_waits_for_what_is_there() -> None:
    loop, _, _ = roomy(3)
    run(loop, request(COMMON, 4))
    first = loop.submit(request([*COMMON[:150], *range(500, 560)], 4))
    second = loop.submit(request([*COMMON[:150], 1], 4))
    loop.step()
    assert second.behind is None
    finish(loop)
    assert [first.cached, second.cached] == [150, 150]


def test_a_draft_is_not_waited_for_where_none_is_taught() -> None:
    loop, _, _ = roomy(2)
    loop.submit(request([*COMMON, 1], 4, draft_max=0))
    second = loop.submit(request([*COMMON, 2], 4))
    loop.step()
    assert second.behind is None
    finish(loop)


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_nobody_waits_for_one_who_is_gone(how: str) -> None:
    loop, target, drafter = roomy(3)
    sequences = [loop.submit(request([*COMMON, i], 4)) for i in range(3)]
    loop.step()
    loop.step()
    assert [s.behind[0] if s.behind else None for s in sequences] == [None, *[sequences[0]] * 2]
    if how == "cancelled":
        loop.release(sequences[0].request)
    else:
        target.fail_at = target.decoded + 1
    finish(loop)
    if how == "failed":
        assert sequences[0].finish_reason == "error"
    for sequence in sequences[1:]:
        assert sequence.tokens == alone(sequence.request).tokens
    # what the first one had of it in its slot when it left is used, or the second one's
    assert sequences[2].cached == len(COMMON)
    agree(loop, target, drafter)


def test_one_who_leaves_while_he_waits_leaves_his_slot_as_it_was() -> None:
    loop, target, drafter = roomy(2)
    before = run(loop, request(list(range(400, 420)), 5))
    run(loop, request(list(range(500, 520)), 5))
    held = {slot: text.text.tolist() for slot, text in loop._slots.texts()}
    loop.submit(request(COMMON, 5))
    waiting = request([*COMMON, 1], 5)
    sequence = loop.submit(waiting)
    loop.step()
    assert sequence.behind is not None
    loop.release(waiting)
    assert loop._slots.texts()[0][1].text.tolist() == held[sequence.slot]
    finish(loop)
    agree(loop, target, drafter)
    assert before.slot in held


# --- the store


def entry(text: list[int], known: int = 0, prompt: int | None = None) -> Entry:
    data = np.zeros(A_POSITION * len(text), np.uint8)
    held = Held(np.array(text, np.int32), len(text) if prompt is None else prompt)
    return Entry(held, State(data, len(text), 0), None, known)


def test_the_store_keeps_its_bound_and_forgets_what_was_used_least_recently() -> None:
    texts = [entry([i] * 100) for i in range(5)]
    store = Store(3 * texts[0].nbytes + 10)
    for each in texts[:3]:
        assert store.make_room(each.nbytes)
        store.add(each)
    store.touch(texts[0])
    assert store.make_room(texts[3].nbytes)
    store.add(texts[3])
    assert store.entries() == [texts[2], texts[0], texts[3]]
    assert store.size == sum(e.nbytes for e in store.entries()) <= store.limit
    assert not store.make_room(store.limit + 1)
    assert len(store) == 3
    store.drop(texts[2])
    assert store.size == 2 * texts[0].nbytes == 2 * 100 * (4 + A_POSITION)


def test_a_text_is_kept_once() -> None:
    store = Store(ROOM)
    short, long = entry([1] * 70, known=70), entry([1] * 90, known=80)
    store.add(short)
    assert store.covers(short.held, 70)
    assert not store.covers(long.held, 80)
    store.add(long)
    assert store.entries() == [long]
    assert store.covers(short.held, 70)
    # what the draft knows more of is another matter, and so is what a prompt's passes wrote
    assert not store.covers(long.held, 90)
    assert not Entry.covers(entry([1] * 90, prompt=10), short.held, 0)


def test_a_text_that_lost_its_slot_comes_back() -> None:
    loop, target, drafter = both(1, ROOM)
    first = run(loop, request([*COMMON, 1], 9))
    run(loop, request(list(range(400, 600)), 9))
    assert len(loop.store) == 1
    target.splits.clear()
    asked = request([*first.text, 7], 9)
    again = run(loop, asked)
    assert again.cached == first.n_past
    assert again.tokens == alone(asked).tokens
    assert again.rounds[0].draft
    # the slot's text went to the store in turn
    assert len(loop.store) == 2
    agree(loop, target, drafter)


def test_without_room_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("saved")

    for stored in (0, 200 * A_POSITION):
        loop, target, _ = both(1, stored)
        monkeypatch.setattr(target, "save", fail)
        run(loop, request(COMMON, 9))
        assert run(loop, request(list(range(400, 600)), 9)).cached == 0


def test_what_is_short_or_goes_on_is_not_saved() -> None:
    loop, _, _ = both(1, ROOM)
    first = run(loop, request(list(range(400, 420)), 9))
    second = run(loop, request(COMMON, 9))
    run(loop, request([*second.text, 1], 9))
    assert len(loop.store) == 0
    assert len(first.text) < sharing.LEAST_SAVED


def test_damage_means_computing_anew() -> None:
    loop, target, drafter = both(1, ROOM)
    run(loop, request(COMMON, 9))
    run(loop, request(list(range(400, 600)), 9))
    (kept,) = loop.store.entries()
    kept.target.data[1234] ^= 1
    asked = request([*COMMON, 1], 9)
    again = run(loop, asked)
    assert again.cached == 0
    assert again.tokens == alone(asked).tokens
    assert kept not in loop.store.entries()
    agree(loop, target, drafter)


def test_what_cannot_be_saved_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, target, _ = both(1, ROOM)

    def fail(*_: object) -> None:
        raise DecodeError("scripted", 1)

    monkeypatch.setattr(target, "save", fail)
    run(loop, request(COMMON, 9))
    asked = request(list(range(400, 600)), 9)
    assert run(loop, asked).tokens == alone(asked).tokens
    assert (len(loop.store), loop.store.size) == (0, 0)


# --- everything at once


def prompts(rng: random.Random) -> list[list[int]]:
    """Beginnings, each of which goes on from another one now and then."""
    texts: list[list[int]] = []
    for _ in range(4):
        base = rng.choice(texts)[: rng.randint(1, 150)] if texts and rng.random() < 0.6 else []
        texts.append([*base, *(rng.randrange(VOCABULARY) for _ in range(rng.randint(5, 120)))])
    return texts


@dataclass
class Counting(ReadingTarget):
    """Counts what is copied and put back."""

    copies: int = 0
    restores: int = 0

    def copy(self, source: int, seq: int, length: int) -> None:
        self.copies += 1
        super().copy(source, seq, length)

    def restore(self, seq: int, state: State) -> bool:
        self.restores += 1
        return super().restore(seq, state)


def crowd(seed: int) -> tuple[Counting, int]:
    """Requests that come, go and fail in any order; return the target, and how often one waited."""
    rng = random.Random(seed)
    slots = rng.choice([1, 2, 3, 5])
    target = Counting(lambda _: 0, slots=slots)
    wrong = rng.choice([1, 2, 5, 1000])
    drafter = ReadingDrafter(target, wrong, slots=slots) if rng.random() < 0.8 else None
    loop = loop_of(target, drafter, rng.choice([0, 9000, 20000, ROOM]))
    loop.prompts.exact = exact = rng.random() < 0.3
    loop.prompts.part = part = rng.choice([N_BATCH, N_BATCH // 2])
    texts, running, done, waits = prompts(rng), [], [], 0
    for _ in range(40):
        if rng.random() < 0.4 and loop.waiting < 20:
            prompt = [*rng.choice(texts), *(rng.randrange(9) for _ in range(rng.randint(0, 9)))]
            settings = {"draft_max": rng.choice([0, 4, 4]), "cache_prompt": rng.random() < 0.9}
            running.append(loop.submit(request(prompt, rng.randint(1, 25), **settings)))
        if running and rng.random() < 0.1:
            loop.release(running.pop(rng.randrange(len(running))).request)
        if rng.random() < 0.03:
            target.fail_at = target.decoded + 1
        try:
            loop.step()
        except DecodeError:
            continue
        waits += sum(s.behind is not None for s in loop._active)
        for sequence in [s for s in running if s.finish_reason is not None]:
            running.remove(sequence)
            texts[rng.randrange(len(texts))] = list(sequence.text)
            done.append(sequence)
        assert loop.store.size == sum(e.nbytes for e in loop.store.entries()) <= loop.store.limit
    finish(loop)
    for slot, held in loop._slots.texts():
        assert held.text.tolist() == [target.cache[slot][p] for p in range(target.length(slot))]
    for sequence in done:
        if sequence.finish_reason != "error":
            cold = ReadingTarget(lambda _: 0)
            fresh = loop_of(cold, ReadingDrafter(cold, wrong) if drafter else None)
            fresh.prompts.exact, fresh.prompts.part = exact, part
            asked = sequence.request
            again = request(asked.prompt.tolist(), asked.limit, draft_max=asked.draft_max)
            assert sequence.tokens == run(fresh, again).tokens
            assert sequence.cached < len(asked.prompt)
    return target, waits


@pytest.mark.parametrize("seed", range(CASES))
def test_random_crowds_are_what_each_is_alone(seed: int) -> None:
    crowd(seed)


def test_the_random_crowds_reach_what_they_are_for() -> None:
    found = [crowd(seed) for seed in range(40)]
    assert sum(target.copies for target, _ in found) > 40
    assert sum(target.restores for target, _ in found) > 10
    assert sum(waits for _, waits in found) > 10


def test_the_size_of_an_entry_is_known_before() -> None:
    loop, target, drafter = both(1, ROOM)
    first = run(loop, request(COMMON, 9))
    expected = entry_size(
        loop._slots.texts()[0][1], target.state_size(0), drafter.saved_size(0) or 0
    )
    run(loop, request(list(range(400, 600)), 9))
    assert loop.store.size == expected > A_POSITION * first.n_past


def test_what_is_being_taken_in_goes_on() -> None:
    loop, _, _ = roomy(2)
    first, second = (loop.submit(request([*COMMON, i], 4)) for i in range(2))
    loop.prompts.fill = lambda sequences: None  # type: ignore[method-assign]
    loop.step()
    del loop.prompts.fill
    # the second one came first to its turn, and the first one has more to offer later on
    loop.prompts.fill([second])
    assert second.held is None
    loop.step()
    assert (first.behind, second.behind) == (None, None)
    finish(loop)
    assert second.cached == 0
