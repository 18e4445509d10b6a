"""Fields of requests as options of the engine; what does not go together is refused."""

import json
from typing import Any

import pytest

from llamaspec.options import MAX_SEED
from llamaspec.serve.asked import Asked, ask_chat, ask_completion
from llamaspec.serve.body import parsed
from llamaspec.serve.fields import ChatRequest, CompletionRequest
from llamaspec.serve.problems import ApiError
from llamaspec.serve.tools import HERMES, Style
from llamaspec.text.prompt import Chat

ASK = {"messages": [{"role": "user", "content": "hi"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def chat(style: Style | None = None, **fields: Any) -> Asked:  # noqa: ANN401
    request = parsed(json.dumps({**ASK, **fields}).encode(), ChatRequest)
    return ask_chat(request, 1.0, 512, style)


def refusal(style: Style | None = None, **fields: Any) -> ApiError:  # noqa: ANN401
    with pytest.raises(ApiError) as error:
        chat(style, **fields)
    assert error.value.status == 400
    return error.value


def test_what_is_left_open() -> None:
    assert chat().settings == {"temperature": 1.0, "max_tokens": 512}
    assert chat().options(0)["seed"] is None


def test_every_parameter_reaches_the_engine() -> None:
    given: dict[str, Any] = {
        **{"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "typical_p": 0.8},
        **{"presence_penalty": 1.0, "frequency_penalty": 0.5, "repeat_penalty": 1.1},
        **{"repeat_last_n": 9, "dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3},
        **{"dry_penalty_last_n": 4, "dry_sequence_breakers": ["x"], "draft_max": 3},
        **{"accept": "block", "cache_prompt": False, "priority": 2, "max_tokens": 5},
    }
    assert chat(**given, stop="a", logit_bias={"7": -100}).settings == {
        **given,
        "stop": ["a"],
        "logit_bias": {7: -100.0},
    }


def test_seeds() -> None:
    asked = chat(seed=5, n=3)
    assert [asked.options(i)["seed"] for i in range(3)] == [5, 6, 7]
    assert 0 <= (chat(seed=-1).options(0)["seed"] or 0) <= MAX_SEED
    several = ask_completion(
        parsed(b'{"prompt": ["a", "b"], "n": 2, "seed": 1}', CompletionRequest), 0.0, 64
    )
    assert [several.options(i)["seed"] for i in range(4)] == [1, 2, 1, 2]


def test_limits_by_both_names() -> None:
    assert chat(max_completion_tokens=4).settings["max_tokens"] == 4
    assert chat(max_completion_tokens=4, max_tokens=4).settings["max_tokens"] == 4
    assert "max_tokens is 3" in refusal(max_completion_tokens=4, max_tokens=3).message


def test_logprobs() -> None:
    assert chat(logprobs=True).settings["logprobs"] == 0
    assert chat(logprobs=True, top_logprobs=4).settings["logprobs"] == 4
    assert "logprobs" not in chat(logprobs=False).settings
    assert refusal(top_logprobs=4).param == "top_logprobs"


def test_formats() -> None:
    def schema(**form: Any) -> object:  # noqa: ANN401
        return chat(response_format=form).settings.get("json_schema")

    assert schema(type="text") is None
    assert schema(type="json_object") == {"type": "object"}
    wanted = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"name": "x", "schema": wanted, "strict": True}
    assert schema(type="json_schema", json_schema=named) == wanted
    assert refusal(response_format={"type": "json_schema"}).param == "response_format.json_schema"
    assert refusal(response_format={"type": "json_object"}, grammar='root ::= "a"').param


def test_stream_options_are_for_streams() -> None:
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert chat(stream=True, stream_options={"include_usage": True}).usage


def test_messages_are_as_templates_expect_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "id": "c1"}
    asked = chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}] * 2},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        ],
        chat_template_kwargs={"enable_thinking": False},
    )
    (prompt,) = asked.prompts
    assert isinstance(prompt, Chat)
    assert list(prompt.messages) == [
        {"role": "system", "content": "aa"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}
            ],
        },
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    assert prompt.variables == {"enable_thinking": False}


def test_tools_of_a_template_that_does_not_read_them() -> None:
    asked = chat(tools=[WEATHER])
    assert (asked.tools, asked.settings.get("grammar")) == (None, None)
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        error = refusal(tools=[WEATHER], tool_choice=choice)
        assert (error.code, error.param) == ("tools_unsupported", "tool_choice")


def test_tools_that_do_not_go_together() -> None:
    assert refusal(tool_choice="required").param == "tool_choice"
    other = {"type": "function", "function": {"name": "other"}}
    assert "other" in refusal(HERMES, tools=[WEATHER], tool_choice=other).message
    both = {"tool_choice": "required", "response_format": {"type": "json_object"}}
    assert refusal(HERMES, tools=[WEATHER], **both).param == "tool_choice"


def test_tools_are_shown_unless_none_may_be_called() -> None:
    (prompt,) = chat(HERMES, tools=[WEATHER]).prompts
    assert isinstance(prompt, Chat)
    assert prompt.tools == [WEATHER]
    assert chat(HERMES, tools=[WEATHER], tool_choice="none").tools is None
