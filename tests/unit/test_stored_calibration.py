"""A draft's calibration beside it and in its metadata: found, exact, refused in one line."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamaspec import demo
from llamaspec.convert.annotate import annotate
from llamaspec.errors import LlamaSpecError, ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.schedule.scaling import Scaling
from llamaspec.schedule.stored import KNOTS, LEVELS, PREFIX, TEMPERATURES, as_metadata, beside, find

PLAIN = Scaling((2.0, 0.5, 1.0))
CURVED = Scaling((1.5, 0.75), (((0.25, 0.125), (0.5, 0.5)), ()))


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A small GGUF with metadata of every kind and tensors whose sizes need padding."""
    path = tmp_path / "draft.gguf"
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_uint32("dflash.block_size", 7)
    writer.add_float64("a.float64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_array("a.texts", ["one", "zwei", "три"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_tensor("fc", np.arange(5, dtype=np.float32))
    writer.add_tensor("d2t", np.arange(3, dtype=np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    with GGUFFile.open(path) as file:
        return {
            name: (info.type, file.raw(name, 0, info.nbytes).tobytes())
            for name, info in file.tensors.items()
        }


def _metadata(path: Path) -> dict[str, Any]:
    with GGUFFile.open(path) as file:
        return {
            k: list(v) if not isinstance(v, str | int | float) else v
            for k, v in file.metadata.items()
        }


def test_a_draft_without_any_has_none(draft: Path) -> None:
    assert find(draft) is None


def test_the_file_beside_a_draft_goes_first(draft: Path, tmp_path: Path) -> None:
    assert beside(draft) == tmp_path / "draft.calibration.json"
    copy = tmp_path / "copy.gguf"
    annotate(draft, copy, as_metadata(CURVED))
    assert find(copy) == CURVED
    PLAIN.save(beside(copy))
    assert find(copy) == PLAIN
    beside(copy).write_text("{")
    with pytest.raises(OptionError, match=r"copy\.calibration\.json: is not JSON; calibrate again"):
        find(copy)


def test_a_copy_differs_in_nothing_but_the_new_keys(draft: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    for source in (draft, demo.draft_path()):
        annotate(source, copy, as_metadata(PLAIN), overwrite=True)
        assert _tensors(copy) == _tensors(source)
        assert list(_tensors(copy)) == list(_tensors(source))
        added = _metadata(copy)
        assert added.pop(TEMPERATURES) == [2.0, 0.5, 1.0]
        assert added == _metadata(source)
        assert find(copy) == PLAIN


def test_embedding_again_replaces_all_of_the_old(draft: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    annotate(draft, once, as_metadata(CURVED))
    annotate(once, twice, as_metadata(PLAIN), drop=PREFIX)
    assert find(twice) == PLAIN
    annotate(twice, once, {}, drop=PREFIX, overwrite=True)
    assert once.read_bytes() == draft.read_bytes()


def test_arrays_are_read_by_the_gguf_package(draft: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    annotate(draft, copy, as_metadata(CURVED))
    fields = gguf.GGUFReader(copy).fields
    assert fields[KNOTS].contents() == [2, 0]
    assert fields[LEVELS].contents() == [0.25, 0.125, 0.5, 0.5]
    assert fields[KNOTS].types[-1] is gguf.GGUFValueType.INT32
    assert fields[TEMPERATURES].types[-1] is gguf.GGUFValueType.FLOAT32


def test_a_gguf_without_tensors_can_be_annotated(tmp_path: Path) -> None:
    empty, copy = tmp_path / "empty.gguf", tmp_path / "copy.gguf"
    empty.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    annotate(empty, copy, as_metadata(PLAIN))
    assert find(copy) == PLAIN


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({TEMPERATURES: [0.0]}, "temperature 0.0"),
        ({TEMPERATURES: [1]}, "not a FLOAT32"),
        ({KNOTS: [1]}, "1 knots"),
        ({LEVELS: [0.5, 0.5]}, "0 knots"),
        ({TEMPERATURES: [1.0], KNOTS: [0.5], LEVELS: [0.5]}, "not a whole number"),
        ({TEMPERATURES: [1.0], KNOTS: [-1], LEVELS: []}, "-1 knots"),
        ({TEMPERATURES: [1.0], KNOTS: [1], LEVELS: [0.5]}, "has 1 numbers"),
        ({TEMPERATURES: [1.0, 1.0], KNOTS: [1], LEVELS: [0.5, 0.5]}, "levels of 1"),
        ({TEMPERATURES: [1.0], KNOTS: [2], LEVELS: [0.5, 0.5, 0.4, 0.5]}, "must rise"),
        ({PREFIX + "temperatures": []}, "0 temperatures"),
    ],
)
def test_broken_metadata_is_refused_in_one_line(
    arrays: dict[str, list[Any]], said: str, draft: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.gguf"
    annotate(draft, copy, arrays)
    with pytest.raises(ModelLoadError, match=said) as caught:
        find(copy)
    assert str(caught.value).startswith(f"{copy}: ")
    assert "\n" not in str(caught.value)


def test_a_temperature_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_string(TEMPERATURES, "1.0")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match="not an array"):
        find(path)


def test_what_cannot_be_copied_is_refused_and_leaves_nothing(draft: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(draft.read_bytes()[:-40])
    before = set(tmp_path.iterdir())
    for source, output in ((bad, tmp_path / "o.gguf"), (draft, draft), (draft, bad)):
        with pytest.raises(LlamaSpecError) as caught:
            annotate(source, output, as_metadata(PLAIN))
        assert "\n" not in str(caught.value)
    assert set(tmp_path.iterdir()) == before
