"""Fixtures for all tests: where the trained pair and llama.cpp's sources are, if they are."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the trained pair, the oracles and the prompts; skips where it is absent."""
    folder = Path(os.environ.get("LLAMASPEC_TEST_DATA") or ROOT.parent / "shared")
    if not (folder / "models" / "gguf").is_dir():
        pytest.skip("no test data: put it beside the repository or set LLAMASPEC_TEST_DATA")
    return folder


@pytest.fixture(scope="session")
def ggufs(shared: Path) -> Path:
    """The folder with the GGUFs of the trained pair."""
    return shared / "models" / "gguf"


@pytest.fixture(scope="session")
def llama_cpp_tree() -> Path:
    """llama.cpp's sources as the last build used them; skips where nothing was built."""
    import build
    from vendor.llama_source import BuildError

    given = os.environ.get("LLAMASPEC_LLAMA_CPP")
    try:
        tree = Path(given) if given else build.make_plan(build.Options()).tree
    except BuildError as error:
        pytest.skip(f"no llama.cpp sources: {error}")
    if not (tree / "src" / "llama-arch.cpp").is_file():
        pytest.skip("no llama.cpp sources: run python build.py")
    return tree
