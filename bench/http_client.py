"""A client of servers under load: as little work for each request as can be, in one process."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. status: of HTTP, 0 where this side left. text: of a chat. tokens: by the
    server's own count. first_s: until the first text of a stream; whole_s: until the end. whole:
    the stream came to its end. ids: of tokens, where the server gives them.
    """

    status: int
    text: str = ""
    tokens: int = 0
    first_s: float = 0.0
    whole_s: float = 0.0
    whole: bool = False
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server answers."""

    host: str
    port: int

    async def chat(
        self, body: bytes, *, leave_after: int | None = None, seconds: float = 600
    ) -> Answer:
        """Stream a chat. leave_after: pieces after which the connection is cut."""
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_LIMIT)
            try:
                started = time.perf_counter()
                writer.write(self._head("/v1/chat/completions", len(body)) + body)
                status, chunked = await _status(reader)
                if status != 200:
                    await reader.read()
                    return Answer(status, whole_s=time.perf_counter() - started)
                return await _Reading(started, leave_after).read(reader, chunked)
            finally:
                # a cut that the server sees at once, with nothing left to be read
                writer.transport.abort()

    async def get(self, path: str, seconds: float = 60) -> str:
        """The body of a GET."""
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_LIMIT)
            try:
                head = f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode())
                await _status(reader)
                return (await reader.read()).decode("utf-8", "replace")
            finally:
                writer.transport.abort()

    def _head(self, path: str, length: int) -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()


async def _status(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Status, and whether the body comes in chunks."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    return int(head.split(" ", 2)[1]), "transfer-encoding: chunked" in head


@dataclass
class _Reading:
    """The events of one stream."""

    started: float
    leave_after: int | None

    async def read(self, reader: asyncio.StreamReader, chunked: bool) -> Answer:
        texts: list[str] = []
        ids: list[int] = []
        first = tokens = 0
        first_s, whole = 0.0, False
        buffer = b""
        while part := await _part(reader, chunked):
            *events, buffer = (buffer + part).split(b"\n\n")
            for event in events:
                if event == b"data: [DONE]":
                    whole = True
                elif event.startswith(b"data: "):
                    found = json.loads(event[6:])
                    text = _text(found)
                    ids += (found.get("llamaspec") or {}).get("token_ids", ())
                    if text:
                        texts.append(text)
                        first_s = first_s or time.perf_counter() - self.started
                        first += 1
                    tokens = (found.get("usage") or {}).get("completion_tokens", tokens)
            if self.leave_after is not None and first >= self.leave_after:
                return Answer(0, "".join(texts))
        whole_s = time.perf_counter() - self.started
        return Answer(200, "".join(texts), tokens, first_s, whole_s, whole, tuple(ids))


async def _part(reader: asyncio.StreamReader, chunked: bool) -> bytes:
    if not chunked:
        return await reader.read(_LIMIT)
    size = int((await reader.readline()).strip() or b"0", 16)
    data = await reader.readexactly(size)
    await reader.readline()
    return data


def _text(found: dict[str, Any]) -> str:
    choices = found.get("choices") or ()
    return (choices[0].get("delta", {}).get("content") or "") if choices else ""


async def in_turn(work: list[Callable[[], Any]], concurrency: int) -> list[Any]:
    """Do all work, so much of it at once; results in order. An error is a result."""
    results: list[Any] = [None] * len(work)
    waiting = iter(enumerate(work))

    async def one() -> None:
        for index, make in waiting:
            try:
                results[index] = await make()
            except Exception as error:
                results[index] = error

    await asyncio.gather(*(one() for _ in range(concurrency)))
    return results
