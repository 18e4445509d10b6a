"""Tensors on their way from a checkpoint to a GGUF, read a few rows at a time.

A `Weights` knows its shape and how to give rows. Pieces are float32, float16, int64, uint8 (bytes
of ggml blocks) or uint16, which here always means bf16 bit patterns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Piece = npt.NDArray[Any]
Kind = str
"""A ggml type's name: F32, F16, BF16 and I64 in elements, all others in blocks."""


@dataclass(frozen=True)
class Weights:
    """A tensor that is read in pieces.

    Attributes:
        shape: rows first, as NumPy has it; always in elements.
        kind: what the pieces hold.
        rows: the rows [start, stop) along the first axis.
        source: the checkpoint's tensors that went in.
        auto: the GGUF type that comes closest to how the source stores them, if not `kind`.
    """

    shape: tuple[int, ...]
    kind: Kind
    rows: Callable[[int, int], Piece]
    source: tuple[str, ...] = ()
    auto: str | None = None

    @property
    def n_rows(self) -> int:
        """Length of the first axis; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def whole(self) -> Piece:
        """All of it; for small tensors."""
        return self.rows(0, self.n_rows)


def floats(piece: Piece) -> npt.NDArray[np.float32]:
    """A float piece as float32; uint16 is bf16."""
    if piece.dtype == np.uint16:
        return (piece.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(over="ignore"):
        return piece.astype(np.float32, copy=False)


def bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Float32 to bf16 bit patterns, to the nearest, ties to even. NaNs are refused elsewhere."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def constant(values: npt.NDArray[Any], source: tuple[str, ...] = ()) -> Weights:
    """An array that is already in memory, float32 or int64."""
    kind: Kind = "I64" if values.dtype == np.int64 else "F32"
    return Weights(values.shape, kind, lambda start, stop: values[start:stop], source)


def deinterleaved(weights: Weights, head_width: int) -> Weights:
    """Rows of each head from interleaved RoPE pairs (0, 1), (2, 3), ... to NeoX halves.

    New row i of a head is old row 2i for the first half, 2i + 1 - width for the second.
    """
    order = np.arange(head_width).reshape(-1, 2).T.reshape(-1)

    def rows(start: int, stop: int) -> Piece:
        first, last = start // head_width, -(-stop // head_width)
        heads = weights.rows(first * head_width, last * head_width)
        turned = heads.reshape(last - first, head_width, *weights.shape[1:])[:, order]
        flat = turned.reshape(heads.shape)
        return flat[start - first * head_width : stop - first * head_width]

    return replace(weights, rows=rows)


def padded(weights: Weights, width: int) -> Weights:
    """A small matrix with zero columns appended, up to `width`; float32."""
    values = floats(weights.whole())
    return constant(np.pad(values, ((0, 0), (0, width - values.shape[1]))), weights.source)


def stacked(parts: Sequence[Weights]) -> Weights:
    """Tensors of one shape as the rows of a new first axis (experts)."""
    first = parts[0]

    def rows(start: int, stop: int) -> Piece:
        return np.stack([part.whole() for part in parts[start:stop]])

    sources = tuple(name for part in parts for name in part.source)
    return Weights((len(parts), *first.shape), first.kind, rows, sources)
