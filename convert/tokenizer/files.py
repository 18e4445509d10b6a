"""Bounded reading of a checkpoint's small files, and typed looks into their JSON."""

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path

from llamaspec.errors import ModelLoadError

Fields = Mapping[str, object]

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = 300  # a regular expression
_SHOWN.maxdict = 8
MAX_TOKENIZER = 128 << 20
"""Bytes of the largest tokenizer.json or tokenizer.model; published ones stay below 40 MiB."""
MAX_SETTINGS = 16 << 20
"""Bytes of the largest settings file or chat template."""


def read_bytes(path: Path, limit: int) -> bytes | None:
    """A file's bytes, None where there is none. Raises ModelLoadError above `limit` bytes."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise ModelLoadError(f"{path}: larger than {limit} bytes, too large for such a file")
    return data


def read_text(path: Path, limit: int) -> str | None:
    """A UTF-8 file, None where there is none. Raises ModelLoadError."""
    data = read_bytes(path, limit)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path}: not UTF-8 at byte {error.start}") from None


def read_object(path: Path, limit: int) -> dict[str, object] | None:
    """A JSON object, None where there is no file. Raises ModelLoadError."""
    text = read_text(path, limit)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelLoadError(f"{path}: malformed JSON: {reason}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds {type(value).__name__}, expected a JSON object")
    return value


def fields(value: object) -> Fields:
    """A JSON object, {} for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """A JSON array, [] for anything else."""
    return value if isinstance(value, list) else []


def content(value: object) -> str | None:
    """The text of a token that is given as a string or as an object with `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def whole(value: object) -> int | None:
    """An integer, None for anything else (JSON's true and false among it)."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def shown(value: object) -> str:
    """A value of a file for a message, cut short however large or deep it is."""
    return _SHOWN.repr(value)
