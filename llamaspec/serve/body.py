"""From the bytes of a request to its fields, with nothing in them that could do harm."""

import asyncio
import json
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from llamaspec.serve.problems import ApiError

MAX_DEPTH = 100
BODY_S = 30.0
_SHOWN = 5

B = TypeVar("B", bound=BaseModel)


async def read(request: Request, kind: type[B], most: int) -> B:
    """Read and check a body of at most `most` bytes. Raises ApiError that names what is wrong."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        # a page elsewhere cannot send this type without asking first
        raise ApiError(
            415, f"the Content-Type is {content_type!r:.80}; it must be application/json"
        )
    try:
        async with asyncio.timeout(BODY_S):
            raw = await _bytes(request, most)
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_S:.0f} s") from None
    except ClientDisconnect:
        raise ApiError(400, "the client left before its body was complete") from None
    # a large body takes longer to parse than other requests may wait
    parse = parsed if len(raw) < 2**16 else None
    return parsed(raw, kind) if parse else await asyncio.to_thread(parsed, raw, kind)


async def _bytes(request: Request, most: int) -> bytes:
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and len(stated) < 20 and int(stated) > most:
        raise _too_large(most)
    chunks, length = [], 0
    async for chunk in request.stream():
        length += len(chunk)
        if length > most:
            raise _too_large(most)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes", code="body_too_large")


def parsed(raw: bytes, kind: type[B]) -> B:
    """A body as fields of its kind. Raises ApiError."""
    found = load_json(raw)
    if not isinstance(found, dict):
        raise ApiError(400, f"the body is a JSON {type(found).__name__}; it must be an object")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise _refusal(error, kind) from None


def load_json(raw: bytes) -> Any:  # noqa: ANN401
    """JSON without NaN, infinities, nesting beyond reason or half characters. Raises ApiError."""
    try:
        found = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except RecursionError:
        raise ApiError(400, f"the body is nested more than {MAX_DEPTH} deep") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is no JSON: {error}"[:300], code="invalid_json") from None
    _check(found)
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _check(value: object) -> None:
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[object] = []
        for item in level:
            if isinstance(item, dict):
                deeper += item.keys()
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
            elif isinstance(item, str):
                _check_text(item)
            elif isinstance(item, float) and item in (float("inf"), -float("inf")):
                raise ApiError(400, "a number of the body is too large", code="invalid_json")
        if not deeper:
            return
        level = deeper
    raise ApiError(400, f"the body is nested more than {MAX_DEPTH} deep")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(
            400, "a text of the body has a lone surrogate", code="invalid_json"
        ) from None


def _refusal(error: ValidationError, kind: type[BaseModel]) -> ApiError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    unknown = [_place(e["loc"]) for e in found if e["type"] == "extra_forbidden"]
    if unknown:
        names = ", ".join(unknown[:_SHOWN])
        known = ", ".join(kind.model_fields)
        return ApiError(
            400,
            f"unknown or unsupported: {names}; known fields of the body are {known}",
            code="unknown_parameter",
            param=unknown[0],
        )
    places: dict[str, str] = {}
    for one in found:
        places.setdefault(_place(one["loc"]), one["msg"])
    text = "; ".join(f"{place}: {reason}" for place, reason in list(places.items())[:_SHOWN])
    kind_of = "missing_parameter" if found[0]["type"] == "missing" else "invalid_value"
    return ApiError(400, text, code=kind_of, param=next(iter(places)))


def _place(path: tuple[int | str, ...]) -> str:
    """Where in the body, without the names of pydantic's own alternatives."""
    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier() and part not in _ALTERNATIVES:
            parts.append(f".{part}" if parts else part)
        elif not parts:
            parts.append(part[:80])
    return "".join(parts)[:200] or "body"


_ALTERNATIVES = frozenset({"str", "int", "constrained", "NamedTool"})
