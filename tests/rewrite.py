"""Writes a changed copy of a GGUF: metadata and tensors replaced, added or left out."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.miniature import finish


class As:
    """A metadata value with the GGUF type to write it as; `item` is that of an array's items."""

    def __init__(
        self,
        value: Any,  # noqa: ANN401
        kind: gguf.GGUFValueType,
        item: gguf.GGUFValueType | None = None,
    ) -> None:
        self.value, self.kind, self.item = value, kind, item


def rewrite(
    source: Path,
    target: Path,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Any] | None = None,
) -> Path:
    """Copy `source` to `target` with changes; entries that are None are left out.

    A metadata value keeps the type that its key had; As(...) gives another.
    """
    read, originals = _read(source)
    pairs: dict[str, As | None] = dict(read)
    for key, value in (metadata or {}).items():
        pairs[key] = value if value is None or isinstance(value, As) else _typed(value, pairs, key)
    architecture = pairs.pop("general.architecture")
    writer = gguf.GGUFWriter(target, architecture.value if architecture else "")
    for key, pair in pairs.items():
        if pair is not None:
            writer.add_key_value(key, pair.value, pair.kind, pair.item)
    changes = dict(tensors or {})
    for tensor in originals:
        if tensor.name not in changes:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, array in changes.items():
        if array is not None:
            writer.add_tensor(name, array)
    finish(writer)
    return target


def tensor(source: Path, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A tensor of a GGUF as float32."""
    (found,) = [t for t in _read(source)[1] if t.name == name]
    values: np.ndarray[Any, np.dtype[np.float32]] = gguf.dequantize(found.data, found.tensor_type)
    return values.reshape([int(n) for n in reversed(found.shape)])


@cache
def _read(source: Path) -> tuple[dict[str, As], list[gguf.ReaderTensor]]:
    reader = gguf.GGUFReader(source)
    pairs = {
        key: As(field.contents(), field.types[0], field.types[-1])
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    return pairs, reader.tensors


def _typed(value: object, pairs: Mapping[str, Any], key: str) -> As:
    known = pairs.get(key)
    if known is not None:
        return As(value, known.kind, known.item)
    if isinstance(value, list):
        return As(value, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.get_type(value[0]))
    return As(value, gguf.GGUFValueType.get_type(value))
