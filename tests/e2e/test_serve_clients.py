"""The clients that people use, unmodified, against a real server with the bundled pair."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from llamaspec import Session, demo
from llamaspec.bench.pairs import PROMPTS
from tests.e2e.terminal import environment
from tests.rewrite import rewrite
from tests.served import TOOL_TEMPLATE, Server, serving

pytestmark = pytest.mark.native

KEY = "s3cret"
LONG_S = 120
PROMPT = PROMPTS[2][1]
CHAT: list[Any] = [{"role": "user", "content": PROMPT}]
MOVE = {
    "type": "object",
    "properties": {"where": {"enum": ["left"]}},
    "required": ["where"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "move", "description": "Go.", "parameters": MOVE}}
]


class Moved(BaseModel):
    """Where to."""

    where: Literal["left", "right"]
    far: bool


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    target = rewrite(
        demo.target_path(),
        tmp_path_factory.mktemp("pair") / "target.gguf",
        {"tokenizer.chat_template": TOOL_TEMPLATE},
    )
    arguments = ("-m", target, "-d", demo.draft_path(), "-c", "1024", "--name", "tiny")
    with serving(*arguments, LLAMASPEC_API_KEY=KEY) as started:
        yield started


@pytest.fixture(scope="module")
def expected(session: Session) -> str:
    return session.generate(CHAT, max_tokens=40).text


def test_openai(server: Server, expected: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        done = client.chat.completions.create(
            model="tiny", messages=CHAT, temperature=0, max_tokens=40, logprobs=True, top_logprobs=2
        )
        (choice,) = done.choices
        assert choice.message.content == expected
        assert choice.logprobs is not None
        assert "".join(token.token for token in choice.logprobs.content) == expected
        assert done.usage.completion_tokens == 40
        assert done.timings["draft_n_accepted"] <= done.timings["predicted_n"]
        text = client.completions.create(
            model="tiny", prompt="2 + 2 =", max_tokens=4, temperature=0
        )
        assert text.choices[0].finish_reason == "length"


def test_openai_streams(server: Server, expected: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S) as client:
        chunks = list(
            client.chat.completions.create(
                model="tiny",
                messages=CHAT,
                temperature=0,
                max_tokens=40,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"draft_max": 7, "return_tokens": True},
            )
        )
        told = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(told) == expected
        assert len(told) > 2
        assert chunks[-1].usage.completion_tokens == 40
        with client.chat.completions.stream(
            model="tiny", messages=CHAT, temperature=0, max_tokens=400
        ) as stream:
            whole = stream.get_final_completion().choices[0]
        assert whole.message.content.startswith(expected)
        assert whole.finish_reason == "stop"


def test_openai_for_asyncio(server: Server, expected: str) -> None:
    openai = pytest.importorskip("openai")

    async def work() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S
        ) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(
                    model="tiny", messages=CHAT, temperature=0, max_tokens=40, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return list(await asyncio.gather(*(one() for _ in range(6))))

    assert asyncio.run(work()) == [expected] * 6


def test_openai_with_tools(server: Server) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S) as client:
        asked: dict[str, Any] = {
            **{"model": "tiny", "messages": CHAT, "tools": TOOLS, "temperature": 0},
            **{"max_tokens": 200},
            "tool_choice": {"type": "function", "function": {"name": "move"}},
        }
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "move",
            {"where": "left"},
        )
        turns = [
            *CHAT,
            choice.message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "done"},
        ]
        after = client.chat.completions.create(
            **{**asked, "messages": turns, "tool_choice": "auto"}
        )
        assert after.choices[0].finish_reason in ("stop", "length", "tool_calls")
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls[0].function.arguments == call.function.arguments


def test_openai_with_a_structure(server: Server) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S) as client:
        done = client.chat.completions.parse(
            model="tiny", messages=CHAT, response_format=Moved, temperature=0, max_tokens=400
        )
        assert isinstance(done.choices[0].message.parsed, Moved)


def test_openai_names_what_went_wrong(server: Server) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, timeout=LONG_S) as client:
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "word " * 2000}]
            )
        assert error.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
            client.chat.completions.create(model="tiny", messages=CHAT, reasoning_effort="high")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()


def test_langchain(server: Server, expected: str) -> None:
    langchain = pytest.importorskip("langchain_openai")
    model = langchain.ChatOpenAI(
        model="tiny",
        base_url=f"{server.url}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=40,
        timeout=LONG_S,
    )
    assert model.invoke(PROMPT).content == expected
    assert "".join(chunk.content for chunk in model.stream(PROMPT)) == expected
    longer = model.model_copy(update={"max_tokens": 400})
    found = longer.with_structured_output(Moved, method="json_schema").invoke(PROMPT)
    assert isinstance(found, Moved)
    called = longer.bind_tools(TOOLS, tool_choice="move").invoke(PROMPT)
    assert [(call["name"], call["args"]) for call in called.tool_calls] == [
        ("move", {"where": "left"})
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_litellm(server: Server, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # else it looks for a newer list of prices on the internet
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    asked: dict[str, Any] = {
        **{"model": "openai/tiny", "api_base": f"{server.url}/v1", "api_key": KEY},
        **{"messages": CHAT, "temperature": 0, "max_tokens": 40, "timeout": LONG_S},
    }
    assert litellm.completion(**asked).choices[0].message.content == expected
    chunks = litellm.completion(**asked, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**{**asked, "messages": long})


def test_llm(server: Server, expected: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("llm")
    home = tmp_path_factory.mktemp("llm")
    (home / "extra-openai-models.yaml").write_text(
        f"- model_id: tiny\n  model_name: tiny\n  api_base: {server.url}/v1\n  api_key_name: tiny\n"
    )
    (home / "keys.json").write_text(json.dumps({"tiny": KEY}))
    options = ["-o", "temperature", "0", "-o", "max_tokens", "40"]
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "tiny", *options, PROMPT],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        env={**environment(), "LLM_USER_PATH": os.fspath(home)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected.strip()
