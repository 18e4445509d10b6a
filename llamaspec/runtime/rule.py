"""Which width a round verifies, as numbers that native code can follow."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Verify as many proposals as give most tokens - rate * seconds, but `least`.

    prices [1 + rows]: seconds of a target pass over so many, at a depth. rates [proposals]:
    P(accepted | all before accepted) by position where confidences c do not count. They do where it
    is None, by sigmoid(f(logit(c))), f linear between the knots at, values. temperatures, levels:
    of a calibration, which c goes through first.
    """

    rate: float
    prices: Sequence[float]
    depth: int = 0
    least: int = 0
    rates: Sequence[float] | None = None
    at: Sequence[float] = ()
    values: Sequence[float] = ()
    temperatures: Sequence[float] = ()
    levels: Sequence[Sequence[tuple[float, float]]] = ()
