"""Rows for one decode, in native memory that is allocated once."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from llamaspec.ffi import ffi, lib
from llamaspec.runtime.arrays import FloatArray, float_pointer
from llamaspec.runtime.handle import NativeHandle

NO_OUTPUT: Final = 0
ALL_OUTPUT: Final = 1
LAST_OUTPUT: Final = 2


class Row(NamedTuple):
    """One row of a batch, for looking at; token is 0 in a batch of embeddings."""

    token: int
    position: int
    seq: int
    output: bool


class Batch(NativeHandle):
    """Up to `capacity` rows of token ids, or of embeddings where `width` > 0."""

    capacity: int

    @classmethod
    def create(cls, capacity: int, width: int = 0) -> Self:
        ptr = lib.ls_batch_new(capacity, width)
        if not ptr:
            raise MemoryError(f"no memory for a batch of {capacity} rows")
        batch = cls(ptr, lib.ls_batch_free)
        batch.capacity = capacity
        return batch

    @property
    def size(self) -> int:
        return int(self.ptr.size)

    def clear(self) -> None:
        self.ptr.size = 0

    def add_tokens(self, tokens: Sequence[int], *, start: int, seq: int, output: int) -> int:
        """Append tokens of sequence `seq` at positions start, start + 1, ...; return the first
        row's index. output: NO_OUTPUT, ALL_OUTPUT or LAST_OUTPUT.
        """
        first = lib.ls_batch_add(self.ptr, tokens, len(tokens), start, seq, output)
        assert first >= 0, "the rows do not fit the batch"
        return int(first)

    def set_embeddings(self, rows: FloatArray, position: Sequence[int], seq: Sequence[int]) -> None:
        """Replace the content by embedding rows [n, width]; no output is wanted of them."""
        ptr = self.ptr
        assert rows.shape == (len(position), ptr.width), "the rows do not fit the batch"
        code = lib.ls_batch_set_embd(ptr, float_pointer(rows), len(position), position, seq)
        assert code == 0, "the rows do not fit the batch"

    def spans(self) -> dict[int, tuple[int, int]]:
        """The first position and the one after the last, by sequence."""
        batch, n = self.ptr, self.ptr.size
        found: dict[int, tuple[int, int]] = {}
        for seq, position in zip(ffi.unpack(batch.seq, n), ffi.unpack(batch.pos, n), strict=True):
            found[seq] = (found.get(seq, (position, 0))[0], position + 1)
        return found

    def rows(self) -> list[Row]:
        """The rows as they stand."""
        batch, n = self.ptr, self.ptr.size
        columns = [ffi.unpack(c, n) for c in (batch.token, batch.pos, batch.seq, batch.output)]
        return [Row(t, p, s, bool(o)) for t, p, s, o in zip(*columns, strict=True)]
