"""The texts of one request, as they come, and the end of all of them when nobody listens."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from llamaspec.completion import Completion, Piece
from llamaspec.options import GenerateSettings
from llamaspec.runtime.arrays import IntArray
from llamaspec.serve.served import Served
from llamaspec.streams import AsyncStream

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
Job = tuple[IntArray, GenerateSettings]
Event = tuple[int, Piece | Completion]

_AHEAD = 32
"""Pieces that a slow reader may be behind; then its text waits."""
_LATE_S = 30.0
"""Beyond the time limit: a text that has not even begun is given up then."""


class GoneError(Exception):
    """The client left."""


class Deadline:
    """Ends texts when their time is over. Texts under way end with what there is."""

    def __init__(self, seconds: float) -> None:
        self.cancel = threading.Event()
        loop = asyncio.get_running_loop()
        self.last = loop.time() + seconds + _LATE_S
        self._timer = loop.call_later(seconds, self.cancel.set)

    def check(self) -> None:
        """Raises TimeoutError for a text that is to be given up."""
        if asyncio.get_running_loop().time() > self.last:
            raise TimeoutError

    def close(self) -> None:
        """Let go of the timer, and end what still runs."""
        self._timer.cancel()
        self.cancel.set()


async def complete(served: Served, jobs: Sequence[Job]) -> list[Completion]:
    """All texts, when all are done; one that fails ends the others."""
    deadline = Deadline(served.settings.timeout_s)
    try:
        async with asyncio.timeout_at(deadline.last):
            async with _Group() as group:
                tasks = [
                    group.start(served.session.agenerate(ids, cancel=deadline.cancel, **options))
                    for ids, options in jobs
                ]
                return [await task for task in tasks]
    finally:
        deadline.close()


class Single:
    """As `Streams`, of one text: nobody stands between it and its reader."""

    def __init__(self, served: Served, job: Job) -> None:
        self._served = served
        self._job = job
        self._first: asyncio.Task[Piece] | None = None
        self._begun = False

    async def __aenter__(self) -> Self:
        ids, options = self._job
        self._deadline = Deadline(self._served.settings.timeout_s)
        try:
            cancel = self._deadline.cancel
            self._stream = self._served.session.astream(ids, cancel=cancel, **options)
        except BaseException:
            self._deadline.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._deadline.close()
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._stream.aclose()

    async def next(self, seconds: float) -> Event | None:
        """As `Streams.next`."""
        self._deadline.check()
        try:
            if not self._begun:
                return await self._begin(seconds)
            async with asyncio.timeout(seconds):
                return 0, await anext(self._stream)
        except TimeoutError:
            return None
        except StopAsyncIteration:
            return 0, self._stream.completion

    async def _begin(self, seconds: float) -> Event | None:
        # a text that is being taken in must not be given up because it is silent
        if self._first is None:
            self._first = asyncio.ensure_future(_following(self._stream))
        await asyncio.wait({self._first}, timeout=seconds)
        if not self._first.done():
            return None
        self._begun = True
        return 0, self._first.result()


class Streams:
    """Texts under way, whose pieces come in one line. An asynchronous context manager: leaving it
    frees their places.
    """

    def __init__(self, served: Served, jobs: Sequence[Job]) -> None:
        self._served = served
        self._jobs = jobs
        self._events: asyncio.Queue[tuple[int, Piece | Completion | Exception]] = asyncio.Queue(
            _AHEAD
        )
        self._group = _Group()

    async def __aenter__(self) -> Self:
        self._deadline = Deadline(self._served.settings.timeout_s)
        for index, (ids, options) in enumerate(self._jobs):
            self._group.start(self._pump(index, ids, options))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._deadline.close()
        await self._group.__aexit__(kind, error, traceback)

    async def next(self, seconds: float) -> Event | None:
        """What comes next: a piece of text `index`, or the whole when it is over; None where
        nothing came in time. Raises what a text failed with.
        """
        self._deadline.check()
        try:
            async with asyncio.timeout(seconds):
                index, found = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(found, Exception):
            raise found
        return index, found

    async def _pump(self, index: int, ids: IntArray, options: GenerateSettings) -> None:
        try:
            stream = self._served.session.astream(ids, cancel=self._deadline.cancel, **options)
            try:
                async for piece in stream:
                    await self._events.put((index, piece))
                await self._events.put((index, stream.completion))
            finally:
                await stream.aclose()
        except Exception as error:
            await self._events.put((index, error))


async def _following(stream: AsyncStream) -> Piece:
    try:
        return await anext(stream)
    except StopAsyncIteration:
        # a task cannot end with that
        return Piece("", ())


class _Group:
    """Tasks that end together, without wrapping what they raise."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do the work unless the client leaves meanwhile. Raises GoneError then, when the work has
    ended.
    """
    async with _Group() as group:
        task = group.start(work)
        gone = group.start(_gone(receive))
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError
        return task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
