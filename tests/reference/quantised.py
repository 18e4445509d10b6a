"""The 8-bit and 4-bit floats that checkpoints come in, as float32.

FP8 E4M3 and the power-of-two scale E8M0: OCP "8-bit floating point" and "Microscaling formats"
(2023). A 4-bit float E2M1 has a sign, two bits of exponent and one of mantissa; two share a byte,
the even column in its low half.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Raw = npt.NDArray[Any]

TILE = 128
_MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_MAGNITUDES, -_MAGNITUDES])


def e4m3(raw: Raw) -> FloatArray:
    bits = raw.view(np.uint8).astype(np.int32)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    magnitude = np.where(
        exponent == 0,
        np.ldexp(mantissa / 8.0, -6),
        np.ldexp(1 + mantissa / 8.0, exponent - 7),
    )
    return np.where(bits & 128, -magnitude, magnitude).astype(np.float32)


def e8m0(raw: Raw) -> FloatArray:
    return np.ldexp(np.float32(1), raw.view(np.uint8).astype(np.int32) - 127)


def e2m1(packed: Raw) -> FloatArray:
    """[rows, columns] from bytes [rows, columns / 2]."""
    raw = packed.view(np.uint8)
    return _E2M1[np.stack([raw & 15, raw >> 4], axis=-1)].reshape(len(raw), -1)


def dequantise(
    raw: Raw, name: str, there: Callable[[str], bool], read: Callable[[str], FloatArray]
) -> FloatArray:
    """The weight `name` from E2M1 (int8 or uint8) or E4M3 bytes and the scales beside it.

    DeepSeek: E4M3 with a `.scale` every 128 x 128, E2M1 with one every 32 columns (MXFP4).
    ModelOpt: E2M1 with a `_scale` every 16 columns and one `_scale_2` for all (NVFP4).
    """
    if there(f"{name}_scale_2"):
        scale = read(f"{name}_scale") * read(f"{name}_scale_2")
        return e2m1(raw) * np.repeat(scale, 16, axis=1)
    scale = read(name.removesuffix(".weight") + ".scale")
    if raw.dtype == np.int8:
        return e2m1(raw) * np.repeat(scale, 32, axis=1)
    tiles = scale.repeat(TILE, axis=0).repeat(TILE, axis=1)
    return e4m3(raw) * tiles[: raw.shape[0], : raw.shape[1]]
