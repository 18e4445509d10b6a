"""build.py and its helpers, without compiling anything."""

import io
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

import build
from vendor import llama_source, toolchain
from vendor.llama_source import BuildError

GIT = shutil.which("git")
BEFORE = "one\ntwo\nthree\n"
PATCH = """Why: a test.

diff --git a/src/file.txt b/src/file.txt
--- a/src/file.txt
+++ b/src/file.txt
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
"""


def make_tree(root: Path) -> Path:
    for name in ("include/llama.h", "ggml/CMakeLists.txt", "src/file.txt", "models/big.gguf"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(BEFORE)
    for folder in (root, root / "ggml"):
        (folder / ".git").write_text("gitdir: elsewhere\n")
    return root


def make_patch(folder: Path, text: str = PATCH) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    patch = folder / "0001-test.patch"
    patch.write_text(text)
    return patch


def make_archive(path: Path, members: dict[str, bytes], link: str = "") -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo(link)
            info.type = tarfile.SYMTYPE
            info.linkname = "/etc/passwd"
            tar.addfile(info)
    return path


@pytest.fixture(params=["git", "patch"])
def patcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave only one of the two programs that can apply a patch."""
    kept: str = request.param
    if shutil.which(kept) is None:
        pytest.skip(f"no {kept} here")
    find = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: find(name) if name == kept else None)
    return kept


@pytest.fixture(params=["plain", "ignored by a checkout"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder for the copy: without git around it, or where a checkout ignores it."""
    if request.param != "plain":
        if GIT is None:
            pytest.skip("no git here")
        subprocess.run([GIT, "init", "-q", str(tmp_path)], check=True)
        (tmp_path / ".gitignore").write_text("/build/\n")
    return tmp_path / "build"


def test_a_patch_applies_to_a_copy_wherever_it_lies(
    patcher: str, place: Path, tmp_path: Path
) -> None:
    source = llama_source.choose(tmp_path, make_tree(tmp_path / "own"), "0" * 40)
    llama_source.patched_tree(source, [make_patch(tmp_path / "patches")], place / "copy")
    assert "TWO" in (place / "copy/src/file.txt").read_text()
    assert (tmp_path / "own/src/file.txt").read_text() == BEFORE
    copied = {f.name for f in (place / "copy").rglob("*")}
    assert not copied & {".git", "big.gguf"}


def test_a_misfit_names_the_patch_and_the_hunk(patcher: str, place: Path, tmp_path: Path) -> None:
    source = llama_source.choose(tmp_path, make_tree(tmp_path / "own"), "0" * 40)
    patch = make_patch(tmp_path / "patches", PATCH.replace(" one", " uno"))
    with pytest.raises(BuildError, match=r"0001-test\.patch does not apply: .*(:1|#1 FAILED at 1)"):
        llama_source.patched_tree(source, [patch], place / "copy")
    assert not (place / "copy").exists()


def test_a_patch_without_effect_is_an_error(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "own")
    with pytest.raises(BuildError, match=r"0001-test\.patch"):
        llama_source.apply_patch(make_patch(tmp_path, "only words\n"), tree)


@pytest.mark.skipif(GIT is None, reason="no git here")
def test_a_patch_that_git_skips_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([str(GIT), "init", "-q", str(tmp_path)], check=True)
    tree = make_tree(tmp_path / "build")
    for folder in (tree, tree / "ggml"):
        (folder / ".git").unlink()
    monkeypatch.setattr(llama_source, "_git_env", lambda tree: dict(os.environ))
    with pytest.raises(BuildError, match=r"0001-test\.patch left src/file\.txt unchanged"):
        llama_source.apply_patch(make_patch(tmp_path / "patches"), tree)


def test_only_what_a_patch_does_enters_the_digest(tmp_path: Path) -> None:
    first = llama_source.patch_digest([make_patch(tmp_path / "a")])
    reworded = PATCH.replace("a test", "another reason")
    assert llama_source.patch_digest([make_patch(tmp_path / "b", reworded)]) == first
    changed = PATCH.replace("TWO", "ZWEI")
    assert llama_source.patch_digest([make_patch(tmp_path / "c", changed)]) != first


def test_sources_are_taken_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASPEC_CACHE", str(tmp_path / "cache"))
    (tmp_path / "vendor/llama.cpp").mkdir(parents=True)
    archive = llama_source.choose(tmp_path, None, "abc")
    assert archive.is_archive
    assert archive.commit == "abc"
    assert archive.path.parent == tmp_path / "cache"
    submodule = make_tree(tmp_path / "vendor/llama.cpp")
    assert llama_source.choose(tmp_path, None, "abc").path == submodule
    own = make_tree(tmp_path / "own")
    assert llama_source.choose(tmp_path, own, "abc").path == own


@pytest.mark.skipif(GIT is None, reason="no git here")
def test_a_tree_of_another_commit_is_marked(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "own")
    assert build.make_plan(build.Options(source=tree)).commit.startswith("unknown+")
    for folder in (tree, tree / "ggml"):
        (folder / ".git").unlink()
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
        subprocess.run([str(GIT), "-C", str(tree), *command], check=True)
    commit = build.make_plan(build.Options(source=tree)).commit
    assert re.fullmatch(r"custom-[0-9a-f]{40}\+[0-9a-f]{8}", commit)


def test_a_folder_that_is_no_llama_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"not a llama\.cpp source tree"):
        llama_source.choose(tmp_path, tmp_path, "abc")


def test_a_changed_tree_has_another_identity(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "own")
    before = llama_source.choose(tmp_path, tree, "abc").identity
    (tree / "models/big.gguf").write_text("not compiled")
    assert llama_source.choose(tmp_path, tree, "abc").identity == before
    (tree / "src/file.txt").write_text(BEFORE.upper())
    assert llama_source.choose(tmp_path, tree, "abc").identity != before


def test_an_archive_with_other_bytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{llama_source.SDIST_PREFIX}/include/llama.h"
    archive = make_archive(tmp_path / "a.tar.gz", {name: b"x"})
    fake = llama_source.Source(archive, is_archive=True, commit="abc", identity="abc")
    monkeypatch.setattr(llama_source, "fetch_sdist", lambda archive: None)
    with pytest.raises(BuildError, match="has sha256"):
        llama_source.patched_tree(fake, [], tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "{}/include/../../../../x", "a\\..\\x"])
def test_an_archive_with_an_unsafe_path_is_refused(tmp_path: Path, name: str) -> None:
    unsafe = name.format(llama_source.SDIST_PREFIX)
    archive = make_archive(tmp_path / "a.tar.gz", {unsafe: b"x"})
    with pytest.raises(BuildError, match="unsafe path"):
        llama_source.unpack(archive, tmp_path / "tree")


def test_an_archive_with_a_link_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path / "a.tar.gz", {}, f"{llama_source.SDIST_PREFIX}/src/link")
    with pytest.raises(BuildError, match="not a plain file"):
        llama_source.unpack(archive, tmp_path / "tree")


def test_only_what_the_build_needs_is_unpacked(tmp_path: Path) -> None:
    names = ["src/a.cpp", "models/m.gguf", "src/.git", "srcs/no.cpp"]
    members = {f"{llama_source.SDIST_PREFIX}/{name}": b"x" for name in names}
    archive = make_archive(tmp_path / "a.tar.gz", members | {"llama_cpp_python/x.py": b"x"})
    llama_source.unpack(archive, tmp_path / "tree")
    found = [f.relative_to(tmp_path / "tree") for f in (tmp_path / "tree").rglob("*.*")]
    assert found == [Path("src/a.cpp")]


@pytest.mark.parametrize(
    "arguments",
    [["--wheel"], ["--cuda-arch", "90"], ["--cuda", "--cuda-arch", "9 0"], ["--jobs", "-1"]],
)
def test_a_wrong_argument_gets_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        build.main(arguments)
    assert stop.value.code == 2
    output = capsys.readouterr().err
    assert output.startswith("build.py: ")
    assert output.count("\n") == 1
    assert "pip wheel ." in output


def test_flags_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMASPEC_BUILD_FLAGS", "--cuda --cuda-arch 80,90")
    monkeypatch.setenv("CMAKE_BUILD_PARALLEL_LEVEL", "3")
    options = build.parse(["--no-rpc"])
    assert options.cuda
    assert build.parse([]).rpc
    assert not options.rpc
    assert options.jobs == 3
    assert "-DCMAKE_CUDA_ARCHITECTURES=80;90" in build.definitions(options)


def test_cmake_args_stand_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DGGML_CUDA=ON '-DCMAKE_C_FLAGS=-g -O1'")
    found = build.definitions(build.parse([]))
    assert found[-2:] == ("-DGGML_CUDA=ON", "-DCMAKE_C_FLAGS=-g -O1")
    assert found.index("-DGGML_CUDA=OFF") < found.index("-DGGML_CUDA=ON")


def test_preflight_names_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(BuildError) as stop:
        toolchain.preflight(cuda=True, vulkan=True)
    for part in ("C compiler", "C++ compiler", "cmake 3.21", "make or ninja", "git or patch"):
        assert part in str(stop.value)
    for part in ("Python's headers", "nvcc", "glslc"):
        assert part in str(stop.value)


def test_a_cmake_of_a_passing_environment_comes_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    for folder, version in (("tmp/env", "4.1.0"), ("old", "3.10.0"), ("good", "3.25.1")):
        program = tmp_path / folder / "cmake"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho cmake version {version}\n")
        program.chmod(0o755)
    folders = [str(tmp_path / f) for f in ("tmp/env", "old", "good")]
    monkeypatch.setenv("PATH", ":".join(folders))
    assert toolchain.find_cmake() == f"{folders[2]}/cmake"
    monkeypatch.setenv("PATH", ":".join(folders[:2]))
    assert toolchain.find_cmake() == f"{folders[0]}/cmake"
    assert toolchain.build_requirements() == []
    monkeypatch.setenv("PATH", folders[1])
    assert toolchain.build_requirements() == ["cmake>=3.21"]


def test_an_old_driver_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"nvidia-smi": "| CUDA Version: 12.4 |", "nvcc": "Cuda tools, release 13.0, V13.0.88"}
    for name, text in said.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    _, warnings = toolchain.preflight(cuda=True, vulkan=False)
    assert [w for w in warnings if "12.4" in w and "13.0" in w]


def test_a_failure_shows_its_first_error_and_the_log(tmp_path: Path) -> None:
    script = "for i in $(seq 50); do echo line $i; done; echo 'a.cpp:1: error: bad'; exit 3"
    run = toolchain.Runner(tmp_path / "build.log", {"PATH": "/usr/bin:/bin"})
    with pytest.raises(BuildError, match=r"compile failed:\na\.cpp:1: error: bad\n") as stop:
        run("compile", ["sh", "-c", script])
    assert str(tmp_path / "build.log") in str(stop.value)
    assert "line 50" in (tmp_path / "build.log").read_text()


def test_a_failure_without_an_error_line_shows_the_end() -> None:
    lines = [f"line {i}" for i in range(100)]
    assert toolchain.telling_lines(lines) == lines[-toolchain.TAIL :]


def test_progress_is_a_line_each_tenth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = toolchain.Runner(tmp_path / "build.log", {"PATH": "/usr/bin:/bin"})
    run("compile", ["sh", "-c", 'for i in $(seq 200); do echo "[$i/200] cc"; done'])
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "compile ..."
    assert [line.split()[-1] for line in output[1:]] == [f"{n}%" for n in range(10, 101, 10)]


def test_a_build_in_place_is_current_until_an_input_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "PACKAGE", tmp_path)
    monkeypatch.setattr(build, "RECORD", tmp_path / "lib/build.json")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    options = build.Options(source=make_tree(tmp_path / "own"))
    monkeypatch.setenv("LLAMASPEC_BUILD_DIR", str(tmp_path / "objects"))
    plan = build.make_plan(options)
    stage = plan.folder / "stage/files"
    for name in ("lib/libllama.so", build.EXTENSION):
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text("native")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libggml-old.so").write_text("of an earlier build")
    assert not build.is_current(plan, tools=False)
    build._place(plan, tools=False)
    assert build.is_current(plan, tools=False)
    assert not build.is_current(plan, tools=True)
    assert not (tmp_path / "lib/libggml-old.so").exists()
    (tmp_path / "own/src/file.txt").write_text("changed")
    assert not build.is_current(build.make_plan(options), tools=False)
    (tmp_path / "lib/libllama.so").unlink()
    assert not build.is_current(plan, tools=False)


def test_the_submodule_is_pinned_at_the_commit_of_the_package() -> None:
    if GIT is None or not (build.ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = [GIT, "-C", str(build.ROOT), "ls-files", "-s", "vendor/llama.cpp"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert listed.split()[:2] == ["160000", build.PINNED]


def test_every_patch_says_why_and_who_guards_it() -> None:
    patches = llama_source.patch_files(build.ROOT / "patches")
    numbers = [p.name[:4] for p in patches]
    assert numbers == sorted(set(numbers))
    for patch in patches:
        header = patch.read_text().partition("diff --git")[0]
        for word in ("Why:", "Seen:", "Upstream:", "Guard:"):
            assert word in header, patch.name
