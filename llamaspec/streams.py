"""Completions for asyncio: one thread moves them on, and wakes the tasks that read them."""

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Self

from llamaspec.completion import Completion, Piece, Run
from llamaspec.errors import ClosedError, LlamaSpecError
from llamaspec.running import Running

_CROWD = 16
"""Streams from which on pieces are held back as long as they may be."""


class AsyncStream:
    """The pieces of a completion, as they come: ``async for piece in stream``. To be read in one
    task.

    It starts when the first piece is asked for. Leaving it early, by `aclose` or when it is
    dropped, frees its place within a round. An error ends it: those of `Session.generate`, and
    QueueFullError.
    """

    def __init__(self, driver: "Driver", prepare: Callable[[], Run]) -> None:
        self._driver = driver
        self._prepare = prepare
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._pieces: deque[Piece] = deque()
        self._run: Run | None = None
        self._outcome: Completion | Exception | None = None
        self._left = False

    @property
    def completion(self) -> Completion:
        """The whole, once the pieces have come to their end. Raises what ended it otherwise."""
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is None:
            raise LlamaSpecError("this completion is still under way; read its pieces first")
        return self._outcome

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        if self._loop is None:
            await self._start()
        while not self._pieces:
            if self._outcome is not None:
                # who reads on after an error gets it again
                _ = self.completion
                raise StopAsyncIteration
            if self._left:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._pieces.popleft()

    async def aclose(self) -> None:
        """Leave it. A second call does nothing."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._begin)
        except LlamaSpecError as error:
            self._outcome = error
            raise
        except BaseException:
            self._leave()
            raise

    def _begin(self) -> None:
        run = self._run = self._prepare()
        if not self._left:
            self._driver.add(run, self)
        if self._left:
            self._driver.drop(run)

    def _leave(self) -> None:
        self._left = True
        if self._run is not None and self._outcome is None:
            self._driver.drop(self._run)

    def take(self, run: Run) -> bool:
        """In the driver's thread: take what has come; return whether that is news."""
        piece = run.take()
        if piece is not None:
            self._pieces.append(piece)
        if run.ended:
            try:
                self._outcome = run.completion()
            except LlamaSpecError as error:
                self._outcome = error
        return run.ended or piece is not None

    def end(self, error: LlamaSpecError) -> None:
        """In the driver's thread: nothing more will come."""
        self._outcome = self._outcome or error


class Driver:
    """Makes the steps for all streams of a session, in a thread that ends with the session.

    A step that fails is tried once more; what fails twice in a row ends every text that had a
    place.

    every_s: seconds for which pieces may be held back to be handed out together, less for fewer
    than 16 streams; what begins and what ends a text is not.
    """

    def __init__(self, running: Running, finished: Callable[[Completion], None]) -> None:
        self.every_s = 0.0
        self._handed_out = 0.0
        self._running = running
        self._finished = finished
        self._change = threading.Condition()
        # weakly: a stream that nobody holds any longer is to leave
        self._streams: dict[Run, weakref.ref[AsyncStream]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def add(self, run: Run, stream: AsyncStream) -> None:
        """Move a run on from now on. Raises QueueFullError and ClosedError."""
        self._running.submit(run)
        with self._change:
            self._streams[run] = weakref.ref(stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._drive, name="llamaspec", daemon=True)
                self._thread.start()
            self._change.notify()

    def drop(self, run: Run) -> None:
        """Nobody reads a run any longer. May be called from anywhere, and waits for nobody."""
        self._running.leave(run)

    def stop(self) -> None:
        """End the thread and all streams; returns after the step under way."""
        with self._change:
            self._stopped = True
            self._change.notify()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _drive(self) -> None:
        failures = 0
        while self._wait():
            # what a step has brought is taken before anybody else makes one
            with self._running.lock:
                failures = 0 if self._step(last=failures > 0) else failures + 1
                told = self._take()
            _wake(told)
            # only who reads a stream may keep it alive
            del told
        streams = [stream for ref in self._streams.values() if (stream := ref()) is not None]
        for stream in streams:
            stream.end(ClosedError("the session was closed before this completion ended"))
        _wake(streams)

    def _wait(self) -> bool:
        """Wait for something to do; return whether there is to be more."""
        with self._change:
            while not self._stopped and not self._streams:
                self._change.wait()
            return not self._stopped

    def _step(self, *, last: bool) -> bool:
        try:
            self._running.step()
        except Exception as error:
            if last:
                if not isinstance(error, LlamaSpecError):
                    error = LlamaSpecError(f"a step failed: {error}")
                self._running.fail(list(self._streams), error)
            return False
        return True

    def _take(self) -> list[AsyncStream]:
        """Hand out what has come; return the streams with news."""
        told = []
        with self._change:
            streams = list(self._streams.items())
        now = time.monotonic()
        due = now - self._handed_out >= self.every_s * min(1.0, len(streams) / _CROWD)
        if due:
            self._handed_out = now
        for run, ref in streams:
            if not (due or run.ended or run.taken == 0):
                continue
            stream = ref()
            if stream is not None and stream.take(run):
                told.append(stream)
            if run.ended or stream is None:
                with self._change:
                    del self._streams[run]
                self._running.leave(run)
            if run.ended and stream is not None and run.finished:
                self._finished(stream.completion)
        return told


def _wake(streams: list[AsyncStream]) -> None:
    """Tell the tasks that read these streams, with one call for each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[AsyncStream]] = {}
    for stream in streams:
        if stream._loop is not None:
            loops.setdefault(stream._loop, []).append(stream)
    for loop, readers in loops.items():
        # a loop that was closed has no tasks left
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set, [reader._news for reader in readers])


def _set(events: list[asyncio.Event]) -> None:
    for event in events:
        event.set()
