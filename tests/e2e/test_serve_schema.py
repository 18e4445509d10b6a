"""Requests that the OpenAPI document allows, and that it does not: none ends in an error of the
server's.
"""

import os
from typing import Any

import httpx
import pytest

from tests.served import Server, serving

pytestmark = pytest.mark.native

CASES = int(os.environ.get("LLAMASPEC_FUZZ_CASES", "150"))
SECONDS = 120
# the endpoints whose requests have something to vary
PATHS = (
    ("/v1/chat/completions", 4),
    ("/v1/completions", 3),
    ("/tokenize", 2),
    ("/detokenize", 1),
)


def test_no_request_ends_in_an_error_of_the_servers() -> None:
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    # texts are short in the context of 128, and many wait for a place
    with serving("-c", "128", "--queue", "200") as server:
        schema = schemathesis.openapi.from_dict(_document(server))
        parts = sum(part for _, part in PATHS)
        counts = {
            path: _fuzzed(
                hypothesis, schemathesis, schema[path]["POST"], server, CASES * part // parts
            )
            for path, part in PATHS
        }
        assert sum(counts.values()) >= 0.9 * (CASES - len(PATHS)), counts
        reply = httpx.get(f"{server.url}/metrics", timeout=SECONDS)
        assert 'status="5' not in reply.text
        active = [
            line for line in reply.text.splitlines() if line.startswith("llamaspec_sequences")
        ]
        assert active == ["llamaspec_sequences_active 0.0"]
        assert server.stop() == 0
        assert not [line for line in server.lines if "Traceback" in line]


def _document(server: Server) -> Any:  # noqa: ANN401
    return httpx.get(f"{server.url}/openapi.json", timeout=SECONDS).json()


def _fuzzed(hypothesis: Any, schemathesis: Any, operation: Any, server: Server, count: int) -> int:  # noqa: ANN401
    modes = schemathesis.GenerationMode
    half = count // 2
    return sum(
        _cases(hypothesis, operation.as_strategy(generation_mode=mode), server, part)
        for mode, part in ((modes.POSITIVE, half), (modes.NEGATIVE, count - half))
    )


def _cases(hypothesis: Any, strategy: Any, server: Server, count: int) -> int:  # noqa: ANN401
    done = 0

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=strategy)
    def every(case: Any) -> None:  # noqa: ANN401
        nonlocal done
        done += 1
        reply = case.call(base_url=server.url, timeout=SECONDS)
        assert reply.status_code < 500, (case.body, reply.text)
        if reply.status_code >= 400:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    every()
    return done
