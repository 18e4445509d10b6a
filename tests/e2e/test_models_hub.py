"""Names of models against a hub on this machine, with the real client and a trained pair."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest

from tests.conftest import ROOT
from tests.fake_hub import COMMIT, SCRIPT, Hub, serving

TARGET, DRAFT, SIDE = "ann/Tiny-GGUF", "ann/tiny-dspark", "ann/Side-GGUF"
Q8 = f"{TARGET}:Q8_0"


@pytest.fixture
def hub(shared: Path, tmp_path: Path) -> Iterator[Hub]:
    models = shared / "models"
    q8 = (models / "gguf" / "tiny-target-q8_0.gguf").read_bytes()
    draft = (models / "gguf" / "tiny-dspark-bf16.gguf").read_bytes()
    checkpoint = {p.name: p.read_bytes() for p in (models / "tiny-dspark").iterdir()}
    files = {
        TARGET: {"tiny-Q8_0.gguf": q8, "tiny-Q4_0.gguf": b"never fetched", "README.md": b"words"},
        DRAFT: checkpoint,
        SIDE: {"tiny-Q8_0.gguf": q8, "tiny-DSpark-BF16.gguf": draft, "mmproj-F16.gguf": b"no"},
        "ann/full": {"config.json": b"{}", "model.safetensors": b""},
    }
    with serving(Hub(files, tmp_path / "hf")) as hub:
        yield hub


def weights(hub: Hub) -> list[str]:
    """The large files that were downloaded, by name."""
    names = [path.rpartition("/")[2] for path, _ in hub.downloads()]
    return [name for name in names if name.endswith((".gguf", ".safetensors"))]


def test_a_quantisation_of_a_repository(hub: Hub) -> None:
    path = hub.path(Q8)
    assert path.read_bytes() == hub.files[TARGET]["tiny-Q8_0.gguf"]
    assert weights(hub) == ["tiny-Q8_0.gguf"]
    assert hub.path(f"{TARGET}@main:tiny-Q8_0.gguf") == path
    assert hub.path(Q8, HF_HUB_OFFLINE="1") == path
    hub.address = "http://127.0.0.1:9"
    assert hub.path(Q8) == path


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{TARGET}:Q5_K_M", ["ann/Tiny-GGUF: has no GGUF of Q5_K_M; it has Q4_0, Q8_0"]),
        (TARGET, ["has 2 GGUFs", "Q4_0, Q8_0"]),
        ("ann/absent", ["no repository ann/absent", "no such file or folder here either"]),
        (f"{TARGET}@v9:Q8_0", ["no revision v9"]),
        ("ann/full", ["ann/full: has no GGUF", "convert-target"]),
        ("nosuch/dir/x.gguf", ["nosuch/dir/x.gguf"]),
    ],
)
def test_what_is_not_there(hub: Hub, name: str, words: list[str]) -> None:
    if name.endswith("x.gguf"):
        assert hub.path(name) == Path(name)  # for the loader to refuse
        return
    error = hub.error(name)
    for word in words:
        assert word in error
    assert weights(hub) == []


def test_a_gated_repository_says_what_to_do(hub: Hub) -> None:
    hub.files["locked/Tiny-GGUF"] = hub.files[TARGET]
    error = hub.error("locked/Tiny-GGUF:Q8_0")
    assert "locked/Tiny-GGUF is gated: accept its terms" in error
    assert "hf auth login" in error


def test_a_split_target_comes_whole(hub: Hub) -> None:
    parts = {f"big-BF16-0000{n}-of-00002.gguf": b"part" for n in (1, 2)}
    hub.files["ann/Big-GGUF"] = parts | {"big-Q8_0-00001-of-00002.gguf": b"half of it"}
    path = hub.path("ann/Big-GGUF:bf16")
    assert path.name == "big-BF16-00001-of-00002.gguf"
    assert path.with_name("big-BF16-00002-of-00002.gguf").is_file()
    assert "has no file big-Q8_0-00002-of-00002.gguf" in hub.error("ann/Big-GGUF:Q8_0")


def test_offline_says_what_is_missing_and_where_it_was_looked_for(hub: Hub) -> None:
    for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        error = hub.error(Q8, **env)
        assert "ann/Tiny-GGUF" in error
        assert "cannot be reached" in error
        assert str(hub.home) in error
    hub.path(Q8)
    error = hub.error(f"{TARGET}:Q4_0", HF_HUB_OFFLINE="1")
    assert "no GGUF of Q4_0; it has Q8_0" in error
    assert str(hub.home) in error


def test_a_checkpoint_is_converted_once(hub: Hub) -> None:
    path = hub.path(Q8, DRAFT)
    fields = gguf.GGUFReader(path).fields
    assert fields["llamaspec.source.repository"].contents() == DRAFT
    assert fields["llamaspec.source.revision"].contents() == COMMIT
    made = path.stat().st_mtime_ns
    assert path.is_relative_to(hub.home / "llamaspec")
    assert hub.path(Q8, DRAFT) == path
    assert hub.path(Q8, DRAFT, HF_HUB_OFFLINE="1") == path
    assert path.stat().st_mtime_ns == made
    assert weights(hub).count("model.safetensors") == 1
    # another type, and another commit of it, are other files
    small = hub.path(Q8, f"{DRAFT}:Q8_0")
    assert small.stat().st_size < 0.7 * path.stat().st_size
    hub.commit = "b" * 40
    newer = hub.path(Q8, DRAFT)
    assert newer != path
    assert gguf.GGUFReader(newer).fields["llamaspec.source.revision"].contents() == "b" * 40
    assert not list((hub.home / "llamaspec").rglob(".llamaspec-*"))


def test_two_processes_convert_once(hub: Hub) -> None:
    hub.path(Q8)
    env = {"HF_ENDPOINT": hub.address, "HF_HOME": str(hub.home), "PYTHONPATH": str(ROOT)}
    env["LLAMASPEC_CACHE"] = str(hub.home / "llamaspec")
    words = [sys.executable, "-c", SCRIPT, Q8, DRAFT]
    both = [
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [one.communicate(timeout=120) for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert len({out for out, _ in told}) == 1
    assert len(list((hub.home / "llamaspec").rglob("*.gguf"))) == 1
    assert list((hub.home / "llamaspec").rglob(".llamaspec-*")) == []


def test_what_a_killed_conversion_left_is_removed(hub: Hub) -> None:
    path = hub.path(Q8, DRAFT)
    path.unlink()
    left = path.with_name(".llamaspec-0123456789ab.part")
    left.write_bytes(b"half")
    assert hub.path(Q8, DRAFT) == path
    assert not left.exists()
    assert json.loads(path.with_name("about.json").read_text())["source"] == DRAFT


def test_a_checkpoint_that_cannot_be_converted_leaves_nothing(hub: Hub) -> None:
    config = json.loads(hub.files[DRAFT]["config.json"])
    hub.files[DRAFT]["config.json"] = json.dumps(config | {"hidden_size": 512}).encode()
    error = hub.error(Q8, DRAFT)
    assert "512" in error
    assert list((hub.home / "llamaspec").rglob("*.gguf")) == []


def test_auto_takes_the_draft_of_the_targets_repository(hub: Hub) -> None:
    path = hub.path(SIDE, "auto")
    assert path.name == "tiny-DSpark-BF16.gguf"
    assert hub.path(SIDE, "auto", HF_HUB_OFFLINE="1") == path


def test_auto_without_any_says_where_it_looked(hub: Hub) -> None:
    error = hub.error(Q8, "auto")
    assert error.startswith("OptionError|no draft is known for tiny-Q8_0.gguf")
    assert "ann/Tiny-GGUF" in error
    assert "-d lookup" in error


def test_auto_takes_the_known_pair(hub: Hub) -> None:
    q8 = hub.files[TARGET]["tiny-Q8_0.gguf"]
    hub.files["Qwen/Qwen3-8B-GGUF"] = {"Qwen3-8B-Q8_0.gguf": q8}
    hub.files["deepseek-ai/dspark_qwen3_8b_block7"] = hub.files[DRAFT]
    path = hub.path("Qwen/Qwen3-8B-GGUF:Q8_0", "auto")
    source = gguf.GGUFReader(path).fields["llamaspec.source.repository"].contents()
    assert source == "deepseek-ai/dspark_qwen3_8b_block7"
