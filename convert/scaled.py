"""Block-scaled sources: fp8 with a scale a tile, NVFP4 and MXFP4.

E4M3: 1 sign, 4 exponent (bias 7), 3 mantissa bits, no infinities, 0x7f and 0xff are NaN. E5M2: as
half precision, cut to a byte. E8M0: 2^(byte - 127), 0xff is NaN. E2M1: 0, .5, 1, 1.5, 2, 3, 4, 6
and their negatives, two to a byte, the low nibble first.
(OCP microscaling formats, version 1.0; OCP 8-bit floating point, revision 1.0.)
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llamaspec.convert.weights import Piece, Weights, floats
from llamaspec.errors import ModelLoadError

Floats = npt.NDArray[np.float32]
FP8 = ("F8_E4M3", "F8_E5M2")
MX_BLOCK = 32
NV_BLOCK = 16


def _e4m3() -> Floats:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(
        exponent > 0,
        np.ldexp(1 + mantissa / 8, exponent - 7),
        np.ldexp(mantissa / 8, -6),
    )
    size[code & 127 == 127] = np.nan
    return np.where(code > 127, -size, size).astype(np.float32)


def _e5m2() -> Floats:
    return (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)


def _e8m0() -> Floats:
    size = np.ldexp(np.ones(256), np.arange(256) - 127)
    size[255] = np.nan
    return size.astype(np.float32)


TABLES: dict[str, Floats] = {"F8_E4M3": _e4m3(), "F8_E5M2": _e5m2(), "F8_E8M0": _e8m0()}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1 = np.concatenate([E2M1, -E2M1])


def decoded(piece: Piece, dtype: str) -> Floats:
    """Raw values of any float type of a safetensors file as float32."""
    table = TABLES.get(dtype)
    return floats(piece) if table is None else table[piece]


def times(values: Floats, scale: Floats | np.float32) -> Floats:
    """A product whose NaNs and infinities are found, with the tensor's name, when it is written."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return values * scale


def nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """[..., n] bytes to [..., 2n] codes of four bits, the low one of a byte first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], -1)


def tiled(
    rows: Callable[[int, int], Floats],
    shape: tuple[int, ...],
    scale: Floats,
    source: tuple[str, ...],
) -> Weights:
    """A matrix times one scale a tile; the last tile of an axis may be cut off.

    Args:
        rows: unscaled rows [start, stop) of the matrix.
        shape: of the matrix, [n, m].
        scale: [] or [1] for the whole, [n] or [n, 1] a row, else [ceil(n / a), ceil(m / b)] with
            tiles of a x b that are powers of two.

    Raises:
        ModelLoadError: the scale's shape fits no such tiling.
    """
    n, m = shape
    grid = scale.reshape(1, 1) if scale.size == 1 else scale
    if grid.ndim == 1:
        grid = grid.reshape(-1, 1)
    tall, wide = _tile(n, grid.shape[0]), _tile(m, grid.shape[1] if grid.ndim == 2 else 0)
    if tall is None or wide is None:
        raise ModelLoadError(
            f"{source[0]} has the shape {list(shape)} and its scale {list(scale.shape)}, "
            "which is no grid of tiles over it"
        )

    def scaled(start: int, stop: int) -> Piece:
        tiles = grid[np.arange(start, stop) // tall]
        return times(rows(start, stop), np.repeat(tiles, wide, axis=1)[:, :m])

    return Weights(shape, "F32", scaled, source)


def _tile(length: int, count: int) -> int | None:
    """The side of the tiles of which `count` cover `length`; None where there is none."""
    if count == length:
        return 1
    if count == 1:
        return length
    for side in (1 << power for power in range(1, 16)):
        if -(-length // side) == count and side in (16, 32, 64, 128, 256, 512, 1024):
            return side
    return None


def mxfp4_blocks(codes: npt.NDArray[np.uint8], scale: npt.NDArray[np.uint8]) -> Piece:
    """Rows of E2M1 codes and E8M0 scales as ggml's MXFP4 blocks, without any loss.

    A block of ggml is the scale's byte and 16 bytes, of which byte j holds value j in its low and
    value j + 16 in its high nibble.

    Args:
        codes: [rows, n], one code each.
        scale: [rows, n / 32].

    Returns:
        uint8 [rows, n / 32 * 17].
    """
    blocks = codes.reshape(*scale.shape, MX_BLOCK)
    halves = blocks[..., :16] | blocks[..., 16:] << 4
    joined = np.concatenate([scale[..., None], halves], axis=-1)
    return joined.reshape(codes.shape[0], -1)
