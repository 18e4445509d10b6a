"""Frozen dataclasses to JSON and back; what comes back is believed only as far as it fits."""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from llamaspec.errors import OptionError

T = TypeVar("T")
_MAX_BYTES = 1 << 29
_SHOWN = 60


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises OptionError, one line, for anything else."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise OptionError(f"{path}: larger than 512 MiB, which no result is")
        found = json.loads(path.read_bytes(), parse_constant=_no_number)
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise OptionError(f"{path}: is not JSON; give a file that llamaspec bench wrote") from None
    if not isinstance(found, dict):
        raise OptionError(f"{path}: is not a JSON object; give a file that llamaspec bench wrote")
    return found


def of_json(kind: type[T], value: object, where: str = "the result") -> T:
    """An object of a dataclass from plain JSON, every field by its annotation: bool, int, float,
    str, None, `tuple[X, ...]`, `dict[str, X]`, dataclasses and unions of these.

    Raises OptionError with the place and what is wrong there.
    """
    found: T = _read(kind, value, where)
    return found


def _read(kind: Any, value: object, where: str) -> Any:  # noqa: ANN401
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        (kind,) = (part for part in inner if part is not type(None))
        return _read(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, Mapping):
        return {key: _read(inner[1], item, f"{where}[{key!r}]") for key, item in value.items()}
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _dataclass(kind, value, where)
    if kind is Any or _is_plain(kind, value):
        return value
    raise _refused(kind, value, where)


def _dataclass(kind: Any, value: Mapping[str, Any], where: str) -> Any:  # noqa: ANN401
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    missing = [name for name in names if name not in value]
    if missing:
        raise OptionError(f"{where} has no {missing[0]!r}; it was not written by this llamaspec")
    return kind(**{name: _read(hints[name], value[name], f"{where}.{name}") for name in names})


def _is_plain(kind: Any, value: object) -> bool:  # noqa: ANN401
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and abs(value) < 1e300 and math.isfinite(value)  # type: ignore[arg-type]
    if kind is int:
        return type(value) is int and abs(value) < 2**53
    return kind in (str, bool) and type(value) is kind


def _refused(kind: Any, value: object, where: str) -> OptionError:  # noqa: ANN401
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "..."
    name = getattr(kind, "__name__", str(kind))
    return OptionError(f"{where[:200]} is {shown}, not of the kind {name}")


def _no_number(name: str) -> float:
    raise ValueError(name)
