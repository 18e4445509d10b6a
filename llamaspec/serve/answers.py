"""The endpoints that complete: a reply, or a stream of server-sent events."""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from llamaspec.completion import Completion
from llamaspec.serve.asked import Asked, ask_chat, ask_completion
from llamaspec.serve.body import read
from llamaspec.serve.fields import ChatRequest, CompletionRequest
from llamaspec.serve.metrics import Metrics
from llamaspec.serve.problems import ApiError, problem_of
from llamaspec.serve.served import Served
from llamaspec.serve.settings import MAX_CHOICES
from llamaspec.serve.streams import (
    Event,
    GoneError,
    Job,
    Single,
    Streams,
    complete,
    while_there,
)
from llamaspec.serve.wording import Wording

logger = logging.getLogger("llamaspec")

_GONE = 499
"""Nobody reads it; nginx writes the same to its log."""
_HEADERS = {
    "cache-control": "no-store",
    # a proxy that collects the events first would take the point of them away
    "x-accel-buffering": "no",
}


class Answers:
    """Completes for requests."""

    def __init__(self, served: Served, metrics: Metrics) -> None:
        self._served = served
        self._metrics = metrics

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        served = self._served
        fields = await read(request, ChatRequest, served.settings.max_body)
        if not served.session.has_chat_template:
            raise ApiError(
                400, f"{served.name} has no chat template; use /v1/completions", code="no_template"
            )
        style = await served.find_style() if fields.tools else None
        asked = ask_chat(fields, served.settings.temperature, served.n_ctx, style)
        return await self._answer(request, asked)

    async def text(self, request: Request) -> Response:
        """POST /v1/completions."""
        served = self._served
        fields = await read(request, CompletionRequest, served.settings.max_body)
        asked = ask_completion(fields, served.settings.temperature, served.n_ctx)
        return await self._answer(request, asked)

    async def _answer(self, request: Request, asked: Asked) -> Response:
        try:
            return await while_there(request.receive, self._begun(request, asked))
        except GoneError:
            self._metrics.gone.inc()
            return Response(status_code=_GONE)

    async def _begun(self, request: Request, asked: Asked) -> Response:
        jobs = await self._jobs(asked)
        wording = Wording(self._served, asked)
        if not asked.stream:
            done = await complete(self._served, jobs)
            for one in done:
                self._metrics.observe(one)
            return JSONResponse(wording.reply(done))
        many = len(jobs) > 1
        streams = Streams(self._served, jobs) if many else Single(self._served, jobs[0])
        await streams.__aenter__()
        try:
            # what can be refused is refused before a stream says that all is well
            first = await streams.next(self._served.settings.keep_alive_s)
        except BaseException:
            await streams.__aexit__(None, None, None)
            raise
        return _EventStream(self._events(streams, first, asked, wording), streams, self._metrics)

    async def _jobs(self, asked: Asked) -> list[Job]:
        count = len(asked.prompts) * asked.n
        if count > MAX_CHOICES:
            raise ApiError(
                400,
                f"{len(asked.prompts)} prompts x n {asked.n} are more than {MAX_CHOICES} texts",
                param="n",
            )
        prompts = [await self._served.fitting(prompt) for prompt in asked.prompts]
        return [(prompts[index // asked.n], asked.options(index)) for index in range(count)]

    async def _events(
        self, streams: Streams | Single, first: Event | None, asked: Asked, wording: Wording
    ) -> AsyncIterator[bytes]:
        texts = wording.texts()
        done: dict[int, Completion] = {}
        found = first
        try:
            while True:
                if found is None:
                    yield b": keep-alive\n\n"
                else:
                    index, what = found
                    if isinstance(what, Completion):
                        done[index] = what
                        self._metrics.observe(what)
                        yield _framed(wording.last(texts[index], what))
                    elif chunks := wording.chunk(texts[index], what):
                        yield _framed(chunks)
                if len(done) == len(texts):
                    break
                found = await streams.next(self._served.settings.keep_alive_s)
        except Exception as error:
            problem = problem_of(error)
            if problem.status >= 500:
                logger.exception("a stream failed", exc_info=error)
            yield _framed([problem.body])
            return
        if asked.usage:
            yield _framed([wording.usage([done[index] for index in range(len(texts))])])
        yield b"data: [DONE]\n\n"


class _EventStream(Response):
    """Sends events as they come; ends the texts when it is over, and when the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], streams: Streams | Single, metrics: Metrics
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._streams = streams
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_there(receive, self._send(send))
        except GoneError:
            self._metrics.gone.inc()
        finally:
            await self._streams.__aexit__(None, None, None)

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _framed(chunks: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(
        b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
        for chunk in chunks
    )
