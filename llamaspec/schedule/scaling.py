"""Sequential temperature scaling: from a draft's confidences to survival probabilities, fitted on
rounds that were verified in full.

c_i is P(proposal i accepted | all before it accepted) as the draft's head says it. The first j
proposals all survive with `a_j = sigmoid(logit(c_1) / T_1) * ... * sigmoid(logit(c_j) / T_j)`;
T_1, T_2, ... are fitted in this order, each on a grid, to the smallest expected calibration error
of a_j with those before it fixed (the paper's STS).

A temperature turns confidences about 1/2 and cannot say that high ones claim too much where low
ones do not. `levels` can: after each temperature a rising curve from a_j to the share that really
survived (isotonic regression, Zadrozny and Elkan 2002), on which the next position goes on.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from llamaspec.errors import OptionError
from llamaspec.schedule import files

FORMAT = "llamaspec calibration 1"
MOST_POSITIONS = 256
MOST_KNOTS = 256
_LEAST_T, _MOST_T = 0.01, 100.0
_LEAST = 1e-6

Knot = tuple[float, float]
"""A point of a curve of levels: a survival before, and after."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What was fitted for one draft.

    temperatures [B]: by position. levels: of each position the knots of its curve, both
    coordinates rising, read linearly between them and flat beyond; a position without any keeps
    its survival as it is. Empty: temperatures alone. about: what it was fitted on, spoken.

    Raises OptionError on construction for anything else.
    """

    temperatures: tuple[float, ...]
    levels: tuple[tuple[Knot, ...], ...] = ()
    about: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= len(self.temperatures) <= MOST_POSITIONS:
            raise OptionError(
                f"a calibration has {len(self.temperatures)} temperatures; 1 to {MOST_POSITIONS} "
                "are possible"
            )
        for t in self.temperatures:
            if not files.is_number(t) or not _LEAST_T <= t <= _MOST_T:
                raise OptionError(
                    f"a calibration has the temperature {t!r}; they lie in {_LEAST_T:g} to "
                    f"{_MOST_T:g}"
                )
        if self.levels and len(self.levels) != len(self.temperatures):
            raise OptionError(
                f"a calibration has {len(self.temperatures)} temperatures and levels of "
                f"{len(self.levels)} positions"
            )
        for knots in self.levels:
            _check_knots(knots)

    def survival(self, confidence: Sequence[float]) -> list[float]:
        """P(the first j proposals are all accepted) for j = 1, 2, ..., none larger than the one
        before it.

        confidence: of each proposal in order; beyond the fitted positions the last one's
        temperature goes on, without levels. A larger confidence never gives a smaller survival of
        its position. A NaN, of a damaged draft, is the least confidence.
        """
        found: list[float] = []
        a = 1.0
        last = len(self.temperatures) - 1
        for i, c in enumerate(confidence):
            b = a * sigmoid(logit(c) / self.temperatures[min(i, last)])
            if i < len(self.levels) and self.levels[i]:
                b = read(self.levels[i], b)
            a = min(a, b)
            found.append(a)
        return found

    def as_json(self) -> dict[str, Any]:
        """The calibration as an object of plain JSON; `of_json` reads it."""
        return {
            "format": FORMAT,
            "temperatures": list(self.temperatures),
            "levels": [[list(knot) for knot in knots] for knots in self.levels],
            "about": dict(self.about),
        }

    @classmethod
    def of_json(cls, found: object) -> Self:
        """Read what `as_json` gave. Raises OptionError for anything else."""
        if not isinstance(found, Mapping) or found.get("format") != FORMAT:
            raise OptionError(f'not a calibration: an object with "format": "{FORMAT}" is one')
        temperatures, levels = found.get("temperatures"), found.get("levels", [])
        about = found.get("about", {})
        if not files.texts(about):
            raise OptionError("what a calibration says about itself must map names to texts")
        if not isinstance(temperatures, list) or not isinstance(levels, list):
            raise OptionError("a calibration must have lists: temperatures, and levels if any")
        pairs = all(
            isinstance(knots, list) and all(isinstance(k, list) and len(k) == 2 for k in knots)
            for knots in levels
        )
        if not pairs:
            raise OptionError("levels of a calibration must be lists of pairs, one a position")
        shaped = tuple(tuple((k[0], k[1]) for k in knots) for knots in levels)
        return cls(tuple(temperatures), shaped, tuple(about.items()))

    def save(self, path: Path) -> None:
        """Write the calibration to a file. Raises OptionError where that cannot be."""
        files.write(path, self.as_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote. Raises OptionError for a file that is none."""
        return files.read(path, "a calibration", cls.of_json)


def logit(c: float) -> float:
    """log(c / (1 - c)), of probabilities no nearer to 0 or 1 than 1e-6; a NaN is the least."""
    c = min(max(_LEAST, c), 1 - _LEAST)
    return math.log(c / (1 - c))


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)); 0 and 1 to within 1e-26 beyond 60."""
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, x))))


def read(knots: Sequence[Knot], at: float) -> float:
    """A curve's value: linear between its knots, flat before the first and after the last."""
    right = bisect_right(knots, at, key=lambda knot: knot[0])
    if right == 0 or right == len(knots):
        return knots[max(0, right - 1)][1]
    (x0, y0), (x1, y1) = knots[right - 1], knots[right]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def _check_knots(knots: tuple[Knot, ...]) -> None:
    if len(knots) > MOST_KNOTS:
        raise OptionError(
            f"a calibration has {len(knots)} levels at one position; at most {MOST_KNOTS} are "
            "possible"
        )
    if not all(files.is_number(x) and 0 <= x <= 1 for knot in knots for x in knot):
        raise OptionError("levels of a calibration must be probabilities in 0 to 1")
    if not all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(knots)):
        raise OptionError("levels of a calibration must rise along each position")
