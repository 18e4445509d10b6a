"""The loop with sampled proposals: a target and a draft that are tables over a tiny vocabulary,
against exact enumeration of what plain decoding gives.
"""

import itertools
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import pytest

from llamaspec.bench.goodness import goodness
from llamaspec.draft.drafter import Anchor, Dice, Features, NothingLearnt, Proposal
from llamaspec.engine.chances import Chances
from llamaspec.engine.ending import Ending
from llamaspec.engine.loop import Engine
from llamaspec.engine.sequence import Request
from llamaspec.errors import SamplingError
from llamaspec.runtime.arrays import FloatArray
from llamaspec.text.detokenize import Pieces
from llamaspec.verify.chance import SampledRule
from tests.unit.fakes import FakeTarget

pytestmark = pytest.mark.native

V, END, PROMPT = 5, 4, (0, 1)
DRAWS = 6000
RULES: list[SampledRule] = ["residual", "block"]


@cache
def row(kind: int, text: tuple[int, ...]) -> FloatArray:
    """A distribution for every text; kind 0 is the target's, which excludes some tokens."""
    random = np.random.default_rng([kind, len(text), *text])
    logits = random.normal(size=V) * 1.5
    if kind == 0:
        logits[random.integers(V)] = -np.inf
    weights = np.exp(logits)
    found: FloatArray = (weights / weights.sum()).astype(np.float32)
    return found


def truth(length: int) -> dict[tuple[int, ...], float]:
    """The probability of every text of so many tokens, shorter where END ends it."""
    found: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(V), repeat=length):
        p = 1.0
        text: tuple[int, ...] = PROMPT
        for i, token in enumerate(ids):
            p *= float(row(0, text)[token])
            text += (token,)
            if token == END:
                ids = ids[: i + 1]
                break
        found[ids] = p
    return {ids: p for ids, p in found.items() if p > 0}


class TableTarget(FakeTarget):
    """Its next token is drawn from row(0, text so far)."""

    def __init__(self, slots: int = 1) -> None:
        super().__init__(lambda _: 0, slots)

    def text(self, at: int) -> tuple[int, ...]:
        seq, position = self._rows[at]
        return tuple(self.cache[seq][p] for p in range(position + 1))


@dataclass
class TableSampler:
    """As the sampler of a text: what was decided stays, nothing else moves it."""

    target: TableTarget
    random: np.random.Generator
    dead_end: int = -1

    def __post_init__(self) -> None:
        self.known: list[int] = []

    def draw(self, at: int, index: int) -> int:
        assert index <= len(self.known)
        if index == len(self.known):
            if index == self.dead_end:
                raise SamplingError("no token is left")
            weights = row(0, self.target.text(at)).astype(np.float64)
            self.known.append(int(self.random.choice(V, p=weights / weights.sum())))
        return self.known[index]

    def odds(self, at: int, ids: Ids[int], index: int) -> FloatArray:
        assert index == len(self.known), "asked for what is not decided yet"
        if index == self.dead_end:
            raise SamplingError("no token is left")
        found = []
        for ahead, token in enumerate([*ids, END]):
            found.append(row(0, self.target.text(at + ahead)))
            if token == END or found[-1][token] == 0 or index + ahead + 1 == self.dead_end:
                break
        return np.array(found)

    def take(self, token: int, index: int) -> None:
        assert index <= len(self.known)
        if index == len(self.known):
            self.known.append(token)
        assert self.known[index] == token


@dataclass
class TableDrafter(NothingLearnt):
    """Samples from row(1, text) and says so, or says that it sampled at another temperature."""

    proposals: int = 3
    reads_features: bool = False
    proposes_parked: bool = False
    seconds: float = 0.0
    honest: bool = True

    def commit(self, features: Features) -> None:
        raise AssertionError("reads no features")

    def propose(self, anchors: list[Anchor]) -> list[Proposal]:
        return [self._sample(anchor) for anchor in anchors]

    def _sample(self, anchor: Anchor) -> Proposal:
        assert anchor.dice is not None
        ids: list[int] = []
        odds = []
        for _ in range(min(anchor.limit, self.proposals)):
            q = row(1, (*anchor.text, *ids))
            odds.append(q)
            really = q.astype(np.float64) if self.honest else q.astype(np.float64) ** 2.5
            ids.append(int(anchor.dice.random.choice(V, p=really / really.sum())))
        return Proposal(tuple(ids), None, np.array(odds) if odds else None)


def start(loop: Engine, target: TableTarget, rule: SampledRule, seed: int, limit: int) -> Any:  # noqa: ANN401
    sampler = TableSampler(target, np.random.default_rng([seed, 0]))
    chances = Chances(rule, Dice(1.0, np.random.default_rng([seed, 1])), sampler.odds, sampler.take)
    ending = Ending(pieces=Pieces(lambda t: b"x"), ends={END}, limit=limit)
    request = Request(
        np.array(PROMPT, np.int32), limit, 3, ending, draw=sampler.draw, chances=chances
    )
    return loop.admit(request), sampler


def counted(rule: SampledRule, drafter: TableDrafter, *, slots: int = 1) -> Counter[object]:
    target = TableTarget(slots)
    loop = Engine(cast(Any, target), cast(Any, drafter))
    counts: Counter[object] = Counter()
    for first in range(0, DRAWS, slots):
        at_once = [start(loop, target, rule, seed, 6) for seed in range(first, first + slots)]
        while any(s.finish_reason is None for s, _ in at_once):
            loop.step()
        for sequence, sampler in at_once:
            assert sampler.known == sequence.tokens
            assert len(target.cache[sequence.slot]) == sequence.n_past
            counts[tuple(sequence.tokens[:4])] += 1
            loop.release(sequence.request)
    return counts


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("rule", RULES)
def test_texts_are_distributed_as_plain_decoding_gives_them(rule: SampledRule, slots: int) -> None:
    found = goodness(counted(rule, TableDrafter(), slots=slots), cast(Any, truth(4)))
    assert found.cells > 40
    assert found.p_value > 0.001
    assert found.variation < 1.5 * found.expected_variation


@pytest.mark.parametrize("rule", RULES)
def test_a_draft_that_hides_its_temperature_is_found_out(rule: SampledRule) -> None:
    found = goodness(counted(rule, TableDrafter(honest=False)), cast(Any, truth(4)))
    assert found.p_value < 1e-6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dead_end", [0, 1, 2, 3, 4])
def test_where_no_token_is_left_the_text_fails_there(rule: SampledRule, dead_end: int) -> None:
    target = TableTarget()
    loop = Engine(cast(Any, target), cast(Any, TableDrafter()))
    for seed in range(40):
        sampler = TableSampler(target, np.random.default_rng(seed), dead_end)
        dice = Dice(1.0, np.random.default_rng([seed, 1]))
        chances = Chances(rule, dice, sampler.odds, sampler.take)
        ending = Ending(pieces=Pieces(lambda t: b"x"), ends={END}, limit=9)
        request = Request(
            np.array(PROMPT, np.int32), 9, 3, ending, draw=sampler.draw, chances=chances
        )
        if dead_end == 0:
            with pytest.raises(SamplingError):
                loop.admit(request)
            continue
        sequence = loop.admit(request)
        while sequence.finish_reason is None:
            loop.step()
        if sequence.finish_reason == "error":
            assert len(sequence.tokens) == dead_end
            assert isinstance(sequence.failure, SamplingError)
        else:
            assert sequence.tokens[-1] == END
        loop.release(request)


def interrupting(asked: Callable[[int, int], bool], at: int) -> Callable[[int, int], bool]:
    calls = itertools.count()

    def ends_with(ahead: int, token: int) -> bool:
        if next(calls) == at:
            raise KeyboardInterrupt
        return asked(ahead, token)

    return ends_with


@pytest.mark.parametrize("rule", RULES)
def test_an_interrupted_round_keeps_what_was_decided(rule: SampledRule) -> None:
    for seed in range(60):
        target = TableTarget()
        loop = Engine(cast(Any, target), cast(Any, TableDrafter()))
        sequence, sampler = start(loop, target, rule, seed, 9)
        whole = sequence.request.ending.ends_with
        sequence.request.ending.ends_with = interrupting(whole, seed % 5)
        while sequence.finish_reason is None:
            decided = list(sequence.decided)
            try:
                loop.step()
            except KeyboardInterrupt:
                assert sequence.decided
                decided = list(sequence.decided)
                before = len(sequence.tokens)
                loop.step()
                new = sequence.tokens[before:]
                assert new[: len(decided)] == decided[: len(new)]
        assert sampler.known == sequence.tokens
        assert decided is not None


def test_without_sampled_proposals_the_target_draws() -> None:
    @dataclass
    class Silent(TableDrafter):
        def propose(self, anchors: list[Anchor]) -> list[Proposal]:
            return [Proposal((0, 1)) for _ in anchors]

    texts = []
    for drafter in (Silent(), None):
        target = TableTarget()
        loop = Engine(cast(Any, target), cast(Any, drafter))
        for seed in range(30):
            sequence, _ = start(loop, target, "block", seed, 9)
            while sequence.finish_reason is None:
                loop.step()
            texts.append(sequence.tokens)
            loop.release(sequence.request)
    assert texts[:30] == texts[30:]
