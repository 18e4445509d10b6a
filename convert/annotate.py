"""A copy of a GGUF with more metadata: everything else byte for byte, tensors included."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.staged import staged

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_COUNTS = 8
_FIRST_PAIR = 24
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)
_INT32, _FLOAT32, _STRING, _ARRAY = 5, 6, 8, 9
_PIECE = 16 << 20

Arrays = Mapping[str, Sequence[int] | Sequence[float]]


def annotate(
    source: Path, output: Path, arrays: Arrays, *, drop: str = "", overwrite: bool = False
) -> None:
    """Write a copy of a GGUF with arrays in its metadata, of INT32 where all items are whole
    numbers and of FLOAT32 else.

    Args:
        source: a GGUF in one file.
        output: the file to write; it appears complete or not at all.
        arrays: by key; a key of the source is replaced.
        drop: keys of the source that begin with this are left out, where it is not empty.
        overwrite: an existing file may be replaced.

    Raises:
        ModelLoadError: the source is no GGUF, or one of several parts.
        OptionError: the output cannot be written there.
    """
    with GGUFFile.open(source) as file:
        if len(file.parts) > 1:
            raise ModelLoadError(
                f"{source}: is split into {len(file.parts)} files; merge them first, with "
                "llama.cpp's llama-gguf-split --merge"
            )
        alignment = file.metadata.get("general.alignment", 32)
        assert isinstance(alignment, int), "checked by the parser"
        starts = [info.offset for info in file.tensors.values()]
        gone = {key for key in file.metadata if key in arrays or (drop and key.startswith(drop))}
        total = len(file.metadata)
    with staged(output, overwrite=overwrite, sources=[source]) as part:
        with source.open("rb") as read, part.open("wb") as write:
            pairs, infos = _pairs(read, total)
            kept = [(at, end) for key, at, end in pairs if key not in gone]
            head = _bytes(read, 0, _COUNTS + 8)
            write.write(head + _U64.pack(len(kept) + len(arrays)))
            for at, end in kept:
                write.write(_bytes(read, at, end))
            for key, values in arrays.items():
                write.write(_pair(key, values))
            data = min(starts, default=infos)
            # what pads the descriptions depends on where they end
            described = _described(read, infos, len(starts))
            write.write(_bytes(read, infos, described))
            if starts:
                write.write(bytes(-write.tell() % alignment))
                _copy(read, write, data)
        GGUFFile.open(part).close()


def _pairs(file: BinaryIO, count: int) -> tuple[list[tuple[str, int, int]], int]:
    """Key, start and end of every metadata pair of a checked file, and where the last one ends."""
    found = []
    at = _FIRST_PAIR
    for _ in range(count):
        start = at
        length = _number(file, at, _U64)
        key = _bytes(file, at + 8, at + 8 + length).decode("utf-8", "replace")
        kind = _number(file, at + 8 + length, _U32)
        at = _value_end(file, at + 12 + length, kind)
        found.append((key, start, at))
    return found, at


def _value_end(file: BinaryIO, at: int, kind: int) -> int:
    if kind == _STRING:
        return at + 8 + _number(file, at, _U64)
    if kind != _ARRAY:
        return at + _SIZES[kind]
    item, count = _number(file, at, _U32), _number(file, at + 4, _U64)
    at += 12
    if item != _STRING:
        return at + count * _SIZES[item]
    for _ in range(count):
        at += 8 + _number(file, at, _U64)
    return at


def _described(file: BinaryIO, at: int, count: int) -> int:
    """Where the descriptions of tensors end."""
    for _ in range(count):
        at += 8 + _number(file, at, _U64)
        at += 4 + 8 * _number(file, at, _U32) + 12
    return at


def _pair(key: str, values: Sequence[int] | Sequence[float]) -> bytes:
    whole = all(isinstance(value, int) for value in values)
    name = key.encode()
    kinds = _U32.pack(_ARRAY) + _U32.pack(_INT32 if whole else _FLOAT32)
    items = struct.pack(f"<{len(values)}{'i' if whole else 'f'}", *values)
    return _U64.pack(len(name)) + name + kinds + _U64.pack(len(values)) + items


def _number(file: BinaryIO, at: int, layout: struct.Struct) -> int:
    return int(layout.unpack(_bytes(file, at, at + layout.size))[0])


def _bytes(file: BinaryIO, start: int, stop: int) -> bytes:
    file.seek(start)
    found = file.read(stop - start)
    assert len(found) == stop - start, "the file was checked"
    return found


def _copy(source: BinaryIO, output: BinaryIO, start: int) -> None:
    source.seek(start)
    while piece := source.read(_PIECE):
        output.write(piece)
