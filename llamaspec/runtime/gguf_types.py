"""What a GGUF holds: tensor types, tensor descriptions and lazily decoded metadata arrays."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

Scalar = bool | int | float | str

# name, elements per block, bytes per block; by the type number that a file stores
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


class TensorInfo(NamedTuple):
    """One tensor of a GGUF.

    Attributes:
        name: as stored.
        shape: NumPy order, rows first (the file stores it the other way round).
        type: ggml's name of the type, "F32" or "Q8_0".
        offset: absolute position of the data in the file, in bytes.
        nbytes: length of the data, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int

    @property
    def n_elements(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


class MetaArray(Sequence[Scalar]):
    """A metadata array; its length is known at once, its items are decoded when first read."""

    __slots__ = ("_count", "_decode", "_values")

    def __init__(self, count: int, decode: Callable[[], list[Scalar]]) -> None:
        self._count = count
        self._decode = decode
        self._values: list[Scalar] | None = None

    def tolist(self) -> list[Scalar]:
        """All items. Raises ClosedError when the file was closed before the first read."""
        if self._values is None:
            self._values = self._decode()
        return list(self._values)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Scalar: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scalar]: ...
    def __getitem__(self, index: int | slice) -> Scalar | list[Scalar]:
        if self._values is None:
            self._values = self._decode()
        return self._values[index]

    def __iter__(self) -> Iterator[Scalar]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"<MetaArray of {self._count}>"


MetaValue = Scalar | MetaArray
