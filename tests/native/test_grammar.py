"""Grammars and schemas that are wrong: a reason in one line, and the process goes on."""

import json
import random
import threading
from typing import Any

import pytest

from llamaspec.constraint import MAX_GRAMMAR, MAX_GROUPS, MAX_NAME, MAX_NESTING
from llamaspec.errors import LlamaSpecError, OptionError
from llamaspec.options import GenerateOptions
from llamaspec.runtime.sampler import schema_grammar
from llamaspec.session import Session, load

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def session() -> Any:  # noqa: ANN401
    with load(threads=1, context=128) as opened:
        yield opened


BAD: list[tuple[str, str]] = [
    ("", "GBNF"),
    ("   ", "GBNF"),
    ("# only a comment", "parse grammar"),
    ("root", "expecting ::="),
    ("root ::= (", "expecting ')'"),
    ('root ::= "a', "unexpected end of input"),
    ("root ::= [a", "unexpected end of input"),
    ('root ::= "\\q"', "unknown escape"),
    ("root ::= *", "expecting preceding item"),
    ("root ::= a", "Undefined rule identifier 'a'"),
    ('text ::= "a"', "'root' symbol"),
    ('root ::= root "a" | "b"', "left recursion"),
    ('root ::= a root "x" | "y"\na ::= b\nb ::= ""', "left-recursive"),
    ('root ::= "a"{3000}', "repetitions"),
    ('root ::= "a"{99999999999999999999999}', "cannot be used"),
    ("root ::= <[99999999999999999999]>", "cannot be used"),
    ("root ::= <no such token>", "invalid token"),
    ('root ::= "a\0b"', "NUL"),
    ('root ::= "\ud800"', "surrogate"),
    ("root ::= " + "(" * 100_000, f"more than {MAX_GROUPS}"),
    ('root ::= "' + "a" * MAX_GRAMMAR + '"', f"{MAX_GRAMMAR} are the most"),
    (
        "root ::= a\n"
        + "".join(f"{x} ::= {' '.join([y] * 40)}\n" for x, y in zip("abcd", "bcde", strict=True))
        + 'e ::= "x" | ""',
        "too ambiguous",
    ),
    ("%llguidance {}\nstart: /a/", "cannot be used"),
]


@pytest.mark.parametrize(("grammar", "word"), BAD, ids=lambda value: repr(value)[:30])
def test_a_bad_grammar_is_refused_with_its_reason(
    session: Session, capfd: pytest.CaptureFixture[str], grammar: str, word: str
) -> None:
    with pytest.raises(OptionError) as refused:
        session.generate("x", max_tokens=2, grammar=grammar)
    assert word in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 400
    # llama.cpp prints grammars it cannot read
    assert capfd.readouterr().err == ""


def test_a_chain_of_rules_as_long_as_may_be_fits_the_stack(session: Session) -> None:
    count = MAX_GRAMMAR // 17
    rules = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(count))
    grammar = rules + f'r{count} ::= "a"\n'
    assert 0.8 * MAX_GRAMMAR < len(grammar) <= MAX_GRAMMAR
    found: list[object] = []

    def work() -> None:
        try:
            found.append(session.generate("x", max_tokens=2, grammar=grammar).text)
        except LlamaSpecError as error:
            found.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert len(found) == 1


def random_grammar(rng: random.Random) -> str:
    names = ["root", "a", "b", "c"]
    marks = ["", "", "", "", "*", "+", "?", "{2}", "{0,3}"]

    def part(depth: int, own: int) -> str:
        if depth and rng.random() < 0.3:
            return f"({sequence(depth - 1, own)})"
        if rng.random() < 0.3:
            # mostly rules further down, so that not every grammar is left-recursive
            later = names[own + 1 :] or ['"z"']
            return rng.choice(later if rng.random() < 0.9 else names)
        return rng.choice(['"x"', '"yz"', "[a-f]", "[^q]", ".", '""', "[]"])

    def sequence(depth: int, own: int) -> str:
        found = []
        for _ in range(rng.randint(0, 3)):
            mark, item = rng.choice(marks), part(depth, own)
            found.append(item if item in ('""', "[]") else item + mark)
        return " ".join(found) + (" | " + sequence(0, own) if rng.random() < 0.4 else "")

    text = "\n".join(f"{name} ::= {sequence(2, own)}" for own, name in enumerate(names))
    if rng.random() < 0.2:
        cut = rng.randrange(len(text))
        text = text[:cut] + rng.choice(list('()[]"|*{}<>!\\ \n')) + text[cut + 1 :]
    return text


def test_no_grammar_ends_the_process(session: Session) -> None:
    rng = random.Random(0)
    outcomes = {"text": 0, "refused": 0, "dead end": 0}
    for _ in range(200):
        grammar = random_grammar(rng)
        try:
            session.generate("x", max_tokens=6, grammar=grammar, temperature=1.5, seed=1)
            outcomes["text"] += 1
        except OptionError:
            outcomes["refused"] += 1
        except LlamaSpecError:
            outcomes["dead end"] += 1
    assert min(outcomes["text"], outcomes["refused"]) > 30, outcomes
    assert session.generate("x", max_tokens=4).token_ids


BAD_SCHEMAS: list[tuple[Any, str]] = [
    ("{", "no JSON"),
    ("[]", "must be a JSON object"),
    ("true", "must be a JSON object"),
    (5, "must be a JSON object"),
    ({"type": "nothing"}, "unrecognized type nothing"),
    ({"type": 5}, "type must be a string"),
    ({"type": []}, "type must not be empty"),
    ({"enum": []}, "enum"),
    ({"anyOf": []}, "must not be empty"),
    ({"$ref": "#/nowhere"}, "#/nowhere"),
    ({"$ref": "https://example.org/schema"}, "unsupported $ref"),
    ({"properties": 7}, "properties must be an object"),
    ({"type": "string", "minLength": -1}, "minLength"),
    ({"type": "string", "minLength": 5000}, "repetitions"),
    ({"type": "string", "pattern": "a"}, "not anchored"),
    ({"type": "string", "pattern": "^(a$"}, "pattern"),
    ({"type": "string", "pattern": "^\\bx$"}, "pattern"),
    ({"type": "string", "pattern": "^" + "(" * 5000 + "a" + ")" * 5000 + "$"}, "are the most"),
    ({"type": "string", "pattern": "^" + "(" * 900 + "a" + ")" * 900 + "$"}, "parentheses"),
    ({"properties": {"é" * (MAX_NAME + 1): {}}}, f"{MAX_NAME} are the most"),
    ({"const": float("nan")}, "no JSON"),
    ({"const": {1, 2}}, "no JSON"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "cannot be used"),
]


@pytest.mark.parametrize(("schema", "word"), BAD_SCHEMAS, ids=lambda value: repr(value)[:30])
def test_a_bad_schema_is_refused_with_its_reason(
    session: Session,
    capfd: pytest.CaptureFixture[str],
    schema: Any,  # noqa: ANN401
    word: str,
) -> None:
    with pytest.raises(OptionError, match="json_schema") as refused:
        session.generate("x", max_tokens=2, json_schema=schema)
    assert word in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert capfd.readouterr().err == ""


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def test_a_deep_schema_is_refused_and_one_as_deep_as_may_be_is_not(session: Session) -> None:
    assert session.generate("x", max_tokens=4, json_schema=nested(MAX_NESTING - 1)).token_ids
    for deep in (nested(MAX_NESTING), nested(800), '{"items":' * 100_000):
        with pytest.raises(OptionError, match="json_schema"):
            session.generate("x", max_tokens=4, json_schema=deep)


def random_schema(rng: random.Random, depth: int) -> Any:  # noqa: ANN401
    if rng.random() < 0.1:
        return rng.choice([None, 5, "x", [], {}, True, -1, 1e300, {"$ref": "#"}, {"$ref": "#/"}])
    keys = [
        "type", "enum", "const", "properties", "required", "items", "prefixItems", "minItems",
        "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "exclusiveMaximum",
        "anyOf", "oneOf", "allOf", "additionalProperties", "$ref", "$defs",
    ]  # fmt: skip
    kinds = ["object", "array", "string", "integer", "number", "boolean", "null", 7]

    def value(key: str) -> Any:  # noqa: ANN401
        if key == "type":
            return rng.choice([rng.choice(kinds), rng.sample(kinds, 2)])
        if key in ("properties", "$defs"):
            return {name: random_schema(rng, depth - 1) for name in rng.sample("abcd", 2)}
        if key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            return [random_schema(rng, depth - 1) for _ in range(rng.randint(0, 2))]
        if key == "pattern":
            return rng.choice(["^a+$", "^[a-z]{2,3}$", "^(a|b)*$", "^[$", "^.{,2}$", "^\\d\\w$"])
        if key == "$ref":
            return rng.choice(["#/$defs/a", "#/properties/b", "#/$defs/zz", "#", "x#/", ""])
        if key == "format":
            return rng.choice(["date", "uuid", "time", "date-time", "uuid9", 4])
        if key in ("items", "additionalProperties"):
            return random_schema(rng, depth - 1)
        if key in ("enum", "required"):
            return rng.choice([["a", 1], [None], ["a", "b"], 5])
        return rng.choice([0, 1, 3, -5, 2.5, 2**62, -(2**63), 2**64, "x"])

    if depth <= 0:
        return {"type": rng.choice(kinds)}
    return {key: value(key) for key in rng.sample(keys, rng.randint(0, 4))}


def test_no_schema_ends_the_process(session: Session, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    converted = refused = 0
    for turn in range(3000):
        schema = random_schema(rng, 3)
        if schema is None:
            continue
        try:
            text = GenerateOptions(json_schema=schema).json_schema
            assert text is not None
            grammar = schema_grammar(text)
            converted += 1
            if turn % 10 == 0:
                session.generate("x", max_tokens=4, grammar=grammar)
        except LlamaSpecError:
            refused += 1
    assert min(converted, refused) > 300
    assert capfd.readouterr().err == ""


def test_a_property_order_and_a_reference_are_kept() -> None:
    schema = {
        "type": "object",
        "properties": {"zeta": {"$ref": "#/$defs/n"}, "alpha": {"$ref": "#/$defs/n"}},
        "required": ["zeta", "alpha"],
        "$defs": {"n": {"type": "integer"}},
    }
    grammar = schema_grammar(json.dumps(schema))
    (root,) = [line for line in grammar.splitlines() if line.startswith("root ::=")]
    assert root.index("zeta") < root.index("alpha")
