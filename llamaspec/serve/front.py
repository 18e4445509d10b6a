"""Before any endpoint: who may come in."""

import base64
import binascii
import secrets
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llamaspec.serve import page
from llamaspec.serve.metrics import Metrics
from llamaspec.serve.problems import ApiError
from llamaspec.serve.settings import ServeSettings

HEALTH = "/health"
PAGE = "/"


class Front:
    """Asks for the API key, keeps pages of other sites out, and counts replies."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, routes: Collection[str]
    ) -> None:
        self._app = app
        self._key = settings.api_key.encode() if settings.api_key is not None else None
        self._local = settings.local and settings.api_key is None
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self._routes else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.replies.labels(route, str(message["status"])).inc()
            await send(message)

        problem = self._problem(scope)
        if problem is None:
            await self._app(scope, receive, counted)
            return
        await _refusal(problem, scope)(scope, receive, counted)

    def _problem(self, scope: Scope) -> ApiError | None:
        if scope["path"] == HEALTH:
            return None
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._local and not _is_this_machine(host):
            # a page elsewhere whose name was made to point here
            return ApiError(
                403,
                f"the Host header is {host!r:.100}, and without an API key only this machine's own "
                "names are answered; give the server an API key to be reached by another name",
                code="host_refused",
            )
        if self._key is not None and not self._knows_key(headers.get("authorization", "")):
            return ApiError(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        return None

    def _knows_key(self, authorization: str) -> bool:
        assert self._key is not None
        scheme, _, given = authorization.partition(" ")
        shown = given.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            # browsers ask for a name and a password
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return secrets.compare_digest(shown, self._key)


def _refusal(problem: ApiError, scope: Scope) -> Response:
    shown = scope["path"] == PAGE and "text/html" in Headers(scope=scope).get("accept", "")
    if problem.status == 401 and shown:
        # the page has a field for the key, and with Basic browsers would ask before they show it
        headers = {**page.headers(), "www-authenticate": "Bearer"}
        return HTMLResponse(page.text(key=True), problem.status, headers)
    return JSONResponse(problem.body, problem.status, headers=problem.headers)


def _is_this_machine(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
