"""The OpenAPI document, of the same types that check requests and replies."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from llamaspec._version import __version__
from llamaspec.serve import fields, replies

_TEMPLATE = "#/components/schemas/{model}"
_REFUSALS = {
    "400": "A field or value that cannot be honoured, named in the message; a prompt that is too "
    "long has the code context_length_exceeded.",
    "403": "A Host header that is not this machine's, of a server without an API key.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not application/json.",
    "429": "Too many requests wait already.",
    "503": "The server is shutting down, or the request took too long.",
}
_JSON = "application/json"


def document(*, key: bool) -> dict[str, Any]:
    """The document. key: requests need an API key."""
    schemas = _Schemas()
    problem = schemas.of(replies.ProblemReply)
    paths: dict[str, dict[str, Any]] = {}

    def path(name: str, method: str, text: str, ok: Any, body: Any = None) -> None:  # noqa: ANN401
        refused = _REFUSALS if body is not None else {"403": _REFUSALS["403"]}
        if key and name != "/health":
            refused = {"401": "The API key is missing or wrong.", **refused}
        found: dict[str, Any] = {
            "summary": text,
            "operationId": name.strip("/").replace("/", "_").replace(".", "_") or "page",
            "responses": {
                "200": {"description": "Done.", "content": ok},
                **{
                    status: {"description": why, "content": {_JSON: {"schema": problem}}}
                    for status, why in refused.items()
                },
            },
        }
        if key and name == "/":
            found["responses"]["401"]["content"] |= ok
        if body is not None:
            found["requestBody"] = {
                "required": True,
                "content": {_JSON: {"schema": schemas.of(body)}},
            }
        if key and name == "/health":
            found["security"] = []
        paths.setdefault(name, {})[method] = found

    def reply(kind: Any) -> dict[str, Any]:  # noqa: ANN401
        return {_JSON: {"schema": schemas.of(kind)}}

    text: dict[str, Any] = {"schema": {"type": "string"}}
    events = {"text/event-stream": text}
    chat, completions = fields.ChatRequest, fields.CompletionRequest
    path("/v1/chat/completions", "post", "Answer a chat.", reply(replies.ChatReply) | events, chat)
    path(
        "/v1/completions",
        "post",
        "Complete prompts.",
        reply(replies.TextReply) | events,
        completions,
    )
    path("/v1/models", "get", "The served model.", reply(replies.ModelsReply))
    path(
        "/tokenize",
        "post",
        "Text or messages to token ids.",
        reply(replies.TokenizeReply),
        fields.TokenizeRequest,
    )
    path(
        "/detokenize",
        "post",
        "Token ids to text.",
        reply(replies.DetokenizeReply),
        fields.DetokenizeRequest,
    )
    path("/health", "get", "Whether the server answers.", reply(replies.HealthReply))
    path("/metrics", "get", "Figures for Prometheus.", {"text/plain": text})
    path("/openapi.json", "get", "This document.", {_JSON: {"schema": {"type": "object"}}})
    path("/", "get", "The built-in page.", {"text/html": text})
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "llamaspec",
            "version": __version__,
            "description": "Completions with speculative decoding, by the names of OpenAI's API.",
        },
        "paths": paths,
        "components": {"schemas": schemas.found},
    }
    if key:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"key": []}]
    return found


class _Schemas:
    """Collects JSON schemas by name."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, str]:  # noqa: ANN401
        """A reference to the schema of a type."""
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            schema: Mapping[str, Any] = kind.model_json_schema(ref_template=_TEMPLATE)
        else:
            schema = TypeAdapter(kind).json_schema(ref_template=_TEMPLATE)
        own = {name: value for name, value in schema.items() if name != "$defs"}
        self.found |= schema.get("$defs", {})
        name = str(kind.__name__)
        self.found[name] = own
        return {"$ref": _TEMPLATE.format(model=name)}
