"""An opened GGUF: metadata, tensor descriptions and tensors as NumPy arrays, without llama.cpp."""

import mmap
import os
import re
import stat
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from llamaspec.errors import ClosedError, ModelLoadError
from llamaspec.runtime.gguf_header import Header, HeaderParser
from llamaspec.runtime.gguf_types import MetaArray, MetaValue, TensorInfo
from llamaspec.runtime.mapping import map_file

__all__ = ["GGUFFile", "MetaArray", "MetaValue", "TensorInfo"]

_PART_NAME = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_INTEGER_TYPES = {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_FLOAT_TYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_EXACT_IN_FLOAT32 = 1 << 24


class GGUFFile:
    """A validated GGUF, mapped read-only. A context manager; arrays stay valid after `close`.

    Attributes:
        path: the file, as given.
        version: 2 or 3.
        metadata: value by key; arrays are `MetaArray`, decoded when first read.
        tensors: description by tensor name, in file order.
        parts: the files of a split model, this one first; only this one when it is not split.
    """

    def __init__(
        self, path: Path, data: mmap.mmap, header: Header, parts: tuple[Path, ...]
    ) -> None:
        self.path = path
        self.version = header.version
        self.metadata: Mapping[str, MetaValue] = header.metadata
        self.tensors = header.tensors
        self.parts = parts
        self._data: mmap.mmap | None = data

    @classmethod
    def open(cls, path: str | PathLike[str], *, first_part: bool = True) -> Self:
        """Map a file and check its whole header, before any native code sees it.

        Args:
            path: a .gguf file; of a split model its first part, whose siblings must be beside it.
            first_part: False opens a later part of a split model by itself.

        Raises:
            ModelLoadError: missing, not a file, empty, truncated, not a GGUF, or malformed.
        """
        path = Path(path)
        data = map_file(path, _problem)
        try:
            header = HeaderParser(data, str(path)).parse()
            parts = _parts(path, header.metadata) if first_part else (path,)
        except BaseException:
            data.close()
            raise
        return cls(path, data, header, parts)

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises ModelLoadError where the file has none."""
        value = self.metadata.get("general.architecture")
        if not isinstance(value, str) or not value:
            raise ModelLoadError(
                f"{self.path}: general.architecture is {value!r}, not a name; "
                "the file is not a llama.cpp model"
            )
        return value

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor as float32, dequantised, of shape `tensors[name].shape`; the caller owns it.

        Raises:
            ModelLoadError: there is no such tensor, its type cannot be dequantised, or it holds
                integers that float32 cannot represent (read those with `integers`).
            ClosedError: the file was closed.
        """
        return self._floats(self._info(name))

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Rows [start, stop) of a tensor along its first axis, as `array` would give them."""
        info = self._info(name)
        count = info.shape[0] if info.shape else 1
        if not 0 <= start <= stop <= count:
            raise ModelLoadError(f"{self.path}: tensor {name!r} has {count} rows, not {stop}")
        size = info.nbytes // max(count, 1)
        part = info._replace(
            shape=(stop - start, *info.shape[1:]),
            offset=info.offset + start * size,
            nbytes=(stop - start) * size,
        )
        return self._floats(part)

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """One integer tensor (`d2t`) as int64. Raises ModelLoadError for other types."""
        info = self._info(name)
        if info.type not in _INTEGER_TYPES:
            raise ModelLoadError(f"{self.path}: tensor {name!r} has type {info.type}, not integers")
        return (
            np.frombuffer(self._bytes(info), _INTEGER_TYPES[info.type])
            .astype(np.int64)
            .reshape(info.shape)
        )

    def close(self) -> None:
        """Unmap the file; safe to call again."""
        if self._data is not None:
            self._data.close()
            self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def raw(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """The stored bytes [start, stop) of a tensor; the caller owns them."""
        info = self._info(name)
        part = info._replace(offset=info.offset + start, nbytes=min(stop, info.nbytes) - start)
        return np.frombuffer(self._bytes(part), np.uint8)

    def view(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor: mapped memory, which stays mapped as long as it is in use.
        The file cannot be closed while it is.
        """
        if self._data is None:
            raise ClosedError(f"{self.path}: tensor {name!r} was read after the file was closed")
        info = self._info(name)
        return np.frombuffer(self._data, np.uint8, info.nbytes, info.offset)

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelLoadError(f"{self.path}: there is no tensor {name!r}")
        return info

    def _bytes(self, info: TensorInfo) -> bytes:
        if self._data is None:
            raise ClosedError(
                f"{self.path}: tensor {info.name!r} was read after the file was closed"
            )
        return self._data[info.offset : info.offset + info.nbytes]

    def _floats(self, info: TensorInfo) -> npt.NDArray[np.float32]:
        raw = self._bytes(info)
        if info.type in _FLOAT_TYPES:
            flat = np.frombuffer(raw, _FLOAT_TYPES[info.type]).astype(np.float32)
        elif info.type == "BF16":
            flat = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif info.type in _INTEGER_TYPES:
            integers = np.frombuffer(raw, _INTEGER_TYPES[info.type])
            if (
                integers.size
                and max(abs(int(integers.min())), int(integers.max())) > _EXACT_IN_FLOAT32
            ):
                raise ModelLoadError(
                    f"{self.path}: tensor {info.name!r} holds integers beyond {_EXACT_IN_FLOAT32}, "
                    "which float32 cannot represent"
                )
            flat = integers.astype(np.float32)
        else:
            flat = self._dequantised(info, raw)
        return flat.reshape(info.shape)

    def _dequantised(self, info: TensorInfo, raw: bytes) -> npt.NDArray[np.float32]:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        rows = info.shape[:-1]
        try:
            kind = GGMLQuantizationType[info.type]
            blocks = np.frombuffer(raw, np.uint8).reshape(*rows, -1)
            values: npt.NDArray[np.float32] = dequantize(blocks, kind)
        except (KeyError, NotImplementedError):
            raise ModelLoadError(
                f"{self.path}: tensor {info.name!r} has type {info.type}, which the installed "
                "gguf package cannot dequantise; convert it to Q8_0 or F16"
            ) from None
        return values


def _problem(status: os.stat_result) -> str | None:
    if stat.S_ISDIR(status.st_mode):
        return "is a directory, not a GGUF file"
    if stat.S_ISREG(status.st_mode) and status.st_size == 0:
        return "is empty (0 bytes); download or copy it again"
    return None


def _parts(path: Path, metadata: Mapping[str, MetaValue]) -> tuple[Path, ...]:
    count, number = metadata.get("split.count", 1), metadata.get("split.no", 0)
    if not isinstance(count, int) or not isinstance(number, int):
        raise ModelLoadError(
            f"{path}: split.count {count!r} and split.no {number!r} are no integers"
        )
    if count <= 1:
        return (path,)
    match = _PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count or int(match["number"]) != number + 1:
        raise ModelLoadError(
            f"{path}: is part {number + 1} of {count}, which its name must say: "
            f"NAME-{number + 1:05d}-of-{count:05d}.gguf"
        )
    names = [f"{match['prefix']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    if number != 0:
        raise ModelLoadError(f"{path}: is part {number + 1} of {count}; give the first, {names[0]}")
    parts = tuple(path.with_name(name) for name in names)
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelLoadError(
            f"{path}: {len(missing)} of its {count} parts are missing, the first is {missing[0]}"
        )
    return parts
