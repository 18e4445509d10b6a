"""What a request says is read whole or refused by name; nothing in it can do harm."""

import json

import pytest

from llamaspec.serve.body import MAX_DEPTH, load_json, parsed
from llamaspec.serve.fields import ChatRequest, CompletionRequest, Decoding
from llamaspec.serve.problems import ApiError

ASK = {"messages": [{"role": "user", "content": "hi"}]}


def refused(body: object, kind: type[Decoding] = ChatRequest) -> ApiError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ApiError) as error:
        parsed(raw, kind)
    assert error.value.status == 400
    assert set(error.value.body["error"]) == {"message", "type", "param", "code"}
    return error.value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("foo", 1),
        ("foo", None),
        ("samplers", ["top_k"]),
        ("reasoning_effort", "high"),
        ("prediction", {"type": "content", "content": ""}),
        ("modalities", ["audio"]),
        ("best_of", 2),
        ("n_predict", 5),
    ],
)
def test_unknown_fields_are_named(field: str, value: object) -> None:
    error = refused({**ASK, field: value})
    assert field in error.message
    assert error.param == field
    assert error.code == "unknown_parameter"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.5"),
        ("temperature", -1),
        ("temperature", 1000),
        ("top_p", 1.5),
        ("top_k", -1),
        ("top_k", 1.5),
        ("n", 0),
        ("n", 10**6),
        ("n", True),
        ("max_tokens", 0),
        ("max_tokens", 2**40),
        ("seed", 2**70),
        ("stop", ["x"] * 17),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 1e9}),
        ("logprobs", 3),
        ("top_logprobs", 500),
        ("response_format", {"type": "xml"}),
        ("tools", [{"type": "retrieval"}]),
        ("tools", [{"type": "function", "function": {"name": "a b"}}]),
        ("tool_choice", "always"),
        ("messages", []),
        ("messages", [{"role": "wizard", "content": ""}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]),
        ("stream_options", {"foo": 1}),
        ("draft_max", -1),
        ("accept", "always"),
        ("stream", "yes"),
    ],
)
def test_values_that_cannot_be_honoured_are_named(field: str, value: object) -> None:
    error = refused({**ASK, field: value})
    assert field in error.message, error.message
    assert (error.param or "").startswith(field)


def test_what_is_missing_is_named() -> None:
    assert refused({}).param == "messages"
    assert refused({}, CompletionRequest).param == "prompt"
    assert refused({}).code == "missing_parameter"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"prompt": NaN}',
        b'{"prompt": "x", "temperature": Infinity}',
        b'{"prompt": "x", "temperature": 1e999}',
        b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\\ud800"}',
        b'{"\\ud800": 1}',
        b'{"prompt": ' + b"[" * 100_000 + b"}",
        b'{"prompt": ' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
    ],
    ids=lambda raw: raw[:24].decode("latin-1"),
)
def test_what_is_no_request(raw: bytes) -> None:
    error = refused(raw, CompletionRequest)
    json.dumps(error.body).encode()
    assert len(error.message) < 3000


def test_nesting_within_reason_is_read() -> None:
    value = load_json(b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}")
    assert list(value) == ["a"]


def test_numbers_keep_their_kind() -> None:
    found = parsed(json.dumps({**ASK, "temperature": 1, "seed": -1}).encode(), ChatRequest)
    assert (found.temperature, found.seed) == (1.0, -1)


def test_an_assistants_message_comes_back_as_it_was_dumped() -> None:
    message: dict[str, object] = {
        **{"role": "assistant", "content": "yes", "refusal": None, "annotations": []},
        **{"audio": None, "function_call": None, "tool_calls": None},
    }
    found = parsed(json.dumps({"messages": [message]}).encode(), ChatRequest)
    assert found.messages[0].content == "yes"


@pytest.mark.parametrize(
    "prompt", ["text", ["a", "b"], [1, 2], [[1], [2, 3]]], ids=["text", "texts", "ids", "many"]
)
def test_every_kind_of_prompt(prompt: object) -> None:
    found = parsed(json.dumps({"prompt": prompt}).encode(), CompletionRequest)
    assert found.prompt == prompt
