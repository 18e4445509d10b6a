"""Files that are not trusted, mapped read-only."""

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

from llamaspec.errors import ModelLoadError


def map_file(path: Path, problem: Callable[[os.stat_result], str | None]) -> mmap.mmap:
    """Map a regular file; the caller closes it.

    Args:
        path: the file.
        problem: what is wrong with a file of that status, None where nothing is.

    Raises:
        ModelLoadError: missing, not a regular file, unreadable, or `problem`'s reason.
    """
    try:
        status = path.stat()
        wrong = problem(status)
        if wrong is None and not stat.S_ISREG(status.st_mode):
            wrong = "is not a regular file"
        if wrong is not None:
            raise ModelLoadError(f"{path}: {wrong}")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelLoadError(f"{path}: cannot be read ({reason})") from None
