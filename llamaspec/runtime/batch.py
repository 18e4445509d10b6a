"""Rows for one decode, in arrays that are allocated once."""

import numpy as np

from llamaspec.ffi import ffi
from llamaspec.runtime.arrays import FloatArray, IntArray, float_pointer, int_pointer


class Batch:
    """Up to `capacity` rows of token ids, or of embeddings where `width` > 0.

    Arrays: token, pos, seq [capacity] int32; output [capacity] int8 (1: logits are wanted); embd
    [capacity, width].
    """

    def __init__(self, capacity: int, width: int = 0) -> None:
        self.capacity = capacity
        self.size = 0
        self.token: IntArray = np.zeros(capacity, np.int32)
        self.pos: IntArray = np.zeros(capacity, np.int32)
        self.seq: IntArray = np.zeros(capacity, np.int32)
        self.output = np.zeros(capacity, np.int8)
        self.embd: FloatArray = np.zeros((capacity, width), np.float32)
        self._offsets: IntArray = np.arange(capacity, dtype=np.int32)
        self.pointers = (
            ffi.NULL if width else int_pointer(self.token),
            float_pointer(self.embd) if width else ffi.NULL,
            int_pointer(self.pos),
            int_pointer(self.seq),
            ffi.from_buffer("int8_t[]", self.output),
        )

    def clear(self) -> None:
        self.size = 0

    def add_tokens(
        self, tokens: IntArray | list[int], *, start: int, seq: int, output: bool
    ) -> int:
        """Append tokens of sequence `seq` at positions start, start + 1, ...; return the first
        row's index.
        """
        first, end = self._extend(len(tokens), start, seq, output)
        self.token[first:end] = tokens
        return first

    def set_embeddings(self, rows: FloatArray, position: IntArray, seq: IntArray) -> None:
        """Replace the content by embedding rows [n, width]; no output is wanted of them."""
        count = len(rows)
        assert count <= self.capacity, (count, self.capacity)
        self.embd[:count] = rows
        self.pos[:count] = position
        self.seq[:count] = seq
        self.output[:count] = 0
        self.size = count

    def _extend(self, count: int, start: int, seq: int, output: bool) -> tuple[int, int]:
        first, end = self.size, self.size + count
        assert end <= self.capacity, (end, self.capacity)
        self.pos[first:end] = self._offsets[:count] + start
        self.seq[first:end] = seq
        self.output[first:end] = output
        self.size = end
        return first, end
