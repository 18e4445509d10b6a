"""What passes over several texts cost: by rows in all, texts and depth, refined by what they really
take.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np

from llamaspec.errors import OptionError
from llamaspec.schedule import files
from llamaspec.schedule.cost import CostCurve, Surface, surface_of
from llamaspec.schedule.prices import STEP, Besides

_MANY = "many"
_LEARN, _LEARN_OWN = 0.02, 0.015
_RAGGED = 1.15
"""By how much a pass over unequal widths is dearer than one over equal ones, until it is known."""
_MOST_OFF = 1.6

By = tuple[tuple[int, Surface], ...]
"""Surfaces by the number of texts, rising."""


@dataclass(frozen=True, slots=True)
class CrowdCurve:
    """Measured costs of passes over several texts.

    verify: target passes, by texts; the sizes of a surface are rows in all. draft: blocks of all
    these texts, whose sizes are their width in proposals. injection: features of committed rows, by
    rows in all; its depths do not matter. ragged: what a pass over unequal widths takes, of one
    over as many rows in equal ones.
    """

    verify: By
    draft: By = ()
    injection: Surface | None = None
    ragged: float = _RAGGED

    def as_json(self) -> dict[str, Any]:
        """The curve as an object of plain JSON; `of_json` reads it."""
        found: dict[str, Any] = {"ragged": self.ragged}
        for name, by in (("verify", self.verify), ("draft", self.draft)):
            found[name] = [{"texts": texts, name: s.as_json()} for texts, s in by]
        if self.injection is not None:
            found["injection"] = self.injection.as_json()
        return found

    @classmethod
    def of_json(cls, found: object) -> Self:
        """Read what `as_json` gave. Raises OptionError for anything else."""
        if not isinstance(found, Mapping):
            raise OptionError("costs of many texts must be an object")
        verify, draft = _by_texts(found, "verify"), _by_texts(found, "draft")
        if not verify:
            raise OptionError("costs of many texts need verify seconds and have none")
        ragged = found.get("ragged", _RAGGED)
        if not files.is_number(ragged) or not 0.1 <= ragged <= 10:
            raise OptionError(f"ragged of a cost curve is {ragged!r}; it must lie in 0.1 to 10")
        return cls(verify, draft, surface_of(found, "injection"), float(ragged))

    @classmethod
    def within(cls, path: Path) -> "CrowdCurve | None":
        """What a file of a cost curve says of many texts under "many", None where it says nothing.
        Raises OptionError.
        """

        def read(found: object) -> "CrowdCurve | None":
            many = found.get(_MANY) if isinstance(found, Mapping) else None
            return None if many is None else cls.of_json(many)

        return files.read(path, "a cost curve", read)


@dataclass
class CrowdPrices:
    """Seconds of passes over several texts. curve: of one text; many: None where only that is
    known, from which the rest is then guessed. width: the most proposals of a text. pinned: what
    passes really take changes nothing.
    """

    curve: CostCurve
    many: CrowdCurve | None
    width: int
    pinned: bool = False
    _verify: dict[tuple[int, int], list[float]] = field(default_factory=dict, repr=False)
    _draft: dict[tuple[int, int], list[float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # what slows a machine down slows all passes; the rest is their own, by proposals a text
        self._speed = 1.0
        self._wide = _Bend((0.0, 1.0, 3.0, max(4.0, self.width)))
        self._block = _Bend((1.0, max(2.0, self.width)))
        self._ragged = self.many.ragged if self.many else _RAGGED
        self._besides = Besides()

    @property
    def drafts(self) -> bool:
        """Whether there is a draft whose blocks take time."""
        return self.curve.draft is not None

    @property
    def ragged(self) -> float:
        """What a pass over unequal widths takes, of one over as many rows in equal ones."""
        return self._ragged

    def verify(self, rows: int, texts: int, depth: int, *, even: bool = True) -> float:
        """A target pass over so many rows of so many texts; even: all have the same number."""
        seconds = self._passes(texts, depth)[rows - texts]
        seconds *= self._speed * self._wide.at((rows - texts) / texts)
        return seconds if even else seconds * self._ragged

    def verify_all(self, texts: int, depth: int) -> list[float]:
        """Of every number of rows with equal widths, from one a text to the most."""
        table = self._passes(texts, depth)
        if self.pinned:
            return table
        bends = [self._speed * self._wide.at(width) for width in range(self.width + 1)]
        found = table[:1]
        found[0] *= bends[0]
        for width, (low, high) in enumerate(pairwise(bends)):
            step = (high - low) / texts
            start = width * texts
            found += [table[start + n] * (low + n * step) for n in range(1, texts + 1)]
        return found

    def draft(self, texts: int, proposals: int, depth: int) -> float:
        """What drafting adds to a round: blocks of so many texts with so many proposals in all, and
        the features of what the round before committed.
        """
        if not texts or not self.drafts:
            return 0.0
        wide = proposals / texts
        table = self._blocks(texts, depth)
        low = min(int(wide), self.width - 1)
        seconds = table[low] + (wide - low) * (table[low + 1] - table[low])
        return seconds * self._speed * self._block.at(wide)

    def besides(self, texts: int, *, drafted: bool) -> float:
        """What a round of so many texts takes beside passes; 0 where it was never seen."""
        return texts * self._besides.at(drafted=drafted)

    def observe(
        self, rows: int, texts: int, depth: int, seconds: float, *, even: bool = True
    ) -> None:
        """Take in what a target pass took. One that something else held up counts little."""
        off = self._off(seconds, self.verify(rows, texts, depth, even=even))
        self._speed *= 1 + _LEARN * off
        if even:
            self._wide.move((rows - texts) / texts, off)
        else:
            self._wide.move((rows - texts) / texts, 0.5 * off)
            self._ragged = min(max(self._ragged * (1 + _LEARN_OWN * off), 0.8), 2.0)

    def observe_draft(self, texts: int, proposals: int, depth: int, seconds: float) -> None:
        """Likewise of the blocks of several texts, with the features before them."""
        if texts:
            off = self._off(seconds, self.draft(texts, proposals, depth))
            self._speed *= 1 + _LEARN * off
            self._block.move(proposals / texts, off)

    def observe_besides(self, seconds: float, texts: int, *, drafted: bool) -> None:
        """Likewise of what a round took beside passes."""
        if not self.pinned:
            self._besides.see(seconds / texts, drafted=drafted)

    def _off(self, seconds: float, expected: float) -> float:
        if self.pinned or seconds <= 0 or expected <= 0:
            return 0.0
        return min(max(seconds / expected, 0.5), 1.5) - 1

    def _passes(self, texts: int, depth: int) -> list[float]:
        """Seconds by proposals in all, as measured."""
        key = texts, depth // STEP
        if key not in self._verify:
            at = key[1] * STEP + STEP // 2
            most = texts * (1 + self.width)
            if self.many is None:
                found = _alone(self.curve.verify, texts, most, at)
            else:
                by = ((1, self.curve.verify), *self.many.verify)
                found = _between(by, texts, most, at, each=True)
            self._verify[key] = found
        return self._verify[key]

    def _blocks(self, texts: int, depth: int) -> list[float]:
        """Seconds by the width of all blocks, a place 0 included that means nothing."""
        key = texts, depth // STEP
        if key not in self._draft:
            at, curve = key[1] * STEP + STEP // 2, self.curve
            widths = range(1, self.width + 1)
            assert curve.draft is not None
            if self.many is not None and self.many.draft:
                by = ((1, curve.draft), *self.many.draft)
                found = _between(by, texts, self.width, at, each=False)
            else:
                # a pass of the draft grows with its rows as the target's do
                passes = _alone(curve.verify, 1, texts * (self.width + 1), at)
                found = [
                    curve.draft_s(n, at) * passes[texts * (n + 1) - 1] / passes[n] for n in widths
                ]
            fed = self._features(texts)
            self._draft[key] = [
                found[0] + fed[0],
                *(a + b for a, b in zip(found, fed, strict=True)),
            ]
        return self._draft[key]

    def _features(self, texts: int) -> list[float]:
        """Seconds of injecting what texts commit, by the width of their blocks: half of it, say."""
        widths = range(1, self.width + 1)
        injection = self.many.injection if self.many else self.curve.injection
        if injection is None:
            return [0.0 for _ in widths]
        return [injection.at(round(texts * (1 + n / 2)), injection.depths[0]) for n in widths]


class _Bend:
    """A factor by proposals a text, linear in its logarithm between knots that are learnt: quickly
    at first, as what was measured once can be far off.
    """

    def __init__(self, knots: tuple[float, ...]) -> None:
        self._knots = knots
        self._values = [0.0] * len(knots)
        self._seen = [0.0] * len(knots)

    def at(self, wide: float) -> float:
        right, share = self._place(wide)
        values = self._values
        return math.exp(values[right - 1] + share * (values[right] - values[right - 1]))

    def move(self, wide: float, off: float) -> None:
        right, share = self._place(wide)
        for i, part in ((right - 1, 1 - share), (right, share)):
            self._seen[i] += part
            by = part * off * max(_LEARN_OWN, 1 / (5 + self._seen[i]))
            self._values[i] = min(max(self._values[i] + by, -_MOST_OFF), _MOST_OFF)

    def _place(self, wide: float) -> tuple[int, float]:
        knots = self._knots
        right = min(max(1, bisect_right(knots, wide)), len(knots) - 1)
        left = knots[right - 1]
        return right, min(max((wide - left) / (knots[right] - left), 0.0), 1.0)


def _alone(surface: Surface, texts: int, most: int, depth: int) -> list[float]:
    """Seconds from `texts` to `most` rows by passes of one text. Beyond what was measured the
    steepest goes on, of the last slope and the mean one: a last step that is flat says little.
    """
    points = [*surface.sizes]
    values = [surface.at(size, depth) for size in points]
    found = np.interp(range(texts, most + 1), points, values).tolist()
    if most > points[-1] and len(points) > 1:
        last = (values[-1] - values[-2]) / (points[-1] - points[-2])
        slope = max(last, (values[-1] - values[0]) / (points[-1] - points[0]))
        for rows in range(max(texts, points[-1] + 1), most + 1):
            found[rows - texts] = values[-1] + slope * (rows - points[-1])
    return [float(s) for s in found]


def _between(by: By, texts: int, most: int, depth: int, *, each: bool) -> list[float]:
    """Seconds for a number of texts between those that were measured, at the same width. each:
    sizes are rows of all texts, from `texts` on; else widths, from 1 on.
    """
    known = [n for n, _ in by]
    right = min(max(1, bisect_right(known, texts)), len(known) - 1)
    share = (texts - known[right - 1]) / (known[right] - known[right - 1])
    (left_texts, left), (right_texts, last) = by[right - 1], by[right]
    sizes = range(texts, most + 1) if each else range(1, most + 1)
    low = _read(left, [n * left_texts / texts for n in sizes] if each else sizes, depth)
    high = _read(last, [n * right_texts / texts for n in sizes] if each else sizes, depth)
    least = 0.1 * min(low[0], high[0])
    return [max(least, a + share * (b - a)) for a, b in zip(low, high, strict=True)]


def _read(surface: Surface, at: Sequence[float], depth: int) -> list[float]:
    points = [*surface.sizes]
    values = [surface.at(size, depth) for size in points]
    beyond = max(at)
    if beyond > points[-1]:
        end = math.ceil(beyond)
        points.append(end)
        values.append(surface.at(end, depth))
    return [float(s) for s in np.interp(at, points, values)]


def _by_texts(found: Mapping[str, Any], name: str) -> By:
    parts = found.get(name, [])
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise OptionError(f"{name} of many texts must be a list of objects")
    surfaces = []
    for part in parts:
        texts, surface = part.get("texts"), surface_of(part, name)
        if type(texts) is not int or texts < 2 or surface is None:
            raise OptionError(f"{name} of many texts must have texts, 2 or more, and {name}")
        surfaces.append((texts, surface))
    if any(a[0] >= b[0] for a, b in pairwise(surfaces)):
        raise OptionError(f"texts in {name} of many texts must rise")
    return tuple(surfaces)
