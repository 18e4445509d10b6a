"""The array types that cross the native border, and the one way to hand them over."""

from typing import Any

import numpy as np
import numpy.typing as npt

from llamaspec.ffi import ffi

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
ByteArray = npt.NDArray[np.int8]


def int_pointer(array: IntArray) -> Any:  # noqa: ANN401
    """A C view of a contiguous int32 array; the caller keeps the array alive."""
    assert array.dtype == np.int32
    return ffi.from_buffer("int32_t[]", array)


def float_pointer(array: FloatArray) -> Any:  # noqa: ANN401
    """A C view of a contiguous float32 array of any shape; the caller keeps the array alive."""
    assert array.dtype == np.float32
    return ffi.from_buffer("float[]", array)


def byte_pointer(array: ByteArray) -> Any:  # noqa: ANN401
    """A C view of a contiguous int8 array; the caller keeps the array alive."""
    assert array.dtype == np.int8
    return ffi.from_buffer("int8_t[]", array)
