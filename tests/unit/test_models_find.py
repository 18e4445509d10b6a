"""Drafts in folders of this machine: beside their target, as checkpoints, converted and kept."""

import logging
import shutil
from pathlib import Path

import pytest

from llamaspec import demo
from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.models import converted, find_draft, find_pair, find_target
from llamaspec.models.find import Target
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.session import load
from tests.checkpoints import write
from tests.miniature import write_target


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("LLAMASPEC_CACHE", str(folder))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled target, and neighbours that are no drafts for it."""
    place = tmp_path / "models"
    place.mkdir()
    shutil.copy(demo.target_path(), place / "target.gguf")
    write_target(place / "other.gguf")
    (place / "broken-dspark.gguf").write_bytes(b"GGUF dflash and nothing else")
    return place


def test_local_files_are_taken_as_they_are() -> None:
    target, draft = demo.target_path(), demo.draft_path()
    assert find_pair(target, None) == (target, None)
    assert find_pair(str(target), str(draft)) == (target, draft)


def test_auto_takes_what_fits_beside_the_target(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = find_target(folder / "target.gguf")
    with pytest.raises(OptionError, match=r"no draft is known for target.gguf: .*models"):
        find_draft("auto", target)
    shutil.copy(demo.draft_path(), folder / "any-name.gguf")
    with caplog.at_level(logging.INFO, "llamaspec.models"):
        assert find_draft("auto", target) == folder / "any-name.gguf"
    assert "the draft is any-name.gguf" in caplog.text


@pytest.mark.native
def test_load_takes_names(folder: Path) -> None:
    shutil.copy(demo.draft_path(), folder / "beside.gguf")
    with load(folder / "target.gguf", "auto", threads=1, context=256) as session:
        done = session.generate("Hello", max_tokens=12, draft_max=3)
    assert done.stats.drafted > 0


def test_auto_passes_over_a_draft_for_another_target(folder: Path) -> None:
    shutil.copy(demo.draft_path(), folder / "draft.gguf")
    with pytest.raises(OptionError, match="no draft is known"):
        find_draft("auto", Target(folder / "other.gguf"))


def test_a_folder_of_one_target(folder: Path) -> None:
    (folder / "other.gguf").unlink()
    shutil.copy(demo.draft_path(), folder / "draft.gguf")
    assert find_target(folder).path == folder / "target.gguf"


def test_a_folder_with_a_checkpoint_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="convert-target"):
        find_target(write("deepspec", tmp_path).target)


def test_a_checkpoints_folder_is_converted_once(
    shared: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoint"
    shutil.copytree(shared / "models" / "tiny-dspark", place, copy_function=shutil.copyfile)
    target = find_target(demo.target_path())
    shown: list[tuple[int, int]] = []
    path = find_draft(place, target, lambda done, total: shown.append((done, total)))
    assert path.is_relative_to(cache)
    assert shown[-1][0] == shown[-1][1] > 0
    count = len(shown)
    assert find_draft(str(place), target, lambda done, total: shown.append((done, total))) == path
    assert len(shown) == count
    ((file, about),) = converted.kept()
    assert file == path
    assert about is not None
    assert about.source == str(place)
    # another converter makes another file, and so does a changed checkpoint
    monkeypatch.setattr(converted, "converter", lambda: "another")
    second = find_draft(place, target)
    assert second != path
    config = place / "config.json"
    config.write_text(config.read_text() + "\n")
    assert find_draft(place, target) not in (path, second)


def test_the_converters_version_is_that_of_its_sources() -> None:
    assert len(converted.converter()) == 12
    assert converted.converter() == converted.converter()


def test_a_target_is_told_from_others_of_its_shape(tmp_path: Path) -> None:
    one = tmp_path / "one.gguf"
    shutil.copyfile(demo.target_path(), one)
    assert converted.target_identity(one) == converted.target_identity(demo.target_path())
    with GGUFFile.open(one) as file:
        at = file.tensors["token_embd.weight"].offset
    with one.open("r+b") as raw:
        raw.seek(at)
        raw.write(b"\x01\x02\x03\x04")
    assert converted.target_identity(one) != converted.target_identity(demo.target_path())


def test_a_cache_that_cannot_be_written_is_named(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="LLAMASPEC_CACHE"):
        find_draft(shared / "models" / "tiny-dspark", find_target(demo.target_path()))
