"""The chi-square test against known values, and against counts that do and do not fit."""

import numpy as np
import pytest

from llamaspec.bench.goodness import goodness, tail


@pytest.mark.parametrize(
    ("square", "freedom", "expected"),
    [
        (3.841459, 1, 0.05),
        (6.634897, 1, 0.01),
        (18.307038, 10, 0.05),
        (124.342113, 100, 0.05),
        (149.449253, 100, 0.001),
        (1074.679, 1000, 0.05),
        (0.0, 7, 1.0),
        (2.0, 2, 0.36787944),
    ],
)
def test_tails_of_the_tables(square: float, freedom: int, expected: float) -> None:
    assert tail(square, freedom) == pytest.approx(expected, rel=2e-4)


def test_counts_that_fit_have_uniform_p_values() -> None:
    random, found = np.random.default_rng(0), []
    probabilities = {i: p for i, p in enumerate((0.5, 0.2, 0.2, 0.07, 0.03))}
    for _ in range(400):
        drawn = random.multinomial(2000, list(probabilities.values()))
        found.append(goodness(dict(enumerate(drawn.tolist())), probabilities))
    values = np.array([f.p_value for f in found])
    for edge in (0.1, 0.5, 0.9):
        assert abs((values < edge).mean() - edge) < 0.08
    mean = np.mean([f.variation for f in found])
    assert mean == pytest.approx(found[0].expected_variation, rel=0.05)


def test_counts_that_do_not_fit_are_found() -> None:
    random = np.random.default_rng(1)
    drawn = random.multinomial(20_000, [0.52, 0.28, 0.2])
    assert goodness(dict(enumerate(drawn.tolist())), {0: 0.5, 1: 0.3, 2: 0.2}).p_value < 1e-3


def test_what_cannot_be_is_found_however_rare() -> None:
    counts = {"a": 500, "b": 499, "c": 1}
    assert goodness(counts, {"a": 0.5, "b": 0.5, "c": 0.0}).p_value == 0
    assert goodness(counts, {"a": 0.5, "b": 0.5}).p_value == 0


def test_rare_cells_are_put_together() -> None:
    probabilities = {i: 0.001 for i in range(100)} | {"rest": 0.9}
    counts = {i: 1 for i in range(100)} | {"rest": 900}
    found = goodness(counts, probabilities)
    assert found.cells == 2
    assert found.p_value > 0.9
