"""A draft's config.json: every key looked up wherever exporters put it, none with a default."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llamaspec.convert.shown import shown
from llamaspec.errors import ModelLoadError

LEVELS = ("dflash_config", "dspark_config", "transformer_layer_config", "text_config")
_ROPE_LEVELS = ("rope_parameters", "rope_scaling")
MAX_COUNT = 2**31 - 1
MAX_HEAD_WIDTH = 1 << 16
_MAX_NUMBER = 1e30


class Settings:
    """Typed look-up in a configuration.

    A key is searched at the top level and in `dflash_config`, `dspark_config`,
    `transformer_layer_config` and `text_config`; null counts as absent. Values that contradict
    each other are refused: which of them the exporter meant cannot be known.

    Attributes:
        path: of the file, for messages.
        config: the whole, as parsed.
        asked: the keys that were looked up.
    """

    def __init__(
        self, path: Path, config: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.config = config
        self._overrides = dict(overrides or {})
        self.asked: set[str] = set()

    def with_config(self, config: Mapping[str, Any]) -> "Settings":
        """The same file and overrides over another configuration."""
        other = Settings(self.path, config, self._overrides)
        other.asked = self.asked
        return other

    def sections(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(name, mapping) of every level that is there; "" is the top."""
        yield "", self.config
        for name in LEVELS:
            section = self.config.get(name)
            if isinstance(section, dict):
                yield name, section

    def find(self, *names: str) -> Any:  # noqa: ANN401
        """The value of the first of these keys that is set at any level; None where none is.

        Raises:
            ModelLoadError: two levels set it to different values.
        """
        for name in names:
            self.asked.add(name)
            if name in self._overrides:
                return self._overrides[name]
            found = [
                (level, section[name])
                for level, section in self.sections()
                if section.get(name) is not None
            ]
            for level, value in found[1:]:
                if value != found[0][1]:
                    here, there = (where or "the top level" for where in (found[0][0], level))
                    raise self.wrong(
                        f"{name} is {shown(found[0][1])} at {here} and {shown(value)} in "
                        f"{there}; say which with --set {name}=..."
                    )
            if found:
                return found[0][1]
        return None

    def need(self, *names: str) -> Any:  # noqa: ANN401
        """As `find`; ModelLoadError where no level has it."""
        value = self.find(*names)
        if value is None:
            also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.wrong(
                f"has no {names[0]}{also}, and a guess would only make the draft slow; "
                f"add it, or give --set {names[0]}=..."
            )
        return value

    def whole(self, *names: str, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number that must be there, from `least` to `most`."""
        return self._whole(names[0], self.need(*names), least, most)

    def nearest(self, name: str) -> int:
        """A whole number, that of `dflash_config` or `dspark_config` before any other.

        Exporters leave a base class's value at the top level (block_size 16), and read the nested.
        """
        if name not in self._overrides:
            for level in ("dflash_config", "dspark_config"):
                section = self.config.get(level)
                if isinstance(section, dict) and section.get(name) is not None:
                    return self._whole(name, section[name], 1)
        return self.whole(name)

    def whole_or(self, default: int, *names: str, least: int = 1, most: int = MAX_COUNT) -> int:
        """A whole number, or `default` where the key is absent."""
        value = self.find(*names)
        return default if value is None else self._whole(names[0], value, least, most)

    def number(self, *names: str) -> float:
        """A finite number that must be there."""
        return self.as_number(names[0], self.need(*names))

    def epsilon(self, name: str) -> float:
        """The epsilon of a norm, that must be there."""
        value = self.number(name)
        if not 1e-20 < value < 1:  # a float32 has it
            raise self.wrong(f"{name} is {value:g}, not between 0 and 1")
        return value

    def number_or_none(self, *names: str) -> float | None:
        """A finite number, or None where the key is absent."""
        value = self.find(*names)
        return None if value is None else self.as_number(names[0], value)

    def flag(self, name: str) -> bool | None:
        """A boolean, or None where the key is absent."""
        value = self.find(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"{name} is {shown(value)}, not true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None where the key is absent."""
        value = self.find(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(f"{name} is {shown(value)}, not a string")
        return value

    def ids(self, *names: str) -> tuple[int, ...] | None:
        """A list of whole numbers (-1 and up), or None where the key is absent."""
        value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > 512:
            raise self.wrong(f"{names[0]} is {shown(value)}, not a list of layers")
        return tuple(self._whole(names[0], item, -1) for item in value)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where the key is absent."""
        value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(f"{name} is {shown(value)}, not a list of strings")
        return tuple(value)

    def rope(self) -> dict[str, Any]:
        """What the configuration says of RoPE, in one mapping with `rope_theta` and `rope_type`.

        `rope_parameters` (of its layer types the full attention), the older `rope_scaling`, and
        `rope_theta` at any level.
        """
        merged: dict[str, Any] = {}
        for name in _ROPE_LEVELS:
            section = self.find(name)
            if section is not None and not isinstance(section, dict):
                raise self.wrong(f"{name} is {shown(section)}, not an object")
            section = dict(section or {})
            inner = section.get("full_attention", section)
            if not isinstance(inner, dict):
                raise self.wrong(f"{name} is {shown(section)}, not an object of objects")
            for key, value in inner.items():
                if value is not None and merged.setdefault(key, value) != value:
                    raise self.wrong(
                        f"{key} is {shown(merged[key])} in rope_parameters and {shown(value)} in "
                        "rope_scaling"
                    )
        theta = self.find("rope_theta")
        if theta is not None and "rope_theta" not in self._overrides:
            inside = merged.setdefault("rope_theta", theta)
            if inside != theta:
                raise self.wrong(
                    f"rope_theta is {shown(theta)} at one level and {shown(inside)} in "
                    "rope_parameters; say which with --set rope_theta=..."
                )
        elif theta is not None:
            merged["rope_theta"] = theta
        part = self.find("partial_rotary_factor")
        if part is not None:
            merged.setdefault("partial_rotary_factor", part)
        if "factor" in merged and not merged.keys() & {"rope_type", "type"}:
            raise self.wrong(
                f"RoPE has the factor {shown(merged['factor'])} and no rope_type that says of what"
            )
        merged.setdefault("rope_type", merged.get("type", "default"))
        return merged

    def as_number(self, name: str, value: object) -> float:
        """A value as a finite number, or ModelLoadError that names the key."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(f"{name} is {shown(value)}, not a number")
        if not abs(value) <= _MAX_NUMBER:  # a NaN, or an integer that is no float
            raise self.wrong(f"{name} is {shown(value)}, which no draft has")
        return float(value)

    def _whole(self, name: str, value: object, least: int, most: int = MAX_COUNT) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(f"{name} is {shown(value)}, not a whole number of at least {least}")
        if value > most:
            raise self.wrong(f"{name} is {shown(value)}, and {most} is the most that is possible")
        return value

    def wrong(self, problem: str) -> ModelLoadError:
        """An error about this file."""
        return ModelLoadError(f"{self.path}: {problem}")


def first_architecture(config: Mapping[str, Any]) -> str:
    """`architectures[0]`, or ""."""
    names: Sequence[Any] = config.get("architectures") or ()
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
