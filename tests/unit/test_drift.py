"""tools/drift.py: trees that our patches and declarations fit, and such that they do not."""

import re
from pathlib import Path

import pytest

import build
from tools.drift import compare, prototypes, report, structs
from vendor.llama_source import Source, choose, patch_files, unpack

PATCHES = patch_files(build.ROOT / "patches")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """llama.cpp as it is vendored, without our patches."""
    source: Source = choose(build.ROOT, None, build.PINNED)
    if not source.path.exists():
        pytest.skip("no llama.cpp sources: run python build.py")
    if not source.is_archive:
        return source.path
    tree = tmp_path_factory.mktemp("drift") / "llama.cpp"
    unpack(source.path, tree)
    return tree


def edited(tree: Path, name: str, old: str, new: str) -> str:
    """Change a file of the tree; returns what it was."""
    file = tree / name
    text = file.read_text()
    assert re.search(old, text), old
    file.write_text(re.sub(old, new, text))
    return text


def test_nothing_drifted_from_the_pinned_tree(pristine: Path) -> None:
    drift = compare(pristine, PATCHES)
    assert not drift, report(drift)
    assert report(drift) == "all patches apply, all declarations agree"


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name[:4])
def test_a_changed_line_names_the_patch_and_the_file(pristine: Path, patch: Path) -> None:
    body = patch.read_text()
    name = re.search(r"^\+\+\+ b/(\S+)", body, re.MULTILINE)
    hunk = body[body.index("\n@@") :]
    context = re.search(r"^ ([ \t]*\S.{12,})$", hunk, re.MULTILINE)
    assert name
    assert context
    text = edited(pristine, name[1], re.escape(context[1]), "changed")
    try:
        told = "\n".join(compare(pristine, PATCHES).patches[patch.name])
    finally:
        (pristine / name[1]).write_text(text)
    assert name[1] in told


def test_a_changed_prototype_and_a_lost_field_are_named(pristine: Path) -> None:
    header = "include/llama.h"
    text = edited(pristine, header, r"float \* llama_get_logits\(", "double * llama_get_logits(")
    edited(pristine, header, r"uint32_t n_seq_max;", "uint32_t n_seq_most;")
    edited(pristine, header, r"\bllama_free\(", "llama_release(")
    try:
        drift = compare(pristine, PATCHES)
    finally:
        (pristine / header).write_text(text)
    assert not drift.patches
    assert drift.fields == {"llama_context_params": ["n_seq_max"]}
    ours, theirs = drift.prototypes["llama_get_logits"]
    assert (ours[:6], theirs[:6]) == ("float ", "double")
    assert drift.prototypes["llama_free"][1] == ""
    told = report(drift)
    assert "(gone)" in told
    assert "llama_context_params has no n_seq_max" in told


def test_reading_of_headers() -> None:
    text = """
    // int commented(int);
    #define MACRO(x) int x(void);
    LLAMA_API struct a * f(const struct a * x,   int n);
    DEPRECATED(LLAMA_API int g(void), "use f");
    struct a { int one; float two[3]; struct b * three; enum c four, five; };
    """
    assert prototypes(text) == {
        "f": "struct a * f ( const struct a * x , int n )",
        "g": "int g ( void )",
    }
    assert structs(text) == {"a": {"one", "two", "three", "four", "five"}}
