"""The server as clients meet it: real HTTP, the bundled pair, and what goes wrong on the way."""

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from llamaspec import Session, demo
from llamaspec.bench.pairs import PROMPTS
from tests.e2e.terminal import llamaspec, refusal
from tests.served import READY, TOOL_TEMPLATE, Server, serving

pytestmark = pytest.mark.native

LONG_S = 120
CHATS = [[{"role": "user", "content": prompt}] for _, prompt in PROMPTS]
ASK = {"messages": CHATS[2], "temperature": 0, "max_tokens": 40}
# the bundled target answers this with one pair of tokens for ever
ENDLESS = [{"role": "user", "content": "Translate to Japanese: 🎉 日本"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("-c", "512", "--queue", "8") as started:
        yield started


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=LONG_S) as opened:
        yield opened


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    reply = client.post("/v1/chat/completions", json={**ASK, **fields})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def refused(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> Any:  # noqa: ANN401
    reply = client.post(path, json=fields if path != "/v1/chat/completions" else {**ASK, **fields})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def events(client: httpx.Client, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:  # noqa: ANN401
    """The chunks of a stream, which ends as it should."""
    body = {**(ASK if "chat" in path else {}), **fields, "stream": True}
    with client.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1] if line[0] != ":"]


def gauge(client: httpx.Client, name: str) -> float:
    text = client.get("/metrics").text
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }
    return found[f"llamaspec_{name}"]


def settles(client: httpx.Client, name: str, value: float) -> None:
    """Wait until a figure is what it should be."""
    end = time.monotonic() + LONG_S
    while gauge(client, name) != value:
        assert time.monotonic() < end, f"{name} is {gauge(client, name)}, not {value}"
        time.sleep(0.05)


def test_the_ready_line_says_what_is_served(server: Server) -> None:
    _, pair, n_ctx, sequences, memory = server.ready.groups()
    assert (pair, n_ctx, sequences) == ("target with draft", "512", "4")
    assert 50 < int(memory) < 4000
    assert server.url.startswith("http://127.0.0.1:")


def test_an_answer_is_the_offline_one(client: httpx.Client, session: Session) -> None:
    for messages in CHATS:
        expected = session.generate(messages, max_tokens=40)
        found = chat(client, messages=messages)
        (choice,) = found["choices"]
        assert choice["message"]["content"] == expected.text
        assert choice["finish_reason"] == expected.finish_reason
        assert found["usage"]["completion_tokens"] == len(expected.token_ids)
        assert found["usage"]["prompt_tokens"] == expected.stats.prompt_tokens
        assert found["object"] == "chat.completion"


def test_what_is_accepted_is_part_of_what_is_predicted(client: httpx.Client) -> None:
    timings = chat(client, draft_max=7)["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["draft_n_accepted"] + timings["draft_rounds"] <= timings["predicted_n"]
    assert timings["predicted_n"] == 40
    assert timings["predicted_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(
        1e3 * 40 / timings["predicted_ms"], rel=0.01
    )
    plain = chat(client, draft_max=0)
    assert not [name for name in plain["timings"] if name.startswith("draft")]
    assert "accept_by_position" not in plain["llamaspec"]


def test_the_prompt_is_not_computed_twice(client: httpx.Client) -> None:
    first, second = (chat(client, messages=CHATS[1]) for _ in range(2))
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    timings = second["timings"]
    assert timings["cache_n"] > 0
    assert timings["cache_n"] + timings["prompt_n"] == second["usage"]["prompt_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
    cold = chat(client, messages=CHATS[1], cache_prompt=False)
    assert cold["timings"]["cache_n"] == 0


def test_a_stream_is_the_whole_in_pieces(client: httpx.Client, session: Session) -> None:
    expected = session.generate(CHATS[2], max_tokens=40)
    chunks = events(client, return_tokens=True, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    *pieces, closing, usage = chunks
    deltas = [chunk["choices"][0]["delta"] for chunk in pieces]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    tokens = [token for piece in pieces for token in piece["llamaspec"]["token_ids"]]
    assert tuple(tokens) == expected.token_ids
    for piece in pieces:
        assert 0 <= piece["llamaspec"]["accepted"] < len(piece["llamaspec"]["token_ids"])
    assert closing["choices"][0]["finish_reason"] == "length"
    assert closing["timings"]["predicted_n"] == 40
    accepted = sum(piece["llamaspec"]["accepted"] for piece in pieces)
    assert abs(accepted - closing["timings"]["draft_n_accepted"]) <= 1
    assert all(0 <= rate <= 1 for rate in closing["llamaspec"]["accept_by_position"])
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 40
    assert all(chunk["usage"] is None for chunk in pieces)


def test_several_texts(client: httpx.Client) -> None:
    many: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 3, "draft_max": 0}
    whole = chat(client, **many)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert whole["usage"]["completion_tokens"] > whole["usage"]["prompt_tokens"]
    found = ["", "", ""]
    for chunk in events(client, **many):
        for choice in chunk["choices"]:
            found[choice["index"]] += choice["delta"].get("content", "")
    assert found == texts
    again = chat(client, temperature=1.0, seed=4, draft_max=0)
    assert again["choices"][0]["message"]["content"] == texts[1]


def test_completions_of_every_kind_of_prompt(client: httpx.Client, session: Session) -> None:
    texts = ["The sum of 2 and 3", "def add(a, b):"]
    ids = [session.tokenize(text).tolist() for text in texts]
    expected = [session.generate(text, max_tokens=12).text for text in texts]
    for prompt in (texts, ids):
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0}
        found = client.post("/v1/completions", json=body).json()
        assert [choice["text"] for choice in found["choices"]] == expected
        assert found["usage"]["prompt_tokens"] == sum(map(len, ids))
    chunks = events(client, "/v1/completions", prompt=texts[0], max_tokens=12, temperature=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected[0]


def test_stop_texts(client: httpx.Client) -> None:
    whole = chat(client)["choices"][0]["message"]["content"]
    stop = whole[20:24]
    found = chat(client, stop=[stop, "\0never"])["choices"][0]
    assert found["message"]["content"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_logprobs(client: httpx.Client, session: Session) -> None:
    expected = session.generate(CHATS[2], max_tokens=6, logprobs=2).logprobs
    assert expected is not None
    found = chat(client, max_tokens=6, logprobs=True, top_logprobs=2)["choices"][0]
    content = found["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == found["message"]["content"]
    for token, own in zip(content, expected, strict=True):
        assert token["logprob"] == pytest.approx(own.logprob, abs=0.02)
        assert bytes(token["bytes"]).decode() == token["token"]
        assert token["top_logprobs"][0]["logprob"] >= token["top_logprobs"][1]["logprob"]
    streamed = [
        token
        for chunk in events(client, max_tokens=6, logprobs=True, top_logprobs=2)
        for token in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert [token["token"] for token in streamed] == [token["token"] for token in content]
    body = {"prompt": "2 + 2 =", "max_tokens": 4, "temperature": 0, "logprobs": 1}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert [choice["text"][a:b] for a, b in pairwise(offsets)] == choice["logprobs"]["tokens"][:-1]


def test_sampling_parameters_do_what_they_say(client: httpx.Client) -> None:
    first = client.post("/tokenize", json={"content": "Sure"}).json()["tokens"][0]
    whole = chat(client, max_tokens=4)["choices"][0]["message"]["content"]
    assert whole.startswith("Sure")
    other = chat(client, max_tokens=4, logit_bias={str(first): -100})["choices"][0]
    assert not other["message"]["content"].startswith("Sure")
    assert chat(client, temperature=1.5, top_k=1, max_tokens=4)["choices"][0]["message"][
        "content"
    ] == (whole)
    seeded = [
        chat(client, temperature=1.0, seed=7, draft_max=n)["choices"][0]["message"]["content"]
        for n in (0, 0)
    ]
    assert seeded[0] == seeded[1]


@pytest.mark.parametrize("accept", ["match", "residual", "block"])
def test_rules_of_acceptance(client: httpx.Client, accept: str) -> None:
    found = chat(client, temperature=1.0, seed=1, accept=accept)
    assert found["timings"]["draft_n_accepted"] <= found["timings"]["predicted_n"]


def test_structured_output(client: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "odd": {"type": "boolean"}},
        "required": ["sum", "odd"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    found = chat(client, response_format=form, max_tokens=200)["choices"][0]
    if found["finish_reason"] == "stop":
        assert set(json.loads(found["message"]["content"])) == {"sum", "odd"}
    assert found["message"]["content"].lstrip().startswith("{")
    fixed = chat(client, grammar='root ::= "yes" | "no"')["choices"][0]
    assert fixed["message"]["content"] in ("yes", "no")
    assert (
        "json_schema"
        in refused(
            client,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "wrong"}},
            },
        )["message"]
    )


def test_tokens_and_back(client: httpx.Client, session: Session) -> None:
    text = "def f(é): # 🎉 <|im_end|>"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    assert tokens == session.tokenize(text).tolist()
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(
        p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces
    )
    assert raw.decode() == text
    chat_ids = client.post("/tokenize", json={"messages": CHATS[0]}).json()["tokens"]
    assert chat_ids == session.tokenize(CHATS[0]).tolist()
    assert "4096" in refused(client, "/detokenize", tokens=[4096])["message"]
    assert "content" in refused(client, "/tokenize", add_special=True)["message"]


def test_the_model(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("target", "model")
    assert model["meta"] == {"n_ctx": 512, "n_vocab": 4096, "max_sequences": 4, "draft_max": 7}
    assert client.get("/v1/models/target").json() == model
    missing = client.get("/v1/models/..%2f..%2fetc%2fpasswd")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_prompts_that_are_too_long(client: httpx.Client) -> None:
    for stream in (False, True):
        error = refused(
            client, messages=[{"role": "user", "content": "word " * 600}], stream=stream
        )
        assert error["code"] == "context_length_exceeded"
        assert error["message"].startswith("This model's maximum context length is 512 tokens.")
        assert error["param"] == "messages"
    text = refused(client, "/v1/completions", prompt=[1] * 512)
    assert (text["code"], text["param"]) == ("context_length_exceeded", "prompt")


def test_what_the_engine_refuses(client: httpx.Client) -> None:
    assert "9999" in refused(client, logit_bias={"9999": 1.0})["message"]
    assert "grammar" in refused(client, grammar="root ::= (")["message"]
    assert "4096" in refused(client, "/v1/completions", prompt=[4096])["message"]
    assert "empty" in refused(client, "/v1/completions", prompt="")["message"]
    assert "foo" in refused(client, foo=1)["message"]


def test_bodies_and_routes_that_are_none(client: httpx.Client) -> None:
    path = "/v1/chat/completions"
    plain = client.post(path, content=json.dumps(ASK), headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    large = b" " * (9 << 20)
    headers = {"content-type": "application/json"}
    assert client.post(path, content=large, headers=headers).status_code == 413
    assert client.post(path, content=iter([large]), headers=headers).status_code == 413
    for reply, status in ((client.get("/nowhere"), 404), (client.get(path), 405)):
        assert reply.status_code == status
        assert reply.json()["error"]["message"]
    assert client.get(path).headers["allow"] == "POST"
    assert (
        "access-control-allow-origin"
        not in client.get("/health", headers={"origin": "https://evil.example"}).headers
    )


def test_the_page_may_load_nothing_from_elsewhere(client: httpx.Client) -> None:
    reply = client.get("/")
    assert reply.headers["content-type"].startswith("text/html")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_client_that_leaves_frees_its_place(client: httpx.Client, server: Server) -> None:
    gone = gauge(client, "clients_gone_total")
    endless = {**ASK, "messages": ENDLESS, "max_tokens": 10_000, "draft_max": 0}
    with (
        httpx.Client(base_url=server.url, timeout=LONG_S) as other,
        other.stream("POST", "/v1/chat/completions", json={**endless, "stream": True}) as reply,
    ):
        next(reply.iter_raw())
    with socket.create_connection(
        (httpx.URL(server.url).host, httpx.URL(server.url).port or 0)
    ) as raw:
        body = json.dumps({**endless, "messages": CHATS[0] + ENDLESS}).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        raw.sendall(head.encode() + body)
    settles(client, "clients_gone_total", gone + 2)
    settles(client, "sequences_active", 0)
    settles(client, "queue_length", 0)
    assert chat(client)["choices"][0]["finish_reason"] == "length"


def test_many_at_once_are_all_answered_alike(client: httpx.Client, session: Session) -> None:
    expected = {
        messages[0]["content"]: session.generate(messages, max_tokens=30, draft_max=0).text
        for messages in CHATS
    }

    def one(index: int) -> bool:
        messages = CHATS[index % len(CHATS)]
        reply = chat(client, messages=messages, max_tokens=30)
        return bool(reply["choices"][0]["message"]["content"] == expected[messages[0]["content"]])

    with ThreadPoolExecutor(12) as pool:
        assert all(pool.map(one, range(24)))


def test_more_than_the_queue_holds(client: httpx.Client) -> None:
    async def all_of(count: int) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=LONG_S) as other:
            body = {**ASK, "messages": ENDLESS, "max_tokens": 100, "draft_max": 0}
            posts = [other.post("/v1/chat/completions", json=body) for _ in range(count)]
            return await asyncio.gather(*posts)

    replies = asyncio.run(all_of(40))
    full = [reply for reply in replies if reply.status_code == 429]
    assert full
    assert all(reply.status_code in (200, 429) for reply in replies)
    assert all(int(reply.headers["retry-after"]) > 0 for reply in full)
    assert full[0].json()["error"]["code"] == "queue_full"
    settles(client, "sequences_active", 0)


def test_figures_for_prometheus(client: httpx.Client) -> None:
    before = gauge(client, "completion_tokens_total")
    chat(client, max_tokens=7)
    assert gauge(client, "completion_tokens_total") == before + 7
    assert gauge(client, "tau") >= 1
    assert 0 <= gauge(client, "accept_rate") <= 1
    assert 0 < gauge(client, "kv_usage") <= 1
    assert gauge(client, "time_to_first_token_seconds_count") > 0
    replies = client.get("/metrics").text
    assert 'llamaspec_http_requests_total{route="/v1/chat/completions",status="200"}' in replies


def test_the_loop_answers_during_long_prompts(client: httpx.Client) -> None:
    long = [{"role": "user", "content": "word " * 400}]
    busy = threading.Thread(
        target=lambda: [chat(client, messages=long, cache_prompt=False) for _ in range(3)]
    )
    busy.start()
    while busy.is_alive():
        assert client.get("/health").json() == {"status": "ok"}
        time.sleep(0.02)
    busy.join()


def test_a_key_a_name_and_a_short_time() -> None:
    arguments = ("-c", "2048", "--name", "tiny", "--timeout", "0.3", "--max-sequences", "1")
    with serving(*arguments, LLAMASPEC_API_KEY="s3cret") as server:
        with httpx.Client(base_url=server.url, timeout=LONG_S) as client:
            assert client.get("/health").status_code == 200
            for path in ("/", "/v1/models", "/metrics", "/openapi.json"):
                assert client.get(path).status_code == 401
            client.headers["authorization"] = "Bearer s3cret"
            assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
            assert client.get("/openapi.json").json()["security"] == [{"key": []}]
            # a text that takes longer than it may ends there
            found = chat(client, messages=ENDLESS, max_tokens=2000, draft_max=0)
            assert found["choices"][0]["finish_reason"] == "length"
            assert 0 < found["usage"]["completion_tokens"] < 1900
        assert server.stop() == 0
        assert server.lines == []


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_what_is_under_way_may_finish_when_told_to_stop(kind: signal.Signals) -> None:
    with serving("--grace", "30") as server, httpx.Client(timeout=LONG_S) as client:
        body = {**ASK, "messages": ENDLESS, "max_tokens": 200, "draft_max": 0, "stream": True}
        with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.process.send_signal(kind)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(LONG_S) == 0
        assert server.lines == []


def test_what_does_not_finish_is_ended() -> None:
    with (
        serving("--grace", "1", "--max-sequences", "1") as server,
        httpx.Client(timeout=LONG_S) as client,
    ):
        body = {**ASK, "messages": ENDLESS, "max_tokens": 4000, "draft_max": 0, "stream": True}
        with client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as reply:
            lines = reply.iter_lines()
            next(lines)
            started = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - started < LONG_S
            with pytest.raises(httpx.RemoteProtocolError):
                list(lines)
        assert not [line for line in server.lines if "Traceback" in line]


def test_a_pair_without_a_draft() -> None:
    with (
        serving("-m", demo.target_path(), "-c", "256") as server,
        httpx.Client(base_url=server.url, timeout=LONG_S) as client,
    ):
        found = chat(client, max_tokens=10)
        assert not [name for name in found["timings"] if name.startswith("draft")]
        assert client.get("/v1/models").json()["data"][0]["meta"]["draft_max"] == 0


def test_what_cannot_be_served() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refusal(llamaspec("serve", "--port", port))
    assert "missing.gguf" in refusal(llamaspec("serve", "-m", "missing.gguf", "--port", 0))
    assert "host" in refusal(llamaspec("serve", "--host", " "))


def test_tools_of_a_template_that_reads_them(tmp_path: Path) -> None:
    from tests.rewrite import rewrite

    target = rewrite(
        demo.target_path(), tmp_path / "target.gguf", {"tokenizer.chat_template": TOOL_TEMPLATE}
    )
    point = {"type": "object", "properties": {"x": {"$ref": "#/$defs/c"}}, "required": ["x"]}
    tools = [
        {
            "type": "function",
            "function": {
                "name": name,
                "parameters": {**point, "$defs": {"c": {"enum": [value]}}},
            },
        }
        for name, value in (("move", 1), ("turn", "left"))
    ]
    named = {"type": "function", "function": {"name": "turn"}}
    with (
        serving("-m", target, "-d", demo.draft_path(), "-c", "1024") as server,
        httpx.Client(base_url=server.url, timeout=LONG_S) as client,
    ):
        found = chat(client, tools=tools, tool_choice=named, max_tokens=100)["choices"][0]
        assert found["finish_reason"] == "tool_calls"
        assert found["message"]["content"] is None
        (call,) = found["message"]["tool_calls"]
        assert call["function"]["name"] == "turn"
        assert json.loads(call["function"]["arguments"]) == {"x": "left"}
        chunks = events(client, tools=tools, tool_choice=named, max_tokens=100)
        calls = [c for k in chunks for c in k["choices"][0]["delta"].get("tool_calls", [])]
        assert [c["function"] for c in calls] == [call["function"]]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        many = chat(client, tools=tools, tool_choice="required", max_tokens=200)["choices"][0]
        values = {"move": {"x": 1}, "turn": {"x": "left"}}
        for one in many["message"].get("tool_calls", []):
            assert json.loads(one["function"]["arguments"]) == values[one["function"]["name"]]
        # the next turn shows the call and its result to the template
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        turns = [*CHATS[0], found["message"], answer]
        assert chat(client, messages=turns, tools=tools)["usage"]["prompt_tokens"] > 100


def test_the_ready_line_is_read_as_it_is_written() -> None:
    assert READY.fullmatch(
        "llamaspec: ready at http://127.0.0.1:8080: a with b, n_ctx 1, 2 sequences, 3 MiB\n"
    )
