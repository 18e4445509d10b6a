"""Real RPC servers on loopback, and a relay before one that is cut after so many bytes."""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from llamaspec.ffi import LIBRARY_DIR
from llamaspec.runtime.remote import PROGRAM

BINARY = LIBRARY_DIR / PROGRAM
_PATIENCE_S = 120


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def rpc_server(port: int | None = None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of one thread; its address and process."""
    port = port or free_port()
    command = [str(BINARY), "-H", "127.0.0.1", "-p", str(port), "-t", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield f"127.0.0.1:{port}", process
        finally:
            process.kill()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{PROGRAM} ended with {process.returncode}"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.05)
    raise AssertionError(f"{PROGRAM} does not listen")


@contextmanager
def relay(server: str, most: int) -> Iterator[str]:
    """An address that hands on to a server, until a client has sent `most` bytes over all."""
    host, port = server.split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    left = [most]

    def pump(source: socket.socket, target: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if counted:
                    data = data[: max(left[0], 0)]
                    left[0] -= len(data)
                target.sendall(data)
                if counted and left[0] <= 0:
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.create_connection((host, int(port)))
                for arguments in ((client, upstream, True), (upstream, client, False)):
                    threading.Thread(target=pump, args=arguments, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """An address where every client gets the same bytes, and then the end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    client.recv(4096)
                    client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
