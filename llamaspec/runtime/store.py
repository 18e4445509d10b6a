"""What was measured earlier, kept in the user's cache directory."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from llamaspec.errors import LlamaSpecError

T = TypeVar("T")
_HEADER = 1 << 16


def file_identity(path: Path, size: int) -> str:
    """What tells a model file from others without reading all of it: size, time, its header."""
    status = path.stat()
    with path.open("rb") as file:
        header = hashlib.sha256(file.read(_HEADER)).hexdigest()
    return f"{size} {status.st_size} {status.st_mtime_ns} {header}"


def remembered(
    kind: str,
    key: object,
    find: Callable[[], T],
    *,
    write: Callable[[T], Any],
    read: Callable[[Any], T],
) -> T:
    """What was found of a kind for a key, found now where that was never done.

    write, read: to and from plain JSON; what `read` refuses (ValueError, TypeError, KeyError or an
    error of ours) is found anew. A cache that cannot be read or written is as good as none.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    file = cache_dir() / kind / f"{digest[:32]}.json"
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, LlamaSpecError):
        return read(json.loads(file.read_text("utf-8")))
    found = find()
    with suppress(OSError):
        _write(file, json.dumps(write(found)))
    return found


def cache_dir() -> Path:
    """The folder of this package in the user's cache, by the platform's custom."""
    if own := os.environ.get("LLAMASPEC_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "llamaspec"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "llamaspec"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "llamaspec" / "Cache"
    return Path.home() / ".cache" / "llamaspec"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
        part.write(text)
    Path(part.name).replace(file)
