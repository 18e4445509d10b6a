"""What a model's name says: a path on this machine, a file of the Hub, or a repository of it."""

import re
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path

from llamaspec.errors import OptionError
from llamaspec.hub import SCHEME

FORM = "owner/repo[@revision][:quantisation or file]"
_REPOSITORY = re.compile(
    r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^@:]+))?(?::(?P<wanted>[^:]+))?"
)


@dataclass(frozen=True)
class Named:
    """A repository of the Hub; wanted: a quantisation or a file of it, "" where not said."""

    repo: str
    revision: str | None
    wanted: str

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}" + (f":{self.wanted}" if self.wanted else "")


def read_name(reference: str | PathLike[str]) -> Named | str | Path:
    """A repository; or the text of an hf:// file; or a path, whatever exists here first.

    Raises OptionError for an hf:// name of no known form.
    """
    text = fspath(reference)
    if isinstance(reference, PathLike) or _exists(text):
        return Path(text)
    match = _REPOSITORY.fullmatch(text)
    if match is not None and (text.startswith(SCHEME) or not text.lower().endswith(".gguf")):
        return Named(match["repo"], match["revision"], match["wanted"] or "")
    # a file of a repository may be named after a colon, a path ends in .gguf by itself
    if match is not None and match["wanted"]:
        return Named(match["repo"], match["revision"], match["wanted"])
    if not text.startswith(SCHEME):
        return Path(text)
    if not text.lower().partition("@")[0].endswith(".gguf"):
        raise OptionError(f"{text}: not of the form {FORM} or hf://owner/repo/path/to/file.gguf")
    return text


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # longer than a name can be, or with a NUL
        return False
