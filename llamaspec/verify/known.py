"""What the probe has found earlier, kept in the user's cache directory."""

import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

from llamaspec.verify.probe import SAFETY, TEXT, Exactness

_HEADER = 1 << 16
Settings = Sequence[tuple[str, str]]


def file_identity(path: Path, size: int) -> str:
    """What tells a model file from others without reading all of it: size, time, its header."""
    status = path.stat()
    with path.open("rb") as file:
        header = hashlib.sha256(file.read(_HEADER)).hexdigest()
    return f"{size} {status.st_size} {status.st_mtime_ns} {header}"


def known_or(identity: str, settings: Settings, find: Callable[[], Exactness]) -> Exactness:
    """What was found for a file in these settings, found now where that was never done.

    A cache that cannot be read or written is as good as none.
    """
    digest = hashlib.sha256(repr((identity, tuple(settings), TEXT, SAFETY)).encode())
    file = cache_dir() / "exactness" / f"{digest.hexdigest()[:32]}.json"
    known = _read(file)
    if known is not None:
        return replace(known, settings=tuple(settings))
    found = find()
    with suppress(OSError):
        _write(file, json.dumps(asdict(replace(found, settings=()))))
    return replace(found, settings=tuple(settings))


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


def _read(file: Path) -> Exactness | None:
    try:
        found = json.loads(file.read_text("utf-8"))
        if found.keys() != {field.name for field in fields(Exactness)}:
            return None
        lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
        return Exactness(**(found | lists))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
        part.write(text)
    Path(part.name).replace(file)
