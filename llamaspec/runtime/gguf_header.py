"""Parses a GGUF header without trusting one number in it.

Every count and length is compared with the bytes that are left before anything is allocated or
looped over, so a hostile or damaged file costs no more than its own size. The rules are those of
llama.cpp's loader: what passes here does not make the native side abort on the container format.
"""

import math
import mmap
import struct
from typing import NamedTuple, NoReturn

import numpy as np

from llamaspec.errors import ClosedError, ModelLoadError
from llamaspec.runtime.gguf_types import TENSOR_TYPES, MetaArray, MetaValue, Scalar, TensorInfo

MAX_NAME = 64
MAX_DIMS = 4
MAX_KEY_BYTES = 1 << 16
MAX_STRING_BYTES = 64 << 20
MAX_STRINGS = 1 << 24
MAX_TENSOR_BYTES = 1 << 62
_MIN_PAIR_BYTES = 14
_MIN_TENSOR_BYTES = 24
_STRING, _ARRAY = 8, 9
_SCALAR_FORMATS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_U64 = struct.Struct("<Q")


class Header(NamedTuple):
    """What the parser found: metadata by key and tensors by name, both in file order."""

    version: int
    metadata: dict[str, MetaValue]
    tensors: dict[str, TensorInfo]


class HeaderParser:
    """Reads one header from a mapped file; every failure is a ModelLoadError that names it."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._size = len(data)
        self._name = name
        self._at = 0
        self._strings_left = MAX_STRINGS

    def parse(self) -> Header:
        """The whole header. Raises ModelLoadError with the two values that conflict."""
        version = self._read_version()
        n_tensors, n_pairs = self._int("Q"), self._int("Q")
        self._check_count(n_tensors, _MIN_TENSOR_BYTES, "tensors")
        self._check_count(n_pairs, _MIN_PAIR_BYTES, "metadata pairs")
        metadata: dict[str, MetaValue] = {}
        alignment = 32
        for _ in range(n_pairs):
            key = self._string("metadata key", MAX_KEY_BYTES)
            if not key or key in metadata:
                self._fail(f"metadata key {key!r} is empty or given twice")
            kind = self._int("I")
            metadata[key] = self._value(key, kind)
            if key == "general.alignment":
                alignment = self._alignment(metadata[key], kind)
        return Header(version, metadata, self._tensors(n_tensors, alignment))

    def _read_version(self) -> int:
        if self._data[:4] != b"GGUF":
            pointer = self._data[:12] == b"version http"
            hint = "; it is a Git LFS pointer, fetch the file itself" if pointer else ""
            self._fail(f"is not a GGUF file: it begins with {self._data[:4]!r}, not b'GGUF'{hint}")
        self._at = 4
        version = self._int("I")
        if version & 0xFFFF == 0 and version:
            self._fail("is a big-endian GGUF; convert it to little-endian")
        if version not in (2, 3):
            self._fail(f"has GGUF version {version}, and only 2 and 3 can be read; convert it anew")
        return version

    def _alignment(self, value: MetaValue, kind: int) -> int:
        if not isinstance(value, int) or kind != 4 or value <= 0 or value & (value - 1):
            self._fail(f"general.alignment is {value!r}, not a power of two stored as uint32")
        return value

    def _value(self, key: str, kind: int) -> MetaValue:
        if kind == _STRING:
            return self._string(f"value of {key}", MAX_STRING_BYTES)
        if kind in _SCALAR_FORMATS:
            return self._scalar(_SCALAR_FORMATS[kind])
        if kind != _ARRAY:
            self._fail(f"metadata key {key!r} has the unknown type {kind}")
        item, count = self._int("I"), self._int("Q")
        if item == _STRING:
            return self._string_array(key, count)
        if item not in _SCALAR_FORMATS:
            what = (
                "is an array of arrays" if item == _ARRAY else f"has the unknown item type {item}"
            )
            self._fail(f"metadata key {key!r} {what}, which llama.cpp does not read")
        dtype = np.dtype("<" + _SCALAR_FORMATS[item])
        self._check_count(count, dtype.itemsize, f"items in {key}")
        start, self._at = self._at, self._at + count * dtype.itemsize
        return MetaArray(count, lambda: self._numbers(start, count, dtype))

    def _numbers(self, start: int, count: int, dtype: np.dtype[np.generic]) -> list[Scalar]:
        raw = self._slice(start, start + count * dtype.itemsize)
        if dtype.kind == "b":
            return [byte != 0 for byte in raw]
        values: list[Scalar] = np.frombuffer(raw, dtype).tolist()
        return values

    def _string_array(self, key: str, count: int) -> MetaArray:
        self._check_count(count, 8, f"strings in {key}")
        if count > self._strings_left:
            self._fail(f"{key} declares {count} strings, more than the limit of {MAX_STRINGS}")
        self._strings_left -= count
        # This loop is most of the time of opening a large vocabulary: no checks inside. A length
        # beyond the file makes the next read fail, or is seen after the last one.
        unpack, data, at = _U64.unpack_from, self._data, self._at
        start = at
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = self._size + 1
        if at > self._size:
            self._fail(f"a string in {key} runs past the end of the file ({self._size} bytes)")
        self._at = at
        return MetaArray(count, lambda: self._strings(start, at, count))

    def _strings(self, start: int, end: int, count: int) -> list[Scalar]:
        raw = self._slice(start, end)
        values: list[Scalar] = []
        at = 0
        for _ in range(count):
            begin = at + 8
            at = begin + _U64.unpack_from(raw, at)[0]
            values.append(raw[begin:at].decode("utf-8", "replace"))
        return values

    def _slice(self, start: int, end: int) -> bytes:
        try:
            return self._data[start:end]
        except ValueError:
            raise ClosedError(f"{self._name}: read after the file was closed") from None

    def _tensors(self, count: int, alignment: int) -> dict[str, TensorInfo]:
        infos: dict[str, TensorInfo] = {}
        expected = 0
        for _ in range(count):
            info = self._tensor()
            if info.name in infos:
                self._fail(f"tensor {info.name!r} is given twice")
            if info.offset != expected:
                self._fail(f"tensor {info.name!r} is at {info.offset}, expected at {expected}")
            expected += -(-info.nbytes // alignment) * alignment
            infos[info.name] = info
        base = -(-self._at // alignment) * alignment
        placed = {n: info._replace(offset=base + info.offset) for n, info in infos.items()}
        end = max((info.offset + info.nbytes for info in placed.values()), default=0)
        if end > self._size:
            missing = end - self._size
            self._fail(
                f"is truncated: tensor data ends at byte {end}, the file has {self._size} "
                f"({missing} missing); download or copy it again"
            )
        return placed

    def _tensor(self) -> TensorInfo:
        name = self._string("tensor name", MAX_NAME - 1)
        n_dims = self._int("I")
        if n_dims > MAX_DIMS:
            self._fail(f"tensor {name!r} has {n_dims} dimensions, at most {MAX_DIMS} are possible")
        dims = tuple(self._int("Q") for _ in range(n_dims))
        kind, offset = self._int("I"), self._int("Q")
        if kind not in TENSOR_TYPES:
            self._fail(f"tensor {name!r} has the unknown type {kind}; llamaspec may be too old")
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        row = dims[0] if dims else 1
        if row % block:
            self._fail(
                f"tensor {name!r}: rows of {row} are not whole {type_name} blocks of {block}"
            )
        if math.prod(max(dim, 1) for dim in dims) * block_bytes >= MAX_TENSOR_BYTES:
            self._fail(f"tensor {name!r} has the impossible shape {dims[::-1]}")
        nbytes = math.prod(dims) // block * block_bytes
        return TensorInfo(name, dims[::-1], type_name, offset, nbytes)

    def _string(self, what: str, limit: int) -> str:
        length = self._int("Q")
        if length > limit:
            self._fail(f"a {what} declares {length} bytes, the limit is {limit}")
        if length > self._size - self._at:
            left = self._size - self._at
            self._fail(f"a {what} declares {length} bytes, {left} are left in the file")
        start, self._at = self._at, self._at + length
        return self._data[start : self._at].decode("utf-8", "replace")

    def _scalar(self, code: str) -> Scalar:
        layout = struct.Struct("<" + code)
        if layout.size > self._size - self._at:
            self._fail(f"is truncated: the header runs past the end ({self._size} bytes)")
        value: Scalar = layout.unpack_from(self._data, self._at)[0]
        self._at += layout.size
        return value

    def _int(self, code: str) -> int:
        return int(self._scalar(code))

    def _check_count(self, count: int, item_bytes: int, what: str) -> None:
        left = self._size - self._at
        if count > left // item_bytes:
            self._fail(f"declares {count} {what}, but only {left} bytes are left in the file")

    def _fail(self, problem: str) -> NoReturn:
        raise ModelLoadError(f"{self._name}: {problem}")
