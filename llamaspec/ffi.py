"""The only importer of the compiled module: `ffi` and `lib`, after checking that they belong to
this package.
"""

from pathlib import Path
from typing import Any

# looks which processors there are before OpenMP, where it is told to, pins this thread to one
import llamaspec.processors  # noqa: F401
from llamaspec._version import LLAMA_CPP_COMMIT, __version__
from llamaspec.errors import BuildMismatchError

REBUILD = "run `python build.py` in a checkout, or `pip install --force-reinstall llamaspec`"

try:
    from llamaspec import _native
except ImportError as error:
    raise BuildMismatchError(
        f"the compiled module llamaspec._native does not load ({error}); {REBUILD}"
    ) from error

ffi: Any = _native.ffi
lib: Any = _native.lib


def build_info() -> tuple[str, str]:
    """Return (package version, llama.cpp commit + patch digest) as compiled in."""
    version, _, commit = ffi.string(lib.ls_build_info()).decode().partition(" ")
    return version, commit


def check_build() -> None:
    """Raise BuildMismatchError where the compiled module belongs to another version of the
    package.
    """
    version, commit = build_info()
    if version != __version__:
        raise BuildMismatchError(
            f"llamaspec is {__version__} but its compiled module is {version}; {REBUILD}"
        )
    if not commit.startswith((LLAMA_CPP_COMMIT, "unknown", "custom")):
        raise BuildMismatchError(
            f"llamaspec expects llama.cpp {LLAMA_CPP_COMMIT[:12]} "
            f"but its compiled module has {commit[:12]}; {REBUILD}"
        )


check_build()

LIBRARY_DIR = Path(_native.__file__).parent / "lib"
