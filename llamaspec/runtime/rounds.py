"""Drafted greedy rounds of one sequence in a row, in one native call."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.context import Context, TargetContext
from llamaspec.runtime.draft_context import BlockShape, DraftContext
from llamaspec.runtime.rule import Rule

MOST_ROUNDS = 16
"""Rounds of one call."""


class Drafted(NamedTuple):
    """A round: the ids of the block, with a confidence each where the draft has them, what each
    number of proposals from 0 on was worth where a rule said so, how many were verified and
    accepted, the target's own token after those, and seconds of both passes.
    """

    ids: tuple[int, ...]
    confidence: tuple[float, ...] | None
    worth: list[float]
    verified: int
    accepted: int
    bonus: int
    draft_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Where rounds begin: a sequence, its last committed token and that one's position. left: most
    tokens that can follow. width: proposals of the first block. usual: of those after it, and
    whole: of one after a block that was accepted whole; 0 for as many as the first. most: rounds.
    ends: ids that end the text. seconds: after which no round begins. rule: None verifies all.
    fruitless: after how many rounds in a row without an accepted proposal none begins.
    """

    seq: int
    anchor: int
    position: int
    left: int
    width: int
    most: int
    ends: Collection[int]
    seconds: float
    rule: Rule | None
    fruitless: int = MOST_ROUNDS
    usual: int = 0
    whole: int = 0


class Run(NamedTuple):
    """learnt: positions that the draft's cache holds. waiting [n, taps * width]: features of those
    after them, in memory that is valid until the next pass of the target. failed: a later round
    than the first failed, which may have left more in the draft's cache.
    """

    rounds: list[Drafted]
    learnt: int
    waiting: FloatArray
    failed: bool


class Rounds:
    """Memory for runs of rounds on a target and its draft."""

    def __init__(self, target: TargetContext, draft: DraftContext, shape: BlockShape) -> None:
        self._target, self._draft, self._shape = target, draft, shape
        most = shape.proposals
        self._block = Batch.create(most + shape.first)
        self._inject = Batch.create(most + 1, draft.feature_width)
        self._verify = Batch.create(most + 1)
        rounds = self._rounds = ffi.new("struct ls_rounds *")
        rounds.first, rounds.mask, rounds.places = shape.first, shape.mask, most
        size = MOST_ROUNDS * most
        self._owned = [ffi.new("int32_t[]", n) for n in (size, *[MOST_ROUNDS] * 4)]
        rounds.ids, rounds.drafted, rounds.verified, rounds.accepted, rounds.bonus = self._owned
        self._seconds = [ffi.new("double[]", MOST_ROUNDS) for _ in range(2)]
        rounds.draft_s, rounds.verify_s = self._seconds
        self._worth = rounds.worth = ffi.new("double[]", MOST_ROUNDS * (most + 1))
        if shape.confidence:
            self._scores = rounds.confidence = ffi.new("float[]", size)
        self._rule = _NativeRule(most)
        self._ends: Collection[int] = ()
        self._native_ends = ffi.NULL

    def run(self, start: Start, waiting: FloatArray | None = None) -> Run:
        """Go through rounds from a start up to which the draft knows the features of all positions,
        but for those that are waiting [n, taps * width], which it learns first: of the last n, at
        most a block's and one more. The target publishes its features.

        Raises DecodeError where the first one fails; the target then holds what it held.
        """
        target, draft, rounds = self._target, self._draft, self._rounds
        widths = start.width, start.usual or start.width, start.whole or start.width
        fits = all(1 <= width <= self._shape.proposals for width in widths)
        assert fits, "a block that there is no memory for"
        rounds.chain = draft.chain_ptr()
        rounds.block, rounds.inject = self._block.ptr, self._inject.ptr
        rounds.verify = self._verify.ptr
        rounds.seq = start.seq
        rounds.width, rounds.usual, rounds.whole = widths
        rounds.anchor, rounds.position, rounds.left = start.anchor, start.position, start.left
        rounds.most, rounds.seconds = min(start.most, MOST_ROUNDS), start.seconds
        rounds.fruitless = start.fruitless
        if start.ends is not self._ends:
            self._ends, self._native_ends = start.ends, ffi.new("int32_t[]", [*start.ends])
        rounds.ends, rounds.n_ends = self._native_ends, len(start.ends)
        rounds.rule = ffi.NULL if start.rule is None else self._rule.of(start.rule)
        rounds.features, rounds.taps, rounds.n_taps = target.lend_features()
        rounds.waiting = 0 if waiting is None else len(waiting)
        assert rounds.waiting <= self._inject.capacity, "more features than there is memory for"
        if waiting is not None:
            target.run_features(len(waiting))[:] = waiting
        _check_servers(target, draft)
        code = lib.ls_draft_rounds(target.ptr, draft.ptr, rounds)
        _check_servers(target, draft)
        if code != 0:
            raise target.failure(code, "a round")
        found = self._read(start)
        draft.seconds += sum(each.draft_s for each in found)
        target.seconds += sum(each.verify_s for each in found)
        waits = target.run_features(rounds.waiting)
        return Run(found, rounds.learnt, waits, bool(rounds.failed))

    def _read(self, start: Start) -> list[Drafted]:
        rounds, places, n = self._rounds, self._shape.proposals, self._rounds.count
        ids = ffi.unpack(rounds.ids, n * places)
        scores = ffi.unpack(rounds.confidence, n * places) if rounds.confidence else None
        worth = ffi.unpack(rounds.worth, n * (places + 1)) if start.rule is not None else []
        columns = rounds.verified, rounds.accepted, rounds.bonus, rounds.draft_s, rounds.verify_s
        rest = zip(*[ffi.unpack(column, n) for column in columns], strict=True)
        found = []
        for i, (width, each) in enumerate(zip(ffi.unpack(rounds.drafted, n), rest, strict=True)):
            at = i * places
            said = None if scores is None else tuple(scores[at : at + width])
            worths = worth[at + i : at + i + width + 1]
            found.append(Drafted(tuple(ids[at : at + width]), said, worths, *each))
        return found


def _check_servers(*contexts: Context) -> None:
    for context in contexts:
        context.model.check_servers()


def width_by(rule: Rule, confidence: Sequence[float] | None, limit: int) -> tuple[int, list[float]]:
    """How many of a block's first `limit` proposals a round would verify, and what each number of
    them from 0 on is worth.
    """
    native, worth = _NativeRule(limit), ffi.new("double[]", limit + 1)
    scores = ffi.NULL if confidence is None else ffi.new("float[]", list(confidence))
    width = int(lib.ls_choose_width(native.of(rule), scores, limit, worth))
    return width, ffi.unpack(worth, limit + 1)


class _NativeRule:
    """A rule in native memory, which the next one overwrites."""

    def __init__(self, proposals: int) -> None:
        self._rule = ffi.new("struct ls_rule *")
        sizes = {"prices": proposals + 2, "rates": proposals}
        self._memory = {name: ffi.new("double[]", size) for name, size in sizes.items()}
        self._rule.prices = self._memory["prices"]

    def of(self, rule: Rule) -> Any:  # noqa: ANN401
        """The pointer that native code takes."""
        native, memory = self._rule, self._memory
        native.rate, native.least = rule.rate, rule.least
        _fill(memory["prices"], rule.prices)
        if rule.rates is not None:
            _fill(memory["rates"], rule.rates)
            native.rates = memory["rates"]
            return native
        native.rates, native.n_knots = ffi.NULL, len(rule.at)
        native.at, native.values = (
            self._list(name, of) for name, of in (("at", rule.at), ("values", rule.values))
        )
        native.n_temperatures = len(rule.temperatures)
        if rule.temperatures:
            self._scale(rule)
        return native

    def _list(self, name: str, numbers: Sequence[float]) -> Any:  # noqa: ANN401
        memory = self._memory.get(name)
        if memory is None or len(memory) < len(numbers):
            memory = self._memory[name] = ffi.new("double[]", len(numbers))
        _fill(memory, numbers)
        return memory

    def _scale(self, rule: Rule) -> None:
        native, n = self._rule, len(rule.temperatures)
        levels = [*rule.levels[:n], *[()] * (n - len(rule.levels))]
        native.temperatures = self._list("temperatures", rule.temperatures)
        native.level_at = self._list("level_at", [at for knots in levels for at, _ in knots])
        values = [value for knots in levels for _, value in knots]
        native.level_values = self._list("level_values", values)
        starts = [0, *accumulate(len(knots) for knots in levels)]
        native.level_starts = self._starts = ffi.new("int32_t[]", starts)


def _fill(memory: Any, numbers: Sequence[float]) -> None:  # noqa: ANN401
    n = min(len(memory), len(numbers))
    memory[0:n] = [*numbers[:n]]
