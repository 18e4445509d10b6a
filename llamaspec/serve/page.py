"""The built-in page: one file of the package, which loads nothing from anywhere else."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("page.html")
_NONE = (
    "<!doctype html><title>llamaspec</title><p>llamaspec serves its API here; see /openapi.json."
)
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@cache
def text() -> str:
    """The page's HTML."""
    return _FILE.read_text("utf-8") if _FILE.is_file() else _NONE


@cache
def headers() -> dict[str, str]:
    """A policy under which the page's own scripts and styles run, by their hashes, and no other."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, source in _INLINE.findall(text()):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    scripts, styles = (" ".join(allowed[kind]) or "'none'" for kind in ("script", "style"))
    return {
        "content-security-policy": (
            f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }
