"""`llamaspec convert` from the Hub: only what is needed comes, broken downloads go on."""

from pathlib import Path

import gguf
import pytest

from tests.checkpoints import write
from tests.fake_hub import COMMIT, Hub, serving


def published(folder: Path) -> dict[str, bytes]:
    """A folder's files as a repository holds them."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def converted(hub: Hub, out: Path, *words: str, **env: str) -> tuple[int, str]:
    """Run the command line; exit code and stderr."""
    done = hub.run("-m", "llamaspec", "convert", "-o", str(out), *words, **env)
    return done.returncode, done.stderr.strip()


def names(hub: Hub) -> set[str]:
    """The files that were downloaded, as repository/file."""
    paths = (path.strip("/").split("/") for path, _ in hub.downloads())
    return {f"{parts[1]}/{parts[-1]}" for parts in paths}


def test_draft_and_target_by_name(tmp_path: Path) -> None:
    pair, out = write("deepspec", tmp_path), tmp_path / "out.gguf"
    extra = {"pytorch_model.bin": b"pickle", "README.md": b"words", "sub/model.safetensors": b"no"}
    target = published(pair.target) | {"model.safetensors": b"not needed", "model.py": b"code"}
    files = {"ann/draft": published(pair.draft) | extra, "ann/target": target}
    with serving(Hub(files, tmp_path / "hf")) as hub:
        code, error = converted(hub, out, "ann/draft", "--target", "hf://ann/target@v1")
        assert (code, error) == (0, "")
        assert names(hub) == {
            "draft/config.json",
            "draft/model.safetensors",
            *(f"target/{name}" for name in published(pair.target)),
        }
        fields = gguf.GGUFReader(out).fields
        assert fields["llamaspec.source.repository"].contents() == "ann/draft"
        assert fields["llamaspec.source.revision"].contents() == COMMIT
        # what is in the cache needs no network
        assert converted(
            hub, out, "ann/draft", "--target", "ann/target@v1", "--force", HF_HUB_OFFLINE="1"
        ) == (0, "")


def test_of_a_full_checkpoint_only_the_drafts_shards(tmp_path: Path) -> None:
    pair, out = write("deepseek4", tmp_path), tmp_path / "out.gguf"
    with serving(Hub({"ann/v4": published(pair.draft)}, tmp_path / "hf")) as hub:
        assert converted(hub, out, "ann/v4", "--target", str(pair.target)) == (0, "")
        shards = {name for name in names(hub) if name.endswith(".safetensors")}
        assert 0 < len(shards) < len(list(pair.draft.glob("*.safetensors")))


def test_a_broken_download_is_mended(tmp_path: Path) -> None:
    pair, out = write("deepspec", tmp_path), tmp_path / "out.gguf"
    with serving(Hub({"ann/draft": published(pair.draft)}, tmp_path / "hf")) as hub:
        hub.cuts = 1
        assert converted(hub, out, "ann/draft", "--target", str(pair.target)) == (0, "")
        assert out.is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ann/absent"], "no repository ann/absent"),
        (["ann/draft", "--hf-revision", "v9"], "has no revision v9"),
        (["ann/draft@v9"], "has no revision v9"),
        (["no/such/folder"], "no such folder or file"),
    ],
)
def test_what_is_not_there(tmp_path: Path, words: list[str], said: str) -> None:
    pair, out = write("deepspec", tmp_path), tmp_path / "out.gguf"
    with serving(Hub({"ann/draft": published(pair.draft)}, tmp_path / "hf")) as hub:
        code, error = converted(hub, out, *words, "--target", str(pair.target))
    assert code == 2
    assert said in error
    assert error.startswith("llamaspec: ")
    assert len(error.splitlines()) == 1
    assert not out.exists()
