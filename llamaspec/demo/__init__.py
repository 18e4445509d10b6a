"""The bundled pair: a small trained target and its DSpark draft. See README.md beside this file."""

from pathlib import Path

PROMPT = "Write a Python function that computes the factorial of count."

_HERE = Path(__file__).parent


def target_path() -> Path:
    """The bundled target GGUF."""
    return _HERE / "target.gguf"


def draft_path() -> Path:
    """The bundled target's DSpark draft GGUF."""
    return _HERE / "draft.gguf"
