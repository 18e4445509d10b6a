"""Typed reading of a GGUF's metadata."""

from collections.abc import Mapping
from pathlib import Path

from llamaspec.errors import ModelLoadError
from llamaspec.runtime.gguf_types import MetaArray, MetaValue

MAX_LAYERS = 512
"""llama.cpp's limit, and so that of any array with an item a layer."""


class Keys:
    """Typed reading of metadata; a value of another type is a ModelLoadError that names the key."""

    def __init__(self, path: Path, metadata: Mapping[str, MetaValue]) -> None:
        self._path = path
        self._metadata = metadata

    def integer(self, key: str, default: int = 0) -> int:
        """An integer."""
        value = self._metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        return value

    def number(self, key: str, default: float = 0.0) -> float:
        """A number, whole or not."""
        value = self._metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        return value

    def most(self, key: str) -> int:
        """An integer, or the largest of an array of them; 0 where the key is absent."""
        if self.length(key) is None:
            return self.integer(key)
        return max(self.integers(key, MAX_LAYERS), default=0)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self._metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value = self._metadata.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def integers(self, key: str, most: int) -> tuple[int, ...]:
        """An array of at most `most` integers, () where the key is absent."""
        value = self._metadata.get(key, ())
        if not isinstance(value, (MetaArray, tuple)) or len(value) > most:
            raise self._wrong(key, value, f"an array of at most {most} integers")
        items = tuple(item for item in value if isinstance(item, int))
        if len(items) != len(value):
            raise self._wrong(key, value, f"an array of at most {most} integers")
        return items

    def strings(self, key: str, most: int) -> tuple[str, ...]:
        """An array of at most `most` strings, () where the key is absent."""
        value = self._metadata.get(key, ())
        if not isinstance(value, (MetaArray, tuple)) or len(value) > most:
            raise self._wrong(key, value, f"an array of at most {most} strings")
        items = tuple(item for item in value if isinstance(item, str))
        if len(items) != len(value):
            raise self._wrong(key, value, f"an array of at most {most} strings")
        return items

    def length(self, key: str) -> int | None:
        """Length of an array, None where the key is absent or something else."""
        value = self._metadata.get(key)
        return len(value) if isinstance(value, MetaArray) else None

    def __contains__(self, key: str) -> bool:
        return key in self._metadata

    def _wrong(self, key: str, value: object, wanted: str) -> ModelLoadError:
        shown = repr(value)[:60]
        return ModelLoadError(f"{self._path}: metadata key {key!r} is {shown}, not {wanted}")
