"""Where llama.cpp's sources come from, and the patched copy of them that is compiled.

A tree that somebody else owns (``--source``, the submodule) is read only: patches go to a copy.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SDIST = "llama-cpp-python==0.3.36"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_PREFIX = PurePosixPath("llama_cpp_python-0.3.36/vendor/llama.cpp")
KEPT = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "common",
    "conversion",
    "convert_hf_to_gguf.py",
    "examples/speculative-simple",
    "ggml",
    "gguf-py",
    "include",
    "licenses",
    "requirements",
    "scripts",
    "src",
    "tools",
    "vendor",
)


class BuildError(Exception):
    """The build cannot go on; the text says why and what to do."""


@dataclass(frozen=True)
class Source:
    """A place to take llama.cpp from. An archive may still have to be fetched."""

    path: Path
    is_archive: bool
    commit: str
    identity: str


def cache_dir() -> Path:
    """The folder for downloads, by the platform's custom."""
    if own := os.environ.get("LLAMASPEC_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "llamaspec"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llamaspec"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "llamaspec" / "Cache"
    return Path.home() / ".cache" / "llamaspec"


def choose(root: Path, explicit: Path | None, pinned: str) -> Source:
    """The first of: the tree asked for, the populated submodule, the pinned distribution."""
    if explicit is not None:
        if not is_llama_tree(explicit):
            raise BuildError(f"{explicit} is not a llama.cpp source tree (no include/llama.h)")
        return _directory(explicit)
    submodule = root / "vendor" / "llama.cpp"
    if is_llama_tree(submodule):
        return _directory(submodule)
    archive = cache_dir() / f"{SDIST.replace('==', '-')}.tar.gz"
    identity = hashlib.sha256(f"{SDIST_SHA256} {KEPT}".encode()).hexdigest()
    return Source(archive, is_archive=True, commit=pinned, identity=identity)


def is_llama_tree(path: Path) -> bool:
    """Whether path holds llama.cpp's sources."""
    return (path / "include" / "llama.h").is_file() and (path / "ggml").is_dir()


def _directory(path: Path) -> Source:
    path = path.resolve()
    return Source(path, is_archive=False, commit=tree_commit(path), identity=tree_digest(path))


def tree_commit(path: Path) -> str:
    """The commit that a checkout stands at; "unknown" for a tree without git's data."""
    if not (path / ".git").exists() or not shutil.which("git"):
        return "unknown"
    done = subprocess.run(
        ["git", "-C", str(path), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        env=_git_env(path),
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def tree_digest(path: Path) -> str:
    """Digest over the names and bytes of the files that a copy would take."""
    digest = hashlib.sha256()
    for file in kept_files(path):
        data = file.read_bytes()
        digest.update(f"{file.relative_to(path).as_posix()}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()


def kept_files(tree: Path) -> Iterator[Path]:
    """The files of a tree that the build needs, in a fixed order."""
    for name in KEPT:
        top = tree / name
        found = [top] if top.is_file() else sorted(top.rglob("*"))
        yield from (file for file in found if file.is_file() and file.name != ".git")


def is_kept(name: PurePosixPath) -> bool:
    """Whether the build needs the file of that name, relative to llama.cpp's root."""
    return name.name != ".git" and any(name.is_relative_to(part) for part in KEPT)


def fetch_sdist(archive: Path) -> None:
    """Download the pinned distribution with pip to archive, unless a sound copy is there."""
    if archive.is_file() and _sha256(archive) == SDIST_SHA256:
        return
    print(f"fetching the llama.cpp sources ({SDIST}) with pip ...", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        requirement = Path(scratch) / "requirement.txt"
        requirement.write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n", encoding="utf-8")
        name = SDIST.partition("==")[0]
        pip_download(["--no-binary", name, "-r", str(requirement)], Path(scratch))
        found = list(Path(scratch).glob("*.tar.gz"))
        if len(found) != 1:
            raise BuildError(f"pip gave no source archive for {SDIST}; pass --source DIR instead")
        check_sha256(found[0])
        found[0].replace(archive)


def check_sha256(archive: Path) -> None:
    """Refuse an archive whose bytes are not the pinned ones."""
    actual = _sha256(archive)
    if actual != SDIST_SHA256:
        raise BuildError(
            f"{archive.name} has sha256 {actual}, expected {SDIST_SHA256}; nothing was unpacked"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def pip_download(arguments: Sequence[str], folder: Path) -> None:
    """Run ``pip download --no-deps`` with this interpreter's pip, else the one on PATH."""
    # an outer pip's isolation hides the very pip that started us; its variables go
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_BUILD_TRACKER")}
    for pip in ([sys.executable, "-m", "pip"], [shutil.which("pip") or "pip"]):
        try:
            probe = subprocess.run([*pip, "--version"], capture_output=True, check=False, env=env)
        except OSError:
            continue
        if probe.returncode == 0:
            break
    else:
        raise BuildError("pip is needed to fetch sources and was not found; python -m ensurepip")
    command = [*pip, "download", "--no-deps", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        [*command, "-d", str(folder)], capture_output=True, text=True, check=False, env=env
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()[-8:]
        raise BuildError("\n".join(["pip could not fetch what the build needs:", *lines]))


def unpack(archive: Path, tree: Path) -> None:
    """Extract llama.cpp's kept files to tree. An archive with an unsafe member is refused whole."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or "\\" in member.name:
                raise BuildError(f"{archive.name} holds the unsafe path {member.name!r}; refused")
            if not name.is_relative_to(SDIST_PREFIX):
                continue
            relative = name.relative_to(SDIST_PREFIX)
            if member.isdir() or not is_kept(relative):
                continue
            data = tar.extractfile(member) if member.isreg() else None
            if data is None:
                raise BuildError(f"{archive.name} holds {member.name!r}, not a plain file; refused")
            target = tree / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            with data, target.open("wb") as out:
                shutil.copyfileobj(data, out)


def patch_files(folder: Path) -> list[Path]:
    """The patches in the order in which they apply."""
    return sorted(folder.glob("[0-9]*.patch"))


def patch_digest(patches: Sequence[Path]) -> str:
    """Eight hex digits over what the patches do; a header may be reworded without a rebuild."""
    header = re.compile(r"\A.*?^(?=diff --git )", re.MULTILINE | re.DOTALL)
    bodies = [header.sub("", patch.read_text(encoding="utf-8")) for patch in patches]
    return hashlib.sha256("\0".join(bodies).encode()).hexdigest()[:8]


def patched_tree(source: Source, patches: Sequence[Path], tree: Path) -> None:
    """Make tree, a copy of the source with all patches applied, complete or not at all."""
    if tree.is_dir():
        return
    tree.parent.mkdir(parents=True, exist_ok=True)
    if source.is_archive:
        fetch_sdist(source.path)
    with tempfile.TemporaryDirectory(dir=tree.parent) as scratch:
        fresh = Path(scratch).resolve() / "llama.cpp"
        if source.is_archive:
            check_sha256(source.path)
            unpack(source.path, fresh)
        else:
            for file in kept_files(source.path):
                target = fresh / file.relative_to(source.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
        for patch in patches:
            apply_patch(patch, fresh)
        fresh.rename(tree)


def apply_patch(patch: Path, tree: Path) -> None:
    """Apply one patch to tree with git or patch, whichever is there; a misfit names its hunk."""
    names = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE)
    before = {name: _bytes(tree / name) for name in names}
    if shutil.which("git"):
        command = ["git", "apply", "-p1", "--whitespace=nowarn", str(patch.resolve())]
    elif shutil.which("patch"):
        command = ["patch", "-p1", "--batch", "--forward", "--fuzz=0", "-i", str(patch.resolve())]
    else:
        raise BuildError("git or patch is needed to apply patches; apt-get install patch")
    done = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=False, env=_git_env(tree)
    )
    if done.returncode != 0:
        raise BuildError(f"patch {patch.name} does not apply: {_misfit(done.stdout + done.stderr)}")
    skipped = [name for name in names if _bytes(tree / name) == before[name]]
    if skipped or not names:
        raise BuildError(f"patch {patch.name} left {', '.join(skipped) or 'all files'} unchanged")


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.is_file() else b""


def _git_env(tree: Path) -> dict[str, str]:
    # a checkout around the copy would make git apply skip, silently, what that checkout ignores
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    return env | {"GIT_CEILING_DIRECTORIES": str(tree.resolve().parent), "LC_ALL": "C"}


def _misfit(output: str) -> str:
    telling = re.findall(
        r"^(?:error: (?:patch failed: )?(.+)|(Hunk #\d+ FAILED.*)|(can't find file.*))$",
        output,
        re.MULTILINE,
    )
    parts = [next(filter(None, groups)) for groups in telling]
    return "; ".join(dict.fromkeys(parts)) or output.strip().splitlines()[-1]
