"""Linear layers of quantised checkpoints, back in floats (BF16 by default): fp8, NVFP4, MXFP4.

Weights only: scales of activations (`input_scale`) belong to kernels that we do not run, and a
draft that was not made for 4-bit activations accepts less with them.
"""

from dataclasses import replace

import numpy as np

from llamaspec.convert.checkpoint import Checkpoint
from llamaspec.convert.scaled import (
    E2M1,
    FP8,
    MX_BLOCK,
    NV_BLOCK,
    TABLES,
    decoded,
    mxfp4_blocks,
    nibbles,
    tiled,
    times,
)
from llamaspec.convert.weights import Kind, Piece, Weights
from llamaspec.errors import ModelLoadError

_FP8_SCALES = ("_scale_inv", "_scale")
ACTIVATION_SCALES = (
    ".input_scale",
    ".activation_scale",
    ".input_global_scale",
    ".k_scale",
    ".v_scale",
)


def linear(source: Checkpoint, name: str) -> Weights:
    """A weight matrix as floats, with every scale that belongs to it applied.

    Args:
        source: the checkpoint.
        name: of the weight as an unquantised checkpoint calls it, ending in ".weight".

    Raises:
        ModelLoadError: no such tensor, or scales that are missing or of a wrong shape.
    """
    packed = name.removesuffix("weight") + "weight_packed"
    if name not in source and packed in source:
        return _nvfp4(source, packed, name + "_scale", name + "_global_scale", inverse=True)
    entry = source.entry(name)
    if entry.dtype in FP8:
        return _fp8(source, name)
    if entry.dtype in ("U8", "I8") and name + "_scale" in source:
        return _nvfp4(source, name, name + "_scale", name + "_scale_2", inverse=False)
    return source.weights(name)


def _fp8(source: Checkpoint, name: str) -> Weights:
    entry = source.entry(name)
    if len(entry.shape) != 2:
        raise ModelLoadError(f"{source.folder}: {name} is {entry.dtype} and no matrix")
    candidates = [name + suffix for suffix in _FP8_SCALES] + [name.removesuffix("weight") + "scale"]
    scale_name = next((found for found in candidates if found in source), None)
    if scale_name is None:
        raise ModelLoadError(
            f"{source.folder}: {name} is {entry.dtype}, and its scale ({candidates[0]}, "
            f"{candidates[1]} or {candidates[2]}) is missing"
        )
    scale = decoded(source.whole(scale_name), source.entry(scale_name).dtype)
    table = TABLES[entry.dtype]
    values = tiled(
        lambda start, stop: table[source.raw(name, start, stop)],
        entry.shape,
        scale,
        (name, scale_name),
    )
    return replace(values, auto="BF16")


def _nvfp4(source: Checkpoint, name: str, scale: str, overall: str, inverse: bool) -> Weights:
    """Values = E2M1 code * E4M3 scale of its 16 * one float for the tensor (or its inverse)."""
    entry, scale_entry = source.entry(name), source.entry(scale)
    n, half = entry.shape if len(entry.shape) == 2 else (0, 0)
    fits = entry.dtype in ("U8", "I8") and half * 2 % NV_BLOCK == 0
    right = scale_entry.dtype == "F8_E4M3" and scale_entry.shape == (n, half * 2 // NV_BLOCK)
    if not fits or not right:
        raise ModelLoadError(
            f"{source.folder}: {name} is {entry.dtype} {list(entry.shape)}, but {scale} is "
            f"{scale_entry.dtype} {list(scale_entry.shape)}; F8_E4M3 of "
            f"{[n, half * 2 // NV_BLOCK]} belongs to packed FP4 of as many rows"
        )
    factor, names = np.float32(1), [name, scale]
    if overall in source:
        value = decoded(source.whole(overall), source.entry(overall).dtype).reshape(-1)
        if value.size != 1 or not 1e-37 < value[0] < 1e37:
            raise ModelLoadError(f"{source.folder}: {overall} is no single number above 0")
        factor = 1 / value[0] if inverse else value[0]
        names.append(overall)

    def rows(start: int, stop: int) -> Piece:
        values = E2M1[nibbles(source.raw(name, start, stop).view(np.uint8))]
        scales = TABLES["F8_E4M3"][source.raw(scale, start, stop)]
        products = values.reshape(*scales.shape, NV_BLOCK) * scales[..., None]
        scaled = times(products, factor)
        return scaled.reshape(len(values), -1)

    return Weights((n, half * 2), "F32", rows, tuple(names), auto="BF16")


def mx_codes(source: Checkpoint, name: str, scale: str) -> Weights:
    """A matrix of packed E2M1 with an E8M0 scale for each 32, kept as it is: kind MXFP4.

    Rows come as ggml's blocks.
    """
    n, m = _mx_shape(source, name, scale)

    def rows(start: int, stop: int) -> Piece:
        codes = nibbles(source.raw(name, start, stop).view(np.uint8))
        scales = source.raw(scale, start, stop)
        if (scales == 255).any():
            raise ModelLoadError(f"{source.folder}: {scale} holds a NaN; the checkpoint is damaged")
        return mxfp4_blocks(codes, scales)

    kind: Kind = "MXFP4"
    return Weights((n, m), kind, rows, (name, scale))


def _mx_shape(source: Checkpoint, name: str, scale: str) -> tuple[int, int]:
    entry, scales = source.entry(name), source.entry(scale)
    n, half = entry.shape if len(entry.shape) == 2 else (0, 0)
    fits = entry.dtype in ("I8", "U8") and scales.dtype in ("F8_E8M0", "U8")
    if not fits or half * 2 % MX_BLOCK or scales.shape != (n, half * 2 // MX_BLOCK):
        raise ModelLoadError(
            f"{source.folder}: {name} ({entry.dtype} {list(entry.shape)}) and {scale} "
            f"({scales.dtype} {list(scales.shape)}) are no FP4 matrix with a scale for each 32"
        )
    return n, half * 2
