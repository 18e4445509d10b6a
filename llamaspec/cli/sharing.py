"""Options that several commands have: declared by one, taken over by others."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from inspect import Parameter, signature
from typing import Any

from llamaspec.cli import sampling
from llamaspec.errors import OptionError
from llamaspec.options import GenerateOptions, LoadOptions, Schedule

AUTO = "auto"
Given = Mapping[str, Any]
Command = Callable[..., None]


def with_options_of(owner: Command, names: Collection[str]) -> Callable[[Command], Command]:
    """Give a command some options of another, after its own; it gets them by name, as **given."""

    def widen(command: Command) -> Command:
        own = signature(command, eval_str=True)
        lent = signature(owner, eval_str=True).parameters
        mine = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        # the last of its own is --verbose, which stays the last
        whole = [*mine[:-1], *(lent[name] for name in names), *mine[-1:]]
        command.__signature__ = own.replace(parameters=whole)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in whole} | {"return": None}
        return command

    return widen


def load_options(given: Given) -> LoadOptions:
    """Of a command's values, by name. Raises OptionError for one that cannot be."""
    known = {field.name for field in fields(LoadOptions)}
    values = {name: value for name, value in given.items() if name in known}
    if "schedule" in values:
        values["schedule"] = schedule(values["schedule"])
    return LoadOptions(**values)


def generate_options(given: Given, **changes: Any) -> GenerateOptions:  # noqa: ANN401
    """Likewise; texts, files and numbers that stand in one option are taken apart."""
    known = {field.name for field in fields(GenerateOptions)}
    values = {name: value for name, value in given.items() if name in known}
    breakers = given.get("dry_sequence_breaker")
    values |= {
        "stop": tuple(given.get("stop") or ()),
        "draft_max": 0 if given.get("plain") else most(given["draft_max"]),
        "logit_bias": sampling.read_biases(given["logit_bias"]),
        "grammar": sampling.read_text("--grammar", given["grammar"]),
        "json_schema": sampling.read_text("--json-schema", given["json_schema"]),
    }
    if breakers:
        values["dry_sequence_breakers"] = tuple(breakers)
    return GenerateOptions(**values | changes)


def most(text: str) -> int | None:
    """--draft-max. Raises OptionError."""
    if text == AUTO:
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"--draft-max is {text!r}; it must be a whole number or auto") from None


def schedule(text: str) -> Schedule:
    """--schedule; which words there are, the options know."""
    try:
        return float(text)
    except ValueError:
        return text  # type: ignore[return-value]
