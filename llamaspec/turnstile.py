"""A lock that is fair: a thread that takes it again and again would keep all others out of Python's
own.
"""

import threading
from collections import deque
from types import TracebackType


class Turnstile:
    """A reentrant lock, given to those who wait in the order in which they came."""

    def __init__(self) -> None:
        # reentrant: the garbage collector may close a stream anywhere, and that tries the lock
        self._gate = threading.RLock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()
        self._owner: int | None = None
        self._depth = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        """Take the lock; return whether it was taken."""
        me, turn = threading.get_ident(), threading.Lock()
        turn.acquire()
        ticket = me, turn
        with self._gate:
            if self._owner in (None, me):
                self._owner = me
                self._depth += 1
                return True
            if not blocking:
                return False
            self._waiting.append(ticket)
        try:
            turn.acquire()
        except BaseException:
            with self._gate:
                mine = ticket not in self._waiting
                if not mine:
                    self._waiting.remove(ticket)
            if mine:
                self.release()
            raise
        return True

    def release(self) -> None:
        """Give the lock back, and so to who has waited longest."""
        with self._gate:
            if self._depth > 1 or not self._waiting:
                self._depth -= 1
                self._owner = self._owner if self._depth else None
                return
            self._owner, turn = self._waiting.popleft()
            turn.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()
