"""Calls of functions in a model's text, whole and in pieces."""

import json
from collections.abc import Iterator
from random import Random

import pytest

from llamaspec.serve.tools import BARE, HERMES, LLAMA3, Call, CallReader, Style, style_of

CALL = '{"name": "add", "arguments": {"a": 1, "b": "é"}}'
WORDS = {"a": 1, "b": "é"}
Told = tuple[str, list[tuple[str, object]]]


def read(style: Style, pieces: Iterator[str] | list[str], *, many: bool = True) -> Told:
    reader = CallReader(style, ["add", "sub"], many=many)
    said = ""
    calls: list[Call] = []
    for piece in pieces:
        more, found = reader.push(piece)
        said, calls = said + more, calls + found
    more, found = reader.finish()
    calls += found
    assert len({call.id for call in calls}) == len(calls)
    return said + more, [(call.name, json.loads(call.arguments)) for call in calls]


def cut(text: str, seed: int) -> Iterator[str]:
    random = Random(seed)
    while text:
        length = random.choice([1, 1, 2, 3, 7, 40])
        yield text[:length]
        text = text[length:]


@pytest.mark.parametrize(
    ("style", "text", "said", "calls"),
    [
        (HERMES, "no call", "no call", []),
        (HERMES, "a < b <tool", "a < b <tool", []),
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", [("add", WORDS)]),
        (HERMES, f"Yes.\n<tool_call>{CALL}</tool_call>", "Yes.", [("add", WORDS)]),
        (HERMES, f"<tool_call>\n{CALL}\n", "", [("add", WORDS)]),
        (HERMES, f"\n<tool_call>{CALL}</tool_call>\n" * 2, "", [("add", WORDS)] * 2),
        (HERMES, "<tool_call>none</tool_call>", "<tool_call>none</tool_call>", []),
        (
            HERMES,
            '<tool_call>{"name": "x"}</tool_call>',
            '<tool_call>{"name": "x"}</tool_call>',
            [],
        ),
        (HERMES, "<tool_call>{", "<tool_call>{", []),
        (HERMES, "ends in space ", "ends in space ", []),
        (LLAMA3, '{"name": "sub", "parameters": {"a": 1}}', "", [("sub", {"a": 1})]),
        (LLAMA3, '<|python_tag|>{"name": "sub", "parameters": {}}', "", [("sub", {})]),
        (LLAMA3, '{"name": "no"}', '{"name": "no"}', []),
        (LLAMA3, "Hello {x}", "Hello {x}", []),
        (LLAMA3, " <b>", " <b>", []),
        (BARE, f"[{CALL}, {CALL}]", "", [("add", WORDS)] * 2),
    ],
)
def test_texts_in_any_pieces(
    style: Style, text: str, said: str, calls: list[tuple[str, object]]
) -> None:
    assert read(style, [text]) == (said, calls)
    for seed in range(30):
        assert read(style, cut(text, seed)) == (said, calls), seed


def test_one_call_where_no_more_are_wanted() -> None:
    for style, text in ((HERMES, f"<tool_call>{CALL}</tool_call>" * 2), (BARE, f"[{CALL},{CALL}]")):
        assert read(style, [text], many=False) == ("", [("add", WORDS)])


def test_styles_by_template() -> None:
    assert style_of("{{ messages }}") is None
    assert style_of("{% if tools %}<tool_call>{% endif %}") == HERMES
    assert style_of('{% if tools %}{"name": n, "parameters": d}{% endif %}') == LLAMA3
    assert style_of("{% if tools %}[TOOL_CALLS]{% endif %}") == BARE
