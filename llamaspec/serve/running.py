"""The server itself: a bound port, a loaded pair, and an end within bounded time."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from llamaspec.errors import OptionError
from llamaspec.serve.settings import ServeSettings

_BACKLOG = 512
_IDLE_S = 65


def bind(settings: ServeSettings) -> socket.socket:
    """Take the port before anything is loaded. Raises OptionError where it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise OptionError(
            f"{settings.host} is no address to listen at ({error.strerror or error})"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OptionError(
            f"port {settings.port} of {settings.host} cannot be had ({error.strerror}); choose "
            "another with --port"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a bound server answers."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(
    app: Starlette, listener: socket.socket, settings: ServeSettings, ready: Callable[[], None]
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way get `grace_s` to finish and end then.

    ready: called once the server answers.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=int(max(1, settings.grace_s)),
        server_header=False,
        proxy_headers=False,
        ws="none",
    )
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    with _quiet_end(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_Server(config, ready).serve(sockets=[listener]))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where there is one; asyncio's own serves as well, with more of the processor."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()


@contextmanager
def _quiet_end() -> Iterator[None]:
    """uvicorn raises the signal that ended it again when it is done; being told to stop and having
    stopped is no failure.
    """
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda *_: None) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    # requests that did not finish within the grace are ended, as announced
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def memory_bytes() -> int:
    """What this process holds of memory; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0
    import resource

    return int(fields[1]) * resource.getpagesize()
