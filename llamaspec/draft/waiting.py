"""Features that a draft has been given and not yet computed on."""

from collections.abc import Container

import numpy as np

from llamaspec.draft.drafter import Features, Span
from llamaspec.runtime.arrays import FloatArray


class Waiting:
    """Rows of several sequences; those of each follow one another in position and in memory."""

    def __init__(self, width: int, usual: int) -> None:
        """width: of a row. usual: how many rows of a sequence to make room for at once."""
        self._width = width
        self._usual = usual
        self._lines: dict[int, _Line] = {}

    def __len__(self) -> int:
        return sum(line.count for line in self._lines.values())

    def add(self, seq: int, start: int, rows: FloatArray) -> None:
        """Take a copy of rows [n, width] of positions start, start + 1, ..., which follow those of
        the sequence here.
        """
        line = self._lines.get(seq)
        if line is None:
            line = self._lines[seq] = _Line(np.empty((self._usual, self._width), np.float32))
        assert line.count == 0 or line.start + line.count == start, "rows come without gaps"
        line.add(start, rows)

    def of(self, seqs: Container[int]) -> Features | None:
        """The rows of the given sequences, None where there are none: those of a single sequence
        are borrowed, valid until rows are added.
        """
        found = [(seq, line) for seq, line in self._lines.items() if line.count and seq in seqs]
        if not found:
            return None
        spans = [Span(seq, line.start, line.count) for seq, line in found]
        if len(found) == 1:
            return Features(found[0][1].rows, spans)
        return Features(np.concatenate([line.rows for _, line in found]), spans)

    def end(self, seq: int) -> int | None:
        """The position after the last row of a sequence; None where it has no rows."""
        line = self._lines.get(seq)
        return line.start + line.count if line is not None and line.count else None

    def every(self) -> set[int]:
        """The sequences that have rows here."""
        return {seq for seq, line in self._lines.items() if line.count}

    def rows(self, seq: int) -> FloatArray:
        """A copy of the rows of a sequence, in order."""
        line = self._lines.get(seq)
        return np.empty((0, self._width), np.float32) if line is None else line.rows.copy()

    def copy(self, source: int, seq: int, end: int) -> None:
        """Have the rows of another sequence at positions below `end` for `seq`, and no others."""
        self.drop(seq)
        line = self._lines.get(source)
        if line is not None and line.count and line.start < end:
            self.add(seq, line.start, line.rows[: end - line.start])

    def drop(self, seq: int, start: int = 0) -> None:
        """Forget the rows of a sequence from position `start` on."""
        line = self._lines.get(seq)
        if line is not None and line.start + line.count > start:
            line.count = max(0, start - line.start)

    def drop_below(self, seq: int, end: int) -> None:
        """Forget the rows of a sequence at positions below `end`."""
        line = self._lines.get(seq)
        if line is not None and line.start < end:
            gone = min(line.count, end - line.start)
            line.first += gone
            line.start += gone
            line.count -= gone


class _Line:
    """The rows of one sequence: `count` of memory from row `first` on, of positions from `start`
    on.
    """

    __slots__ = ("count", "first", "memory", "start")

    def __init__(self, memory: FloatArray) -> None:
        self.memory = memory
        self.first = self.start = self.count = 0

    @property
    def rows(self) -> FloatArray:
        return self.memory[self.first : self.first + self.count]

    def add(self, start: int, rows: FloatArray) -> None:
        if not self.count:
            self.first, self.start = 0, start
        end = self.first + self.count
        if end + len(rows) > len(self.memory):
            self._make_room(len(rows))
            end = self.count
        self.memory[end : end + len(rows)] = rows
        self.count += len(rows)

    def _make_room(self, more: int) -> None:
        """Move the rows to the beginning, of larger memory where it has to be."""
        rows = self.rows.copy()
        if self.count + more > len(self.memory):
            self.memory = np.empty((self.count + more, self.memory.shape[1]), np.float32)
        self.memory[: self.count] = rows
        self.first = 0
