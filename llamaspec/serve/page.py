"""The built-in page: one file of the package, which loads nothing from anywhere else."""

from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("page.html")
_NONE = "<!doctype html><title>llamaspec</title><p>llamaspec serves its API here; see /openapi.json."

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@cache
def text() -> str:
    """The page's HTML."""
    return _FILE.read_text("utf-8") if _FILE.is_file() else _NONE
