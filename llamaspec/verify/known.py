"""What the probe has found earlier."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from llamaspec.runtime.store import remembered
from llamaspec.verify.probe import SAFETY, TEXT, Exactness

Settings = Sequence[tuple[str, str]]


def known_or(identity: str, settings: Settings, find: Callable[[], Exactness]) -> Exactness:
    """What was found for a file in these settings, found now where that was never done."""
    found = remembered(
        "exactness", (identity, tuple(settings), TEXT, SAFETY), find, write=_write, read=_read
    )
    return replace(found, settings=tuple(settings))


def _write(found: Exactness) -> dict[str, Any]:
    return asdict(replace(found, settings=()))


def _read(found: dict[str, Any]) -> Exactness:
    if found.keys() != {field.name for field in fields(Exactness)}:
        raise ValueError("of another version")
    lists = {name: tuple(value) for name, value in found.items() if isinstance(value, list)}
    return Exactness(**(found | lists))
