"""Whether counts follow given probabilities: Pearson's chi-square test and the total variation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K")

LEAST = 5.0
"""Cells that fewer draws are expected in are put together: the test's approximation needs them."""


@dataclass(frozen=True)
class Goodness:
    """p_value: how often chance alone gives a chi-square this large. variation: half the sum of
    |count / draws - probability|; expected_variation: what chance alone gives on average.
    """

    draws: int
    cells: int
    chi_square: float
    p_value: float
    variation: float
    expected_variation: float


def goodness(counts: Mapping[K, int], probabilities: Mapping[K, float]) -> Goodness:
    """Compare counts with probabilities, which sum to 1. What has none must not be counted: one
    such count makes the p-value 0.
    """
    draws = sum(counts.values())
    strange = sum(n for key, n in counts.items() if not probabilities.get(key, 0.0) > 0)
    seen = [(counts.get(key, 0), p) for key, p in probabilities.items() if p > 0]
    variation = (sum(abs(n / draws - p) for n, p in seen) + strange / draws) / 2
    by_chance = sum(math.sqrt(2 * p * (1 - p) / (math.pi * draws)) for _, p in seen) / 2
    cells = [(n, p * draws) for n, p in seen if p * draws >= LEAST]
    rare = [(n, p * draws) for n, p in seen if p * draws < LEAST]
    if rare:
        cells.append((sum(n for n, _ in rare), sum(e for _, e in rare)))
    square = sum((n - e) ** 2 / e for n, e in cells)
    p_value = 0.0 if strange else tail(square, len(cells) - 1)
    return Goodness(draws, len(cells), square, p_value, variation, by_chance)


def tail(square: float, freedom: int) -> float:
    """P(chi-square of so many degrees of freedom > square): the regularised upper incomplete gamma
    function Q(freedom / 2, square / 2), by its series or its continued fraction.
    """
    a, x = freedom / 2, square / 2
    if freedom <= 0 or x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - scale * total)
    return scale * _fraction(a, x)


def _fraction(a: float, x: float) -> float:
    # Lentz's method for 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ...))
    b = x + 1 - a
    c, d = 1e300, 1 / b
    found = d
    for i in range(1, 10_000):
        part = -i * (i - a)
        b += 2
        d = 1 / (part * d + b)
        c = b + part / c
        found *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return found
