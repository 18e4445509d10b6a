"""Small JSON files that users hand around: cost curves and calibrations."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from llamaspec.errors import OptionError

T = TypeVar("T")
_MAX_BYTES = 1 << 22


def write(path: Path, found: dict[str, Any]) -> None:
    """Write an object. Raises OptionError where that cannot be."""
    try:
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    except OSError as error:
        raise OptionError(f"{path}: cannot be written ({error.strerror})") from None


def read(path: Path, kind: str, of_json: Callable[[Any], T]) -> T:
    """What `of_json` makes of a file's JSON. Raises OptionError, with the file's name, for a file
    that cannot be read, is larger than one of its kind ever is, or holds something else.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
        if len(raw) > _MAX_BYTES:
            raise OptionError(f"is larger than {kind} ever is")
        return of_json(json.loads(raw))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from None
    except OptionError as error:
        raise OptionError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise OptionError(f"{path}: is not JSON") from None


def is_number(value: object) -> bool:
    """Whether JSON had a number there; a truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def texts(found: object) -> bool:
    """Whether it maps names to texts."""
    return isinstance(found, Mapping) and all(
        isinstance(x, str) for x in (*found.keys(), *found.values())
    )
