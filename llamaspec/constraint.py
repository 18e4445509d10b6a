"""Grammars and JSON schemas as they are given: what native code could not take without ending the
process is refused here, before it sees them.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from llamaspec.errors import OptionError

MAX_GRAMMAR = 2**18
"""Characters: llama.cpp follows chains of rules by recursion."""
MAX_GROUPS = 200
"""Parentheses within each other, in a grammar and in a pattern: parsed by recursion too."""
MAX_NESTING = 100
"""Of arrays and objects in a schema."""
MAX_NAME = 2000
"""Characters of a name, reference or pattern in a schema: std::regex matches by recursion."""

_TERMINALS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\r\n]*', re.DOTALL)


def check_grammar(text: object, name: str = "grammar") -> None:
    """Refuse what is no text of a grammar's size and nesting. Raises OptionError; whether it is
    GBNF is llama.cpp's to say.
    """
    if not isinstance(text, str) or not text.strip():
        raise OptionError(f"{name} is {text!r}; it must be text in GBNF with a rule named root")
    if len(text) > MAX_GRAMMAR:
        raise OptionError(f"{name} has {len(text)} characters; {MAX_GRAMMAR} are the most")
    if not is_c_text(text):
        raise OptionError(f"{name} has a NUL or a lone surrogate; leave it out or escape it")
    depth = 0
    for char in re.findall("[()]", _TERMINALS.sub("", text)):
        depth += 1 if char == "(" else -1
        if depth > MAX_GROUPS:
            raise OptionError(f"{name} nests more than {MAX_GROUPS} parentheses; use rules")


def schema_text(schema: object) -> str:
    """Return a JSON schema, given as a mapping or as JSON text, as JSON text in ASCII. Raises
    OptionError for what is neither, and for one that is too large.
    """
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(found, allow_nan=False)
    except RecursionError:
        raise OptionError(f"json_schema is nested more than {MAX_NESTING} deep") from None
    except (TypeError, ValueError) as error:
        raise OptionError(f"json_schema is no JSON: {error}") from None
    if not isinstance(found, Mapping):
        raise OptionError(f"json_schema is {text[:60]}; it must be a JSON object")
    if len(text) > MAX_GRAMMAR:
        raise OptionError(f"json_schema has {len(text)} characters; {MAX_GRAMMAR} are the most")
    _check_parts(found)
    return text


def _check_parts(schema: Mapping[str, Any]) -> None:
    waiting: list[tuple[Any, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_NESTING and isinstance(value, Mapping | list | tuple):
            raise OptionError(f"json_schema is nested more than {MAX_NESTING} deep")
        if isinstance(value, Mapping):
            for key, item in value.items():
                _check_name(str(key))
                if key in ("$ref", "pattern") and isinstance(item, str):
                    _check_name(item)
                waiting.append((item, depth + 1))
        elif isinstance(value, list | tuple):
            waiting += [(item, depth + 1) for item in value]


def _check_name(text: str) -> None:
    if len(text) > MAX_NAME:
        raise OptionError(
            f"json_schema has a name, reference or pattern of {len(text)} characters; {MAX_NAME} "
            "are the most"
        )
    if text.count("(") > MAX_GROUPS:
        raise OptionError(f"json_schema has a pattern of more than {MAX_GROUPS} parentheses")


def is_c_text(text: str) -> bool:
    """Whether a text can be handed to C whole: no NUL in it, no lone surrogate."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
