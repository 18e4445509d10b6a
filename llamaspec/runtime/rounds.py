"""Drafted greedy rounds of one sequence in a row, in one native call."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from llamaspec.errors import DecodeError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import FloatArray
from llamaspec.runtime.batch import Batch
from llamaspec.runtime.context import Context, TargetContext
from llamaspec.runtime.draft_context import DraftContext
from llamaspec.runtime.rule import Rule

MOST_ROUNDS = 16
"""Rounds of one call."""


class Drafted(NamedTuple):
    """A round: the ids of the block, with a confidence each where the draft has them, how many were
    verified and accepted, the target's own token after those, and seconds of both passes.
    """

    ids: tuple[int, ...]
    confidence: tuple[float, ...] | None
    verified: int
    accepted: int
    bonus: int
    draft_s: float
    verify_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Where rounds begin: a sequence, its last committed token and that one's position. left: most
    tokens that can follow. width: proposals of a block. most: rounds. ends: ids that end the text.
    seconds: after which no round begins. rule: None verifies all.
    """

    seq: int
    anchor: int
    position: int
    left: int
    width: int
    most: int
    ends: Sequence[int]
    seconds: float
    rule: Rule | None


class Run(NamedTuple):
    """learnt: positions that the draft's cache holds. waiting [n, taps * width]: features of those
    after them, in memory that is valid until the next pass of the target.
    """

    rounds: list[Drafted]
    learnt: int
    waiting: FloatArray


@dataclass(frozen=True, slots=True)
class BlockShape:
    """proposals: the most of a block. first: its slots before the first proposal. mask: the token
    of all slots but the anchor's. confidence: whether the draft's rows give confidences.
    """

    proposals: int
    first: int
    mask: int
    confidence: bool


class Rounds:
    """Memory for runs of rounds on a target and its draft."""

    def __init__(self, target: TargetContext, draft: DraftContext, shape: BlockShape) -> None:
        self._target, self._draft, self._shape = target, draft, shape
        most = shape.proposals
        self._block = Batch.create(most + shape.first)
        self._inject = Batch.create(most + 1, draft.feature_width)
        self._verify = Batch.create(most + 1)
        rounds = self._rounds = ffi.new("struct ls_rounds *")
        rounds.first, rounds.mask = shape.first, shape.mask
        size = MOST_ROUNDS * most
        self._owned = [ffi.new("int32_t[]", n) for n in (size, *[MOST_ROUNDS] * 3)]
        rounds.ids, rounds.verified, rounds.accepted, rounds.bonus = self._owned
        self._seconds = [ffi.new("double[]", MOST_ROUNDS) for _ in range(2)]
        rounds.draft_s, rounds.verify_s = self._seconds
        if shape.confidence:
            self._scores = rounds.confidence = ffi.new("float[]", size)

    def run(self, start: Start) -> Run:
        """Go through rounds from a start up to which the draft knows the features of all positions.
        The target publishes its features.

        Raises DecodeError where the first one fails; the target then holds what it held.
        """
        target, draft, rounds = self._target, self._draft, self._rounds
        assert 1 <= start.width <= self._shape.proposals, "a block that there is no memory for"
        rounds.chain = draft.chain_ptr()
        rounds.block, rounds.inject = self._block.ptr, self._inject.ptr
        rounds.verify = self._verify.ptr
        rounds.seq, rounds.width = start.seq, start.width
        rounds.anchor, rounds.position, rounds.left = start.anchor, start.position, start.left
        rounds.most, rounds.seconds = min(start.most, MOST_ROUNDS), start.seconds
        ends = rounds.ends = ffi.new("int32_t[]", list(start.ends))
        rounds.n_ends = len(ends)
        rule, _owned = (ffi.NULL, []) if start.rule is None else _native(start.rule)
        rounds.rule = rule
        rounds.features, rounds.taps, rounds.n_taps = target.lend_features()
        _check_servers(target, draft)
        code = lib.ls_draft_rounds(target.ptr, draft.ptr, rounds)
        _check_servers(target, draft)
        if code != 0:
            raise DecodeError(f"{target.model.path.name}: a round failed ({code})", code)
        found = self._read(start.width)
        draft.seconds += sum(each.draft_s for each in found)
        target.seconds += sum(each.verify_s for each in found)
        return Run(found, rounds.learnt, target.run_features(rounds.waiting))

    def _read(self, width: int) -> list[Drafted]:
        rounds = self._rounds
        n = rounds.count
        ids = ffi.unpack(rounds.ids, n * width)
        scores = ffi.unpack(rounds.confidence, n * width) if rounds.confidence else None
        columns = rounds.verified, rounds.accepted, rounds.bonus, rounds.draft_s, rounds.verify_s
        rest = zip(*[ffi.unpack(column, n) for column in columns], strict=True)
        return [
            Drafted(
                tuple(ids[i * width : (i + 1) * width]),
                None if scores is None else tuple(scores[i * width : (i + 1) * width]),
                *each,
            )
            for i, each in enumerate(rest)
        ]


def _check_servers(*contexts: Context) -> None:
    for context in contexts:
        context.model.check_servers()


def width_by(rule: Rule, confidence: Sequence[float] | None, limit: int) -> int:
    """How many of a block's first `limit` proposals a round would verify."""
    native, _owned = _native(rule)
    scores = ffi.NULL if confidence is None else ffi.new("float[]", list(confidence))
    return int(lib.ls_choose_width(native, scores, limit))


def _native(rule: Rule) -> tuple[Any, list[Any]]:
    """A rule for native code, and the memory that it points to."""
    native = ffi.new("struct ls_rule *")
    levels = [knots for knots in rule.levels[: len(rule.temperatures)]]
    levels += [()] * (len(rule.temperatures) - len(levels))
    native.rate, native.n_knots = rule.rate, len(rule.at)
    native.n_temperatures = len(rule.temperatures)
    owned = {
        "prices": rule.prices,
        "rates": rule.rates,
        "at": rule.at,
        "values": rule.values,
        "temperatures": rule.temperatures,
        "level_at": [at for knots in levels for at, _ in knots],
        "level_values": [value for knots in levels for _, value in knots],
    }
    memory = []
    for name, numbers in owned.items():
        if numbers is not None:
            memory.append(ffi.new("double[]", numbers))
            setattr(native, name, memory[-1])
    starts = [0, *accumulate(len(knots) for knots in levels)]
    memory.append(ffi.new("int32_t[]", starts))
    native.level_starts = memory[-1]
    return native, memory
