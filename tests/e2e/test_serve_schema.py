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
    # texts are short in a small context
    with serving("-c", "64", "--queue", "200") as server:
        document = httpx.get(f"{server.url}/openapi.json", timeout=SECONDS).json()
        schema = schemathesis.openapi.from_dict(document)
        modes, parts = schemathesis.GenerationMode, sum(part for _, part in PATHS)
        done = 0
        for path, part in PATHS:
            for mode in (modes.POSITIVE, modes.NEGATIVE):
                strategy = schema[path]["POST"].as_strategy(generation_mode=mode)
                done += _tried(strategy, server, max(1, CASES * part // (2 * parts)))
        # what hypothesis has seen already it does not try again
        assert done >= CASES // 2
        print(f"{done} requests")
        figures = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text
        assert 'status="5' not in figures
        assert "\nllamaspec_sequences_active 0.0\n" in figures
        assert server.stop() == 0
        assert not [line for line in server.lines if "Traceback" in line]


def _tried(strategy: Any, server: Server, count: int) -> int:  # noqa: ANN401
    """Send so many requests at most; return how many it were."""
    from hypothesis import HealthCheck, given, seed, settings

    done = 0

    @seed(1)
    @settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=strategy)
    def every(case: Any) -> None:  # noqa: ANN401
        nonlocal done
        done += 1
        if isinstance(case.body, dict) and isinstance(case.body.get("n"), int):
            # many texts of a request take their time and find nothing that few would not
            case.body["n"] = min(case.body["n"], 3)
        reply = case.call(base_url=server.url, timeout=SECONDS)
        assert reply.status_code < 500, (case.body, reply.text)
        if reply.status_code >= 400:
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    every()
    return done
