"""What a slot keeps between two texts, and which slot the next one gets."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from zlib import crc32

import numpy as np
import pytest

from llamaspec.draft.drafter import Anchor, Proposal
from llamaspec.draft.lookup import LookupDrafter
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request, Sequence
from llamaspec.engine.slots import NOTHING_HELD, Held, Slots
from llamaspec.errors import DecodeError, SamplingError
from llamaspec.runtime.batch import Batch
from llamaspec.text.detokenize import Pieces
from tests.unit.fakes import N_BATCH, FakeDrafter, FakeTarget

pytestmark = pytest.mark.native

END = 7
VOCABULARY = 40
TURNS = 4
CASES = 400


@dataclass
class ReadingTarget(FakeTarget):
    """Its next token depends on all tokens of the sequence in its cache, so that a wrong one shows.

    recurrent: its cache can be cut to nothing or left as it is. splits: the rows of every pass.
    """

    recurrent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.splits: list[list[int]] = []

    def decode(self, batch: Batch) -> None:
        super().decode(batch)
        rows = batch.rows()
        self.splits.append([row.position for row in rows])
        outputs = [row for row in rows if row.output]
        self._out = [chosen(self.cache[row.seq], row.position) for row in outputs]

    def can_truncate(self, seq: int, length: int) -> bool:
        return not self.recurrent or length in (0, len(self.cache[seq]))


def chosen(cache: dict[int, int], position: int) -> int:
    read = [cache[p] for p in range(position + 1)]
    return crc32(repr(read).encode()) % VOCABULARY


class ReadingDrafter(FakeDrafter):
    """Proposes what the target would say, with an error now and then."""

    def __init__(self, target: FakeTarget, wrong: int, **settings: Any) -> None:  # noqa: ANN401
        super().__init__(lambda _: 0, **settings)
        self.target, self.wrong = target, wrong

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        super().propose(anchors)
        return [Proposal(tuple(self._ids(anchor))) for anchor in anchors]

    def _ids(self, anchor: Anchor) -> Iterator[int]:
        cache = {**self.target.cache[anchor.seq], anchor.position: anchor.token}
        for position in range(anchor.position, anchor.position + min(anchor.limit, self.proposals)):
            cache[position + 1] = chosen(cache, position)
            yield -1 if position % self.wrong == 0 else cache[position + 1]


def request(prompt: list[int], limit: int, draft_max: int = 4, **settings: Any) -> Request:  # noqa: ANN401
    stop = settings.pop("stop", ())
    ending = Ending(pieces=Pieces(lambda t: f"{t} ".encode()), ends={END}, limit=limit, stop=stop)
    settings.setdefault("cache_prompt", True)
    return Request(np.array(prompt, np.int32), limit, draft_max, ending, **settings)


def loop_of(target: FakeTarget, drafter: object = None) -> Engine:
    return Engine(cast(Any, target), cast(Any, drafter))


def run(loop: Engine, asked: Request) -> Sequence:
    sequence = loop.admit(asked)
    while sequence.finish_reason is None:
        loop.step()
    loop.release(asked)
    return sequence


def agree(loop: Engine, target: FakeTarget, drafter: FakeDrafter | None) -> None:
    """What the free slots remember is what their caches hold."""
    for slot in loop._slots._free:
        text = loop._slots._held[slot].text.tolist()
        assert text == [target.cache[slot][p] for p in range(target.length(slot))]
        assert drafter is None or drafter.known[slot] <= len(text)
    for sequence in loop._active:
        assert target.length(sequence.slot) == sequence.n_past


# --- which slot


def slots_holding(*texts: list[int]) -> Slots:
    slots = Slots(len(texts))
    for slot, text in enumerate(texts):
        slots.remember(slot, Held(np.array(text, np.int32), len(text)))
    return slots


@pytest.mark.parametrize(
    ("texts", "prompt", "slot"),
    [
        ([[], []], [1, 2], 0),
        ([[1, 2, 3], [1, 2]], [1, 2, 3, 4], 0),
        ([[1, 2], [1, 2, 3]], [1, 2, 3, 4], 1),
        # of equal ones the least recently used
        ([[1, 2], [1, 2]], [1, 2, 3], 0),
        # a slot that would lose most of what it holds is left alone
        ([[1, 2, 3, 4, 5], []], [1, 2, 9], 1),
        ([[1, 2, 3, 4], []], [1, 2, 9], 0),
        ([[5, 6], [1, 2, 3, 4, 5]], [1, 2, 9, 9, 9], 0),
        # unless half of the prompt is saved, and no slot is empty
        ([[5, 6], [1, 2, 3, 4, 5]], [1, 2, 9, 9], 1),
        ([[], [1, 2, 3, 4, 5]], [1, 2, 9, 9], 0),
        ([[5, 6], []], [1, 2], 1),
        ([[1, 2, 3], []], None, 1),
    ],
)
def test_a_prompt_gets_the_slot_that_saves_most(
    texts: list[list[int]], prompt: list[int] | None, slot: int
) -> None:
    slots = slots_holding(*texts)
    taken, held = slots.take(None if prompt is None else np.array(prompt, np.int32))
    assert (taken, held.text.tolist()) == (slot, texts[slot])
    # what was taken is forgotten until somebody remembers it
    slots.give_back(taken)
    assert slots._held[taken] is NOTHING_HELD


def test_the_least_recently_used_slot_goes_first() -> None:
    slots = slots_holding([1], [2], [3])
    taken = [slots.take(None)[0] for _ in range(3)]
    assert taken == [0, 1, 2]
    assert not slots.free
    for slot in (1, 0, 2):
        slots.give_back(slot)
        slots.remember(slot, Held(np.array([slot], np.int32), 1))
    assert [slots.take(np.array([9], np.int32))[0] for _ in range(3)] == [1, 0, 2]


# --- what is computed again


@pytest.mark.parametrize("drafted", [False, True])
def test_a_continued_prompt_is_computed_from_where_the_caches_end(drafted: bool) -> None:
    target = ReadingTarget(lambda _: 0)
    drafter = ReadingDrafter(target, 1000) if drafted else None
    loop = loop_of(target, drafter)
    first = run(loop, request([1, 2, 3], 6))
    held = first.n_past
    assert drafter is None or drafter.known[0] == held
    prompt = [*first.text, 20, 21]
    target.splits.clear()
    second = run(loop, request(prompt, 6))
    assert second.cached == held >= 3
    assert target.splits[0] == list(range(held, len(prompt)))[:N_BATCH]


def test_the_same_prompt_again_is_computed_by_its_last_row() -> None:
    target = ReadingTarget(lambda _: 0)
    loop = loop_of(target, ReadingDrafter(target, 3))
    prompt = list(range(10, 25))
    first = run(loop, request(prompt, 9))
    target.splits.clear()
    second = run(loop, request(prompt, 9))
    assert (second.cached, target.splits[0]) == (14, [14])
    assert (second.tokens, second.rounds) == (first.tokens, first.rounds)


def test_without_the_option_a_prompt_starts_cold() -> None:
    target = ReadingTarget(lambda _: 0)
    loop = loop_of(target)
    first = run(loop, request([1, 2, 3], 6))
    second = run(loop, request([1, 2, 3], 6, cache_prompt=False))
    assert (second.cached, second.tokens) == (0, first.tokens)
    assert run(loop, request([1, 2, 3], 6)).cached == 2


def test_what_plain_decoding_left_the_draft_untaught_comes_from_the_target_again() -> None:
    target = ReadingTarget(lambda _: 0)
    drafter = ReadingDrafter(target, 1000)
    loop = loop_of(target, drafter)
    first = run(loop, request([1, 2, 3], 5))
    taught = drafter.known[0]
    plain = run(loop, request([*first.text, 9], 5, draft_max=0))
    assert plain.cached == first.n_past
    drafted = run(loop, request([*plain.text, 8], 5))
    assert drafted.cached == taught < plain.n_past
    # the drafter itself checks that no position is missing
    assert all(r.draft for r in drafted.rounds[:-1])


def test_a_draft_by_lookup_needs_nothing_taught() -> None:
    target = ReadingTarget(lambda _: 0)
    loop = loop_of(target, LookupDrafter())
    first = run(loop, request([1, 2, 3, 1, 2], 5))
    second = run(loop, request([*first.text, 1, 2, 3], 5))
    assert second.cached == first.n_past
    cold = run(loop_of(target, LookupDrafter()), request([*first.text, 1, 2, 3], 5))
    assert (second.tokens, second.rounds) == (cold.tokens, cold.rounds)


def test_a_recurrent_target_goes_on_or_starts_again() -> None:
    target = ReadingTarget(lambda _: 0, recurrent=True)
    drafter = ReadingDrafter(target, 4)
    loop = loop_of(target, drafter)
    first = run(loop, request([1, 2, 3], 9))
    # it could not be cut to less: the draft has learned to the text's end
    assert drafter.known[0] == first.n_past
    second = run(loop, request([*first.text, 20], 9))
    assert second.cached == first.n_past
    elsewhere = run(loop, request([*first.text, 21], 9))
    assert elsewhere.cached == 0
    assert run(loop, request([1, 2, 3], 9)).tokens == first.tokens


@pytest.mark.parametrize("length", [5, 8, 9, 16, 17, 20, 24, 25])
@pytest.mark.parametrize("common", [3, 8, 15, 16, 17, 30])
def test_in_whole_parts_the_passes_of_a_prompt_are_those_of_a_cold_start(
    length: int, common: int
) -> None:
    target = ReadingTarget(lambda _: 0)
    loop = loop_of(target, ReadingDrafter(target, 5))
    loop.prompts.exact = True
    before = list(range(11, 29))
    text = run(loop, request(before, 14)).text
    assert len(text) > 3 * N_BATCH
    prompt = [*text[:common], *range(100, 140)][:length]
    target.splits.clear()
    found = run(loop, request(prompt, 3))
    # 18 tokens were a prompt, which is two whole parts
    same = min(common, length - 1, 18)
    assert found.cached == same - same % N_BATCH
    splits = [p for p in target.splits if p[0] < length]
    assert [p[0] for p in splits] == list(range(found.cached, length, N_BATCH))


# --- what is not certain is not kept


def no_draw(row: int, index: int) -> int:
    raise SamplingError("scripted")


def interrupted(tokens: object) -> int:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["prompt", "round", "draw", "commit"])
def test_after_an_error_nothing_is_kept(where: str) -> None:
    target = ReadingTarget(lambda _: 0)
    loop = loop_of(target, ReadingDrafter(target, 3))
    # something to go on from, so that the broken text is broken over kept positions
    prompt = run(loop, request([1, 2, 3], 9, draft_max=4)).text
    asked = request(prompt, 30, draw=no_draw if where == "draw" else None)
    if where == "commit":
        loop.admit(asked)
        asked.ending.extend = interrupted  # type: ignore[method-assign]
    target.fail_at = target.decoded + {"prompt": 1, "round": 3}.get(where, 1000)

    def work() -> None:
        if not loop._active:
            loop.admit(asked)
        for _ in range(30):
            loop.step()

    with pytest.raises((DecodeError, SamplingError, KeyboardInterrupt)):
        work()
    loop.release(asked)
    assert loop._slots._held[0] is NOTHING_HELD
    assert target.cache[0] == {}
    cold = ReadingTarget(lambda _: 0)
    expected = run(loop_of(cold, ReadingDrafter(cold, 3)), request(prompt, 12))
    again = run(loop, request(prompt, 12))
    assert (again.cached, again.tokens, again.rounds) == (0, expected.tokens, expected.rounds)


def test_a_failed_step_spoils_what_it_touched_for_good() -> None:
    target = ReadingTarget(lambda _: 0, slots=2)
    loop = loop_of(target, ReadingDrafter(target, 3, slots=2))
    first, second = request([1, 2, 3], 20), request([4, 5], 20)
    sequence = loop.admit(first)
    target.fail_at = target.decoded + 1
    with pytest.raises(DecodeError):
        loop.step()
    other = loop.admit(second)
    while sequence.finish_reason is None or other.finish_reason is None:
        loop.step()
    loop.release(first)
    loop.release(second)
    assert [len(held.text) for held in loop._slots._held] == [0, other.n_past]
    agree(loop, target, None)


def test_a_cache_that_could_not_be_cut_to_the_text_is_not_kept() -> None:
    target = ReadingTarget(lambda _: 0)
    drafter = ReadingDrafter(target, 3)
    loop = loop_of(target, drafter)
    asked = request([1, 2, 3], 9)
    sequence = loop.admit(asked)
    loop.step()
    target.cache[0][sequence.n_past] = -1
    loop.release(asked)
    assert loop._slots._held[0] is NOTHING_HELD
    assert (target.cache[0], drafter.known[0]) == ({}, 0)


def test_features_that_never_came_to_the_draft_are_asked_of_the_target() -> None:
    target = ReadingTarget(lambda _: 0)
    drafter = ReadingDrafter(target, 3)
    loop = loop_of(target, drafter)
    asked = request([1, 2, 3], 30)
    sequence = loop.admit(asked)
    loop.step()
    # as where an injection has failed and its text was left before the next round
    drafter.known[0] = 2
    loop.release(asked)
    second = run(loop, request([*sequence.text, 1], 9))
    assert second.cached == 2


# --- everything at once


@pytest.mark.parametrize("seed", range(CASES))
def test_random_turns_are_those_of_a_cold_start(seed: int) -> None:
    rng = random.Random(seed)
    slots = rng.choice([1, 1, 2, 3])
    recurrent = rng.random() < 0.2
    target = ReadingTarget(lambda _: 0, slots=slots, recurrent=recurrent)
    wrong = rng.choice([1, 2, 3, 5, 1000])
    drafter = ReadingDrafter(target, wrong, slots=slots) if rng.random() < 0.8 else None
    loop = loop_of(target, drafter)
    loop.prompts.exact = rng.random() < 0.3
    texts = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 20))] for _ in range(2)]
    for _ in range(TURNS * slots):
        text = rng.choice(texts)
        prompt = text[: rng.randint(1, len(text))] if rng.random() < 0.3 else list(text)
        prompt += [rng.randrange(VOCABULARY) for _ in range(rng.randint(0, 9))]
        settings: dict[str, Any] = {
            "draft_max": rng.choice([0, 4, 4, 2]),
            "stop": (f"{rng.randrange(VOCABULARY)} ",) if rng.random() < 0.3 else (),
            "cache_prompt": rng.random() < 0.9,
        }
        limit = rng.randint(1, 25)
        asked = request(prompt, limit, **settings)
        sequence = loop.admit(asked)
        left = rng.randint(0, 6) if rng.random() < 0.3 else None
        while sequence.finish_reason is None and (left is None or len(sequence.rounds) < left):
            loop.step()
        loop.release(asked)
        agree(loop, target, drafter)
        if sequence.finish_reason is None:
            # abandoned in the middle
            texts.append(list(sequence.text))
            continue
        cold = ReadingTarget(lambda _: 0)
        fresh = loop_of(cold, ReadingDrafter(cold, wrong) if drafter else None)
        expected = run(fresh, request(prompt, limit, **settings))
        assert sequence.tokens == expected.tokens
        assert sequence.rounds == expected.rounds
        texts.append(list(sequence.text))


def test_the_random_turns_reach_what_they_are_for() -> None:
    """Of one seed's kind: continuations reuse nearly all of a long text."""
    target = ReadingTarget(lambda _: 0)
    drafter = ReadingDrafter(target, 5)
    loop = loop_of(target, drafter)
    text, shares = list(range(10, 40)), []
    for turn in range(6):
        done = run(loop, request(text, 20))
        shares.append(done.cached / len(text))
        agree(loop, target, drafter)
        text = [*done.text, turn]
    assert shares[0] == 0
    assert min(shares[1:]) > 0.7
