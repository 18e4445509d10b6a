"""Refuses NaNs and infinities, in floats and in the scales of quantised blocks."""

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from llamaspec.convert.weights import Piece
from llamaspec.errors import ModelLoadError

# where a block of a type has its 16-bit float scales, in bytes (ggml-common.h)
_HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def is_finite(piece: Piece) -> bool:
    """Whether every number of a float piece is finite; uint16 is bf16."""
    if piece.dtype == np.uint16:
        return not ((piece & 0x7F80) == 0x7F80).any()
    return bool(np.isfinite(piece).all())


def is_finite_in_blocks(blocks: Piece, kind: str) -> bool:
    """Whether the scales of quantised blocks are; true of types whose scales are not known."""
    size = gguf.GGML_QUANT_SIZES[Type[kind]][1]
    each = np.ascontiguousarray(blocks).reshape(-1, size)
    if kind == "MXFP4":
        return not (each[:, 0] == 0xFF).any()
    return all(_halves(each, at) for at in _HALVES.get(kind, ()))


def _halves(blocks: npt.NDArray[np.uint8], at: int) -> bool:
    high = blocks[:, at + 1]
    return not ((high & 0x7C) == 0x7C).any()


def damaged(name: str, source: tuple[str, ...]) -> ModelLoadError:
    """An error about a tensor whose numbers are not finite."""
    return ModelLoadError(
        f"{', '.join(source[:1]) or name}: holds a NaN or an infinity; the checkpoint is damaged"
    )


def too_large(name: str, kind: str, values: npt.NDArray[np.float32]) -> ModelLoadError:
    """An error about numbers that a type has no room for."""
    return ModelLoadError(
        f"{name}: holds {np.abs(values).max():g}, beyond what {kind.lower()} can; use f32 or bf16"
    )
