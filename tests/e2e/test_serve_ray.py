"""Replicas under Ray Serve on this machine: one becomes two under load, answers stay the same."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from llamaspec.errors import OptionError
from llamaspec.session import load
from tests.conftest import ROOT

ray = pytest.importorskip("ray", reason="needs the extra llamaspec[ray]")
serve: Any = pytest.importorskip("ray.serve")
openai = pytest.importorskip("openai")

from llamaspec.serve.ray import Replicas, app  # noqa: E402

pytestmark = pytest.mark.native

PROMPTS = [f"Write a Python function that adds {n} to a number." for n in range(6)]
TOKENS = 48
SECONDS = 600


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        settings = Replicas(
            threads=1, context=512, max_sequences=2, queue=8, max_replicas=2, name="pair"
        )
        serve.run(app(settings), name="llamaspec")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def expected() -> dict[str, str]:
    with load(threads=1, context=512) as session:
        return {
            prompt: session.generate([{"role": "user", "content": prompt}], max_tokens=TOKENS).text
            for prompt in PROMPTS
        }


def ask(address: str, prompt: str) -> str:
    client = openai.OpenAI(base_url=address, api_key="none", timeout=SECONDS, max_retries=0)
    done = client.chat.completions.create(
        model="pair",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=TOKENS,
        temperature=0,
    )
    return str(done.choices[0].message.content)


def running() -> int:
    states = serve.status().applications["llamaspec"].deployments["llamaspec"].replica_states
    return int(states.get("RUNNING", 0))


def test_requests_that_queue_up_bring_a_second_replica(
    address: str, expected: dict[str, str]
) -> None:
    assert running() == 1
    deadline = time.monotonic() + SECONDS
    with ThreadPoolExecutor(12) as pool:
        while running() < 2:
            assert time.monotonic() < deadline, serve.status()
            prompts = PROMPTS * 4
            for prompt, text in zip(
                prompts, pool.map(lambda p: ask(address, p), prompts), strict=True
            ):
                assert text == expected[prompt]
        # both are there, and give the same answers
        for prompt, text in zip(PROMPTS, pool.map(lambda p: ask(address, p), PROMPTS), strict=True):
            assert text == expected[prompt]


def test_a_stream_comes_through(address: str, expected: dict[str, str]) -> None:
    client = openai.OpenAI(base_url=address, api_key="none", timeout=SECONDS, max_retries=0)
    stream = client.chat.completions.create(
        model="pair",
        messages=[{"role": "user", "content": PROMPTS[0]}],
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
    )
    parts = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(parts) > 2
    assert "".join(parts) == expected[PROMPTS[0]]


def test_what_no_replica_could_use_is_said_at_once() -> None:
    with pytest.raises(OptionError, match="threads"):
        app(Replicas(threads=-1))
    with pytest.raises(ValueError, match="modle"):
        Replicas(modle="target.gguf")  # type: ignore[call-arg]
