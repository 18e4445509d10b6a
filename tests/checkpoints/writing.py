"""Weights that are the same everywhere, and a safetensors writer for them."""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "I64": 8, "BOOL": 1}
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Stored:
    """A tensor as the file holds it: dtype by its safetensors name, little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        assert len(self.data) == math.prod(self.shape) * SIZES[self.dtype]


class Weights:
    """Collects a checkpoint's tensors; the values follow from the seed and the tensor's name.

    The numbers come from Philox's raw bit stream, which NumPy keeps stable between versions, and
    not from its distributions, which it does not.
    """

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.stored: dict[str, Stored] = {}

    def bf16(self, name: str, *shape: int) -> None:
        """A bell of standard deviation 0.05 in bfloat16."""
        self._store(name, "BF16", shape, to_bf16(self._bell(name, shape)))

    def norm(self, name: str, *shape: int) -> None:
        """Like `bf16`, around 1."""
        self._store(name, "BF16", shape, to_bf16(self._bell(name, shape) + np.float32(1)))

    def f32(self, name: str, *shape: int, around: float = 0.0) -> None:
        """A bell of standard deviation 0.05 in float32."""
        self._store(name, "F32", shape, self._bell(name, shape) + np.float32(around))

    def e4m3(self, name: str, *shape: int, signed: bool = True) -> None:
        """Every finite 8-bit float (4 bits of exponent, 3 of mantissa); unsigned for scales."""
        raw = self._raw(name, math.prod(shape)) & (0xFF if signed else 0x7F)
        nan = (raw & 0x7F) == 0x7F
        self._store(name, "F8_E4M3", shape, np.where(nan, raw ^ 1, raw).astype(np.uint8))

    def e8m0(self, name: str, *shape: int) -> None:
        """Powers of two from 2**-12 to 2**-9, stored as exponent + 127."""
        raw = self._raw(name, math.prod(shape)) % 4 + 115
        self._store(name, "F8_E8M0", shape, raw.astype(np.uint8))

    def packed(self, name: str, dtype: str, *shape: int) -> None:
        """Two 4-bit floats a byte, the even column in the low half; shape counts bytes."""
        self._store(name, dtype, shape, self._raw(name, math.prod(shape)))

    def exact(self, name: str, dtype: str, values: Array) -> None:
        """The given values, of a NumPy type that fits the dtype."""
        self._store(name, dtype, values.shape, values)

    def _store(self, name: str, dtype: str, shape: tuple[int, ...], values: Array) -> None:
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        self.stored[name] = Stored(dtype, shape, little.tobytes())

    def _raw(self, name: str, n: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        key = int.from_bytes(hashlib.sha256(f"{self._seed}/{name}".encode()).digest()[:8], "little")
        words = np.random.Philox(key=key).random_raw(-(-n // 8))
        return np.asarray(words, dtype="<u8").view(np.uint8)[:n]

    def _bell(self, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Sums of four uniform 16-bit numbers: deviation 65536 / sqrt(3), scaled to 0.05."""
        lanes = self._raw(name, 8 * math.prod(shape)).view("<u2").astype(np.int32)
        sums = lanes.reshape(*shape, 4).sum(axis=-1) - 2 * 65535
        scaled = sums.astype(np.float32) * np.float32(0.05 * math.sqrt(3) / 65536)
        return np.asarray(scaled, dtype=np.float32)


def to_bf16(values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The bit patterns of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Write a file in the order of the Rust writer: wide types first, then by name."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    ordered = sorted(tensors.items(), key=lambda item: (-SIZES[item[1].dtype], item[0]))
    end = 0
    for name, tensor in ordered:
        start, end = end, end + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(tensor.data for _, tensor in ordered)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_json(path: Path, value: object) -> None:
    """Write JSON with the same bytes on every machine."""
    path.write_bytes((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def digest(folder: Path) -> str:
    """SHA-256 over the names and contents of a folder's files, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
