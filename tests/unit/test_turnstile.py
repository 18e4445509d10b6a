"""The fair lock: one at a time, in the order of coming."""

import threading
import time
from collections.abc import Callable

import pytest

from llamaspec.turnstile import Turnstile

MANY = 200


def started(*targets: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def test_only_one_thread_is_inside() -> None:
    lock, inside, most, total = Turnstile(), 0, 0, 0

    def work() -> None:
        nonlocal inside, most, total
        for _ in range(MANY):
            with lock, lock:
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                total += 1
                inside -= 1

    for thread in started(*[work] * 8):
        thread.join()
    assert (most, total) == (1, 8 * MANY)


def test_who_waits_is_served_before_who_comes_again() -> None:
    lock, order = Turnstile(), list[str]()
    lock.acquire()

    def other() -> None:
        with lock:
            order.append("other")

    (thread,) = started(other)
    while not lock._waiting:
        time.sleep(0.001)
    lock.release()
    with lock:
        order.append("again")
    thread.join()
    assert order == ["other", "again"]


def test_trying_does_not_wait_and_works_for_the_owner() -> None:
    lock, found = Turnstile(), list[bool]()
    with lock:
        (thread,) = started(lambda: found.append(lock.acquire(blocking=False)))
        thread.join()
        assert lock.acquire(blocking=False)
        lock.release()
    assert found == [False]
    assert lock.acquire(blocking=False)


def test_who_gives_up_waiting_leaves_the_lock_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, failed = Turnstile(), list[str]()
    lock.acquire()
    plain = threading.Lock

    class Interrupted:
        """A lock whose second taking is interrupted."""

        def __init__(self) -> None:
            self._lock, self._count = plain(), 0

        def acquire(self) -> None:
            self._count += 1
            if self._count == 2:
                raise KeyboardInterrupt
            self._lock.acquire()

        def release(self) -> None:
            self._lock.release()

    def other() -> None:
        monkeypatch.setattr(threading, "Lock", Interrupted)
        try:
            lock.acquire()
        except KeyboardInterrupt:
            failed.append("interrupted")
        finally:
            monkeypatch.undo()

    (thread,) = started(other)
    thread.join()
    assert failed == ["interrupted"]
    lock.release()
    assert lock.acquire(blocking=False)
