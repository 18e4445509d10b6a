"""Features that wait: whose, in which order, and how far they reach."""

import numpy as np

from llamaspec.draft.drafter import Features
from llamaspec.draft.waiting import Waiting


def features(*places: tuple[int, int]) -> Features:
    """Rows that say where they belong."""
    seq, position = (list(column) for column in zip(*places, strict=True))
    return Features(np.array(places, np.float32), seq, position)


def held(waiting: Waiting, *seqs: int) -> list[tuple[int, int]]:
    found = waiting.of(seqs)
    if found is None:
        return []
    places = list(zip(found.seq, found.position, strict=True))
    assert found.rows.tolist() == [list(place) for place in places]
    assert found.rows.flags.c_contiguous
    return places


def test_rows_of_several_rounds_come_together_in_order() -> None:
    waiting = Waiting()
    waiting.add(features((0, 3), (1, 8), (1, 9)))
    waiting.add(features((0, 4), (0, 5)))
    waiting.add(features((1, 10)))
    assert held(waiting, 0) == [(0, 3), (0, 4), (0, 5)]
    assert held(waiting, 1) == [(1, 8), (1, 9), (1, 10)]
    assert len(held(waiting, 0, 1)) == len(waiting) == 6
    assert held(waiting, 2) == []
    assert waiting.every() == {0, 1}
    assert (waiting.end(0), waiting.end(1), waiting.end(2)) == (6, 11, None)


def test_rows_are_copies() -> None:
    waiting = Waiting()
    given = features((0, 0), (0, 1))
    waiting.add(given)
    given.rows[:] = 7
    assert held(waiting, 0) == [(0, 0), (0, 1)]


def test_rows_are_dropped_by_position() -> None:
    waiting = Waiting()
    waiting.add(features((0, 3), (1, 3)))
    waiting.add(features((0, 4), (1, 4)))
    waiting.drop(0, 4)
    assert held(waiting, 0) == [(0, 3)]
    waiting.drop_below({1: 4})
    assert held(waiting, 1) == [(1, 4)]
    waiting.drop(0)
    assert waiting.every() == {1}
    waiting.drop(1, 2)
    assert len(waiting) == 0
    assert waiting.end(1) is None
