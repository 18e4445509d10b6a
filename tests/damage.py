"""One thing wrong with a miniature checkpoint: what tests of bad input are built from.

A `Change` damages the folders of a pair in place.
"""

import json
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec.convert import Job, Wishes, convert
from llamaspec.errors import LlamaSpecError
from tests import mutate
from tests.checkpoints import Pair, write
from tests.checkpoints.writing import Stored, write_safetensors
from tests.converted import read_shards, reconfigure

Change = Callable[[Pair], object]
GONE = object()
SHARD, INDEX = "model.safetensors", "model.safetensors.index.json"


@cache
def published(packaging: str) -> tuple[mutate.Files, Pair]:
    """A packaging's files, and its folders relative to where they are written."""
    with tempfile.TemporaryDirectory() as name:
        pair = write(packaging, Path(name))
        return mutate.read(Path(name)), Pair(Path(pair.draft.name), Path(pair.target.name))


def place(packaging: str, folder: Path) -> Pair:
    """Write a packaging's folders."""
    files, pair = published(packaging)
    for name, data in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(data)
    return Pair(folder / pair.draft, folder / pair.target)


def edited(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """Set keys; "a__b" is b in a, and GONE takes it away."""
    for path, value in changes.items():
        *outer, key = path.split("__")
        node = config
        for name in outer:
            node = node.setdefault(name, {})
        if value is GONE:
            node.pop(key, None)
        else:
            node[key] = value


def settings(**changes: Any) -> Change:  # noqa: ANN401
    return lambda pair: reconfigure(pair.draft, lambda config: edited(config, changes))


def target_settings(**changes: Any) -> Change:  # noqa: ANN401
    return lambda pair: reconfigure(pair.target, lambda config: edited(config, changes))


def config_text(change: Callable[[bytes], bytes]) -> Change:
    def apply(pair: Pair) -> None:
        path = pair.draft / "config.json"
        path.write_bytes(change(path.read_bytes()))

    return apply


def said(key: str, raw: str) -> Change:
    """A setting as text that no JSON writer would produce."""
    return config_text(lambda text: b'{"%s": %s,' % (key.encode(), raw.encode()) + text[1:])


def tensors(change: Callable[[dict[str, Stored]], object]) -> Change:
    def apply(pair: Pair) -> None:
        found = read_shards(pair.draft)
        change(found)
        write_safetensors(pair.draft / SHARD, found)

    return apply


def tensor(name: str, like: Callable[[Stored], Stored] | None) -> Change:
    """One tensor replaced; taken away where `like` is None."""

    def change(found: dict[str, Stored]) -> None:
        old = found.pop(name)
        if like is not None:
            found[name] = like(old)

    return tensors(change)


def together(*changes: Change) -> Change:
    return lambda pair: [change(pair) for change in changes]


def shaped(*shape: int) -> Callable[[Stored], Stored]:
    """Zeros of another shape."""
    return lambda old: Stored(old.dtype, shape, bytes(_size(old.dtype, shape)))


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    one = {"F32": 4, "BF16": 2, "I64": 8}.get(dtype, 1)
    return one * int(np.prod(shape, dtype=np.int64))


def holding(value: float, dtype: str = "F32") -> Callable[[Stored], Stored]:
    """The same shape, all zeros but the last number."""

    def like(old: Stored) -> Stored:
        numbers = np.zeros(old.shape, np.float32)
        numbers.reshape(-1)[-1] = value
        raw = numbers if dtype == "F32" else numbers.view(np.uint32) >> 16
        return Stored(dtype, old.shape, raw.astype("<f4" if dtype == "F32" else "<u2").tobytes())

    return like


def header(
    change: Callable[[dict[str, Any]], object], name: str = SHARD, tail: bytes = b""
) -> Change:
    """Another header over the same data."""

    def apply(pair: Pair) -> None:
        path = pair.draft / name
        fields, data = mutate.split(path.read_bytes())
        change(fields)
        path.write_bytes(mutate.joined(json.dumps(fields).encode(), data + tail))

    return apply


def entry(name: str, **changes: Any) -> Change:  # noqa: ANN401
    return header(lambda fields: fields[name].update(changes))


def renamed(old: str, new: str, shard: str = SHARD) -> Change:
    """A tensor under another name."""
    return header(lambda fields: fields.update({new: fields.pop(old)}), shard)


def spoilt(name: str, shard: str, value: int) -> Change:
    """Every byte of a tensor replaced."""

    def apply(pair: Pair) -> None:
        path = pair.draft / shard
        fields, data = mutate.split(path.read_bytes())
        first, last = fields[name]["data_offsets"]
        data = data[:first] + bytes([value]) * (last - first) + data[last:]
        path.write_bytes(mutate.joined(json.dumps(fields).encode(), data))

    return apply


def raw_header(text: bytes, length: int | None = None) -> Change:
    def apply(pair: Pair) -> None:
        size = len(text) if length is None else length
        (pair.draft / SHARD).write_bytes(struct.pack("<Q", size) + text)

    return apply


def indexed(file: Any) -> Change:  # noqa: ANN401
    """An index that puts one tensor into another file."""

    def apply(pair: Pair) -> None:
        where = dict.fromkeys(read_shards(pair.draft), SHARD) | {"norm.weight": file}
        (pair.draft / INDEX).write_text(json.dumps({"weight_map": where}))

    return apply


def index(value: object) -> Change:
    return lambda pair: (pair.draft / INDEX).write_text(json.dumps(value))


def cut(name: str, size: int) -> Change:
    return lambda pair: (pair.draft / name).write_bytes((pair.draft / name).read_bytes()[:size])


def instead(name: str, make: Callable[[Path], object], target: bool = False) -> Change:
    """Something else in the place of a file."""

    def apply(pair: Pair) -> None:
        path = (pair.target if target else pair.draft) / name
        path.unlink(missing_ok=True)
        make(path)

    return apply


def linked(to: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(to)


def elsewhere(path: Path) -> None:
    """A link to a shard beside the folder."""
    outside = path.parent.parent / "outside.safetensors"
    outside.write_bytes(published("zlab")[0]["draft/" + SHARD])
    path.symlink_to(outside)


def pickled(pair: Pair) -> None:
    (pair.draft / SHARD).rename(pair.draft / "pytorch_model.bin")


def d2t(change: Callable[["np.ndarray[Any, np.dtype[np.int64]]"], object]) -> Change:
    def like(old: Stored) -> Stored:
        offsets = np.frombuffer(old.data, "<i8").copy()
        change(offsets)
        return Stored("I64", old.shape, offsets.tobytes())

    return tensor("d2t", like)


def swapped(pair: Pair) -> None:
    """The draft's folder, with the tokenizer that many bring, as the target's."""
    for path in pair.draft.iterdir():
        (pair.target / path.name).write_bytes(path.read_bytes())


def target_as_draft(pair: Pair) -> None:
    (pair.draft / "config.json").write_bytes((pair.target / "config.json").read_bytes())


def job(pair: Pair, folder: Path, **wishes: Any) -> Job:  # noqa: ANN401
    return Job(pair.draft, pair.target, folder / "out.gguf", wishes=Wishes(**wishes))


def refused(wanted: Job, kind: type[LlamaSpecError]) -> str:
    """The line of a refusal that changes nothing in the output's folder."""
    before = sorted(wanted.output.parent.iterdir()) if wanted.output.parent.is_dir() else []
    with pytest.raises(LlamaSpecError) as caught:
        convert(wanted)
    assert type(caught.value) is kind, caught.value
    line = str(caught.value)
    assert line.isprintable(), line
    assert len(line) < 1500
    if before:
        assert sorted(wanted.output.parent.iterdir()) == before
    return line


def values(path: Path) -> dict[str, Any]:
    """A draft's keys."""
    return {
        name: field.contents()
        for name, field in gguf.GGUFReader(path).fields.items()
        if name.startswith("dflash.") or name == "tokenizer.ggml.mask_token_id"
    }
