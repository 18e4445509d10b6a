"""Where a draft's calibration is kept: in a file beside it, or in its GGUF's metadata."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

from llamaspec.errors import ModelLoadError, OptionError
from llamaspec.runtime.gguf_file import GGUFFile
from llamaspec.runtime.gguf_types import MetaArray, MetaValue
from llamaspec.schedule.scaling import Scaling

PREFIX = "llamaspec.calibration."
TEMPERATURES = PREFIX + "temperatures"
"""FLOAT32 [B]."""
KNOTS = PREFIX + "knots"
"""INT32 [B]: how many knots the curve of each position has; absent without levels."""
LEVELS = PREFIX + "levels"
"""FLOAT32 [2 * all knots]: before and after of each, position after position."""


def beside(draft: str | PathLike[str]) -> Path:
    """The name of the file that is found beside a draft: NAME.calibration.json."""
    path = Path(draft)
    return path.with_name(f"{path.stem}.calibration.json")


def find(draft: str | PathLike[str]) -> Scaling | None:
    """The calibration of a draft: of the file beside it, or else of its metadata; None where there
    is neither.

    Raises:
        OptionError: the file beside it is broken, with what is wrong in it.
        ModelLoadError: the metadata is, or the draft is no GGUF.
    """
    file = beside(draft)
    if file.exists():
        try:
            return Scaling.load(file)
        except OptionError as error:
            raise OptionError(f"{error}; calibrate again, or remove it") from None
    with GGUFFile.open(draft) as gguf:
        return of_metadata(gguf.metadata, str(draft))


def of_metadata(metadata: Mapping[str, MetaValue], name: str) -> Scaling | None:
    """The calibration in a GGUF's metadata, None where it has none. name: of the file.

    Raises ModelLoadError for one that is broken.
    """
    if not any(key in metadata for key in (TEMPERATURES, KNOTS, LEVELS)):
        return None
    try:
        counts = [_whole(x) for x in _array(metadata, KNOTS)]
        flat = [_real(LEVELS, x) for x in _array(metadata, LEVELS)]
        if any(n < 0 for n in counts) or 2 * sum(counts) != len(flat):
            raise OptionError(f"{KNOTS} says {sum(counts)} knots, {LEVELS} has {len(flat)} numbers")
        points = iter(zip(flat[::2], flat[1::2], strict=True))
        levels = tuple(tuple(next(points) for _ in range(n)) for n in counts)
        temperatures = tuple(_real(TEMPERATURES, x) for x in _array(metadata, TEMPERATURES))
        return Scaling(temperatures, levels)
    except OptionError as error:
        raise ModelLoadError(
            f"{name}: {error}; calibrate again, or put a file beside the draft"
        ) from None


def as_metadata(scaling: Scaling) -> dict[str, list[int] | list[float]]:
    """The metadata that `of_metadata` reads: whole numbers are INT32, others FLOAT32."""
    found: dict[str, list[int] | list[float]] = {
        TEMPERATURES: [float(t) for t in scaling.temperatures]
    }
    if any(scaling.levels):
        found[KNOTS] = [len(knots) for knots in scaling.levels]
        found[LEVELS] = [float(x) for knots in scaling.levels for knot in knots for x in knot]
    return found


def _array(metadata: Mapping[str, MetaValue], key: str) -> MetaArray | tuple[()]:
    value = metadata.get(key, ())
    if not isinstance(value, MetaArray | tuple):
        raise OptionError(f"{key} is {value!r}, not an array")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(f"{KNOTS} holds {value!r}, not a whole number")
    return value


def _real(key: str, value: object) -> float:
    if not isinstance(value, float):
        raise OptionError(f"{key} holds {value!r}, not a FLOAT32")
    return value
