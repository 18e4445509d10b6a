"""Ownership of native objects: one base, released once, children before parents."""

import weakref
from collections.abc import Callable
from typing import Any, Self

from llamaspec.errors import ClosedError


def _release(
    free: Callable[[Any], None], held: list[Any], owners: tuple["NativeHandle", ...]
) -> None:
    # owners is only held, not used: it keeps parents alive until this child is gone
    free(held.pop())


class NativeHandle:
    """A native pointer with one release.

    `close()` may be called any number of times; closing a parent closes its children first. An
    object that is dropped without `close()` is released by the garbage collector or at exit,
    parents after children.
    """

    def __init__(
        self,
        ptr: Any,  # noqa: ANN401
        free: Callable[[Any], None],
        *owners: "NativeHandle",
    ) -> None:
        # a list, so that a release at exit, which does not come through close(), shows as well
        self._held = [ptr]
        self._children: weakref.WeakSet[NativeHandle] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, _release, free, self._held, owners)
        for owner in owners:
            owner._children.add(self)

    @property
    def ptr(self) -> Any:  # noqa: ANN401
        """The native pointer; raises ClosedError once it has been released."""
        if self._held:
            return self._held[0]
        raise ClosedError(f"this {type(self).__name__} is closed; load it again to use it")

    @property
    def closed(self) -> bool:
        """Released by `close`, or at the interpreter's exit while objects are still around."""
        return not self._held

    def close(self) -> None:
        """Release the native object and everything that depends on it."""
        for child in list(self._children):
            child.close()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
