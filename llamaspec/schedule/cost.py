"""What a pass costs: seconds by rows and context depth, measured, and interpolated monotonely."""

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from llamaspec.errors import OptionError
from llamaspec.schedule import files

FORMAT = "llamaspec cost curve 1"
_MOST = 4096


@dataclass(frozen=True, slots=True)
class Surface:
    """Seconds of one kind of pass.

    depths [d]: positions in the KV cache before the pass, rising. sizes [s]: rows of the pass,
    rising. seconds [d][s]: as measured. Reading is monotone whatever the noise of the measurement:
    more rows or more context never cost less.
    """

    depths: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        _rising("depths", self.depths, 0)
        _rising("sizes", self.sizes, 1)
        if len(self.seconds) != len(self.depths):
            raise OptionError(
                f"a cost curve has {len(self.depths)} depths and seconds of {len(self.seconds)}"
            )
        for row in self.seconds:
            if len(row) != len(self.sizes):
                raise OptionError(
                    f"a cost curve has {len(self.sizes)} sizes and a depth with {len(row)} seconds"
                )
            if not all(files.is_number(x) and math.isfinite(x) and x > 0 for x in row):
                raise OptionError("a cost curve has seconds that are no positive numbers")

    def smooth(self) -> tuple[tuple[float, ...], ...]:
        """The seconds [d][s] that are read: the closest rising ones along the sizes of each depth
        (isotonic regression), and no less than at any smaller depth.
        """
        rows = [isotonic(row) for row in self.seconds]
        for above, row in itertools.pairwise(rows):
            row[:] = map(max, above, row)
        return tuple(map(tuple, rows))

    def at(self, size: int, depth: int = 0) -> float:
        """Seconds of a pass of `size` rows over `depth` positions.

        Linear between measured points; below the first point its value, beyond the last one the
        last slope goes on: that in depth is the largest of any such size or smaller one.
        """
        table = self.smooth()
        column = self._column(table, size)
        beyond = depth - self.depths[-1]
        if beyond <= 0 or len(self.depths) == 1:
            return _linear(self.depths, column, depth)
        columns = [column, *(self._column(table, s) for s in self.sizes if s < size)]
        step = self.depths[-1] - self.depths[-2]
        return column[-1] + max((c[-1] - c[-2]) / step for c in columns) * beyond

    def as_json(self) -> dict[str, Any]:
        """The surface as an object of plain JSON; `surface_of` reads it."""
        seconds = [list(row) for row in self.seconds]
        return {"depths": list(self.depths), "sizes": list(self.sizes), "seconds": seconds}

    def _column(self, table: tuple[tuple[float, ...], ...], size: int) -> list[float]:
        """Seconds of a size at every depth."""
        found = (_linear(self.sizes, row, size) for row in table)
        # beyond the last size the lines of two depths could cross
        return list(itertools.accumulate(found, max))


@dataclass(frozen=True, slots=True)
class CostCurve:
    """The costs of a loaded pair's passes.

    verify: target passes by rows, anchor included. draft: blocks by their width in proposals, None
    without a draft. injection: features of committed rows by their number, None likewise.
    settings: what the figures hold for, spoken.
    """

    verify: Surface
    draft: Surface | None = None
    injection: Surface | None = None
    settings: tuple[tuple[str, str], ...] = ()

    def verify_s(self, rows: int, depth: int = 0) -> float:
        """Seconds of a target pass over `rows` rows at `depth` positions."""
        return self.verify.at(rows, depth)

    def draft_s(self, width: int, depth: int = 0) -> float:
        """Seconds of a block of `width` proposals; 0 without a draft or for nothing."""
        return self.draft.at(width, depth) if self.draft and width > 0 else 0.0

    def injection_s(self, rows: int, depth: int = 0) -> float:
        """Seconds of injecting the features of `rows` committed rows; 0 as for `draft_s`."""
        return self.injection.at(rows, depth) if self.injection and rows > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        """The curve as an object of plain JSON; `of_json` reads it."""
        found: dict[str, Any] = {"format": FORMAT, "settings": dict(self.settings)}
        for name in ("verify", "draft", "injection"):
            surface: Surface | None = getattr(self, name)
            if surface is not None:
                found[name] = surface.as_json()
        return found

    @classmethod
    def of_json(cls, found: object) -> Self:
        """Read what `as_json` gave. Raises OptionError for anything else."""
        if not isinstance(found, Mapping) or found.get("format") != FORMAT:
            raise OptionError(f'not a cost curve: an object with "format": "{FORMAT}" is one')
        settings = found.get("settings", {})
        if not files.texts(settings):
            raise OptionError("the settings of a cost curve must map names to texts")
        verify = surface_of(found, "verify")
        if verify is None:
            raise OptionError("a cost curve needs verify seconds and has none")
        draft, injection = surface_of(found, "draft"), surface_of(found, "injection")
        return cls(verify, draft, injection, tuple(settings.items()))

    def save(self, path: Path) -> None:
        """Write the curve to a file. Raises OptionError where that cannot be."""
        files.write(path, self.as_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that `save` wrote. Raises OptionError for a file that is none."""
        return files.read(path, "a cost curve", cls.of_json)


def isotonic(values: Sequence[float]) -> list[float]:
    """The rising sequence closest to `values` in squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = float(value), 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before, many = pools.pop()
            total, count = total + before, count + many
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def _linear(points: Sequence[int], values: Sequence[float], at: int) -> float:
    if at <= points[0] or len(points) == 1:
        return values[0]
    right = min(bisect_right(points, at), len(points) - 1)
    (x0, x1), (y0, y1) = points[right - 1 : right + 1], values[right - 1 : right + 1]
    return y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def surface_of(found: Mapping[str, Any], name: str) -> Surface | None:
    """The surface of that name in what JSON had, None without one. Raises OptionError."""
    part = found.get(name)
    if part is None:
        return None
    lists = isinstance(part, Mapping) and all(
        isinstance(part.get(key), list) for key in ("depths", "sizes", "seconds")
    )
    if not lists or not all(isinstance(row, list) for row in part["seconds"]):
        raise OptionError(f"{name} of a cost curve must have lists: depths, sizes and seconds")
    return Surface(tuple(part["depths"]), tuple(part["sizes"]), tuple(map(tuple, part["seconds"])))


def _rising(name: str, values: tuple[int, ...], least: int) -> None:
    whole = all(type(value) is int and least <= value < 2**31 for value in values)
    rising = whole and all(a < b for a, b in itertools.pairwise(values))
    if not rising or not 1 <= len(values) <= _MOST:
        raise OptionError(
            f"{name} of a cost curve must be whole numbers of at least {least}, rising"
        )
