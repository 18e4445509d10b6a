"""A thin reader of safetensors files: headers that are not trusted, tensors read in pieces.

Format: eight bytes of length (little-endian), a JSON header, the data. A tensor is
`{"dtype": ..., "shape": [...], "data_offsets": [begin, end]}`, offsets counted from the data.
"""

import json
import math
import mmap
import os
import stat
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from llamaspec.convert.shown import shown
from llamaspec.errors import ModelLoadError
from llamaspec.runtime.mapping import map_file

MAX_HEADER = 100 << 20
"""The format's own limit, in bytes."""
MAX_DIMS = 8
MAX_BYTES = 1 << 60

# bits of an element, and the type in which its raw bytes are handed out
DTYPES: dict[str, tuple[int, str]] = {
    "F64": (64, "<f8"),
    "F32": (32, "<f4"),
    "F16": (16, "<f2"),
    "BF16": (16, "<u2"),
    "I64": (64, "<i8"),
    "I32": (32, "<i4"),
    "I16": (16, "<i2"),
    "I8": (8, "|i1"),
    "U8": (8, "|u1"),
    "BOOL": (8, "|u1"),
    "F8_E4M3": (8, "|u1"),
    "F8_E5M2": (8, "|u1"),
    "F8_E8M0": (8, "|u1"),
}


class Entry(NamedTuple):
    """One tensor of a file: type by its safetensors name, shape rows first, place in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """A checked file, mapped read-only.

    Attributes:
        path: as given.
        entries: by tensor name.
    """

    def __init__(self, path: Path, data: mmap.mmap, entries: dict[str, Entry]) -> None:
        self.path = path
        self.entries = entries
        self._data = data

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a file and check all of its header.

        Raises:
            ModelLoadError: missing, truncated, or a header that does not describe the file.
        """
        data = map_file(path, _problem)
        try:
            return cls(path, data, _Header(path, data).entries())
        except BaseException:
            data.close()
            raise

    def rows(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows [start, stop) along the first axis, as stored.

        bf16 comes as uint16 bit patterns, fp8 as bytes. The caller owns the array, and the pages
        read are given back, so that reading a file of any size takes no more than one piece.
        """
        entry = self.entries[name]
        count = entry.shape[0] if entry.shape else 1
        row = entry.nbytes // count if count else 0
        begin, end = entry.offset + start * row, entry.offset + stop * row
        raw = np.frombuffer(self._data[begin:end], DTYPES[entry.dtype][1])
        self._release(begin, end)
        return raw.reshape(stop - start, *entry.shape[1:])

    def close(self) -> None:
        """Unmap the file; safe to call again."""
        self._data.close()

    def _release(self, begin: int, end: int) -> None:
        if end > begin and hasattr(self._data, "madvise"):
            first = begin - begin % mmap.PAGESIZE
            self._data.madvise(mmap.MADV_DONTNEED, first, end - first)


def _problem(status: os.stat_result) -> str | None:
    if stat.S_ISREG(status.st_mode) and status.st_size < 8:
        return (
            f"has {status.st_size} bytes, too few for a safetensors file; download or copy it again"
        )
    return None


class _Header:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._size = len(data)
        length = struct.unpack("<Q", data[:8])[0]
        if length > MAX_HEADER or length > self._size - 8:
            pointer = data[:12] == b"version http"
            hint = "it is a Git LFS pointer, fetch the file itself"
            self._fail(
                hint
                if pointer
                else f"declares a header of {length} bytes, and {self._size - 8} are left; "
                "it is truncated or no safetensors file"
            )
        self._start = 8 + length
        self._fields = self._parse(data[8 : self._start])

    def entries(self) -> dict[str, Entry]:
        found = {
            name: self._entry(name, fields)
            for name, fields in self._fields.items()
            if name != "__metadata__"
        }
        at = self._start
        for name, entry in sorted(found.items(), key=lambda item: item[1][2:]):
            if entry.offset != at:
                how = "overlaps" if entry.offset < at else "leaves a gap after"
                self._fail(f"tensor {shown(name)} {how} the one before it")
            at = entry.offset + entry.nbytes
        if at != self._size:
            self._fail(f"its tensors end at byte {at}, the file has {self._size}")
        return found

    def _parse(self, raw: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(raw, object_pairs_hook=self._once)
        except (ValueError, RecursionError) as error:
            self._fail(f"has a header that is no JSON ({error})")
        if not isinstance(fields, dict):
            self._fail("has a header that is no JSON object")
        return fields

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            self._fail("has a header that names one thing twice")
        return fields

    def _entry(self, name: str, fields: object) -> Entry:
        if not isinstance(fields, dict):
            self._fail(f"tensor {shown(name)} has no description")
        dtype, shape, place = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in DTYPES:
            self._fail(
                f"tensor {shown(name)} has the type {shown(dtype)}, which is none of "
                f"{', '.join(DTYPES)}"
            )
        if not _counts(shape) or len(shape) > MAX_DIMS:
            self._fail(f"tensor {shown(name)} has the shape {shown(shape)}")
        if not _counts(place) or len(place) != 2:
            self._fail(f"tensor {shown(name)} has the offsets {shown(place)}")
        wanted = math.prod(shape) * DTYPES[dtype][0] // 8
        begin, end = place
        # without its zeros, as NumPy counts
        if end - begin != wanted or math.prod(size or 1 for size in shape) > MAX_BYTES:
            self._fail(
                f"tensor {shown(name)} takes {end - begin} bytes, its shape {shape} in {dtype} "
                f"{wanted}"
            )
        if self._start + end > self._size:
            self._fail(
                f"is truncated: tensor {shown(name)} ends at byte {self._start + end}, "
                f"the file has {self._size}; download or copy it again"
            )
        return Entry(dtype, tuple(shape), self._start + begin, wanted)

    def _fail(self, problem: str) -> NoReturn:
        raise ModelLoadError(f"{self._path}: {problem}")


def _counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < MAX_BYTES
        for item in value
    )
