"""DSpark speculative decoding for GGUF models, on llama.cpp.

>>> import llamaspec
>>> with llamaspec.load() as session:                 # the bundled demonstration pair
...     print(session.generate("Hello", max_tokens=32).text)
"""

from typing import TYPE_CHECKING, Any

from llamaspec._version import __version__
from llamaspec.errors import LlamaSpecError

if TYPE_CHECKING:
    from llamaspec.completion import Completion, Piece
    from llamaspec.session import Session, load
    from llamaspec.trace import Round, Stats

__all__ = [
    "Completion",
    "LlamaSpecError",
    "Piece",
    "Round",
    "Session",
    "Stats",
    "__version__",
    "load",
]

_HOMES = {
    "Completion": "llamaspec.completion",
    "Piece": "llamaspec.completion",
    "Session": "llamaspec.session",
    "load": "llamaspec.session",
    "Round": "llamaspec.trace",
    "Stats": "llamaspec.trace",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    # lazy: the command line must answer --help without loading numpy or llama.cpp
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'llamaspec' has no attribute {name!r}")
