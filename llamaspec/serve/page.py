"""The built-in page: one document of the files in www/, which loads nothing from anywhere else."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).with_name("www")
_STYLE = re.compile(r'<link rel="stylesheet" href="([a-z]+\.css)">')
_SCRIPT = re.compile(r'<script src="([a-z]+\.js)"></script>')
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@cache
def text(*, key: bool = False) -> str:
    """The page's HTML. key: it is to ask for an API key."""
    found = _file("index.html")
    found = _STYLE.sub(lambda name: f"<style>{_file(name[1])}</style>", found)
    found = _SCRIPT.sub(lambda name: f"<script>{_file(name[1])}</script>", found)
    return found.replace('data-key=""', 'data-key="wanted"', 1) if key else found


@cache
def headers() -> dict[str, str]:
    """A policy under which the page's own scripts and styles run, by their hashes, and no other."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, source in _INLINE.findall(text()):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    scripts, styles = (" ".join(allowed[kind]) for kind in ("script", "style"))
    return {
        "content-security-policy": (
            f"default-src 'none'; script-src {scripts}; style-src {styles}; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            # nothing in the page may turn text into HTML
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def _file(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")
