"""The prefix scheduler: the best of all prefixes, within its budget, looking no further."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from llamaspec.errors import OptionError
from llamaspec.schedule.prefix import best_widths, falling, first_fall_widths

Table = list[list[float]]


def _table(noise: random.Random, sequences: int, most: int) -> Table:
    """Survivals as products of chances, some of them 0, 1 or the same as others."""
    found = []
    for _ in range(sequences):
        chances = [
            noise.choice([0.0, 0.5, 1.0, noise.random()]) for _ in range(noise.randint(0, most))
        ]
        found.append(list(itertools.accumulate(chances, lambda a, b: a * b)))
    return found


def _staircase(noise: random.Random) -> Callable[[int], float]:
    """Seconds by rows: rising, with flat stretches and steps."""
    floor, slope = noise.uniform(0.5, 3), noise.uniform(0, 0.4)
    step, tile = noise.uniform(0, 2), noise.randint(1, 5)
    return lambda rows: floor + slope * rows + step * math.ceil(rows / tile)


def _line(floor: float, slope: float) -> Callable[[int], float]:
    return lambda rows: floor + slope * rows


def _rate(
    widths: Sequence[int], table: Table, seconds: Callable[[int], float], spent: float
) -> float:
    tokens = len(table) + sum(sum(a[:w]) for a, w in zip(table, widths, strict=True))
    return tokens / (spent + seconds(len(table) + sum(widths)))


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_prefixes_is_better(seed: int) -> None:
    noise = random.Random(seed)
    for _ in range(60):
        table, seconds = _table(noise, noise.randint(1, 4), 4), _staircase(noise)
        spent = noise.choice([0.0, noise.uniform(0, 3)])
        rows = noise.choice([None, len(table) + noise.randint(0, 6)])
        every = [
            widths
            for widths in itertools.product(*(range(len(a) + 1) for a in table))
            if rows is None or len(table) + sum(widths) <= rows
        ]
        most = max(_rate(widths, table, seconds, spent) for widths in every)
        found = best_widths(table, seconds, spent=spent, rows=rows)
        assert tuple(found) in every
        assert _rate(found, table, seconds, spent) == pytest.approx(most, rel=1e-12)


def test_thousands_of_tables_stay_within_what_there_is() -> None:
    noise = random.Random(1)
    for _ in range(3000):
        table, seconds = _table(noise, noise.randint(0, 20), 8), _staircase(noise)
        rows = len(table) + noise.randint(0, 40)
        best = best_widths(table, seconds, rows=rows)
        first = first_fall_widths(table, seconds, rows=rows)
        for widths in (best, first):
            assert len(widths) == len(table)
            assert all(0 <= w <= len(a) for w, a in zip(widths, table, strict=True))
            assert len(table) + sum(widths) <= rows
        if table:
            assert sum(first) <= sum(best)
            plain = _rate([0] * len(table), table, seconds, 0)
            assert _rate(first, table, seconds, 0) >= plain
            assert _rate(best, table, seconds, 0) >= _rate(first, table, seconds, 0) - 1e-12


def test_where_the_rate_rises_once_and_falls_once_both_forms_agree() -> None:
    noise = random.Random(2)
    for _ in range(500):
        table = _table(noise, noise.randint(1, 6), 7)
        seconds = _line(noise.uniform(0.5, 3), noise.uniform(0.01, 1))
        assert first_fall_widths(table, seconds) == best_widths(table, seconds)


def test_the_first_fall_looks_at_nothing_beyond_the_first_it_declines() -> None:
    noise = random.Random(3)
    changed = 0
    for _ in range(2000):
        table, seconds = _table(noise, noise.randint(1, 4), 6), _staircase(noise)
        widths = first_fall_widths(table, seconds)
        # what was drawn at w + 1 decides the confidences after it
        other = [
            a[: w + 1] + [x * noise.random() for x in a[w + 1 :]]
            for a, w in zip(table, widths, strict=True)
        ]
        changed += other != table
        assert first_fall_widths(other, seconds) == widths
    assert changed > 500


def test_a_step_ahead_is_seen_by_the_argmax_alone() -> None:
    # a second tile of rows costs, its rows are free
    def seconds(rows: int) -> float:
        return 1.0 if rows <= 1 else 1.8

    table = [[0.7, 0.69, 0.68, 0.67]]
    assert best_widths(table, seconds) == [4]
    assert first_fall_widths(table, seconds) == [0]


def test_ties_take_fewer_rows_smaller_positions_and_earlier_sequences() -> None:
    def flat(rows: int) -> float:
        return 1.0

    assert best_widths([[0.0, 0.0]], flat) == [0]
    assert best_widths([[0.5, 0.5], [0.5], [0.5]], flat, rows=5) == [1, 1, 0]
    assert best_widths([[0.5, 0.5], [0.5], [0.5]], flat, rows=7) == [2, 1, 1]
    # one token a second, whatever is chosen
    assert best_widths([[1.0, 1.0]], float) == [0]
    assert first_fall_widths([[1.0, 1.0]], float) == [0]


def test_time_spent_already_makes_wider_passes_worth_it() -> None:
    table = [[0.5, 0.25, 0.12]] * 3
    widths = [sum(best_widths(table, float, spent=spent)) for spent in (0, 1, 10, 100)]
    assert widths == sorted(widths)
    assert widths[0] == 0
    assert widths[-1] == 9


def test_a_likelier_proposal_is_never_left_out_for_another() -> None:
    noise = random.Random(4)
    for _ in range(500):
        table = _table(noise, noise.randint(2, 6), 6)
        widths = best_widths(table, _staircase(noise), rows=len(table) + 4)
        taken = [x for a, w in zip(table, widths, strict=True) for x in a[:w]]
        left = [x for a, w in zip(table, widths, strict=True) for x in a[w:]]
        assert not taken or not left or min(taken) >= max(left)


def test_nothing_to_choose_from() -> None:
    assert best_widths([], float) == first_fall_widths([], float, rows=0) == []
    assert best_widths([[], []], float) == [0, 0]
    assert best_widths([[1.0]], lambda rows: 1.0, rows=1) == [0]
    with pytest.raises(OptionError, match="1 rows cannot hold one of each of 2"):
        best_widths([[], []], float, rows=1)


def test_what_is_no_falling_probability_counts_as_one() -> None:
    assert list(falling([0.5, 0.9, math.nan, 0.4, -1.0])) == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert list(falling([1.5, math.inf])) == [1.0, 1.0]
    assert best_widths([[math.nan, 0.9], [0.9]], lambda rows: 1.0) == [0, 1]
