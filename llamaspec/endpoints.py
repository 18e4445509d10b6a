"""Addresses of other machines, as a user gives them: HOST:PORT, separated by commas."""

import re
from dataclasses import dataclass

from llamaspec.errors import OptionError

MOST = 15
"""llama.cpp's own limit: it schedules 16 devices, and the processor here is one."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def endpoints(option: str, text: str) -> tuple[Endpoint, ...]:
    """The addresses in a list. option: its name, for the error.

    Raises:
        OptionError: one is not HOST:PORT, is there twice, or is an IPv6 address.
    """
    if not isinstance(text, str):
        raise OptionError(f"{option} is {text!r}; it must be HOST:PORT, or several with commas")
    found = tuple(_endpoint(option, part.strip()) for part in text.split(","))
    for endpoint in found:
        if found.count(endpoint) > 1:
            raise OptionError(f"{option} {text!r} names {endpoint} twice")
    if len(found) > MOST:
        raise OptionError(f"{option} names {len(found)} servers; llama.cpp takes {MOST}")
    return found


def _endpoint(option: str, text: str) -> Endpoint:
    if "[" in text or text.count(":") > 1:
        raise OptionError(
            f"{option} {text!r}: llama.cpp reaches RPC servers over IPv4 only; give a name or an "
            "IPv4 address"
        )
    host, _, port = text.partition(":")
    if not _HOST.fullmatch(host) or not port.isascii() or not port.isdecimal():
        raise OptionError(f"{option} {text!r} is not HOST:PORT, such as 10.0.0.2:50052")
    if not 0 < int(port[:6]) < 65536:
        raise OptionError(f"{option} {text!r}: port {port} is not in 1 to 65535")
    return Endpoint(host, int(port))
