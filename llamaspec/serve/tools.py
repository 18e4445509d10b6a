"""Calls of functions: how a template's model writes them, read from its text and forced upon it."""

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llamaspec.errors import OptionError
from llamaspec.runtime.sampler import schema_grammar

MOST_CALLS = 8
"""In one answer where calls are required: a model that finds no end has to come to one."""
_PYTHON_TAG = "<|python_tag|>"
_RULE = "tool-call-text"


@dataclass(frozen=True, slots=True)
class Style:
    """How a model writes a call: JSON between marks, or bare JSON as the whole text. key: what the
    arguments are called.
    """

    begin: str
    end: str
    key: str


HERMES = Style("<tool_call>", "</tool_call>", "arguments")
LLAMA3 = Style("", "", "parameters")
BARE = Style("", "", "arguments")


@dataclass(frozen=True, slots=True)
class Call:
    """One call. arguments: JSON text of an object."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


def style_of(template: str) -> Style | None:
    """How a model with this chat template calls functions; None where it does not read tools."""
    if not re.search(r"\btools\b", template):
        return None
    if HERMES.begin in template:
        return HERMES
    if "python_tag" in template or re.search(r'"parameters"\s*:', template):
        return LLAMA3
    return BARE


def call_grammar(
    style: Style, functions: Sequence[tuple[str, Mapping[str, Any] | None]], *, many: bool
) -> str:
    """GBNF of one call, or of several, of functions given as (name, schema of parameters).

    Raises OptionError for a schema that cannot be used.
    """
    calls = {}
    for index, (name, parameters) in enumerate(functions):
        place = f"#/$defs/call{index}/properties/{style.key}/"
        calls[f"call{index}"] = {
            "type": "object",
            "properties": {
                "name": {"const": name},
                style.key: _moved(parameters or {"type": "object"}, place),
            },
            "required": ["name", style.key],
            "additionalProperties": False,
        }
    schema = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in calls], "$defs": calls}
    text = re.sub(r"^root ::=", f"{_RULE} ::=", schema_grammar(json.dumps(schema)), flags=re.M)
    # as models are shown calls: in one line
    text = re.sub(r"^space ::=.*$", 'space ::= | " "', text, flags=re.M)
    if not style.begin:
        return f"root ::= {_RULE}\n{text}"
    one = f'"{style.begin}\\n" {_RULE} "\\n{style.end}"'
    more = f' ("\\n" {one}){{0,{MOST_CALLS - 1}}}' if many else ""
    return f"root ::= {one}{more}\n{text}"


def _moved(value: Any, place: str) -> Any:  # noqa: ANN401
    """A schema whose references begin at its own root, for use within another."""
    if isinstance(value, Mapping):
        return {
            key: place + item.removeprefix("#/")
            if key == "$ref" and isinstance(item, str) and item.startswith("#/")
            else _moved(item, place)
            for key, item in value.items()
        }
    return [_moved(item, place) for item in value] if isinstance(value, list) else value


class CallReader:
    """Takes a text apart, as it comes, into what is said and what is called."""

    def __init__(self, style: Style, names: Sequence[str], *, many: bool = True) -> None:
        self._style = style
        self._names = frozenset(names)
        self._many = many
        self._held = ""
        self._inside = False
        self._spoken = False
        self._calls = 0

    def push(self, text: str) -> tuple[str, list[Call]]:
        """Take more text; return what is certain to be said, and the calls that are complete."""
        self._held += text
        if not self._style.begin:
            return self._said_bare(), []
        said, calls = "", []
        while True:
            mark = self._style.end if self._inside else self._style.begin
            before, found, after = self._held.partition(mark)
            if not found:
                break
            self._held = after
            if self._inside:
                read = self._read(before)
                calls += read or []
                said += "" if read is not None else self._say(self._style.begin + before + mark)
            else:
                said += self._say(before.rstrip())
            self._inside = not self._inside
        if not self._inside:
            kept = _overlap(self._held, self._style.begin)
            free = self._held[: len(self._held) - kept]
            # what stands between the last word and a call is no part of what is said
            said += self._say(free.rstrip())
            self._held = self._held[len(free.rstrip()) :]
        return said, calls

    def finish(self) -> tuple[str, list[Call]]:
        """The text is over: the rest of what is said, and of the calls."""
        held, self._held = self._held, ""
        if not self._style.begin and self._spoken:
            return held, []
        if not self._style.begin or self._inside:
            read = self._read(held.strip().removeprefix(_PYTHON_TAG))
            if read is not None:
                return "", read
        mark = self._style.begin if self._inside else ""
        return ("" if self._calls and not held.strip() else mark + held), []

    def _say(self, text: str) -> str:
        if not self._spoken:
            text = text.lstrip() if self._calls else text
            self._spoken = bool(text)
        return text

    def _said_bare(self) -> str:
        start = self._held.lstrip()
        waits = start.startswith(("{", "[")) or start.startswith(_PYTHON_TAG[: len(start)])
        if not self._spoken and (not start or waits):
            return ""
        said, self._held, self._spoken = self._held, "", True
        return said

    def _read(self, text: str) -> list[Call] | None:
        """The calls that a text in JSON makes, None where it makes none."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return None
        calls = [self._call(item) for item in (found if isinstance(found, list) else [found])]
        known = [call for call in calls if call is not None]
        if not known or len(known) < len(calls):
            return None
        allowed = known if self._many else known[: 1 - min(1, self._calls)]
        self._calls += len(allowed)
        return allowed

    def _call(self, item: object) -> Call | None:
        if not isinstance(item, dict) or item.get("name") not in self._names:
            return None
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            return Call(item["name"], arguments)
        if not isinstance(arguments, dict):
            return None
        return Call(item["name"], json.dumps(arguments, ensure_ascii=False))


def _overlap(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0


def check_names(names: Sequence[str]) -> None:
    """Raise OptionError where two functions have one name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise OptionError(
            f"two tools are called {twice[0]!r}; give each function a name of its own"
        )
