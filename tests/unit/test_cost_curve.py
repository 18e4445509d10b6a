"""The cost curve: monotone whatever was measured, and a file that is checked when it is read."""

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from llamaspec.errors import OptionError
from llamaspec.schedule.cost import CostCurve, Surface, isotonic

PLAIN = Surface((0, 100), (1, 2, 4), ((1.0, 2.0, 3.0), (2.0, 4.0, 8.0)))
CURVE = CostCurve(PLAIN, Surface((0,), (1, 7), ((0.1, 0.4),)), None, (("threads", "2"),))


@pytest.mark.parametrize(
    ("rows", "depth", "expected"),
    [
        (1, 0, 1.0),
        (4, 100, 8.0),
        (3, 0, 2.5),
        (2, 50, 3.0),
        (3, 50, 4.25),
        (6, 0, 4.0),
        (2, 200, 6.0),
    ],
)
def test_reading_is_linear_between_points_and_beyond_them(
    rows: int, depth: int, expected: float
) -> None:
    assert CURVE.verify_s(rows, depth) == pytest.approx(expected)


def test_nothing_costs_nothing_and_an_absent_surface_too() -> None:
    assert CURVE.draft_s(7) == pytest.approx(0.4)
    assert CURVE.draft_s(4) == pytest.approx(0.25)
    assert (CURVE.draft_s(0), CURVE.injection_s(3)) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_more_rows_or_more_context_never_cost_less(seed: int) -> None:
    noise = random.Random(seed)
    depths, sizes = (0, 64, 500, 4096), tuple(range(1, 16))
    surface = Surface(
        depths, sizes, tuple(tuple(noise.uniform(1, 3) for _ in sizes) for _ in depths)
    )
    for depth in (0, 30, 64, 700, 9000):
        costs = [surface.at(size, depth) for size in range(1, 24)]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(costs))
    for size in (1, 5, 20):
        costs = [surface.at(size, depth) for depth in range(0, 9000, 50)]
        assert all(a <= b + 1e-12 for a, b in itertools.pairwise(costs))


@pytest.mark.parametrize("seed", range(10))
def test_isotonic_regression_is_the_closest_rising_sequence(seed: int) -> None:
    noise = random.Random(seed)
    values = [noise.choice([0.0, 1.0, 2.0, 3.0]) for _ in range(5)]
    found = isotonic(values)
    assert found == sorted(found)
    assert sum(found) == pytest.approx(sum(values))
    # the mean of some of the values is the best level of each stretch
    levels = {
        sum(values[i:j]) / (j - i) for i, j in itertools.combinations(range(len(values) + 1), 2)
    }
    best = min(
        sum((a - b) ** 2 for a, b in zip(values, guess, strict=True))
        for guess in itertools.combinations_with_replacement(sorted(levels), len(values))
    )
    assert sum((a - b) ** 2 for a, b in zip(values, found, strict=True)) == pytest.approx(best)


def test_a_rising_curve_is_read_as_it_was_measured() -> None:
    assert PLAIN.smooth() == PLAIN.seconds


def test_a_file_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    CURVE.save(path)
    assert CostCurve.load(path) == CURVE


def _with(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return CURVE.as_json() | changes


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "not a cost curve"),
        (_with(format="other"), "not a cost curve"),
        (_with(verify=None), "needs verify seconds"),
        (_with(verify=[1]), "must have lists"),
        (_with(verify={"depths": [0], "sizes": [1], "seconds": [1]}), "must have lists"),
        (_with(verify={"depths": [0], "sizes": [1], "seconds": [["1"]]}), "no positive"),
        (_with(verify={"depths": [0], "sizes": [1], "seconds": [[True]]}), "no positive"),
        (_with(verify={"depths": [0], "sizes": [1], "seconds": [[0]]}), "no positive"),
        (_with(verify={"depths": [0], "sizes": [1], "seconds": [[1e999]]}), "no positive"),
        (_with(verify={"depths": [0], "sizes": [2, 1], "seconds": [[1, 1]]}), "rising"),
        (_with(verify={"depths": [0], "sizes": [0], "seconds": [[1]]}), "at least 1"),
        (_with(verify={"depths": [], "sizes": [1], "seconds": []}), "rising"),
        (_with(verify={"depths": [0, 1], "sizes": [1], "seconds": [[1]]}), "2 depths"),
        (_with(verify={"depths": [0], "sizes": [1, 2], "seconds": [[1]]}), "2 sizes"),
        (_with(draft={"depths": [0.5], "sizes": [1], "seconds": [[1]]}), "whole numbers"),
        (_with(settings=[1]), "settings"),
        (_with(settings={"a": 1}), "settings"),
    ],
)
def test_what_is_no_curve_is_refused(found: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        CostCurve.of_json(found)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\xff", '{"format": 1}'])
def test_a_file_that_is_no_curve_is_named_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(OptionError, match=r"curve\.json: ") as caught:
        CostCurve.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(OptionError, match="cannot be read"):
        CostCurve.load(tmp_path / "absent.json")
    with pytest.raises(OptionError, match="cannot be written"):
        CURVE.save(tmp_path / "absent" / "curve.json")
