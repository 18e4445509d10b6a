"""The Starlette application of a session."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from llamaspec.errors import LlamaSpecError
from llamaspec.serve import page
from llamaspec.serve.answers import Answers
from llamaspec.serve.asked import plain_messages
from llamaspec.serve.body import read
from llamaspec.serve.fields import DetokenizeRequest, TokenizeRequest
from llamaspec.serve.front import HEALTH, PAGE, Front
from llamaspec.serve.metrics import CONTENT_TYPE, Metrics
from llamaspec.serve.problems import ApiError, problem_of
from llamaspec.serve.replies import (
    DetokenizeReply,
    HealthReply,
    ModelReply,
    ModelsReply,
    TokenizeReply,
    TokenPiece,
)
from llamaspec.serve.served import Served
from llamaspec.serve.settings import ServeSettings
from llamaspec.session import Session
from llamaspec.text.prompt import Chat, Prompt

logger = logging.getLogger("llamaspec")

Endpoint = Callable[[Request], Awaitable[Response]]
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


def create_app(
    session: Session,
    settings: ServeSettings | None = None,
    *,
    name: str = "llamaspec",
    lifespan: Lifespan | None = None,
) -> Starlette:
    """Make the application of an open session, which stays the caller's to close.

    name: of the model in replies, where the settings give none.
    """
    settings = settings or ServeSettings()
    session.stream_every_s = settings.stream_every_s
    served = Served(session, settings, settings.name or name)
    metrics = Metrics(session)
    answers, others = Answers(served, metrics), _Others(served, metrics)
    routes = [
        _route("/v1/chat/completions", answers.chat, "POST"),
        _route("/v1/completions", answers.text, "POST"),
        _route("/v1/models", others.models, "GET"),
        _route("/v1/models/{model:path}", others.model, "GET"),
        _route("/tokenize", others.tokenize, "POST"),
        _route("/detokenize", others.detokenize, "POST"),
        _route(HEALTH, others.health, "GET"),
        _route("/metrics", others.metrics, "GET"),
        _route("/openapi.json", others.openapi, "GET"),
        _route(PAGE, others.page, "GET"),
    ]
    front = Middleware(
        Front, settings=settings, metrics=metrics, routes=[route.path for route in routes]
    )
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
    )
    return Starlette(
        routes=routes,
        # a browser asks whether it may before it shows a key
        middleware=[cors, front] if settings.origins else [front],
        exception_handlers={HTTPException: _of_routing},
        lifespan=lifespan,
    )


class _Others:
    """The endpoints that do not complete."""

    def __init__(self, served: Served, metrics: Metrics) -> None:
        self._served = served
        self._metrics = metrics
        self._document: dict[str, Any] | None = None

    async def models(self, _: Request) -> Response:
        """GET /v1/models."""
        reply: ModelsReply = {"object": "list", "data": [self._model()]}
        return JSONResponse(reply)

    async def model(self, request: Request) -> Response:
        """GET /v1/models/{model}."""
        asked = request.path_params["model"]
        if asked != self._served.name:
            raise ApiError(
                404,
                f"the model {asked!r:.100} is not served here; {self._served.name} is",
                code="model_not_found",
                param="model",
            )
        return JSONResponse(self._model())

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize."""
        fields = await read(request, TokenizeRequest, self._served.settings.max_body)
        if (fields.content is None) == (fields.messages is None):
            raise ApiError(400, "give either content or messages", param="content")
        if fields.messages is not None:
            prompt: Prompt = Chat(plain_messages(fields.messages))
            ids = (await self._served.tokenize(prompt)).tolist()
        else:
            ids = await self._served.tokenize_text(fields.content or "", fields.add_special)
        reply: TokenizeReply = {"tokens": ids}
        if fields.with_pieces:
            reply = {"tokens": [self._piece(token) for token in ids]}
        return JSONResponse(reply)

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize."""
        fields = await read(request, DetokenizeRequest, self._served.settings.max_body)
        reply: DetokenizeReply = {"content": self._served.detokenize(fields.tokens)}
        return JSONResponse(reply)

    async def health(self, _: Request) -> Response:
        """GET /health."""
        reply: HealthReply = {"status": "ok"}
        return JSONResponse(reply)

    async def metrics(self, _: Request) -> Response:
        """GET /metrics."""
        # the counters are the engine's, and waited for between its steps
        text = await asyncio.to_thread(self._metrics.text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def openapi(self, _: Request) -> Response:
        """GET /openapi.json."""
        if self._document is None:
            from llamaspec.serve.openapi import document

            self._document = document(key=self._served.settings.api_key is not None)
        return JSONResponse(self._document)

    async def page(self, _: Request) -> Response:
        """GET /."""
        text = page.text(key=self._served.settings.api_key is not None)
        return HTMLResponse(text, headers=page.headers())

    def _model(self) -> ModelReply:
        served = self._served
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "llamaspec",
            "meta": {
                "n_ctx": served.n_ctx,
                "n_vocab": served.session.vocab.size,
                "max_sequences": served.session.max_sequences,
                "draft_max": served.session.draft_limit,
            },
        }

    def _piece(self, token: int) -> TokenPiece:
        raw = self._served.piece(token)
        try:
            return {"id": token, "piece": raw.decode()}
        except UnicodeDecodeError:
            return {"id": token, "piece": list(raw)}


def _route(path: str, endpoint: Endpoint, method: str) -> Route:
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:
            problem = problem_of(error)
            if problem.status >= 500 and not isinstance(error, (LlamaSpecError, TimeoutError)):
                logger.exception("%s failed", path)
            return _refusal(problem)

    return Route(path, answered, methods=[method], name=endpoint.__name__)


async def _of_routing(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reply = _refusal(ApiError(error.status_code, error.detail, code="no_such_route"))
    reply.headers.update(error.headers or {})
    return reply


def _refusal(problem: ApiError) -> Response:
    return JSONResponse(problem.body, problem.status, headers=problem.headers)
