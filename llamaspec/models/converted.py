"""Drafts that come as checkpoints: converted once for a target, and kept.

Each has a folder of its own in the user's cache, named by all that the result depends on: the
checkpoint's commit (or files), the converter, the type and the target. So what is stale is never
found, and nothing has to be looked up.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from llamaspec.errors import LlamaSpecError, ModelLoadError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.staged import staged
from llamaspec.runtime.store import cache_dir, file_identity

logger = logging.getLogger("llamaspec.models")

Progress = Callable[[int, int], None]
Fetch = Callable[[], tuple[Path, tuple[str, str] | None]]
"""Gives a checkpoint's folder, and its (repository, commit) where it is the Hub's."""
ABOUT = "about.json"
AS_PUBLISHED = "auto"
_LOCK = "lock"
_SAMPLE = 1 << 20


@dataclass(frozen=True)
class Wanted:
    """A conversion to have.

    source: repository or folder. state: its commit, or a digest of its files. target: the GGUF it
    is for. outtype: as `llamaspec convert --outtype`.
    """

    source: str
    state: str
    target: Path
    outtype: str = AS_PUBLISHED

    def folder(self) -> Path:
        """Where it is kept, whether it is there or not."""
        key = (self.source, self.state, self.outtype, converter(), target_identity(self.target))
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return drafts_folder() / _plain(self.source) / digest[:16]

    def file(self) -> Path:
        """The GGUF."""
        kind = "" if self.outtype == AS_PUBLISHED else f"-{self.outtype}"
        return self.folder() / f"{_plain(self.source).rpartition('--')[2]}{kind}.gguf"


@dataclass(frozen=True)
class About:
    """What is noted beside a conversion, for lists of them."""

    source: str
    state: str
    target: str
    outtype: str
    converter: str


def drafts_folder() -> Path:
    """Where converted drafts are kept."""
    return cache_dir() / "drafts"


def have(wanted: Wanted, fetch: Fetch, on_progress: Progress | None = None) -> Path:
    """The converted draft, made now where it is not there.

    Two processes that want the same wait for each other; a file gets its name when it is whole.

    Raises:
        ModelLoadError, IncompatibleDraftError: the checkpoint cannot be converted for the target.
        OptionError: an unknown type, or a cache that cannot be written.
    """
    file = wanted.file()
    if file.is_file():
        return file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _alone(file.parent / _LOCK, wanted.source):
            if not file.is_file():
                _make(wanted, file, fetch, on_progress)
    except OSError as error:
        raise ModelLoadError(
            f"{file.parent}: cannot be written ({error.strerror or error}); "
            "LLAMASPEC_CACHE names another folder"
        ) from None
    return file


def _make(wanted: Wanted, file: Path, fetch: Fetch, on_progress: Progress | None) -> None:
    from llamaspec.convert import Job, convert

    for left in file.parent.glob(".llamaspec-*"):  # of a process that was killed
        left.unlink(missing_ok=True)
    folder, origin = fetch()
    if origin is not None and origin[1] != wanted.state:
        raise ModelLoadError(f"{wanted.source}: changed while it was downloaded; try again")
    logger.info("converting %s for %s, once", wanted.source, wanted.target.name)
    job = Job(folder, wanted.target, file, wanted.outtype, origin=origin)
    convert(job, on_progress)
    about = About(wanted.source, wanted.state, wanted.target.name, wanted.outtype, converter())
    with staged(file.with_name(ABOUT), overwrite=True) as part:
        part.write_text(json.dumps(asdict(about)), "utf-8")


@contextmanager
def _alone(lock: Path, source: str) -> Iterator[None]:
    """Hold a lock against other processes; says so where that takes a while."""
    held = FileLock(lock)
    try:
        held.acquire(timeout=1)
    except Timeout:
        logger.info("waiting for another process, which converts %s", source)
        held.acquire()
    try:
        yield
    finally:
        held.release()


@cache
def converter() -> str:
    """What tells versions of the converter apart: its own sources, and the package that writes."""
    import llamaspec.convert

    root = Path(llamaspec.convert.__file__).parent
    digest = hashlib.sha256(version("gguf").encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def target_identity(path: Path) -> str:
    """What a conversion reads of its target, as a digest: the header, and some of the embedding."""
    with GGUFFile.open(path) as file:
        starts = [info.offset for info in file.tensors.values()]
        table = file.raw("token_embd.weight", 0, _SAMPLE) if _has_table(file) else b""
    with path.open("rb") as raw:
        digest = hashlib.sha256(raw.read(min(starts, default=0)))
    digest.update(bytes(table))
    return digest.hexdigest()[:16]


def folder_state(folder: Path) -> str:
    """A digest of what a checkpoint's folder holds, without reading all of it."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.is_file():
            identity = file_identity(path, path.stat().st_size)
            digest.update(f"{path.name}\0{identity}\0".encode())
    return digest.hexdigest()[:16]


def kept() -> list[tuple[Path, About | None]]:
    """Every converted draft that is there, with what is noted of it."""
    found = []
    for file in sorted(drafts_folder().glob("*/*/*.gguf")):
        about = None
        with suppress(OSError, ValueError, TypeError, LlamaSpecError):
            about = About(**json.loads(file.with_name(ABOUT).read_text("utf-8")))
        found.append((file, about))
    return found


def _has_table(file: GGUFFile) -> bool:
    return "token_embd.weight" in file.tensors and len(file.parts) == 1


def _plain(source: str) -> str:
    """A repository or a folder as one name."""
    path = Path(source)
    name = source.replace("/", "--") if not path.is_absolute() else path.name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name) or "draft"
