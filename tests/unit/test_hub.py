"""hf:// references against a hub on this machine, through the real client in its own process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.hub import resolve
from tests.fake_hub import Hub, serving
from tests.miniature import write_target


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    content = write_target(tmp_path / "m.gguf").read_bytes()
    split = {f"big-0000{number}-of-00002.gguf": content for number in (1, 2)}
    files = {"ann/tiny": {"m.gguf": content, "sub/q8/m.gguf": content} | split}
    with serving(Hub(files, tmp_path / "hf")) as hub:
        yield hub


def test_local_paths_are_taken_as_they_are(tmp_path: Path) -> None:
    assert resolve(tmp_path / "x.gguf") == tmp_path / "x.gguf"
    assert resolve("models/x.gguf") == Path("models/x.gguf")
    assert resolve("owner/repo") == Path("owner/repo")


@pytest.mark.parametrize(
    "reference",
    [
        "hf://ann/tiny",
        "hf://ann/tiny/readme.md",
        "hf://tiny/m.gguf",
        "hf://ann/tiny/../../m.gguf",
        "hf://ann/tiny/m.gguf@",
        "hf://",
    ],
)
def test_references_of_another_form(reference: str) -> None:
    with pytest.raises(OptionError, match="hf://owner/repo/path/to/file"):
        resolve(reference)


def test_downloads_once_and_then_needs_no_network(hub: Hub) -> None:
    path = hub.path("hf://ann/tiny/sub/q8/m.gguf")
    assert path.read_bytes() == hub.files["ann/tiny"]["sub/q8/m.gguf"]
    assert path.is_relative_to(hub.home)
    assert hub.downloads() == [("/ann/tiny/resolve/main/sub/q8/m.gguf", None)]
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf", HF_HUB_OFFLINE="1") == path
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf") == path
    assert len(hub.downloads()) == 1
    hub.address = "http://127.0.0.1:9"
    assert hub.path("hf://ann/tiny/sub/q8/m.gguf") == path


def test_a_revision(hub: Hub) -> None:
    assert hub.path("hf://ann/tiny/m.gguf@v1").is_file()
    assert hub.downloads() == [("/ann/tiny/resolve/v1/m.gguf", None)]


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub) -> None:
    # the client writes pieces of 10 MiB; what is less than that it fetches again
    content = hub.files["ann/tiny"]["long.gguf"] = bytes(range(256)) * (24 << 12)
    hub.cuts = 1
    assert hub.path("hf://ann/tiny/long.gguf").read_bytes() == content
    assert [span for _, span in hub.downloads()] == [None, f"bytes={10 << 20}-"]


def test_a_split_model_comes_whole(hub: Hub) -> None:
    path = hub.path("hf://ann/tiny/big-00001-of-00002.gguf")
    assert path.name == "big-00001-of-00002.gguf"
    assert path.with_name("big-00002-of-00002.gguf").is_file()


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("hf://ann/absent/m.gguf", "no repository ann/absent"),
        ("hf://ann/tiny/m.gguf@v9", "ann/tiny has no revision v9"),
        ("hf://ann/tiny/none.gguf@v1", "ann/tiny at v1 has no file none.gguf"),
        ("hf://locked/tiny/m.gguf", "locked/tiny is gated"),
    ],
)
def test_what_the_hub_refuses(hub: Hub, reference: str, words: str) -> None:
    error = hub.error(reference)
    assert error.startswith(f"{ModelLoadError.__name__}|{reference}: ")
    assert words in error


def test_without_network_and_cache(hub: Hub) -> None:
    assert "not cached" in hub.error("hf://ann/tiny/m.gguf", HF_HUB_OFFLINE="1")
    hub.address = "http://127.0.0.1:9"
    assert "not cached" in hub.error("hf://ann/tiny/m.gguf")
    assert not hub.log
