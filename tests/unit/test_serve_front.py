"""Who may come in, and how errors read."""

import base64
import json

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from llamaspec.errors import (
    ClosedError,
    ContextFullError,
    DecodeError,
    OptionError,
    QueueFullError,
    SamplingError,
)
from llamaspec.serve.front import Front
from llamaspec.serve.metrics import Metrics
from llamaspec.serve.openapi import document
from llamaspec.serve.problems import ApiError, context_length, problem_of
from llamaspec.serve.settings import ServeSettings


class NoSession:
    """Nothing asks it for anything here."""


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def client(name: str = "127.0.0.1:8080", **settings: str) -> TestClient:
    app = Starlette(routes=[Route("/", hello), Route("/health", hello)])
    metrics = Metrics(NoSession())  # type: ignore[arg-type]
    front = Front(app, ServeSettings(**settings), metrics, ["/"])  # type: ignore[arg-type]
    return TestClient(front, base_url=f"http://{name}")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("Bearer s3cret", 200),
        ("bearer  s3cret ", 200),
        ("Bearer s3cre", 401),
        ("Bearer s3crett", 401),
        ("s3cret", 401),
        ("Basic " + base64.b64encode(b"me:s3cret").decode(), 200),
        ("Basic " + base64.b64encode(b"s3cret").decode(), 401),
        ("Basic ?", 401),
        ("Bearer ", 401),
    ],
)
def test_the_key(header: str | None, status: int) -> None:
    headers = {} if header is None else {"authorization": header}
    reply = client(api_key="s3cret").get("/", headers=headers)
    assert reply.status_code == status
    if status == 401:
        assert reply.json()["error"]["code"] == "invalid_api_key"
        assert "bearer" in reply.headers["www-authenticate"].lower()
        assert "s3cret" not in reply.text


def test_who_looks_with_a_browser_is_asked_for_the_key_by_the_page() -> None:
    reply = client(api_key="s3cret").get("/", headers={"accept": "text/html,*/*;q=0.8"})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert 'data-key="wanted"' in reply.text
    assert "script-src 'sha256-" in reply.headers["content-security-policy"]
    assert "s3cret" not in reply.text


def test_health_needs_no_key() -> None:
    assert client(api_key="s3cret").get("/health").status_code == 200


@pytest.mark.parametrize(
    "name", ["localhost:80", "127.0.0.1", "[::1]:8080", "a.localhost", "10.1.2.3"]
)
def test_names_of_this_machine(name: str) -> None:
    assert client(name).get("/").status_code == 200


def test_a_page_elsewhere_cannot_point_its_name_here() -> None:
    assert client("evil.example").get("/").status_code == 403
    assert client("evil.example").get("/health").status_code == 200
    assert (
        client("me.example", api_key="k").get("/", headers={"authorization": "Bearer k"}).is_success
    )
    assert client("me.example", host="0.0.0.0").get("/").is_success


@pytest.mark.parametrize(
    "settings",
    [
        {"port": 70000},
        {"host": ""},
        {"api_key": ""},
        {"api_key": "a\n"},
        {"origins": ("*",)},
        {"timeout_s": 0},
        {"grace_s": float("nan")},
        {"max_body": 1},
        {"temperature": -1},
        {"name": "x" * 300},
    ],
    ids=str,
)
def test_settings_that_cannot_be(settings: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        ServeSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueueFullError("full"), 429, "queue_full"),
        (ContextFullError("long"), 400, "context_length_exceeded"),
        (OptionError("bad"), 400, "invalid_value"),
        (SamplingError("none"), 400, "no_token_left"),
        (ClosedError("closed"), 503, "closing"),
        (TimeoutError(), 503, "timeout"),
        (DecodeError("failed", -1), 500, "failed"),
        (RuntimeError("/secret/path"), 500, "failed"),
        (ApiError(418, "x", code="y"), 418, "y"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_as_replies(error: Exception, status: int, code: str) -> None:
    found = problem_of(error)
    assert (found.status, found.code) == (status, code)
    assert "/secret" not in json.dumps(found.body)
    assert ("retry-after" in found.headers) == (status in (429, 503))


def test_the_words_of_a_full_context() -> None:
    found = context_length(4096, 5000, "messages")
    assert found.message.startswith("This model's maximum context length is 4096 tokens. However, ")
    assert "your messages resulted in 5000 tokens" in found.message
    assert "reduce the length of the messages" in found.message


def test_the_document_refers_to_what_it_has() -> None:
    found = document(key=True)
    names = found["components"]["schemas"].keys()
    references = [
        text.split('"')[0] for text in json.dumps(found).split('"$ref": "#/components/schemas/')[1:]
    ]
    assert set(references) <= names
    assert {"/v1/chat/completions", "/v1/completions", "/metrics"} <= found["paths"].keys()
    assert found["paths"]["/health"]["get"]["security"] == []
    chat = found["components"]["schemas"]["ChatRequest"]
    assert chat["additionalProperties"] is False
    assert {"messages", "tools", "draft_max"} <= chat["properties"].keys()
