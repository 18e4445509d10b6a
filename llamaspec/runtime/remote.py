"""Servers of llama.cpp's RPC backend: devices of other machines, for layers of a target."""

import logging
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from llamaspec.endpoints import MOST, Endpoint
from llamaspec.errors import OptionError
from llamaspec.ffi import ffi, lib
from llamaspec.runtime import backend, log
from llamaspec.runtime.backend import Device

logger = logging.getLogger("llamaspec")

PROGRAM = "ggml-rpc-server"
REMOTE = "remote"
"""The kind of a server's device."""
_PATIENCE_S = 10.0
# the first message of the protocol, in all versions since 3: what both sides can, here nothing
_HELLO, _CAPABILITIES = 14, 24
_ANSWER = struct.Struct(f"<Q4B{_CAPABILITIES}x")

_lock = threading.Lock()
_devices: dict[str, Any] = {}


def connect(servers: Sequence[Endpoint]) -> list[Device]:
    """The devices of every server, which has answered.

    Raises:
        OptionError: one cannot be reached, is busy or speaks another version, or this build has
            no RPC backend.
    """
    if not servers:
        return []
    backend.initialise()
    found = [device for server in servers for device in _connect(server)]
    if len(found) > MOST:
        raise OptionError(f"the RPC servers have {len(found)} devices; llama.cpp takes {MOST}")
    return found


def pointer(name: str) -> Any:  # noqa: ANN401
    """The native device of a name that `connect` gave, or of a local one."""
    return _devices.get(name) or lib.ggml_backend_dev_by_name(name.encode())


def losses(server: str) -> int:
    """How many connections to HOST:PORT have been lost since the process began."""
    return int(lib.ls_rpc_lost(server.encode(), ffi.new("int *")))


def _connect(server: Endpoint) -> list[Device]:
    # a server talks to one client at a time: while one talks to us, it would not answer a probe
    if _is_open(server):
        found = _add(server)
        if _is_open(server):
            return found
    _probe(server)
    return _add(server)


def _is_open(server: Endpoint) -> bool:
    is_open = ffi.new("int *")
    lib.ls_rpc_lost(str(server).encode(), is_open)
    return bool(is_open[0])


def _add(server: Endpoint) -> list[Device]:
    pointers = ffi.new("ggml_backend_dev_t[]", MOST)
    count = lib.ls_rpc_add(str(server).encode(), pointers, MOST)
    lines = log.drain()
    if count < 0:
        raise OptionError(
            "this build has no RPC backend (--no-rpc); build again with python build.py"
        )
    if not count:
        raise OptionError(f"RPC server {server}: {log.reason(lines)}")
    found = [_device(pointers[i], str(server)) for i in range(min(count, MOST))]
    # what a connection says that turned out to be lost is said elsewhere
    log.drain()
    return found


def _device(native: Any, server: str) -> Device:  # noqa: ANN401
    free, total = ffi.new("size_t *"), ffi.new("size_t *")
    lib.ggml_backend_dev_memory(native, free, total)
    name = ffi.string(lib.ggml_backend_dev_name(native)).decode()
    with _lock:
        _devices[name] = native
    return Device(name, server, REMOTE, free[0], total[0])


def _probe(server: Endpoint) -> None:
    """Say hello in place of llama.cpp, which waits without end for a server that is busy."""
    try:
        version = _hello(server)
    except TimeoutError:
        raise OptionError(
            f"RPC server {server}: no answer within {_PATIENCE_S:.0f} s; one server serves one "
            "process at a time: end the other one, or start a second server"
        ) from None
    except OSError as error:
        raise OptionError(
            f"RPC server {server}: {error.strerror or error}; start it there with {PROGRAM} -H "
            f"ADDRESS -p {server.port}"
        ) from None
    wanted = lib.RPC_PROTO_MAJOR_VERSION, lib.RPC_PROTO_MINOR_VERSION
    if version is None or version[0] != wanted[0] or version[1] > wanted[1]:
        theirs = "something else" if version is None else f"version {version[0]}.{version[1]}"
        raise OptionError(
            f"RPC server {server} speaks {theirs}, this build version {wanted[0]}.{wanted[1]} of "
            f"the protocol; run the {PROGRAM} of the same llamaspec there"
        )


def _hello(server: Endpoint) -> tuple[int, int] | None:
    """The version that a server speaks; None where it is no such server."""
    found = socket.getaddrinfo(server.host, server.port, socket.AF_INET, socket.SOCK_STREAM)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as link:
        link.settimeout(_PATIENCE_S)
        link.connect(found[0][4])
        link.sendall(struct.pack(f"<BQ{_CAPABILITIES}x", _HELLO, _CAPABILITIES))
        answer = b""
        while len(answer) < _ANSWER.size:
            try:
                part = link.recv(_ANSWER.size - len(answer))
            except ConnectionResetError:
                return None
            if not part:
                return None
            answer += part
    size, major, minor, _, _ = _ANSWER.unpack(answer)
    return (major, minor) if size == _ANSWER.size - 8 else None
