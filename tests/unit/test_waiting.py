"""Features that wait: whose, in which order, and how far they reach."""

import random

import numpy as np
import pytest

from llamaspec.draft.waiting import Waiting
from llamaspec.runtime.arrays import FloatArray

USUAL = 4


def rows(seq: int, start: int, count: int) -> FloatArray:
    """Rows that say where they belong."""
    return np.array([(seq, start + i) for i in range(count)], np.float32).reshape(count, 2)


def waiting_rows() -> Waiting:
    return Waiting(2, USUAL)


def put(waiting: Waiting, seq: int, start: int, count: int = 1) -> None:
    waiting.add(seq, start, rows(seq, start, count))


def held(waiting: Waiting, *seqs: int) -> list[tuple[int, int]]:
    found = waiting.of(seqs)
    if found is None:
        return []
    places = [(seq, start + i) for seq, start, count in found.spans for i in range(count)]
    assert found.rows.tolist() == [list(place) for place in places]
    assert found.rows.flags.c_contiguous
    return places


def test_rows_of_several_rounds_come_together_in_order() -> None:
    waiting = waiting_rows()
    put(waiting, 0, 3)
    put(waiting, 1, 8, 2)
    put(waiting, 0, 4, 2)
    put(waiting, 1, 10)
    assert held(waiting, 0) == [(0, 3), (0, 4), (0, 5)]
    assert held(waiting, 1) == [(1, 8), (1, 9), (1, 10)]
    assert len(held(waiting, 0, 1)) == len(waiting) == 6
    assert held(waiting, 2) == []
    assert waiting.every() == {0, 1}
    assert (waiting.end(0), waiting.end(1), waiting.end(2)) == (6, 11, None)


def test_rows_are_copies() -> None:
    waiting = waiting_rows()
    given = rows(0, 0, 2)
    waiting.add(0, 0, given)
    given[:] = 7
    assert held(waiting, 0) == [(0, 0), (0, 1)]


def test_rows_are_dropped_by_position() -> None:
    waiting = waiting_rows()
    for position in (3, 4):
        put(waiting, 0, position)
        put(waiting, 1, position)
    waiting.drop(0, 4)
    assert held(waiting, 0) == [(0, 3)]
    waiting.drop_below(1, 4)
    assert held(waiting, 1) == [(1, 4)]
    waiting.drop(0)
    assert waiting.every() == {1}
    waiting.drop(1, 2)
    assert len(waiting) == 0
    assert waiting.end(1) is None


def test_dropping_what_is_not_there_changes_nothing() -> None:
    waiting = waiting_rows()
    waiting.drop(0)
    waiting.drop_below(0, 9)
    put(waiting, 0, 5, 2)
    waiting.drop(0, 7)
    waiting.drop_below(0, 5)
    waiting.drop_below(0, 2)
    waiting.drop(1)
    assert held(waiting, 0) == [(0, 5), (0, 6)]
    waiting.drop_below(0, 100)
    assert len(waiting) == 0
    assert waiting.end(0) is None
    put(waiting, 0, 100)
    assert held(waiting, 0) == [(0, 100)]


def test_more_rows_than_usual_have_room() -> None:
    waiting = waiting_rows()
    put(waiting, 0, 0, USUAL)
    put(waiting, 0, USUAL, 3 * USUAL)
    assert held(waiting, 0) == [(0, i) for i in range(4 * USUAL)]
    put(waiting, 1, 7, USUAL + 1)
    assert held(waiting, 1) == [(1, 7 + i) for i in range(USUAL + 1)]


def test_rows_move_up_where_the_first_were_dropped() -> None:
    waiting = waiting_rows()
    for position in range(50):
        put(waiting, 0, position)
        waiting.drop_below(0, position - 1)
        assert held(waiting, 0) == [(0, i) for i in range(max(0, position - 1), position + 1)]


def test_rows_behind_a_gap_are_refused() -> None:
    waiting = waiting_rows()
    put(waiting, 0, 3)
    with pytest.raises(AssertionError, match="gaps"):
        put(waiting, 0, 5)


def test_any_course_of_events() -> None:
    dice, waiting = random.Random(0), waiting_rows()
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(3000):
        seq, start = dice.randrange(3), dice.randrange(12)
        mine = expected[seq]
        match dice.randrange(4):
            case 0 | 1:
                start = mine[-1] + 1 if mine else start
                count = dice.randrange(1, 4)
                put(waiting, seq, start, count)
                mine += range(start, start + count)
            case 2:
                waiting.drop(seq, start)
                expected[seq] = [p for p in mine if p < start]
            case _:
                waiting.drop_below(seq, start)
                expected[seq] = [p for p in mine if p >= start]
        for each, positions in expected.items():
            assert held(waiting, each) == [(each, p) for p in positions]
            assert waiting.end(each) == (positions[-1] + 1 if positions else None)
        assert waiting.every() == {each for each, positions in expected.items() if positions}
        assert len(waiting) == len(held(waiting, 0, 1, 2)) == sum(map(len, expected.values()))
