"""A file that appears under its name complete, or not at all."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from llamaspec.errors import OptionError


@contextmanager
def staged(output: Path, *, overwrite: bool, sources: Sequence[Path] = ()) -> Iterator[Path]:
    """Give an empty file beside `output` to write; it takes that name when the block ends.

    Where the block raises, KeyboardInterrupt included, the file is removed and what `output` was
    before stays as it is.

    Args:
        output: the file to make. A link is followed.
        overwrite: an existing file may be replaced.
        sources: files that it must not be.

    Raises:
        OptionError: `output` exists, is a folder or a source, or nothing can be written there.
    """
    place = check_output(output, overwrite, sources)
    # not made by tempfile, which would leave the result readable by its owner alone
    part = place.with_name(f".llamaspec-{secrets.token_hex(6)}.part")
    try:
        try:
            part.touch(exist_ok=False)
        except OSError as error:
            raise OptionError(f"{output}: cannot be written ({error.strerror or error})") from None
        yield part
        if place.exists() and not overwrite:
            raise _exists(output)
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def check_output(output: Path, overwrite: bool, sources: Sequence[Path] = ()) -> Path:
    """The place that `output` names. Raises OptionError as `staged` does."""
    try:
        place = output.resolve()
        exists, regular, has_folder = place.exists(), place.is_file(), place.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        raise OptionError(f"{output}: cannot be written ({error})") from None
    if not has_folder:
        raise OptionError(f"{output}: there is no folder {place.parent}; make it first")
    if exists and any(source.exists() and source.samefile(place) for source in sources):
        raise OptionError(f"{output}: is the input itself; give the output another name")
    if exists and not regular:
        kind = "a folder" if place.is_dir() else "not a regular file"
        raise OptionError(f"{output}: is {kind}; give the name of a file")
    if exists and not overwrite:
        raise _exists(output)
    return place


def _exists(output: Path) -> OptionError:
    return OptionError(f"{output}: exists already; give another name, or --force to replace it")
