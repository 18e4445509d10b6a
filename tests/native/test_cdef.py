"""The curated declarations against llama.cpp's own headers, and the module against the package."""

import re
from pathlib import Path

import pytest

import build
from tools.drift import CDEF, HEADERS, prototypes
from vendor.llama_source import patch_digest, patch_files

_native = pytest.importorskip("llamaspec._native")
pytestmark = pytest.mark.native


def declared() -> list[tuple[str, str, str]]:
    return [
        (file, name, prototype)
        for file in HEADERS
        for name, prototype in prototypes((CDEF / file).read_text()).items()
    ]


@pytest.fixture(scope="module")
def upstream() -> dict[str, dict[str, str]]:
    """Prototypes of the patched llama.cpp, for each file of ours."""
    tree = build.patched_source()

    def read(names: tuple[str, ...]) -> str:
        return "\n".join((tree / name).read_text() for name in names)

    return {file: prototypes(read(names)) for file, names in HEADERS.items()}


def test_each_file_has_its_headers() -> None:
    assert {f.name for f in CDEF.glob("*.h")} == set(HEADERS)
    assert len(declared()) >= 20


@pytest.mark.parametrize(("file", "name", "prototype"), declared(), ids=lambda v: str(v)[:40])
def test_a_prototype_is_upstreams(
    file: str, name: str, prototype: str, upstream: dict[str, dict[str, str]]
) -> None:
    assert prototype == upstream[file].get(name, "absent from llama.cpp's headers")


def test_every_struct_has_a_size() -> None:
    # by name: cffi 2.1 aborts where an opaque struct is asked for its fields
    text = "".join((CDEF / file).read_text() for file in HEADERS)
    with_body = re.findall(r"\bstruct (\w+) \{", text)
    assert {"llama_model_params", "llama_context_params"} <= set(with_body)
    for name in with_body:
        assert _native.ffi.sizeof(f"struct {name}") > 0


def test_the_module_was_built_for_this_version_and_commit() -> None:
    version, _, commit = _native.ffi.string(_native.lib.ls_build_info()).decode().partition(" ")
    assert version == build.VERSION
    assert commit == build.read_record()["commit"]
    assert commit.startswith((build.PINNED, "custom-", "unknown"))
    assert commit.endswith("+" + patch_digest(patch_files(build.ROOT / "patches")))


def test_nothing_in_place_names_a_folder_of_the_build() -> None:
    names = [name for name in build.read_record()["files"] if name.endswith(".so")]
    assert len(names) >= 5
    folder = str(build.build_root()).encode()
    for name in names:
        assert folder not in (Path(build.PACKAGE) / name).read_bytes(), name
