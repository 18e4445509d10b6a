"""Writes a GGUF piece by piece."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

from llamaspec.convert.finite import damaged, is_finite, is_finite_in_blocks, too_large
from llamaspec.convert.keys import Value, check_value
from llamaspec.convert.outtype import OutType, file_type
from llamaspec.convert.weights import Piece, Weights, bf16, floats
from llamaspec.errors import ModelLoadError

_FLOATS = ("F32", "F16", "BF16")
PIECE = 4 << 20
"""Elements that are worked on at once; with its copies some hundred megabytes at most."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Output:
    """What to write.

    Attributes:
        architecture: of the GGUF.
        keys: metadata.
        tensors: by name, in file order.
        types: the GGUF type of each.
    """

    architecture: str
    keys: Mapping[str, Value]
    tensors: Mapping[str, Weights]
    types: Mapping[str, str]

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each tensor."""
        return {
            name: stored_size(weights.shape, self.types[name])
            for name, weights in self.tensors.items()
        }


def plan_output(
    keys: Mapping[str, Value], tensors: Mapping[str, Weights], outtype: OutType
) -> Output:
    """Choose every tensor's type, and say the commonest in `general.file_type`.

    Raises:
        ModelLoadError: a key's value that its type cannot hold.
    """
    for key, value in keys.items():
        check_value(key, value)
    types = {name: outtype.choose(name, weights) for name, weights in tensors.items()}
    sizes = [(types[name], stored_size(w.shape, types[name])) for name, w in tensors.items()]
    stated = Value(file_type(sizes), gguf.GGUFValueType.UINT32)
    return Output("dflash", {**keys, "general.file_type": stated}, tensors, types)


def stored_size(shape: tuple[int, ...], kind: str) -> int:
    """Bytes of a tensor of a GGUF type."""
    block, size = gguf.GGML_QUANT_SIZES[Type[kind]]
    return math.prod(shape) // block * size


def write(path: Path, output: Output, on_progress: Progress | None = None) -> None:
    """Write all of it; `on_progress` gets bytes done and bytes in all.

    Raises:
        ModelLoadError: a tensor holds a NaN or an infinity, or a value that the type cannot hold.
        OSError: the disk is full, or gone.
    """
    writer = gguf.GGUFWriter(None, output.architecture)
    for key, value in output.keys.items():
        if value.kind is not gguf.GGUFValueType.ARRAY or value.value:  # gguf writes no empty ones
            writer.add_key_value(key, value.value, value.kind, value.item)
    sizes = output.sizes
    for name, weights in output.tensors.items():
        kind = Type[output.types[name]]
        # gguf takes the shape in bytes for uint8 data, in elements else
        shape = gguf.quant_shape_to_byte_shape(weights.shape, kind)
        plain = kind in (Type.F32, Type.F16, Type.I64)
        dtype = np.dtype({"F16": "f2", "I64": "i8"}.get(kind.name, "f4") if plain else "u1")
        writer.add_tensor_info(
            name, weights.shape if plain else shape, dtype, sizes[name], None if plain else kind
        )
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        _write_data(writer, writer.fout[0], output, on_progress)
    finally:
        writer.close()


def _write_data(
    writer: gguf.GGUFWriter,
    file: BinaryIO,
    output: Output,
    on_progress: Progress | None,
) -> None:
    sizes = output.sizes
    done, total = 0, sum(sizes.values())
    start = file.tell()
    _pad(file, start, writer.data_alignment)
    for name, weights in output.tensors.items():
        kind, at = output.types[name], done
        row = max(1, math.prod(weights.shape[1:]))
        step = max(1, PIECE // row)
        for first in range(0, weights.n_rows, step):
            last = min(first + step, weights.n_rows)
            stored = _stored(name, weights, kind, (first, last))
            file.write(stored.data if stored.flags.c_contiguous else stored.tobytes())
            done += stored.nbytes
            if on_progress is not None:
                on_progress(done, total)
        assert done - at == sizes[name], (name, done - at, sizes[name])
        _pad(file, done - at, writer.data_alignment)


def _pad(file: BinaryIO, size: int, alignment: int) -> None:
    file.write(bytes(-size % alignment))


def _stored(name: str, weights: Weights, kind: str, span: tuple[int, int]) -> npt.NDArray[Any]:
    """Rows of a tensor in their GGUF type, checked."""
    piece = weights.rows(*span)
    if weights.kind == "I64":
        return np.ascontiguousarray(piece, "<i8")
    if weights.kind not in _FLOATS:
        if not is_finite_in_blocks(piece, weights.kind):
            raise damaged(name, weights.source)
        if kind == weights.kind:
            return np.ascontiguousarray(piece)
        piece = _dequantised(name, piece, weights)
    if not is_finite(piece):
        raise damaged(name, weights.source)
    if kind == weights.kind:
        return np.ascontiguousarray(piece)
    values = np.ascontiguousarray(floats(piece))
    stored, good = _in_type(values, kind)
    if not good:
        raise too_large(name, kind, values)
    return stored


def _in_type(values: npt.NDArray[np.float32], kind: str) -> tuple[npt.NDArray[Any], bool]:
    """Finite numbers in a type, and whether they fit it."""
    if kind == "F32":
        return values, True
    if kind == "BF16":
        stored: npt.NDArray[Any] = bf16(values)
        return stored, is_finite(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "F16":
            stored = values.astype(np.float16)
            return stored, is_finite(stored)
        stored = gguf.quants.quantize(values, Type[kind])
    return stored, is_finite_in_blocks(stored, kind)


def _dequantised(name: str, blocks: Piece, weights: Weights) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            values: npt.NDArray[np.float32] = gguf.quants.dequantize(blocks, Type[weights.kind])
    except (KeyError, NotImplementedError):
        raise ModelLoadError(
            f"{name}: has the type {weights.kind}, which the installed gguf package cannot undo; "
            "use --outtype auto"
        ) from None
    return values
